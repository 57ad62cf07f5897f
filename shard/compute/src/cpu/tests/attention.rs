//! Preparing keys and values, and attention.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;
use crate::blocks::NONLINEAR_INTEGERS;
use crate::program::{CacheSpec, Heads, Queries, Rope, RopeStyle, Rotation};

#[derive(Debug, Clone)]
struct Case {
    rows: Vec<usize>,
    key_heads: usize,
    group: usize,
    key_dim: usize,
    value_dim: usize,
    gated: bool,
    normed: bool,
    causal: bool,
    style: RopeStyle,
    rotating: usize,
    page_tokens: usize,
    kinds: [KvType; 2],
    /// Whether keys and values in blocks are rotated first.
    rotated: bool,
    seed: u64,
}

const EPSILON: f32 = 1e-6;

fn case() -> impl Strategy<Value = Case> {
    let kinds = prop::sample::select(KvType::ALL.to_vec());
    (
        (proptest::collection::vec(1usize..24, 1..4), 1usize..4, 1usize..6, 1usize..20),
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), 0usize..9),
        (1usize..20, kinds.clone(), kinds, any::<bool>(), 1u64..),
    )
        .prop_map(|((rows, key_heads, group, half_dim), (gated, normed, causal, adjacent, rotating), rest)| {
            let (page_tokens, key_kind, value_kind, rotated, seed) = rest;
            // Rows in blocks are whole blocks.
            let dim = |kind: KvType, dim| if kind.is_quantized() { 32 * (1 + half_dim % 4) } else { dim };
            let key_dim = dim(key_kind, 2 * half_dim);
            Case {
                rows,
                key_heads,
                group,
                key_dim,
                value_dim: dim(value_kind, if gated { key_dim } else { half_dim + 3 }),
                gated,
                normed,
                causal,
                style: if adjacent { RopeStyle::Adjacent } else { RopeStyle::Neox },
                rotating: (2 * rotating).min(key_dim),
                page_tokens,
                kinds: [key_kind, value_kind],
                rotated,
                seed,
            }
        })
}

/// The buffers of a case.
struct Buffers {
    query: Buffer,
    key: Buffer,
    value: Buffer,
    output: Buffer,
    norms: [Vec<f32>; 2],
}

