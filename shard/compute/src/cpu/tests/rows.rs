//! Operations on each row alone.

use proptest::prelude::*;

use super::*;

/// A few sessions of a few rows.
fn sessions() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1usize..9, 1..4)
}

fn layer_norm_of(values: &[f64], weight: &[f64], bias: &[f64], epsilon: f32) -> Vec<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
    values
        .iter()
        .zip(weight.iter().zip(bias))
        .map(|(value, (weight, bias))| (value - mean) * scale * weight + bias)
        .collect()
}

fn gelu_of(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn norm(rows in sessions(), width in 1usize..200, seed in 1u64..) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let (input, output) = (fixture.buffer("input", width), fixture.buffer("output", width));
        let values = random.values(width, 2.0);
        let weight = fixture.vector("weight", &values);
        fixture.record(Op::Norm { input, weight, epsilon: 1e-6, output });
        fixture.sessions(&rows, &[(input, 3.0)], &mut random);
        for (session, found) in fixture.run_in_all_ways(&[output]).iter().enumerate() {
            let rows = exact(fixture.given(session, input));
            let expected: Vec<f64> =
                rows.chunks(width).flat_map(|row| rms_norm(row, &exact(&values), 1e-6)).collect();
            assert_close(&found[0], &expected, 1e-6 * largest(&expected));
        }
    }

    #[test]
    fn layer_norm(rows in sessions(), width in 1usize..200, offset in -3f32..3.0, seed in 1u64..) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let (buffer, shift) = (fixture.buffer("values", width), vec![offset; width]);
        let [weights, biases] = [(); 2].map(|()| random.values(width, 2.0));
        let (weight, bias) = (fixture.vector("weight", &weights), fixture.vector("bias", &biases));
        let shifted = fixture.vector("shift", &shift);
        fixture.record(Op::AddBias { buffer, bias: shifted });
        fixture.record(Op::LayerNorm { buffer, weight, bias, epsilon: 1e-5 });
        fixture.sessions(&rows, &[(buffer, 3.0)], &mut random);
        for (session, found) in fixture.run_in_all_ways(&[buffer]).iter().enumerate() {
            let values: Vec<f64> =
                fixture.given(session, buffer).iter().map(|value| f64::from(value + offset)).collect();
            let expected: Vec<f64> = values
                .chunks(width)
                .flat_map(|row| layer_norm_of(row, &exact(&weights), &exact(&biases), 1e-5))
                .collect();
            // A single value has no variance at all, so its distance from itself is all rounding.
            assert_close(&found[0], &expected, 1e-5 * largest(&expected).max(4.0));
        }
    }

    #[test]
    fn gelu_and_tanh(rows in sessions(), width in 1usize..90, seed in 1u64..) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let [one, other] = ["one", "other"].map(|name| fixture.buffer(name, width));
        fixture.record(Op::Gelu { buffer: one });
        fixture.record(Op::Tanh { buffer: other });
        fixture.sessions(&rows, &[(one, 6.0), (other, 4.0)], &mut random);
        for (session, found) in fixture.run_in_all_ways(&[one, other]).iter().enumerate() {
            let [gelu, tanh] = [one, other].map(|buffer| exact(fixture.given(session, buffer)));
            let gelu: Vec<f64> = gelu.into_iter().map(gelu_of).collect();
            assert_close(&found[0], &gelu, 2e-6);
            assert_close(&found[1], &tanh.into_iter().map(f64::tanh).collect::<Vec<_>>(), 3e-7);
        }
    }

    #[test]
    fn embeddings_of_positions_are_added(rows in sessions(), width in 1usize..50, seed in 1u64..) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let output = fixture.buffer("output", width);
        let (learned, kinds) = (random.values(9 * width, 1.0), random.values(2 * width, 1.0));
        let table = fixture.tensor("positions", WeightUse::Vector, &[width, 9], &learned);
        let kind = fixture.tensor("kinds", WeightUse::Vector, &[width, 2], &kinds);
        fixture.record(Op::AddEmbedding { table, component: 0, output });
        fixture.record(Op::AddEmbedding { table: kind, component: 3, output });
        fixture.sessions(&rows, &[(output, 1.0)], &mut random);
        for session in &mut fixture.sessions {
            session.positions = (0..session.rows as u32).map(|row| [row, row, row, row % 2]).collect();
        }
        for (session, found) in fixture.run_in_all_ways(&[output]).iter().enumerate() {
            let given = fixture.given(session, output).chunks(width).enumerate();
            let expected: Vec<f32> = given
                .flat_map(|(row, values)| {
                    let added = |index: usize| (learned[row * width + index], kinds[row % 2 * width + index]);
                    let sum = |(index, value): (usize, &f32)| value + added(index).0 + added(index).1;
                    values.iter().enumerate().map(sum).collect::<Vec<_>>()
                })
                .collect();
            prop_assert_eq!(&found[0], &expected);
        }
    }

    #[test]
    fn split_undoes_join(rows in sessions(), left in 1usize..40, right in 1usize..40, seed in 1u64..) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let inputs = [("left", left), ("right", right)].map(|(name, width)| fixture.buffer(name, width));
        let joined = fixture.buffer("joined", left + right);
        let outputs = [left, right].map(|width| fixture.buffer("part", width));
        let ([first, second], [one, other]) = (inputs, outputs);
        fixture.record(Op::Join { first, second, output: joined });
        fixture.record(Op::Split { input: joined, first: one, second: other });
        fixture.sessions(&rows, &inputs.map(|input| (input, 3.0)), &mut random);
        for (session, found) in fixture.run_in_all_ways(&[joined, one, other]).iter().enumerate() {
            let [first, second] = inputs.map(|input| fixture.given(session, input));
            let rows = first.chunks(left).zip(second.chunks(right));
            let both: Vec<f32> = rows.flat_map(|(left, right)| [left, right].concat()).collect();
            prop_assert_eq!(&found[0], &both);
            prop_assert_eq!((&found[1][..], &found[2][..]), (first, second));
        }
    }

    #[test]
    fn gated_norm(rows in sessions(), heads in 1usize..5, head_dim in 1usize..70, seed in 1u64..) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let width = heads * head_dim;
        let (buffer, gate) = (fixture.buffer("values", width), fixture.buffer("gate", width));
        let values = random.values(head_dim, 2.0);
        let weight = fixture.vector("weight", &values);
        fixture.record(Op::GatedNorm { buffer, gate, weight, head_dim, epsilon: 1e-5 });
        fixture.sessions(&rows, &[(buffer, 3.0), (gate, 5.0)], &mut random);
        for (session, found) in fixture.run_in_all_ways(&[buffer]).iter().enumerate() {
            let values_of = exact(fixture.given(session, buffer));
            let normed = values_of.chunks(head_dim).flat_map(|head| rms_norm(head, &exact(&values), 1e-5));
            let gates = exact(fixture.given(session, gate));
            let expected: Vec<f64> = normed.zip(gates).map(|(value, gate)| value * silu(gate)).collect();
            assert_close(&found[0], &expected, 2e-6 * largest(&expected).max(1e-3));
        }
    }

    #[test]
    fn swiglu_add_gated_and_bias(rows in sessions(), width in 1usize..90, seed in 1u64..) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let [gate, up, sum] = ["gate", "up", "sum"].map(|name| fixture.buffer(name, width));
        let weight = fixture.buffer("weight", 1);
        let values = random.values(width, 2.0);
        let bias = fixture.vector("bias", &values);
        fixture.record(Op::SwiGlu { gate, up });
        fixture.record(Op::AddGated { input: gate, gate: weight, output: sum });
        fixture.record(Op::AddBias { buffer: sum, bias });
        fixture.sessions(&rows, &[(gate, 8.0), (up, 2.0), (sum, 1.0), (weight, 4.0)], &mut random);
        for (session, found) in fixture.run_in_all_ways(&[sum]).iter().enumerate() {
            let [gate, up, sum, weight] = [gate, up, sum, weight].map(|buffer| exact(fixture.given(session, buffer)));
            let expected: Vec<f64> = (0..gate.len())
                .map(|index| {
                    let active = silu(gate[index]) * up[index];
                    sum[index] + sigmoid(weight[index / width]) * active + f64::from(values[index % width])
                })
                .collect();
            assert_close(&found[0], &expected, 2e-6 * largest(&expected).max(16.0));
        }
    }
}

#[test]
fn positions_beyond_their_table_are_refused() {
    let mut fixture = Fixture::new();
    let output = fixture.buffer("output", 3);
    let table = fixture.tensor("positions", WeightUse::Vector, &[3, 4], &[1.0; 12]);
    fixture.record(Op::AddEmbedding { table, component: 0, output });
    fixture.sessions = vec![Session { rows: 2, ..Session::default() }];
    let mut stage = fixture.load(Isa::detect(), 1);
    let log = ChunkLog::default();
    let chunks = [ChunkRows { first_row: 0, rows: 2, start: 0, slot: 0, pages: &[0], log }];
    let mut run = |last: u32| {
        let positions = [[0; 4], [last, 0, 0, 0]];
        stage.run(&StepInputs { chunks: &chunks, tokens: &[], vectors: &[], positions: &positions, wanted: &[] })
    };
    assert!(run(3).is_ok());
    assert!(matches!(run(4), Err(crate::Error::Unknown { what: "position", id: 4, count: 4 })));
}
