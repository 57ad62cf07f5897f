//! Products: equal bits on every instruction set and in every grouping, and close to exact ones.

use half::{bf16, f16};
use paceline_gguf::TensorType;
use proptest::prelude::*;

use super::*;
use crate::blocks::{self, Block, GROUP_VALUES, dequantize_row, integer};

type TestResult = Result<(), TestCaseError>;

#[test]
fn packed_weights_take_what_planners_reckon_with() {
    for kind in TensorType::ALL {
        let packed = PackedWeight::zeroed(kind, 2, PANEL_ROWS, 4 * kind.block_len()).unwrap();
        assert_eq!(packed.bytes(), 2 * PANEL_ROWS * 4 * kind.packed_block_bytes(), "{kind}");
    }
}

/// A random product: a matrix as in a model file, and rows of activations.
#[derive(Clone, Debug)]
struct Case {
    kind: TensorType,
    weight_rows: usize,
    columns: usize,
    bytes: Vec<u8>,
    input_rows: usize,
    input: Vec<f32>,
}

/// Where the `f16` of a block are, which must be finite; other bytes may be anything.
fn half_float_offsets(kind: TensorType) -> &'static [usize] {
    match kind {
        TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
        TensorType::Iq4Nl | TensorType::Iq4Xs => &[0],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
        TensorType::Q2K => &[80, 82],
        TensorType::Q3K => &[108],
        TensorType::Q6K => &[208],
        TensorType::F32 | TensorType::F16 | TensorType::BF16 | TensorType::Mxfp4 => &[],
    }
}