impl Case {
    fn query_heads(&self) -> Heads {
        let stride = self.key_dim + if self.gated { self.value_dim } else { 0 };
        Heads { count: self.key_heads * self.group, dim: self.key_dim, stride }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.key_dim as f32).sqrt()
    }

    fn fixture(&self) -> (Fixture, Buffers) {
        let (mut fixture, mut random) = (Fixture::new(), Random(self.seed));
        let heads = self.query_heads();
        let query = fixture.buffer("query", heads.count * heads.stride);
        let key = fixture.buffer("key", self.key_heads * self.key_dim);
        let value = fixture.buffer("value", self.key_heads * self.value_dim);
        let output = fixture.buffer("output", heads.count * self.value_dim);
        let table = fixture.buffer("table", self.rotating);
        let norms = [random.values(self.key_dim, 2.0), random.values(self.key_dim, 2.0)];
        let [query_norm, key_norm] =
            [0, 1].map(|index| self.normed.then(|| fixture.vector(["query_norm", "key_norm"][index], &norms[index])));
        let (key_value_heads, key_dim, value_dim) = (self.key_heads, self.key_dim, self.value_dim);
        let cache = fixture.program.cache(CacheSpec { key_value_heads, key_dim, value_dim });
        let rope = Rope {
            style: self.style,
            dimensions: self.rotating,
            base: 100.0,
            factor: 1.0,
            yarn: None,
            sections: None,
            divisors: None,
        };
        fixture.record(Op::RopeTable { rope, output: table });
        fixture.record(Op::StoreKeysValues {
            queries: Some(Queries { buffer: query, heads, norm: query_norm }),
            key,
            value,
            key_norm,
            epsilon: EPSILON,
            rotation: Some(Rotation { style: self.style, table }),
            cache,
        });
        let gate_offset = self.gated.then_some(self.key_dim);
        let scale = self.scale();
        fixture.record(Op::Attention {
            query,
            query_heads: heads,
            gate_offset,
            scale,
            causal: self.causal,
            cache,
            output,
        });
        fixture.page_tokens = self.page_tokens;
        (fixture.kinds, fixture.rotated) = (self.kinds, self.rotated);
        fixture.sessions(&self.rows, &[(query, 2.0), (key, 2.0), (value, 1.0)], &mut random);
        (fixture, Buffers { query, key, value, output, norms })
    }

    fn rotate(&self, head: &mut [f64], position: usize) {
        for pair in 0..self.rotating / 2 {
            let (a, b) = match self.style {
                RopeStyle::Neox => (pair, pair + self.rotating / 2),
                RopeStyle::Adjacent => (2 * pair, 2 * pair + 1),
            };
            let angle = position as f64 * 100f64.powf(-2.0 * pair as f64 / self.rotating as f64);
            let (x, y) = (head[a], head[b]);
            head[a] = x * angle.cos() - y * angle.sin();
            head[b] = x * angle.sin() + y * angle.cos();
        }
    }

    /// A head of a row after norm and rotation.
    fn prepared(&self, head: &[f32], norm: &[f32], position: usize) -> Vec<f64> {
        let head = exact(head);
        let mut head = if self.normed { rms_norm(&head, &exact(norm), EPSILON) } else { head };
        self.rotate(&mut head, position);
        head
    }

    /// Rotated before it is rounded to blocks, if that is wanted; and rotated back, which is the same.
    fn mixed(&self, row: &[f64]) -> Vec<f64> {
        if self.rotated { hadamard(row) } else { row.to_vec() }
    }

    /// A row as it is stored.
    fn stored(&self, row: &[f64], kind: KvType) -> Vec<f64> {
        if kind.is_quantized() { round(&self.mixed(row), kind) } else { round(row, kind) }
    }

    /// The keys that a row sees; without causality those of its chunk, which is all rows.
    fn seen(&self, row: usize, rows: usize) -> usize {
        if self.causal { row + 1 } else { rows }
    }

    /// Attention of one session, straight from the definition.
    fn expected(&self, fixture: &Fixture, buffers: &Buffers, session: usize) -> Vec<f64> {
        let heads = self.query_heads();
        let rows = fixture.sessions[session].rows;
        let [query, key, value] = [buffers.query, buffers.key, buffers.value].map(|b| fixture.given(session, b));
        let head_of = |values: &[f32], row: usize, width: usize, start: usize, dim: usize| {
            values[row * width + start..][..dim].to_vec()
        };
        let mut output = Vec::new();
        for row in 0..rows {
            for head in 0..heads.count {
                let start = head * heads.stride;
                let width = heads.count * heads.stride;
                let q = self.prepared(&head_of(query, row, width, start, heads.dim), &buffers.norms[0], row);
                let q = if self.kinds[0].is_quantized() { in_bytes(&self.mixed(&q), |scale| scale) } else { q };
                let shared = head / self.group;
                let width = self.key_heads * self.key_dim;
                let scores: Vec<f64> = (0..self.seen(row, rows))
                    .map(|t| {
                        let k = head_of(key, t, width, shared * self.key_dim, self.key_dim);
                        let k = self.prepared(&k, &buffers.norms[1], t);
                        dot(&q, &self.stored(&k, self.kinds[0])) * f64::from(self.scale())
                    })
                    .collect();
                let most = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let width = self.key_heads * self.value_dim;
                let value_of = |t: usize| exact(&head_of(value, t, width, shared * self.value_dim, self.value_dim));
                let values: Vec<Vec<f64>> =
                    (0..self.seen(row, rows)).map(|t| self.stored(&value_of(t), self.kinds[1])).collect();
                let weighted = |dim: usize| values.iter().zip(&weights).map(move |(value, weight)| value[dim] * weight);
                let mixed: Vec<f64> = (0..self.value_dim).map(|dim| weighted(dim).sum::<f64>() / sum).collect();
                let mixed = if self.kinds[1].is_quantized() { self.mixed(&mixed) } else { mixed };
                for (dim, mixed) in mixed.into_iter().enumerate() {
                    let gate = |gate: f32| sigmoid(f64::from(gate));
                    let width = heads.count * heads.stride;
                    let factor = if self.gated { gate(query[row * width + start + self.key_dim + dim]) } else { 1.0 };
                    output.push(mixed * factor);
                }
            }
        }
        output
    }

    /// Values are at most 1. What the reference computes more exactly may round to a neighbour of ours, which moves a
    /// score by a rounding step of the key times the query, both about 2 · √dim at most, and a value by such a step.
    fn bound(&self) -> f64 {
        let as_given = !self.normed && self.rotating == 0;
        let keys = match self.kinds[0] {
            KvType::F32 => 1e-5,
            KvType::F16 => 1e-2,
            KvType::BF16 => 8e-2,
            KvType::Q8_0 | KvType::Q4_0 | KvType::Q4_1 if as_given && !self.rotated => 1e-5,
            KvType::Q8_0 => 3e-2,
            // The sums that the scale is fitted by have another order, so a value between two codes may get the other one.
            KvType::Iq4Nl if as_given && !self.rotated => 2e-2,
            _ => 0.3,
        };
        let values = match self.kinds[1] {
            KvType::Iq4Nl if !self.rotated => 1e-3,
            kind if !kind.is_quantized() || !self.rotated => 0.0,
            KvType::Q8_0 => 1e-2,
            _ => 0.15,
        };
        keys + values
    }
}

