//! Products, the router, and experts.

use proptest::prelude::*;

use super::*;
use crate::program::Product;

/// Random rows of Q8_0 blocks: a scale of one half-precision 2⁻⁷, and any integers.
fn q8_0(random: &mut Random, values: usize) -> Vec<u8> {
    let block = |random: &mut Random| {
        let scale = half::f16::from_f32(1.0 / 128.0).to_le_bytes();
        let integers: Vec<u8> = (0..32).map(|_| random.next() as u8).collect();
        scale.into_iter().chain(integers).collect::<Vec<u8>>()
    };
    (0..values / 32).flat_map(|_| block(random)).collect()
}

fn dequantized(bytes: &[u8], values: usize) -> Vec<f64> {
    let mut floats = vec![0.0; values];
    crate::blocks::dequantize_row(TensorType::Q8_0, bytes, &mut floats);
    exact(&floats)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn products_share_an_input(
        rows in proptest::collection::vec(1usize..12, 1..4),
        columns in 1usize..4,
        outputs in [1usize..70, 1usize..70],
        seed in 1u64..,
    ) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let columns = 32 * columns;
        let input = fixture.buffer("input", columns);
        let [plain, added] = outputs.map(|width| fixture.buffer("output", width));
        let floats = random.values(outputs[0] * columns, 1.0);
        let blocks = q8_0(&mut random, outputs[1] * columns);
        let first = fixture.tensor("first", WeightUse::Matrix, &[columns, outputs[0]], &floats);
        let dims = [columns, outputs[1]];
        let second = fixture.tensor_of("second", WeightUse::Matrix, TensorType::Q8_0, &dims, blocks.clone());
        let products = vec![
            Product { weight: first, output: plain, add: false },
            Product { weight: second, output: added, add: true },
        ];
        fixture.record(Op::Linear { input, products });
        fixture.sessions(&rows, &[(input, 2.0), (added, 1.0)], &mut random);
        let weights = [exact(&floats), dequantized(&blocks, outputs[1] * columns)];
        for (session, found) in fixture.run_in_all_ways(&[plain, added]).iter().enumerate() {
            let input = exact(fixture.given(session, input));
            let product = |weights: &[f64]| -> Vec<f64> {
                let rows = input.chunks(columns);
                rows.flat_map(|row| weights.chunks(columns).map(|weight| dot(row, weight)).collect::<Vec<_>>()).collect()
            };
            assert_close(&found[0], &product(&weights[0]), columns as f64 * 1e-6);
            let old = exact(fixture.given(session, added));
            let expected: Vec<f64> = product(&weights[1]).iter().zip(old).map(|(x, old)| x + old).collect();
            // Inputs move by half a step of 2/127, which adds up like a random walk.
            assert_close(&found[1], &expected, (columns as f64).sqrt() * 0.05);
        }
    }

    #[test]
    fn router(
        rows in proptest::collection::vec(1usize..8, 1..4),
        experts in 1usize..40,
        renormalize in any::<bool>(),
        seed in 1u64..,
    ) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let used = 1 + experts / 5;
        let (logits, output) = (fixture.buffer("logits", experts), fixture.buffer("route", 2 * used));
        fixture.record(Op::Route { logits, used, renormalize, scale: 1.5, output });
        fixture.sessions(&rows, &[(logits, 3.0)], &mut random);
        for (session, found) in fixture.run_in_all_ways(&[output]).iter().enumerate() {
            let logits = exact(fixture.given(session, logits));
            for (row, found) in logits.chunks(experts).zip(found[0].chunks(2 * used)) {
                check_route(row, found, renormalize);
            }
        }
    }

    #[test]
    fn experts(
        rows in proptest::collection::vec(1usize..20, 1..4),
        experts in 2usize..7,
        quantized in any::<bool>(),
        seed in 1u64..,
    ) {
        let case = Mixture { experts, used: 2, width: 64, hidden: 32, quantized };
        let (fixture, buffers, weights) = case.fixture(&rows, seed);
        for (session, found) in fixture.run_in_all_ways(&[buffers[2]]).iter().enumerate() {
            let expected = case.expected(&fixture, buffers, session, &weights);
            let bound = if quantized { 0.03 } else { 1e-5 };
            assert_close(&found[0], &expected, bound * largest(&expected).max(1.0));
        }
    }
}

fn check_route(logits: &[f64], found: &[f32], renormalize: bool) {
    let (experts, weights) = found.split_at(found.len() / 2);
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let chosen: Vec<usize> = experts.iter().map(|expert| *expert as usize).collect();
    assert_eq!(chosen, order[..chosen.len()], "the most probable, equal ones in order");
    let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
    let chosen_sum: f64 = chosen.iter().map(|expert| logits[*expert].exp()).sum();
    let divisor = if renormalize { chosen_sum } else { sum };
    let expected: Vec<f64> = chosen.iter().map(|expert| 1.5 * logits[*expert].exp() / divisor).collect();
    assert_close(weights, &expected, 2e-6);
}