fn make_valid(kind: TensorType, bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(kind.block_bytes()) {
        let seed = f32::from(block[0]) / 256.0 + f32::from(block[1]) / 65536.0 - 0.5;
        match kind {
            TensorType::F32 => block.copy_from_slice(&seed.to_le_bytes()),
            TensorType::F16 => block.copy_from_slice(&f16::from_f32(seed).to_le_bytes()),
            TensorType::BF16 => block.copy_from_slice(&bf16::from_f32(seed).to_le_bytes()),
            TensorType::Mxfp4 => block[0] = 110 + block[0] % 20,
            _ => {
                for &offset in half_float_offsets(kind) {
                    let value = f32::from(block[offset].cast_signed()) / 1000.0;
                    block[offset..][..2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
                }
            }
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let kinds = proptest::sample::select(TensorType::ALL.to_vec());
    (kinds, 1usize..70, 1usize..4, 1usize..20, any::<u64>()).prop_map(
        |(kind, weight_rows, blocks, input_rows, seed)| {
            let columns = if blocks::is_quantized(kind) { kind.block_len() * blocks } else { 1 + (seed % 77) as usize };
            let mut random = Random(seed | 1);
            let mut bytes = vec![0; weight_rows * kind.bytes_for(columns)];
            bytes.fill_with(|| random.next() as u8);
            make_valid(kind, &mut bytes);
            let mut input = vec![0.0; input_rows * columns];
            input.fill_with(|| (random.next() as i32) as f32 / 1e9);
            // Whole blocks of zeros, and values of other sizes.
            for (i, x) in input.iter_mut().enumerate() {
                *x *= [1.0, 0.0, 100.0, 0.001][i / INPUT_BLOCK % 4];
            }
            Case { kind, weight_rows, columns, bytes, input_rows, input }
        },
    )
}

/// A small generator (xorshift), as random bytes by the thousand are slow to shrink.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }
}

impl Case {
    fn pack(&self) -> PackedWeight {
        PackedWeight::pack(self.kind, self.weight_rows, self.columns, &self.bytes).unwrap()
    }

    fn quantized(&self, isa: Isa) -> Vec<QuantizedBlock> {
        if !blocks::is_quantized(self.kind) {
            return Vec::new();
        }
        let mut quantized = vec![QuantizedBlock::default(); self.input.len() / INPUT_BLOCK];
        quantize(isa, &self.input, &mut quantized);
        quantized
    }

    /// Products of all panels and the given rows, over an output that held `old`.
    fn multiply(&self, isa: Isa, rows: Rows<'_>, old: f32, accumulate: bool) -> Vec<f32> {
        let weight = self.pack();
        let quantized = self.quantized(isa);
        let input = self.as_input(&quantized);
        let mut products = vec![old; self.input_rows * self.weight_rows];
        let mut output = OutputRows::new(&mut products, self.weight_rows, accumulate);
        linear(isa, &weight, 0, 0..weight.panels(), input, rows, &mut output);
        products
    }

    fn as_input<'a>(&'a self, quantized: &'a [QuantizedBlock]) -> Input<'a> {
        if blocks::is_quantized(self.kind) { Input::Quantized(quantized) } else { Input::Float(&self.input) }
    }

    fn all(&self, isa: Isa) -> Vec<f32> {
        self.multiply(isa, Rows::First(self.input_rows), f32::NAN, false)
    }

    /// The activations that the kernel multiplies, exactly.
    fn rounded_input(&self) -> Vec<f64> {
        if !blocks::is_quantized(self.kind) {
            return self.input.iter().map(|&x| f64::from(x)).collect();
        }
        let quantized = self.quantized(Isa::Scalar);
        let values = quantized.iter().flat_map(|block| {
            let scale = f64::from(block.scale);
            block.values.as_flattened().iter().map(move |&q| scale * f64::from(q))
        });
        values.collect()
    }

    /// One weight row in `f64`: for each column its value and the magnitudes that make it up.
    fn exact_row(&self, row: usize) -> Vec<(f64, f64)> {
        let row_bytes = self.kind.bytes_for(self.columns);
        let bytes = &self.bytes[row * row_bytes..][..row_bytes];
        if !blocks::is_quantized(self.kind) {
            let mut values = vec![0.0; self.columns];
            dequantize_row(self.kind, bytes, &mut values);
            return values.into_iter().map(|w| (f64::from(w), f64::from(w.abs()))).collect();
        }
        let blocks = bytes.chunks_exact(self.kind.block_bytes());
        let values = blocks.flat_map(|bytes| {
            let block = Block::read(self.kind, bytes);
            (0..self.kind.block_len()).map(move |i| exact_value(self.kind, &block, i))
        });
        values.collect()
    }
}

fn exact_value(kind: TensorType, block: &Block, i: usize) -> (f64, f64) {
    let group = i / GROUP_VALUES;
    let scale = f64::from(block.scale) * f64::from(block.scale_factors[group]);
    let minimum = f64::from(block.minimum) * f64::from(block.minimum_factors[group]);
    let product = scale * f64::from(integer(kind, block.codes[i]));
    (product - minimum, product.abs() + minimum.abs())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

macro_rules! for_each_isa {
    ($($isa:ident: $name:ident;)*) => {
        $(mod $name {
            use super::*;

            proptest! {
                #![proptest_config(ProptestConfig::with_cases(300))]

                #[test]
                fn equals_scalar(case in case()) {
                    if !is_available(Isa::$isa) {
                        return Ok(());
                    }
                    prop_assert_eq!(case.quantized(Isa::$isa), case.quantized(Isa::Scalar));
                    prop_assert_eq!(bits(&case.all(Isa::$isa)), bits(&case.all(Isa::Scalar)));
                }

                #[test]
                fn a_row_alone_is_the_same(case in case(), row in any::<prop::sample::Index>()) {
                    if !is_available(Isa::$isa) {
                        return Ok(());
                    }
                    check_row_alone(Isa::$isa, &case, row.index(case.input_rows))?;
                }

                #[test]
                fn panels_can_be_split(case in case(), at in any::<prop::sample::Index>()) {
                    if !is_available(Isa::$isa) {
                        return Ok(());
                    }
                    check_split(Isa::$isa, &case, at)?;
                }
            }
        })*
    };
}

for_each_isa! {
    Scalar: scalar;
    Avx2: avx2;
    Avx512: avx512;
}

fn is_available(isa: Isa) -> bool {
    if !isa.is_available() {
        eprintln!("skipped: no {isa}");
    }
    isa.is_available()
}

fn check_row_alone(isa: Isa, case: &Case, row: usize) -> TestResult {
    let together = case.all(isa);
    let pair = RowPair { input: row as u32, output: (case.input_rows - 1 - row) as u32 };
    let alone = case.multiply(isa, Rows::Listed(&[pair]), 7.0, false);
    for (output, found) in alone.chunks_exact(case.weight_rows).enumerate() {
        if output == pair.output as usize {
            let expected = &together[row * case.weight_rows..][..case.weight_rows];
            prop_assert_eq!(bits(found), bits(expected));
        } else {
            prop_assert!(found.iter().all(|&x| x == 7.0), "other rows are left alone");
        }
    }
    Ok(())
}

fn check_split(isa: Isa, case: &Case, at: prop::sample::Index) -> TestResult {
    let mut weight = PackedWeight::zeroed(case.kind, 1, case.weight_rows, case.columns).unwrap();
    let at = at.index(weight.panels() + 1);
    for mut part in weight.panels_mut(at.max(1)) {
        part.fill(&case.bytes).unwrap();
    }
    let quantized = case.quantized(isa);
    let input = case.as_input(&quantized);
    let rows = Rows::First(case.input_rows);
    let mut products = vec![0.5; case.input_rows * case.weight_rows];
    let mut output = OutputRows::new(&mut products, case.weight_rows, true);
    linear(isa, &weight, 0, at..weight.panels(), input, rows, &mut output);
    linear(isa, &weight, 0, 0..at, input, rows, &mut output);
    let expected: Vec<f32> = case.all(isa).into_iter().map(|x| 0.5 + x).collect();
    prop_assert_eq!(bits(&products), bits(&expected));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Only the additions round: two operations per block (or per column, for floats).
    #[test]
    fn close_to_exact(case in case()) {
        let products = case.all(Isa::detect());
        let input = case.rounded_input();
        for row in 0..case.weight_rows {
            let weights = case.exact_row(row);
            for (index, input) in input.chunks_exact(case.columns).enumerate() {
                let terms = weights.iter().zip(input);
                let (exact, size) = terms.fold((0.0, 0.0), |(exact, size), ((w, m), x)| {
                    (exact + w * x, size + m * x.abs())
                });
                let found = f64::from(products[index * case.weight_rows + row]);
                let steps = case.columns as f64 / if blocks::is_quantized(case.kind) { 4.0 } else { 1.0 };
                let bound = (steps + 4.0) * f64::from(f32::EPSILON) * size;
                prop_assert!((found - exact).abs() <= bound, "{found} is not {exact} ± {bound}");
            }
        }
    }

    /// A value moves by at most half a step of its block, 1/254 of the largest.
    #[test]
    fn quantizing_moves_values_by_half_a_step(case in case()) {
        prop_assume!(blocks::is_quantized(case.kind));
        let rounded = case.rounded_input();
        let blocks = case.input.chunks_exact(INPUT_BLOCK).zip(rounded.chunks_exact(INPUT_BLOCK));
        for (original, rounded) in blocks {
            let largest = original.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let bound = f64::from(largest) / 254.0 * 1.0001;
            for (x, y) in original.iter().zip(rounded) {
                prop_assert!((f64::from(*x) - y).abs() <= bound);
            }
        }
    }
}

#[test]
fn matrices_of_a_stack_are_independent() {
    let (kind, rows, columns) = (TensorType::Q4_1, 20, 64);
    let mut random = Random(99);
    let mut bytes = vec![0; 3 * rows * kind.bytes_for(columns)];
    bytes.fill_with(|| random.next() as u8);
    make_valid(kind, &mut bytes);
    let mut stack = PackedWeight::zeroed(kind, 3, rows, columns).unwrap();
    for mut part in stack.panels_mut(4) {
        part.fill(&bytes).unwrap();
    }
    let isa = Isa::detect();
    let values: Vec<f32> = (0..columns).map(|i| i as f32 - 20.0).collect();
    let mut input = vec![QuantizedBlock::default(); columns / INPUT_BLOCK];
    quantize(isa, &values, &mut input);
    let input = Input::Quantized(&input);
    for (matrix, bytes) in bytes.chunks_exact(bytes.len() / 3).enumerate() {
        let alone = PackedWeight::pack(kind, rows, columns, bytes).unwrap();
        let (mut found, mut expected) = ([0.0; 20], [0.0; 20]);
        let mut output = OutputRows::new(&mut found, rows, false);
        linear(isa, &stack, matrix, 0..2, input, Rows::First(1), &mut output);
        let mut output = OutputRows::new(&mut expected, rows, false);
        linear(isa, &alone, 0, 0..2, input, Rows::First(1), &mut output);
        assert_eq!(found, expected);
    }
}

#[test]
fn values_that_are_not_finite_make_nan() {
    let (kind, columns) = (TensorType::Q8_0, 64);
    let mut bytes = vec![3; 2 * kind.bytes_for(columns)];
    make_valid(kind, &mut bytes);
    let weight = PackedWeight::pack(kind, 2, columns, &bytes).unwrap();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for hostile in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 15, 16, 63] {
                let mut values = vec![1.0; columns];
                values[place] = hostile;
                let mut input = vec![QuantizedBlock::default(); 2];
                quantize(isa, &values, &mut input);
                let mut products = [0.0; 2];
                let mut output = OutputRows::new(&mut products, 2, false);
                let (input, rows) = (Input::Quantized(&input), Rows::First(1));
                linear(isa, &weight, 0, 0..1, input, rows, &mut output);
                assert!(products.iter().all(|x| x.is_nan()), "{hostile} at {place} on {isa}");
            }
        }
    }
}

