//! Fused operations leave the bits of the operations one by one.

use super::*;
use crate::program::{Product, StateSpec};

const WIDTH: usize = 64;
const HIDDEN: usize = 96;

/// A weight of random values in a quantized type, or as floats.
fn matrix(fixture: &mut Fixture, name: &str, [columns, rows]: [usize; 2], quantized: bool) -> Weight {
    let mut random = Random(name.len() as u64 * 77 + columns as u64);
    let values = random.values(columns * rows, 0.3);
    if !quantized {
        return fixture.tensor(name, WeightUse::Matrix, &[columns, rows], &values);
    }
    let bytes = q8_0(&values);
    fixture.tensor_of(name, WeightUse::Matrix, TensorType::Q8_0, &[columns, rows], bytes)
}

/// Blocks of 32 values: a scale of a hundredth in half precision, and integers.
fn q8_0(values: &[f32]) -> Vec<u8> {
    let block = |values: &[f32]| {
        let scale = half::f16::from_f32(0.01).to_le_bytes();
        let integers: Vec<u8> = values.iter().map(|value| ((value * 100.0) as i8).cast_unsigned()).collect();
        scale.into_iter().chain(integers).collect::<Vec<u8>>()
    };
    values.chunks(32).flat_map(block).collect()
}

fn product(weight: Weight, output: Buffer) -> Product {
    Product { weight, output, add: false }
}

/// A norm, products, SwiGLU, a product that is added under a gate; the last is `(gate, stream)`.
fn feed_forward(quantized: bool) -> (Fixture, Vec<Buffer>) {
    let mut fixture = Fixture::new();
    let [stream, normed, gate, up, switch, down] =
        [("stream", WIDTH), ("normed", WIDTH), ("gate", HIDDEN), ("up", HIDDEN), ("switch", 1), ("down", WIDTH)]
            .map(|(name, width)| fixture.buffer(name, width));
    let norm = fixture.vector("norm", &Random(5).values(WIDTH, 1.0));
    let products = vec![
        product(matrix(&mut fixture, "switch", [WIDTH, 1], false), switch),
        product(matrix(&mut fixture, "gate", [WIDTH, HIDDEN], quantized), gate),
        product(matrix(&mut fixture, "up", [WIDTH, HIDDEN], quantized), up),
    ];
    let down_products = vec![product(matrix(&mut fixture, "down", [HIDDEN, WIDTH], quantized), down)];
    let again =
        vec![Product { add: true, ..product(matrix(&mut fixture, "again", [HIDDEN, WIDTH], quantized), stream) }];
    fixture.record(Op::Norm { input: stream, weight: norm, epsilon: 1e-6, output: normed });
    fixture.record(Op::Linear { input: normed, products });
    fixture.record(Op::SwiGlu { gate, up });
    fixture.record(Op::Linear { input: gate, products: down_products });
    fixture.record(Op::AddGated { input: down, gate: switch, output: stream });
    fixture.record(Op::Linear { input: gate, products: again });
    fixture.sessions(&[1, 2, 150], &[(stream, 1.0)], &mut Random(3));
    (fixture, vec![normed, gate, up, switch, down, stream])
}

/// Convolution, delta rule and gated norm, with twice as many value heads as key heads.
pub(super) fn delta_net(key_heads: usize) -> (Fixture, Vec<Buffer>) {
    let (dim, value_heads) = (20, 2 * key_heads);
    let channels = (2 * key_heads + value_heads) * dim;
    let mut fixture = Fixture::new();
    let [mixed, convolved, alpha, beta, output, gate] = [
        ("mixed", channels),
        ("convolved", channels),
        ("alpha", value_heads),
        ("beta", value_heads),
        ("output", value_heads * dim),
        ("gate", value_heads * dim),
    ]
    .map(|(name, width)| fixture.buffer(name, width));
    let taps = fixture.tensor("taps", WeightUse::Vector, &[4, channels], &Random(8).values(4 * channels, 0.5));
    let time_bias = fixture.vector("bias", &Random(9).values(value_heads, 1.0));
    let decay = fixture.vector("decay", &vec![-0.4; value_heads]);
    let weight = fixture.vector("norm", &Random(10).values(dim, 1.0));
    let state = fixture.program.state(StateSpec { channels, taps: 4, value_heads, head_dim: dim });
    fixture.record(Op::Convolve { input: mixed, weight: taps, state, output: convolved });
    fixture.record(Op::DeltaRule {
        input: convolved,
        alpha,
        beta,
        time_bias,
        decay,
        key_heads,
        epsilon: 1e-6,
        state,
        output,
    });
    fixture.record(Op::GatedNorm { buffer: output, gate, weight, head_dim: dim, epsilon: 1e-6 });
    let given = [(mixed, 1.0), (alpha, 1.0), (beta, 1.0), (gate, 1.0)];
    fixture.sessions(&[1, 2, 40], &given, &mut Random(4));
    (fixture, vec![convolved, output])
}

