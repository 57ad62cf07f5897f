//! Verification neither changes nor skews what is sampled.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

const VOCABULARY: usize = 5;
const SEEDS: u64 = 20_000;

/// Logits of a small model in which the next token depends on the last one alone.
fn logits(last: u32, shape: u64) -> Vec<f32> {
    let number = |token: u64| (u64::from(last) * 7 + token * 13 + shape * 29).wrapping_mul(0x9e37_79b9) >> 7;
    (0..VOCABULARY as u64).map(|token| (number(token) % 300) as f32 / 100.0).collect()
}

/// A chunk that ends with drafts.
fn chunk(start: u32, tokens: Vec<u32>, drafts: u32) -> Chunk {
    let wanted = Wanted::Verify(paceline_proto::Verify { drafts, ..paceline_proto::Verify::default() });
    Chunk { session: SessionId(Uuid::nil()), start, input: ChunkInput::Tokens(tokens), wanted, void: false }
}

/// The next `count` tokens after token 0, with these drafts for each step; drafts that are not needed are not used.
fn said(settings: &SamplingSettings, shape: u64, drafts: &[u32], count: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(settings.clone(), VOCABULARY).expect("the settings are right");
    let mut tokens = vec![0];
    while tokens.len() <= count {
        let start = tokens.len() as u32 - 1;
        let rows = [&tokens[tokens.len() - 1..], drafts].concat();
        let chunk = chunk(start, rows.clone(), drafts.len() as u32);
        sampler.observe(start, &rows).expect("tokens of the vocabulary");
        let mut choose = |row: usize, position: u32| {
            assert_eq!(position, start + 1 + row as u32, "a row gives the token behind it");
            Ok(sampler.sample(position, &mut logits(rows[row], shape)).map_err(|error| error.to_string()))
        };
        let sampled = sample_rows(&chunk, &mut choose).expect("logits can be read").expect("a token is possible");
        tokens.extend(sampled.into_iter().map(|sampled| sampled.token));
    }
    tokens[1..=count].to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Token for token what is said without drafts, with penalties and filters.
    #[test]
    fn drafts_change_no_token(
        drafts in proptest::collection::vec(0..VOCABULARY as u32, 0..6),
        shape in 0u64..1000,
        seed: u64,
        temperature in 0.0f32..2.0,
        frequency_penalty in 0.0f32..1.0,
        top_k in 0u32..5,
    ) {
        let settings =
            SamplingSettings { seed, temperature, frequency_penalty, top_k, ..SamplingSettings::default() };
        prop_assert_eq!(said(&settings, shape, &drafts, 12), said(&settings, shape, &[], 12));
    }
}

/// The first two tokens over many seeds are distributed as the model says, whatever the drafts are: a chi-square test.
#[test]
fn verification_preserves_the_distribution() {
    for shape in 0..3 {
        for drafts in [&[][..], &[1], &[2, 2], &[4, 0, 3]] {
            let mut found = [[0_u32; VOCABULARY]; VOCABULARY];
            for seed in 0..SEEDS {
                let settings = SamplingSettings { temperature: 1.0, seed, ..SamplingSettings::default() };
                let tokens = said(&settings, shape, drafts, 2);
                found[tokens[0] as usize][tokens[1] as usize] += 1;
            }
            let distance = chi_square(&found, shape);
            // 24 degrees of freedom: a larger one has a probability of one in a million.
            assert!(distance < 73.0, "shape {shape}, drafts {drafts:?}: {distance}");
        }
    }
}

fn chi_square(found: &[[u32; VOCABULARY]; VOCABULARY], shape: u64) -> f64 {
    let probabilities = |last: u32| {
        let weights: Vec<f64> = logits(last, shape).iter().map(|logit| f64::from(*logit).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(move |weight| weight / sum).collect::<Vec<f64>>()
    };
    let first = probabilities(0);
    let terms = found.iter().enumerate().flat_map(|(one, counts)| {
        let (first, second) = (first[one], probabilities(one as u32));
        let term = move |(other, count): (usize, &u32)| {
            let expected = first * second[other] * SEEDS as f64;
            (f64::from(*count) - expected).powi(2) / expected
        };
        counts.iter().enumerate().map(term).collect::<Vec<f64>>()
    });
    terms.sum()
}