#[test]
fn equal_logits_choose_the_first_experts() {
    let mut fixture = Fixture::new();
    let (logits, output) = (fixture.buffer("logits", 20), fixture.buffer("route", 6));
    fixture.record(Op::Route { logits, used: 3, renormalize: true, scale: 1.0, output });
    let mut values = vec![0.5; 20];
    values[17] = 1.0;
    fixture.sessions.push(Session { rows: 1, buffers: vec![(logits, values)], positions: Vec::new() });
    let found = fixture.run_in_all_ways(&[output]);
    assert_eq!(found[0][0][..3], [17.0, 0.0, 1.0]);
}

/// A router that has nothing to choose by still names experts that exist.
#[test]
fn logits_that_are_not_numbers_choose_distinct_experts() {
    let mut fixture = Fixture::new();
    let (logits, output) = (fixture.buffer("logits", 5), fixture.buffer("route", 8));
    fixture.record(Op::Route { logits, used: 4, renormalize: true, scale: 1.0, output });
    let buffers = vec![(logits, vec![f32::NAN; 5])];
    fixture.sessions.push(Session { rows: 1, buffers, positions: Vec::new() });
    let way = Way { isa: Isa::detect(), threads: 1, chunk: 1, together: true };
    assert_eq!(fixture.run(way, &[output])[0][0][..4], [0.0, 1.0, 2.0, 3.0]);
}

struct Mixture {
    experts: usize,
    used: usize,
    width: usize,
    hidden: usize,
    quantized: bool,
}

impl Mixture {
    /// The fixture, its buffers (input, route, output), and its weights (gate, up, down).
    fn fixture(&self, rows: &[usize], seed: u64) -> (Fixture, [Buffer; 3], [Vec<f64>; 3]) {
        let (mut fixture, mut random) = (Fixture::new(), Random(seed));
        let input = fixture.buffer("input", self.width);
        let logits = fixture.buffer("logits", self.experts);
        let route = fixture.buffer("route", 2 * self.used);
        let output = fixture.buffer("output", self.width);
        let count = self.experts * self.width * self.hidden;
        let shapes =
            [("gate", self.width, self.hidden), ("up", self.width, self.hidden), ("down", self.hidden, self.width)];
        let mut weights = Vec::new();
        let [gate, up, down] = shapes.map(|(name, columns, rows)| {
            let dims = [columns, rows, self.experts];
            if self.quantized {
                let blocks = q8_0(&mut random, count);
                weights.push(dequantized(&blocks, count));
                return fixture.tensor_of(name, WeightUse::Experts, TensorType::Q8_0, &dims, blocks);
            }
            let values = random.values(count, 1.0);
            weights.push(exact(&values));
            fixture.tensor(name, WeightUse::Experts, &dims, &values)
        });
        fixture.record(Op::Route { logits, used: self.used, renormalize: true, scale: 1.0, output: route });
        fixture.record(Op::Experts { input, route, gate, up, down, output });
        fixture.sessions(rows, &[(input, 1.0), (logits, 2.0), (output, 1.0)], &mut random);
        // The router is checked above; give its results as known.
        let weights = weights.try_into().expect("three weights");
        (fixture, [input, logits, output], weights)
    }

    fn expected(&self, fixture: &Fixture, buffers: [Buffer; 3], session: usize, weights: &[Vec<f64>; 3]) -> Vec<f64> {
        let [input, logits, output] = buffers.map(|buffer| exact(fixture.given(session, buffer)));
        let size = self.width * self.hidden;
        let mut output = output;
        for (row, output) in output.chunks_mut(self.width).enumerate() {
            let x = &input[row * self.width..(row + 1) * self.width];
            let logits = &logits[row * self.experts..(row + 1) * self.experts];
            let mut order: Vec<usize> = (0..self.experts).collect();
            order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
            let sum: f64 = order[..self.used].iter().map(|expert| logits[*expert].exp()).sum();
            for expert in &order[..self.used] {
                let of = |index: usize| &weights[index][expert * size..(expert + 1) * size];
                let product = |index: usize, x: &[f64]| -> Vec<f64> {
                    of(index).chunks(x.len()).map(|weights| dot(weights, x)).collect()
                };
                let up = product(1, x);
                let hidden: Vec<f64> = product(0, x).iter().zip(up).map(|(gate, up)| silu(*gate) * up).collect();
                let weight = logits[*expert].exp() / sum;
                for (output, value) in output.iter_mut().zip(product(2, &hidden)) {
                    *output += weight * value;
                }
            }
        }
        output
    }
}