/// The definition of a Hadamard matrix: a sign for the bits that two indices share.
fn hadamard(row: &[f64]) -> Vec<f64> {
    let width = (1 << row.len().trailing_zeros()).min(256);
    let sign = |a: usize, b: usize| if (a & b).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let one = |part: &[f64], at: usize| -> f64 {
        part.iter().enumerate().map(|(index, value)| sign(at, index) * value).sum::<f64>() / (width as f64).sqrt()
    };
    row.chunks(width).flat_map(|part| (0..width).map(move |at| one(part, at))).collect()
}

fn in_half(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

fn round(row: &[f64], kind: KvType) -> Vec<f64> {
    let each = |round: fn(f32) -> f64| row.iter().map(|x| round(*x as f32)).collect();
    let block = |round: fn(&[f32]) -> Vec<f32>| {
        let row: Vec<f32> = row.iter().map(|x| *x as f32).collect();
        row.chunks(32).flat_map(round).map(f64::from).collect()
    };
    match kind {
        KvType::F32 => row.to_vec(),
        KvType::F16 => each(|x| f16::from_f32(x).to_f64()),
        KvType::BF16 => each(|x| bf16::from_f32(x).to_f64()),
        KvType::Q8_0 => in_bytes(row, in_half),
        KvType::Q4_0 => block(symmetric),
        KvType::Q4_1 => block(span),
        KvType::Iq4Nl => block(nonlinear),
    }
}

/// Rounded to multiples of a scale per 32 values.
fn in_bytes(row: &[f64], round_scale: fn(f32) -> f32) -> Vec<f64> {
    let block = |block: &[f64]| -> Vec<f64> {
        let scale = round_scale(largest(block) as f32 / 127.0);
        let code = |x: f64| (x as f32 * (1.0 / scale)).round_ties_even().clamp(-127.0, 127.0);
        block.iter().map(|x| if scale > 0.0 { f64::from(code(*x)) * f64::from(scale) } else { 0.0 }).collect()
    };
    row.chunks(32).flat_map(block).collect()
}

/// The value of the largest magnitude; of two the negative one.
fn farthest(block: &[f32]) -> f32 {
    let (low, high) = block.iter().fold((0f32, 0f32), |(low, high), x| (low.min(*x), high.max(*x)));
    if high > -low { high } else { low }
}

fn symmetric(block: &[f32]) -> Vec<f32> {
    let scale = in_half(farthest(block) / -8.0);
    let code = |x: f32| (x * (1.0 / scale) + 8.0).round_ties_even().clamp(0.0, 15.0);
    block.iter().map(|x| if scale == 0.0 { 0.0 } else { (code(*x) - 8.0) * scale }).collect()
}

fn span(block: &[f32]) -> Vec<f32> {
    let (low, high) = block.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
    let (scale, minimum) = (in_half((high - low) / 15.0), in_half(low));
    let code = |x: f32| ((x - minimum) * (1.0 / scale)).round_ties_even().clamp(0.0, 15.0);
    block.iter().map(|x| if scale == 0.0 { minimum } else { code(*x) * scale + minimum }).collect()
}

fn nonlinear(block: &[f32]) -> Vec<f32> {
    let integers = NONLINEAR_INTEGERS.map(f64::from);
    let nearest = |x: f64| integers.into_iter().rev().min_by(|a, b| (a - x).abs().total_cmp(&(b - x).abs())).unwrap();
    let rough = f64::from(farthest(block)) / integers[0];
    if rough == 0.0 {
        return vec![0.0; block.len()];
    }
    let (mut products, mut squares) = (0.0, 0.0);
    for x in block.iter().map(|x| f64::from(*x) / rough) {
        products += x * x * nearest(x) * x;
        squares += x * x * nearest(x) * nearest(x);
    }
    let scale = in_half((rough * products / squares) as f32);
    block.iter().map(|x| scale * nearest(f64::from(*x) / f64::from(scale)) as f32).collect()
}

fn check(case: &Case) {
    let (fixture, buffers) = case.fixture();
    let found = match case.causal {
        true => fixture.run_in_all_ways(&[buffers.output]),
        false => fixture.run_whole_in_all_ways(&[buffers.output]),
    };
    for (session, found) in found.iter().enumerate() {
        assert_close(&found[0], &case.expected(&fixture, &buffers, session), case.bound());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn attention(case in case()) {
        check(&case);
    }
}

fn long_case() -> Case {
    Case {
        rows: vec![530, 300, 3],
        key_heads: 2,
        group: 3,
        key_dim: 16,
        value_dim: 16,
        gated: true,
        normed: true,
        causal: true,
        style: RopeStyle::Neox,
        rotating: 8,
        page_tokens: 48,
        kinds: [KvType::F32, KvType::F32],
        rotated: true,
        seed: 77,
    }
}

/// More than two segments, pages that straddle them.
#[test]
fn long_contexts() {
    check(&long_case());
    check(&Case { causal: false, rows: vec![400, 3], seed: 78, ..long_case() });
}

/// A block that is not causal behind tokens that came before: the last rows of one attention over all of them.
#[test]
fn blocks_see_all_of_themselves_and_what_came_before() {
    for kind in [KvType::F32, KvType::Q8_0] {
        let case =
            Case { causal: false, rows: vec![300, 41], kinds: [kind; 2], key_dim: 32, value_dim: 32, ..long_case() };
        let (fixture, buffers) = case.fixture();
        let width = fixture.program.width(buffers.output);
        let expected: Vec<f64> = [(0, 293 * width), (1, 33 * width)]
            .into_iter()
            .flat_map(|(session, from)| case.expected(&fixture, &buffers, session).split_off(from))
            .collect();
        let mut first: Option<Vec<u32>> = None;
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for threads in 1..4 {
                let mut stage = fixture.load(isa, threads);
                fixture.step(&mut stage, &[(0, 0..293), (1, 0..33)]);
                fixture.step(&mut stage, &[(0, 293..300), (1, 33..41)]);
                let mut found = vec![0.0; 15 * width];
                stage.read(buffers.output, 0..15, &mut found).unwrap();
                assert_close(&found, &expected, case.bound());
                let found = bits(&[vec![found]]);
                assert_eq!(first.get_or_insert_with(|| found.clone()), &found, "{kind} on {isa}, {threads} threads");
            }
        }
    }
}

/// Many query heads in a tile, so that prompts are not split but single rows are.
#[test]
fn long_contexts_in_half_precision() {
    check(&Case { kinds: [KvType::F16, KvType::BF16], page_tokens: 300, group: 1, seed: 5, ..long_case() });
}

/// Pages whose sixteens of tokens do not match those of segments, and pages that do.
#[test]
fn long_contexts_in_blocks() {
    let kinds = [KvType::Q8_0, KvType::Q8_0];
    for (page_tokens, group) in [(37, 3), (64, 5)] {
        check(&Case { kinds, key_dim: 64, value_dim: 96, page_tokens, group, seed: 6, ..long_case() });
    }
    let mixed = Case { key_dim: 32, value_dim: 32, normed: false, rotating: 0, ..long_case() };
    check(&Case { kinds: [KvType::Q8_0, KvType::F16], ..mixed.clone() });
    check(&Case { kinds: [KvType::F32, KvType::Q8_0], ..mixed });
}

#[test]
fn long_contexts_in_four_bits() {
    let types = [KvType::Q4_0, KvType::Q4_1, KvType::Iq4Nl];
    for (index, kind) in types.into_iter().enumerate() {
        let case = Case { rows: vec![270, 3], key_dim: 64, value_dim: 96, gated: false, group: 2, ..long_case() };
        let page_tokens = [37, 64, 300][index];
        check(&Case { kinds: [kind; 2], page_tokens, seed: 8 + index as u64, ..case.clone() });
        let as_given = Case { rotated: false, normed: false, rotating: 0, ..case };
        check(&Case { kinds: [kind, types[(index + 1) % 3]], ..as_given });
    }
}

/// Rotation loses nothing but what rounding does: results are near those of unrounded keys and values.
#[test]
fn rotated_attention_is_near_that_of_unrounded_rows() {
    let case = Case { rows: vec![200], key_dim: 128, value_dim: 128, gated: false, normed: false, ..long_case() };
    let (fixture, buffers) = case.fixture();
    let exact = case.expected(&fixture, &buffers, 0);
    for (kind, most) in [(KvType::Q8_0, 0.02), (KvType::Q4_0, 0.25), (KvType::Q4_1, 0.25), (KvType::Iq4Nl, 0.25)] {
        let (fixture, buffers) = Case { kinds: [kind; 2], ..case.clone() }.fixture();
        let way = Way { isa: Isa::detect(), threads: 2, chunk: 64, together: true };
        let found = fixture.run(way, &[buffers.output]).remove(0).remove(0);
        let squares: f64 = found.iter().zip(&exact).map(|(found, exact)| (f64::from(*found) - exact).powi(2)).sum();
        let share = (squares / exact.iter().map(|value| value * value).sum::<f64>()).sqrt();
        assert!(share < most && share > 0.001, "{kind} is off by {share} of the result");
    }
}

/// What an earlier sequence left in pages, be it NaN, is never seen.
#[test]
fn remains_in_pages_do_not_matter() {
    for kind in KvType::ALL {
        let case = Case { rows: vec![300, 40], kinds: [kind; 2], key_dim: 32, value_dim: 32, ..long_case() };
        let (fixture, buffers) = case.fixture();
        let (mut spoiled, _) = case.fixture();
        let values = spoiled.sessions.iter_mut().flat_map(|session| &mut session.buffers);
        values.for_each(|(_, values)| values.fill(f32::NAN));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let [clean, reused] = [false, true].map(|spoil| {
                let mut stage = fixture.load(isa, 2);
                if spoil {
                    spoiled.step(&mut stage, &[(0, 0..300), (1, 0..40)]);
                }
                fixture.step(&mut stage, &[(0, 0..270), (1, 0..33)]);
                fixture.step(&mut stage, &[(0, 270..275), (1, 33..34)]);
                let mut found = vec![0.0; 6 * fixture.program.width(buffers.output)];
                stage.read(buffers.output, 0..6, &mut found).unwrap();
                found
            });
            assert!(clean.iter().all(|value| value.is_finite()));
            assert_eq!(bits(&[vec![reused]]), bits(&[vec![clean]]), "{kind} on {isa}");
        }
    }
}

/// So wide that the parts of a long prompt do not fit into scratch, while those of few rows do.
#[test]
fn whole_and_split_ways_agree() {
    let case = Case { rows: vec![700], group: 8, value_dim: 64, key_dim: 64, ..long_case() };
    let (fixture, buffers) = case.fixture();
    let parts = 700 * 16 * 3 * 66;
    assert!(parts > 2 << 20, "{parts} values fit into scratch");
    let way = |threads, chunk| Way { isa: Isa::detect(), threads, chunk, together: true };
    let whole = fixture.run(way(1, 700), &[buffers.output]);
    for (threads, chunk) in [(2, 700), (3, 150), (2, 31)] {
        assert_eq!(bits(&fixture.run(way(threads, chunk), &[buffers.output])), bits(&whole));
    }
}
