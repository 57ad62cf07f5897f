//! Products and mixtures of experts, for every type of weights.

use paceline_compute::program::{Op, Product, WeightUse};
use paceline_gguf::TensorType;
use proptest::prelude::*;

use crate::harness::{Case, WAYS, WHOLE, Way};

/// Values of a row that are whole blocks of a type: about as many as asked for.
fn columns(kind: TensorType, about: usize) -> usize {
    match kind.block_len() {
        // So that the row can be rounded to blocks as well.
        1 => about,
        block => about.div_ceil(block) * block,
    }
}

fn linear(kind: TensorType, rows: &[usize], about: usize, outputs: usize, seed: u64) -> Case {
    let mut case = Case::new(seed);
    let columns = columns(kind, about);
    let [input, sum] = case.inputs([columns, outputs]);
    let plain = case.output(outputs);
    let products = [(plain, false), (sum, true)].map(|(output, add)| {
        let bytes = case.random.weights(kind, columns * outputs);
        let weight = case.tensor(WeightUse::Matrix, kind, &[columns, outputs], bytes);
        Product { weight, output, add }
    });
    case.record(Op::Linear { input, products: products.to_vec() });
    case.outputs.push(sum);
    case.sessions(rows, 2.0);
    case
}

fn experts(kinds: [TensorType; 3], rows: &[usize], [width, hidden]: [usize; 2], seed: u64) -> Case {
    let mut case = Case::new(seed);
    let (experts, used) = (5, 2);
    let widest = |kinds: &[TensorType], about: usize| {
        let block = kinds.iter().map(|kind| kind.block_len()).max().expect("a type");
        if block == 1 { about } else { about.div_ceil(block) * block }
    };
    let (width, hidden) = (widest(&kinds[..2], width), widest(&kinds[2..], hidden));
    let [input, logits, output] = case.inputs([width, experts, width]);
    let route = case.output(2 * used);
    case.record(Op::Route { logits, used, renormalize: true, scale: 1.0, output: route });
    let shapes = [(width, hidden), (width, hidden), (hidden, width)];
    let mut weights = kinds.iter().zip(shapes).map(|(kind, (columns, rows))| {
        let bytes = case.random.weights(*kind, columns * rows * experts);
        case.tensor(WeightUse::Experts, *kind, &[columns, rows, experts], bytes)
    });
    let [gate, up, down] = std::array::from_fn(|_| weights.next().expect("a type"));
    case.record(Op::Experts { input, route, gate, up, down, output });
    case.outputs.push(output);
    case.sessions(rows, 1.0);
    case
}

#[test]
fn every_type_of_weights() {
    for (index, kind) in TensorType::ALL.into_iter().enumerate() {
        for (rows, about, outputs) in [(vec![1], 1100, 5), (vec![7, 4], 300, 9), (vec![9], 64, 33)] {
            let case = linear(kind, &rows, about, outputs, 1 + index as u64);
            case.check(&[Way { chunk: WHOLE, together: true }, Way { chunk: 3, together: true }]);
        }
    }
}

#[test]
fn every_type_of_experts() {
    for (index, kind) in TensorType::ALL.into_iter().enumerate() {
        let case = experts([kind; 3], &[1, 5], [64, 32], 100 + index as u64);
        case.check(&[Way { chunk: WHOLE, together: true }, Way { chunk: 2, together: false }]);
    }
}

fn kind() -> impl Strategy<Value = TensorType> {
    prop::sample::select(TensorType::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn products(
        kind in kind(),
        rows in prop::collection::vec(1usize..10, 1..4),
        about in 1usize..700,
        outputs in 1usize..70,
        seed in 1u64..,
    ) {
        linear(kind, &rows, about, outputs, seed).check(&WAYS);
    }

    #[test]
    fn mixtures(
        kinds in prop::array::uniform3(kind()),
        rows in prop::collection::vec(1usize..5, 1..3),
        sizes in [1usize..80, 1usize..70],
        seed in 1u64..,
    ) {
        experts(kinds, &rows, sizes, seed).check(&WAYS);
    }
}