#[test]
fn tiny_activations_stay_finite() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let mut input = [QuantizedBlock::default()];
        quantize(isa, &[1e-44; INPUT_BLOCK], &mut input);
        assert!(input[0].scale.is_finite() && input[0].scaled_sum.is_finite());
    }
}

#[test]
fn wrong_shapes_are_errors() {
    let partial = PackedWeight::pack(TensorType::Q4K, 16, 128, &[0; 16 * 72]);
    assert!(matches!(partial, Err(crate::Error::PartialBlock { columns: 128, .. })));
    let short = PackedWeight::pack(TensorType::Q8_0, 16, 32, &[0; 33]);
    assert!(matches!(short, Err(crate::Error::WrongLength { expected: 544, found: 33, .. })));
    let huge = PackedWeight::zeroed(TensorType::F32, usize::MAX, 1 << 20, 1 << 20);
    assert!(matches!(huge, Err(crate::Error::OutOfMemory { .. })));
    let empty = PackedWeight::pack(TensorType::Q8_0, 0, 32, &[]).unwrap();
    assert_eq!((empty.panels(), empty.bytes()), (0, 0));
}

/// Bits per weight in memory: what decoding has to read.
#[test]
fn panels_are_hardly_larger_than_the_file() {
    let table = [
        (TensorType::F32, 32.0),
        (TensorType::F16, 16.0),
        (TensorType::BF16, 16.0),
        (TensorType::Q4_0, 4.5),
        (TensorType::Q4_1, 5.0),
        (TensorType::Q5_0, 5.5),
        (TensorType::Q5_1, 6.0),
        (TensorType::Q8_0, 8.5),
        (TensorType::Q2K, 2.625),
        (TensorType::Q3K, 3.5625),
        (TensorType::Q4K, 4.625),
        (TensorType::Q5K, 5.625),
        (TensorType::Q6K, 6.5625),
        (TensorType::Iq4Nl, 4.5),
        (TensorType::Iq4Xs, 4.3125),
        (TensorType::Mxfp4, 4.5),
    ];
    for (kind, bits) in table {
        let weight = PackedWeight::zeroed(kind, 2, 32, 512).unwrap();
        assert_eq!(weight.bytes() as f64 * 8.0, bits * (2 * 32 * 512) as f64, "{kind}");
    }
}
