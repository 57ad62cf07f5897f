//! Operations on single rows.

use paceline_compute::program::{Op, Rope, RopeStyle, RowSpace, Yarn};
use proptest::prelude::*;

use crate::harness::{Case, WAYS};

fn rows() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1usize..6, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn norms(rows in rows(), width in 1usize..300, seed in 1u64..) {
        let mut case = Case::new(seed);
        let [input] = case.inputs([width]);
        let (weight, output) = (case.vector(width, 2.0), case.output(width));
        case.record(Op::Norm { input, weight, epsilon: 1e-6, output });
        case.sessions(&rows, 3.0);
        case.check(&WAYS);
    }

    #[test]
    fn gated_norms(rows in rows(), heads in 1usize..4, dim in 1usize..140, seed in 1u64..) {
        let mut case = Case::new(seed);
        let [buffer, gate] = case.inputs([heads * dim; 2]);
        let weight = case.vector(dim, 2.0);
        case.record(Op::GatedNorm { buffer, gate, weight, head_dim: dim, epsilon: 1e-5 });
        case.outputs.push(buffer);
        case.sessions(&rows, 8.0);
        case.check(&WAYS);
    }

    #[test]
    fn values_at_the_same_place(rows in rows(), width in 1usize..400, size in 1f32..200.0, seed in 1u64..) {
        let mut case = Case::new(seed);
        let [gate, up, input, one, sum] = case.inputs([width, width, width, 1, width]);
        case.record(Op::SwiGlu { gate, up });
        case.record(Op::AddGated { input, gate: one, output: sum });
        let bias = case.vector(width, 1.0);
        case.record(Op::AddBias { buffer: input, bias });
        let joined = case.output(width + 1);
        case.record(Op::Join { first: one, second: input, output: joined });
        case.outputs.extend([gate, sum]);
        case.sessions(&rows, size);
        case.check(&WAYS);
    }

    #[test]
    fn routes(
        rows in rows(),
        experts in 1usize..140,
        used in 1usize..9,
        renormalize in any::<bool>(),
        seed in 1u64..,
    ) {
        let mut case = Case::new(seed);
        let used = used.min(experts);
        let [logits] = case.inputs([experts]);
        let output = case.output(2 * used);
        case.record(Op::Route { logits, used, renormalize, scale: 1.5, output });
        // Few different values, so that many are equal.
        let size = if seed % 2 == 0 { 0.0002 } else { 5.0 };
        case.sessions(&rows, size);
        case.check(&WAYS);
    }

    #[test]
    fn rotations(rows in rows(), pairs in 1usize..40, sections in any::<bool>(), yarn in any::<bool>(), seed in 1u64..) {
        let mut case = Case::new(seed);
        let [_] = case.inputs([1]);
        let rope = |sections: Option<[u32; 4]>, divisors| Rope {
            style: RopeStyle::Neox,
            dimensions: 2 * pairs,
            base: 10_000.0,
            factor: 2.0,
            yarn: yarn.then_some(Yarn {
                original_context: 128,
                extrapolation: 1.0,
                attention_factor: 1.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
            }),
            sections,
            divisors,
        };
        let values: Vec<f32> = case.random.values(pairs, 1.0).iter().map(|value| value + 2.0).collect();
        let divisors = case.vector_of(&[pairs], &values);
        let sections = sections.then_some([3, 2, 2, 0]);
        for rope in [rope(None, Some(divisors)), rope(sections, None)] {
            let output = case.output(2 * pairs);
            case.record(Op::RopeTable { rope, output });
        }
        case.sessions(&rows, 1.0);
        case.check(&WAYS);
    }
}

/// Rows of which some are wanted, in a program that says so.
#[test]
fn wanted_rows_are_gathered() {
    use paceline_compute::device::{ChunkLog, ChunkRows, StepInputs};
    use paceline_compute::program::Buffer;

    let mut case = Case::new(7);
    let [input] = case.inputs([70]);
    let gathered = case.program.buffer("gathered", 70, RowSpace::Wanted);
    let normed = case.program.buffer("normed", 70, RowSpace::Wanted);
    let weight = case.vector(70, 1.0);
    case.record(Op::Gather { input, output: gathered });
    case.record(Op::Norm { input: gathered, weight, epsilon: 1e-6, output: normed });
    case.sessions(&[6], 1.0);
    let vectors = case.random.values(6 * 70, 1.0);
    let chunks = [ChunkRows { first_row: 0, rows: 6, start: 0, slot: 0, pages: &[0], log: ChunkLog::default() }];
    let read = |device: &dyn paceline_compute::Device, buffer: Buffer, wanted: &[u32]| {
        let mut stage = case.load(device);
        let positions = [[0; 4]; 6];
        let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &vectors, positions: &positions, wanted };
        stage.run(&inputs).unwrap();
        case.read(stage.as_mut(), buffer, 0..wanted.len())
    };
    let cuda = crate::harness::emulated(paceline_emulation::Order::Forwards);
    for (buffer, wanted) in [(gathered, &[1, 5][..]), (normed, &[0, 2, 3]), (normed, &[])] {
        assert_eq!(read(&cuda, buffer, wanted), read(&crate::harness::cpu(), buffer, wanted));
    }
}
