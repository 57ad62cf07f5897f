//! Operations on each row alone.

use proptest::prelude::*;

use super::*;

/// A few sessions of a few rows.
fn sessions() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(1usize..9, 1..4)
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