/// A router and its experts.
fn mixture(quantized: bool) -> (Fixture, Vec<Buffer>) {
    let (experts, used) = (5, 2);
    let mut fixture = Fixture::new();
    let [input, logits, route, stream] =
        [("input", WIDTH), ("logits", experts), ("route", 2 * used), ("stream", WIDTH)]
            .map(|(name, width)| fixture.buffer(name, width));
    let mut weight = |name: &str, columns: usize, rows: usize| {
        let values = Random(name.len() as u64).values(columns * rows * experts, 0.3);
        let dims = [columns, rows, experts];
        match quantized {
            true => fixture.tensor_of(name, WeightUse::Experts, TensorType::Q8_0, &dims, q8_0(&values)),
            false => fixture.tensor(name, WeightUse::Experts, &dims, &values),
        }
    };
    let (gate, up, down) =
        (weight("gate", WIDTH, HIDDEN), weight("the up", WIDTH, HIDDEN), weight("down", HIDDEN, WIDTH));
    fixture.record(Op::Route { logits, used, renormalize: true, scale: 1.5, output: route });
    fixture.record(Op::Experts { input, route, gate, up, down, output: stream });
    fixture.sessions(&[1, 2, 9], &[(input, 1.0), (logits, 2.0), (stream, 1.0)], &mut Random(6));
    (fixture, vec![route, stream])
}

/// Runs all sessions in steps of at most `chunk` rows each; the bits of the outputs of every step.
fn run(fixture: &Fixture, way: Way, outputs: &[Buffer], fused: bool) -> Vec<u32> {
    let mut stage = fixture.load(way.isa, way.threads);
    if !fused {
        stage.unfuse();
    }
    let (mut found, mut done) = (Vec::new(), vec![0; fixture.sessions.len()]);
    loop {
        let chunks = fixture.next_chunks(way, &done);
        if chunks.is_empty() {
            return found;
        }
        fixture.step(&mut stage, &chunks);
        let rows = chunks.iter().map(|(_, rows)| rows.len()).sum();
        for output in outputs {
            let mut values = vec![0.0; rows * fixture.program.width(*output)];
            stage.read(*output, 0..rows, &mut values).unwrap();
            found.extend(values.iter().map(|value| value.to_bits()));
        }
        for (session, rows) in chunks {
            done[session] = rows.end;
        }
    }
}

fn assert_fused(fixture: &Fixture, outputs: &[Buffer], most: usize) {
    assert!(fixture.load(Isa::detect(), 1).operation_count() <= most, "nothing is fused");
    for threads in [1, 2, 3, 4] {
        for (chunk, together) in [(1, false), (1, true), (usize::MAX / 2, false), (17, true)] {
            let way = Way { isa: Isa::detect(), threads, chunk, together };
            assert_eq!(run(fixture, way, outputs, true), run(fixture, way, outputs, false), "{way:?}");
        }
    }
}

#[test]
fn products_with_their_neighbours() {
    for quantized in [true, false] {
        let (fixture, outputs) = feed_forward(quantized);
        assert_fused(&fixture, &outputs, 3);
        fixture.run_in_all_ways(&outputs);
    }
}

#[test]
fn the_delta_net() {
    for key_heads in [1, 4, 6] {
        let (fixture, outputs) = delta_net(key_heads);
        assert_fused(&fixture, &outputs, 1);
        fixture.run_in_all_ways(&outputs);
    }
}

#[test]
fn routed_experts() {
    for quantized in [true, false] {
        let (fixture, outputs) = mixture(quantized);
        assert_fused(&fixture, &outputs, 1);
        fixture.run_in_all_ways(&outputs);
    }
}

/// A norm whose input the products are added to stays apart: one member would change what another reads.
#[test]
fn a_norm_of_what_is_written_is_not_fused() {
    let mut fixture = Fixture::new();
    let [stream, normed] = [("stream", WIDTH), ("normed", WIDTH)].map(|(name, width)| fixture.buffer(name, width));
    let norm = fixture.vector("norm", &[1.0; WIDTH]);
    let weight = matrix(&mut fixture, "weight", [WIDTH, WIDTH], true);
    fixture.record(Op::Norm { input: stream, weight: norm, epsilon: 1e-6, output: normed });
    fixture.record(Op::Linear { input: normed, products: vec![Product { weight, output: stream, add: true }] });
    fixture.sessions(&[1, 7], &[(stream, 1.0)], &mut Random(3));
    assert_eq!(fixture.load(Isa::detect(), 1).operation_count(), 2);
    fixture.run_in_all_ways(&[stream]);
}
