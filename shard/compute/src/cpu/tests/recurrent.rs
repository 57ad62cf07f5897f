//! The convolution and the delta rule.

use proptest::prelude::*;

use super::*;
use crate::program::StateSpec;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn convolve(
        rows in proptest::collection::vec(1usize..12, 1..4),
        channels in 1usize..70,
        taps in 1usize..6,
        seed in 1u64..,
    ) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let (input, output) = (fixture.buffer("input", channels), fixture.buffer("output", channels));
        let values = random.values(channels * taps, 1.0);
        let weight = fixture.tensor("taps", WeightUse::Vector, &[taps, channels], &values);
        let state = fixture.program.state(StateSpec { channels, taps, value_heads: 1, head_dim: 1 });
        fixture.record(Op::Convolve { input, weight, state, output });
        fixture.sessions(&rows, &[(input, 2.0)], &mut random);
        for (session, found) in fixture.run_in_all_ways(&[output]).iter().enumerate() {
            let given = exact(fixture.given(session, input));
            let expected: Vec<f64> = (0..given.len())
                .map(|index| {
                    let (row, channel) = (index / channels, index % channels);
                    let sum = (0..taps).filter(|tap| row + tap + 1 >= taps).map(|tap| {
                        f64::from(values[channel * taps + tap]) * given[(row + tap + 1 - taps) * channels + channel]
                    });
                    silu(sum.sum())
                })
                .collect();
            assert_close(&found[0], &expected, 1e-5);
        }
    }

    #[test]
    fn delta_rule(
        rows in proptest::collection::vec(1usize..12, 1..4),
        key_heads in 1usize..4,
        repeat in 1usize..4,
        head_dim in prop::sample::select(vec![4usize, 8, 16, 20, 32, 48]),
        seed in 1u64..,
    ) {
        let case = Delta { key_heads, value_heads: key_heads * repeat, head_dim };
        let (fixture, buffers, vectors) = case.fixture(&rows, seed);
        for (session, found) in fixture.run_in_all_ways(&[buffers[3]]).iter().enumerate() {
            let [input, alpha, beta] =
                [buffers[0], buffers[1], buffers[2]].map(|buffer| exact(fixture.given(session, buffer)));
            let expected = case.expected(&input, &alpha, &beta, &vectors);
            assert_close(&found[0], &expected, 2e-5 * largest(&expected).max(0.1));
        }
    }
}

const EPSILON: f32 = 1e-6;

struct Delta {
    key_heads: usize,
    value_heads: usize,
    head_dim: usize,
}

impl Delta {
    /// The fixture, its buffers (input, alpha, beta, output), and its vectors (time bias, decay).
    fn fixture(&self, rows: &[usize], seed: u64) -> (Fixture, [Buffer; 4], [Vec<f32>; 2]) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let Delta { key_heads, value_heads, head_dim } = *self;
        let input = fixture.buffer("input", (2 * key_heads + value_heads) * head_dim);
        let (alpha, beta) = (fixture.buffer("alpha", value_heads), fixture.buffer("beta", value_heads));
        let output = fixture.buffer("output", value_heads * head_dim);
        let bias = random.values(value_heads, 1.0);
        let decays: Vec<f32> = random.values(value_heads, 1.0).iter().map(|x| -x.abs()).collect();
        let (time_bias, decay) = (fixture.vector("dt", &bias), fixture.vector("a", &decays));
        let state = fixture.program.state(StateSpec { channels: 1, taps: 1, value_heads, head_dim });
        let epsilon = EPSILON;
        fixture.record(Op::DeltaRule { input, alpha, beta, time_bias, decay, key_heads, epsilon, state, output });
        fixture.sessions(rows, &[(input, 2.0), (alpha, 3.0), (beta, 3.0)], &mut random);
        (fixture, [input, alpha, beta, output], [bias, decays])
    }

    /// The gated delta rule: gates, L2 norms, decay, read, write, output.
    fn expected(&self, input: &[f64], alpha: &[f64], beta: &[f64], vectors: &[Vec<f32>; 2]) -> Vec<f64> {
        let Delta { key_heads, value_heads, head_dim } = *self;
        let mut memories = vec![vec![0.0; head_dim * head_dim]; value_heads];
        let mut output = Vec::new();
        let width = (2 * key_heads + value_heads) * head_dim;
        for (row, values) in input.chunks(width).enumerate() {
            let head = |index: usize| &values[index * head_dim..(index + 1) * head_dim];
            for (h, memory) in memories.iter_mut().enumerate() {
                let root = (head_dim as f64).sqrt();
                let q: Vec<f64> = normalized(head(h % key_heads)).iter().map(|x| x / root).collect();
                let k = normalized(head(key_heads + h % key_heads));
                let v = head(2 * key_heads + h);
                let gate = alpha[row * value_heads + h] + f64::from(vectors[0][h]);
                let decay = (gate.exp().ln_1p() * f64::from(vectors[1][h])).exp();
                let beta = sigmoid(beta[row * value_heads + h]);
                memory.iter_mut().for_each(|x| *x *= decay);
                for j in 0..head_dim {
                    let read: f64 = (0..head_dim).map(|i| memory[i * head_dim + j] * k[i]).sum();
                    let change = beta * (v[j] - read);
                    (0..head_dim).for_each(|i| memory[i * head_dim + j] += k[i] * change);
                    output.push((0..head_dim).map(|i| memory[i * head_dim + j] * q[i]).sum());
                }
            }
        }
        output
    }
}

fn normalized(values: &[f64]) -> Vec<f64> {
    let length = (dot(values, values) + f64::from(EPSILON)).sqrt();
    values.iter().map(|value| value / length).collect()
}
