//! Every filter against an obvious reference, and the draw against the distribution.

use paceline_grammar::{Grammar, Speller, Spelling};
use paceline_proto::{ConstraintSettings, ThinkingSettings};
use proptest::prelude::*;

use super::*;

fn sampler(settings: SamplingSettings, vocabulary: usize) -> Sampler {
    Sampler::new(settings, vocabulary).unwrap()
}

fn token(sampler: &mut Sampler, position: u32, logits: &[f32]) -> u32 {
    sampler.sample(position, &mut logits.to_vec()).unwrap().token
}

/// What passes the filters, by the book: sort everything, filter one after the other, renormalise in between.
fn filtered_by_the_book(settings: &SamplingSettings, logits: &[f32]) -> Vec<(u32, f64)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = Scale { largest, temperature: settings.temperature };
    let mut left: Vec<(u32, f64)> = (0..)
        .zip(logits)
        .filter(|(_, logit)| **logit > f32::NEG_INFINITY)
        .map(|(token, logit)| (token, f64::from(scale.weight(*logit))))
        .collect();
    left.sort_by(|a, b| logits[b.0 as usize].total_cmp(&logits[a.0 as usize]));
    if settings.top_k > 0 {
        left.truncate(settings.top_k as usize);
    }
    normalise(&mut left);
    if settings.top_p < 1.0 {
        // A token stays while those before it do not reach the sum.
        let sums = left.iter().scan(0.0, |sum, (_, probability)| Some(std::mem::replace(sum, *sum + probability)));
        let count = sums.filter(|sum| *sum < f64::from(settings.top_p)).count();
        left.truncate(count.max(1));
        normalise(&mut left);
    }
    let least = f64::from(settings.min_p) * left[0].1;
    left.retain(|(_, probability)| *probability >= least);
    normalise(&mut left);
    left
}

fn normalise(left: &mut [(u32, f64)]) {
    let sum: f64 = left.iter().map(|(_, probability)| probability).sum();
    left.iter_mut().for_each(|(_, probability)| *probability /= sum);
}

/// Samples many positions and compares how often each token came with the probabilities by the book.
fn assert_distribution(settings: &SamplingSettings, logits: &[f32]) {
    let draws = 50_000;
    let expected = filtered_by_the_book(settings, logits);
    let mut counts = vec![0u32; logits.len()];
    let mut sampler = sampler(settings.clone(), logits.len());
    for position in 0..draws {
        counts[token(&mut sampler, position, logits) as usize] += 1;
    }
    let mut chi_square = 0.0;
    for &(token, probability) in &expected {
        let wanted = probability * f64::from(draws);
        assert!(wanted > 5.0, "token {token} is too rare for this test");
        chi_square += (f64::from(std::mem::take(&mut counts[token as usize])) - wanted).powi(2) / wanted;
    }
    assert!(counts.iter().all(|&count| count == 0), "filtered tokens were drawn: {counts:?}");
    // Mean of chi-square is the degrees of freedom, its variance twice that: four standard deviations and a bit.
    let freedom = expected.len() as f64 - 1.0;
    assert!(chi_square < freedom + 4.0 * (2.0 * freedom).sqrt() + 4.0, "{settings:?}: chi-square {chi_square}");
}

#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = (0..20).map(|token| ((token * 7) % 20) as f32 * 0.2).collect();
    let plain = SamplingSettings { temperature: 1.0, seed: 1, ..SamplingSettings::default() };
    assert_distribution(&plain, &logits);
    assert_distribution(&SamplingSettings { temperature: 0.7, seed: 2, ..plain.clone() }, &logits);
    assert_distribution(&SamplingSettings { temperature: 5.0, seed: 3, ..plain.clone() }, &logits);
    assert_distribution(&SamplingSettings { top_k: 5, seed: 4, ..plain.clone() }, &logits);
    assert_distribution(&SamplingSettings { top_p: 0.8, seed: 5, ..plain.clone() }, &logits);
    assert_distribution(&SamplingSettings { min_p: 0.2, seed: 6, ..plain.clone() }, &logits);
    let everything = SamplingSettings { temperature: 1.3, top_k: 12, top_p: 0.9, min_p: 0.1, seed: 7, ..plain };
    assert_distribution(&everything, &logits);
}

#[test]
fn choices_of_one_seed_differ_and_each_follows_the_distribution() {
    let logits = [0.0; 8];
    let settings = |choice| SamplingSettings { temperature: 1.0, choice, ..SamplingSettings::default() };
    let text = |choice| {
        let mut sampler = sampler(settings(choice), 8);
        (0..32).map(|position| token(&mut sampler, position, &logits)).collect::<Vec<_>>()
    };
    assert_ne!(text(0), text(1));
    assert_distribution(&settings(0), &logits);
    assert_distribution(&settings(1), &logits);
}

#[test]
fn a_position_gives_the_same_token_whatever_was_sampled_before() {
    let logits: Vec<f32> = (0..100).map(|token| (token % 10) as f32).collect();
    let settings = SamplingSettings { temperature: 1.0, top_p: 0.9, seed: 99, ..SamplingSettings::default() };
    let mut forward = sampler(settings.clone(), 100);
    let mut backward = sampler(settings.clone(), 100);
    let text: Vec<u32> = (0..50).map(|position| token(&mut forward, position, &logits)).collect();
    for position in (0..50).rev() {
        assert_eq!(token(&mut backward, position, &logits), text[position as usize]);
    }
    let mut other = sampler(SamplingSettings { seed: 100, ..settings }, 100);
    assert_ne!((0..50).map(|position| token(&mut other, position, &logits)).collect::<Vec<_>>(), text);
}

#[test]
fn greedy_takes_the_lowest_of_the_most_probable() {
    let mut greedy = sampler(SamplingSettings { top_k: 3, ..SamplingSettings::default() }, 5);
    assert_eq!(token(&mut greedy, 0, &[0.0, 3.0, 1.0, 3.0, f32::NAN]), 1);
    assert_eq!(token(&mut greedy, 1, &[0.0, f32::INFINITY, 1.0, f32::INFINITY, 9.0]), 1);
}

#[test]
fn bans_hold_against_every_bias_and_penalty() {
    let settings = SamplingSettings {
        logit_bias: vec![(0, f32::MAX), (1, 3.0), (1, 4.0)],
        banned: vec![0, 2],
        frequency_penalty: -1e30,
        ..SamplingSettings::default()
    };
    let mut sampler = Sampler::resume(settings, 4, 0).unwrap();
    sampler.observe(0, &[0, 0, 2]).unwrap();
    assert_eq!(token(&mut sampler, 3, &[9.0, 0.0, 9.0, 6.0]), 1);
}

#[test]
fn without_a_possible_token_there_is_an_error() {
    for temperature in [0.0, 1.0] {
        let settings = SamplingSettings { temperature, banned: vec![1], ..SamplingSettings::default() };
        let mut sampler = sampler(settings, 3);
        let error = sampler.sample(7, &mut [f32::NAN, 5.0, f32::NEG_INFINITY]).unwrap_err();
        assert_eq!(error, Error::NoCandidate { position: 7 });
    }
}

#[test]
fn wrong_chunks_are_refused() {
    let mut sampler = sampler(SamplingSettings { presence_penalty: 1.0, ..SamplingSettings::default() }, 4);
    let error = sampler.observe(0, &[3, 4]).unwrap_err();
    assert_eq!(error.to_string(), "a chunk names token 4, the vocabulary has 4 tokens");
    let error = sampler.observe(u32::MAX - 1, &[1, 1]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "2 tokens from position 4294967294 on reach past the last possible position 4294967295"
    );
    sampler.observe(u32::MAX - 1, &[1]).unwrap();
}

/// A session with penalties whose logits leave only a narrow choice.
fn penalised() -> SamplingSettings {
    SamplingSettings {
        temperature: 0.8,
        repetition_penalty: 1.3,
        frequency_penalty: 0.4,
        presence_penalty: 0.3,
        penalty_window: 5,
        seed: 11,
        ..SamplingSettings::default()
    }
}

/// Logits that depend on the position.
fn row(position: u32) -> Vec<f32> {
    (0..12u32).map(|token| ((token * 5 + position * 3) % 12) as f32 * 0.3).collect()
}

/// Samples twenty tokens behind a prompt of four, and calls `between` before each with what there is so far.
fn text(mut sampler: Sampler, mut between: impl FnMut(&mut Sampler, &[u32])) -> Vec<u32> {
    let mut tokens = vec![3, 1, 4, 1];
    sampler.observe(0, &tokens).unwrap();
    for position in 4..24 {
        between(&mut sampler, &tokens);
        tokens.push(token(&mut sampler, position, &row(position)));
    }
    tokens
}

#[test]
fn nothing_counts_twice() {
    let plain = text(sampler(penalised(), 12), |_, _| ());
    let fed_back = text(sampler(penalised(), 12), |sampler, tokens| {
        sampler.observe(tokens.len() as u32 - 1, &tokens[tokens.len() - 1..]).unwrap();
    });
    let drafted = text(sampler(penalised(), 12), |sampler, tokens| {
        let chunk = [*tokens.last().unwrap(), 7, 7, 7];
        sampler.observe(tokens.len() as u32 - 1, &chunk).unwrap();
    });
    let read_again = text(sampler(penalised(), 12), |sampler, tokens| sampler.observe(0, tokens).unwrap());
    assert_eq!(fed_back, plain);
    assert_eq!(drafted, plain);
    assert_eq!(read_again, plain);
}

#[test]
fn a_resumed_session_goes_on_as_if_nothing_had_happened() {
    let whole = text(sampler(penalised(), 12), |_, _| ());
    for lost_at in 4..24u32 {
        let mut resumed = Sampler::resume(penalised(), 12, 4).unwrap();
        resumed.observe(0, &whole[..lost_at as usize]).unwrap();
        for position in lost_at..24 {
            assert_eq!(token(&mut resumed, position, &row(position)), whole[position as usize]);
        }
    }
}

#[test]
fn penalties_change_what_is_chosen() {
    let settings = SamplingSettings { presence_penalty: 2.0, ..SamplingSettings::default() };
    let mut sampler = sampler(settings, 3);
    sampler.observe(0, &[0, 0]).unwrap();
    let logits = [5.0, 4.0, 3.5];
    let text: Vec<u32> = (2..6).map(|position| token(&mut sampler, position, &logits)).collect();
    assert_eq!(text, [0, 1, 2, 0]);
}

#[test]
fn logprobs_are_the_models_own() {
    let plain = SamplingSettings { logprobs: Some(2), ..SamplingSettings::default() };
    let twisted = SamplingSettings {
        temperature: 0.1,
        top_k: 1,
        logit_bias: vec![(0, 50.0)],
        banned: vec![2],
        presence_penalty: 3.0,
        ..plain.clone()
    };
    let logits = [0.0, 1.0, 2.0];
    let of_plain = sampler(plain, 3).sample(0, &mut logits.clone()).unwrap();
    let of_twisted = sampler(twisted, 3).sample(0, &mut logits.clone()).unwrap();
    let (plain, twisted) = (of_plain.logprobs.unwrap(), of_twisted.logprobs.unwrap());
    assert_eq!((of_plain.token, of_twisted.token), (2, 0));
    assert_eq!(plain.top, twisted.top);
    assert_eq!(plain.chosen, plain.top[0].logprob);
    assert!((twisted.chosen - (plain.chosen - 2.0)).abs() < 1e-6);
    let unasked = sampler(SamplingSettings::default(), 3).sample(0, &mut logits.clone()).unwrap();
    assert_eq!(unasked.logprobs, None);
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        6 => -8f32..8.0,
        3 => (-3i8..3).prop_map(f32::from),
        1 => Just(f32::NEG_INFINITY),
    ];
    prop::collection::vec(logit, 1..700)
}

prop_compose! {
    fn filters()(
        temperature in 0.1f32..5.0,
        top_k in prop_oneof![Just(0u32), 1u32..100, Just(u32::MAX)],
        top_p in prop_oneof![Just(1f32), 0f32..1.0, 0.9f32..1.0],
        min_p in prop_oneof![Just(0f32), 0f32..1.0, 0f32..0.01],
        seed: u64,
    ) -> SamplingSettings {
        SamplingSettings { temperature, top_k, top_p, min_p, seed, ..SamplingSettings::default() }
    }
}

proptest! {
    #[test]
    fn filters_and_draw_equal_the_book(logits in logits(), settings in filters(), position: u32) {
        prop_assume!(logits.iter().any(|logit| logit.is_finite()));
        let mut expected = filtered_by_the_book(&settings, &logits);
        let unfiltered = settings.top_k as usize >= logits.len() || settings.top_k == 0;
        if unfiltered && settings.top_p == 1.0 && settings.min_p == 0.0 {
            expected.sort_by_key(|(token, _)| *token);
        }
        let random = uniform(settings.seed, settings.choice, position);
        let mut sampler = sampler(settings, logits.len());
        let token = token(&mut sampler, position, &logits);
        // Where the random number lies to within rounding between two tokens, either is right.
        let mut sum = 0.0;
        let possible = expected.iter().any(|&(candidate, probability)| {
            let begin = sum;
            sum += probability;
            candidate == token && (begin - 1e-12..sum + 1e-12).contains(&random)
        });
        prop_assert!(possible, "token {token} for {random} of {expected:?}");
    }

    #[test]
    fn any_logits_give_a_possible_token_or_an_error(
        bits in prop::collection::vec(any::<u32>(), 1..50),
        settings in filters(),
        temperature in prop_oneof![Just(0f32), Just(f32::MIN_POSITIVE), Just(1e-45f32), Just(f32::MAX), 0f32..2.0],
        penalty in prop_oneof![Just(1f32), Just(f32::MIN_POSITIVE), Just(f32::MAX), 0.5f32..2.0],
    ) {
        let logits: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        let settings = SamplingSettings {
            temperature,
            repetition_penalty: penalty,
            presence_penalty: penalty,
            logprobs: Some(3),
            ..settings
        };
        let mut sampler = sampler(settings, logits.len());
        for position in 0..3 {
            match sampler.sample(position, &mut logits.clone()) {
                Ok(sampled) => {
                    let logit = logits[sampled.token as usize];
                    prop_assert!(logit > f32::NEG_INFINITY, "chose a token with logit {logit}");
                    let logprobs = sampled.logprobs.unwrap();
                    prop_assert!(logprobs.chosen.is_finite() && logprobs.chosen <= 0.0);
                }
                Err(error) => prop_assert_eq!(error, Error::NoCandidate { position }),
            }
        }
    }
}

proptest! {
    /// Wherever a sampler stops and is made again from its memory, every later token is the one it would have chosen.
    #[test]
    fn a_restored_sampler_goes_on_like_its_original(
        seed: u64,
        window in 0u32..9,
        penalties in prop::array::uniform3(0usize..3),
        prompt in prop::collection::vec(0u32..12, 0..20),
        gap in 0u32..3,
        stop in 0u32..12,
    ) {
        let of = |index: usize, values: [f32; 3]| values[penalties[index]];
        let settings = SamplingSettings {
            temperature: 0.8,
            repetition_penalty: of(0, [1.0, 1.3, 0.7]),
            frequency_penalty: of(1, [0.0, 0.4, -0.2]),
            presence_penalty: of(2, [0.0, 0.3, 0.6]),
            penalty_window: window,
            logprobs: Some(3),
            seed,
            ..SamplingSettings::default()
        };
        let logits: Vec<f32> = (0..12).map(|token| (token * 5 % 12) as f32 * 0.3 - 1.0).collect();
        // An image lies behind the prompt: positions without tokens.
        let first = prompt.len() as u32 + gap;
        let mut original = Sampler::resume(settings, 12, first).unwrap();
        original.observe(0, &prompt).unwrap();
        for position in first..first + stop {
            token(&mut original, position, &logits);
        }
        let memory = original.memory();
        let mut restored = Sampler::restore(memory.clone(), 12).unwrap();
        prop_assert_eq!(restored.memory(), memory);
        for position in first + stop..first + stop + 8 {
            let [one, other] = [&mut original, &mut restored].map(|s| s.sample(position, &mut logits.clone()).unwrap());
            prop_assert_eq!(one, other);
        }
    }
}

#[test]
fn memories_that_no_sampler_has_are_refused() {
    let settings = SamplingSettings { presence_penalty: 0.1, ..SamplingSettings::default() };
    let memory = |tokens: &[(u32, u32)]| SamplerMemory {
        settings: settings.clone(),
        generated_from: Some(1),
        tokens: tokens.to_vec(),
    };
    assert!(Sampler::restore(memory(&[(0, 3), (2, 3), (u32::MAX, 1)]), 4).is_ok());
    let refused = |memory: SamplerMemory| Sampler::restore(memory, 4).err();
    assert_eq!(refused(memory(&[(1, 0), (1, 0)])), Some(Error::History { position: 1 }));
    assert_eq!(refused(memory(&[(2, 0), (1, 0)])), Some(Error::History { position: 1 }));
    assert!(matches!(refused(memory(&[(0, 4)])), Some(Error::Token { token: 4, .. })));
    let settings = SamplingSettings { top_p: 2.0, ..SamplingSettings::default() };
    assert!(matches!(refused(SamplerMemory { settings, ..memory(&[]) }), Some(Error::Setting { .. })));
}

proptest! {
    /// A session of which some tokens are not run gets what it gets when they are.
    #[test]
    fn the_last_tokens_are_enough_to_go_on_after_reused_ones(
        penalties in (prop::sample::select(vec![1.0f32, 1.3]), prop::sample::select(vec![0.0f32, 0.4])),
        window in 0u32..12,
        tokens in prop::collection::vec(0u32..12, 2..40),
        cut in any::<prop::sample::Index>(),
        generated_from in 0u32..40,
        seed in any::<u64>(),
        logits in prop::collection::vec(-2.0f32..2.0, 12),
    ) {
        let settings = SamplingSettings {
            temperature: 1.0,
            repetition_penalty: penalties.0,
            presence_penalty: penalties.1,
            frequency_penalty: penalties.1,
            penalty_window: window,
            seed,
            ..SamplingSettings::default()
        };
        let reused = 1 + cut.index(tokens.len() - 1);
        let mut cold = Sampler::resume(settings.clone(), 12, generated_from).unwrap();
        cold.observe(0, &tokens).unwrap();
        let known_from = reused - settings.tokens_seen(reused, generated_from as usize);
        let mut warm = Sampler::resume(settings, 12, generated_from).unwrap();
        warm.observe(known_from as u32, &tokens[known_from..reused]).unwrap();
        warm.observe(reused as u32, &tokens[reused..]).unwrap();
        for position in tokens.len() as u32..tokens.len() as u32 + 20 {
            let [one, other] = [&mut cold, &mut warm].map(|s| s.sample(position, &mut logits.clone()).unwrap());
            prop_assert_eq!(one, other);
        }
    }
}

/// Reasoning with a budget: token 1 opens it, 2 closes it, and 3 stands on both sides of the end.
fn thinking(budget: u32) -> SamplingSettings {
    let thinking =
        ThinkingSettings { is_open: true, opens: Some(1), closes: 2, budget: Some(budget), closing: vec![3, 2, 3] };
    SamplingSettings { thinking: Some(Box::new(thinking)), ..SamplingSettings::default() }
}

#[test]
fn reasoning_ends_when_its_budget_is_used_up_also_where_drafts_and_replays_come_between() {
    let logits = [0.0, 0.0, 0.0, 0.0, 5.0, 1.0];
    let mut plain = sampler(thinking(2), 6);
    plain.observe(0, &[5, 5]).unwrap();
    let wanted = [4, 4, 3, 2, 3, 4, 4];
    let said: Vec<u32> = (2..9).map(|position| token(&mut plain, position, &logits)).collect();
    assert_eq!(said, wanted);
    let mut drafted = sampler(thinking(2), 6);
    drafted.observe(0, &[5, 5]).unwrap();
    assert_eq!(token(&mut drafted, 2, &logits), 4);
    // Of these the second is right and the third is not.
    drafted.observe(2, &[4, 4, 4]).unwrap();
    let said: Vec<u32> = (3..9).map(|position| token(&mut drafted, position, &logits)).collect();
    assert_eq!(said, wanted[1..]);
    let mut replayed = Sampler::resume(thinking(2), 6, 2).unwrap();
    replayed.observe(0, &[5, 5, 4, 4, 3]).unwrap();
    let moved = Sampler::restore(replayed.memory(), 6).unwrap();
    for mut later in [replayed, moved] {
        let said: Vec<u32> = (5..9).map(|position| token(&mut later, position, &logits)).collect();
        assert_eq!(said, wanted[3..]);
    }
}

#[test]
fn who_may_not_think_does_not_begin_to() {
    let opens_at_once = [0.0, 9.0, 0.0, 0.0, 5.0, 1.0];
    for (budget, wanted) in [(Some(0), [4, 1]), (Some(7), [1, 1]), (None, [1, 1])] {
        let thinking = ThinkingSettings { is_open: false, opens: Some(1), closes: 2, budget, closing: vec![2] };
        let settings = SamplingSettings { thinking: Some(Box::new(thinking)), ..SamplingSettings::default() };
        let mut sampler = sampler(settings, 6);
        sampler.observe(0, &[5, 5]).unwrap();
        let said: Vec<u32> = (2..4).map(|position| token(&mut sampler, position, &opens_at_once)).collect();
        assert_eq!(said, wanted, "{budget:?}");
    }
}

#[test]
fn an_answer_whose_beginning_nobody_showed_is_no_guide() {
    let mut later = Sampler::resume(thinking(2), 6, 2).unwrap();
    assert_eq!(later.observe(4, &[4]), Err(Error::History { position: 4 }));
}

const END: u32 = 6;
const CLOSE: u32 = 5;

/// A few words, tags around reasoning, and an end.
fn speller() -> Speller {
    let text = |text: &'static str| Spelling::Text(text.as_bytes());
    let words =
        [text("yes"), text("no"), text("y"), text("es"), Spelling::Special("<open>"), Spelling::Special("<close>")];
    let more = [Spelling::Special("<end>"), text("x"), text("\n")];
    Speller::new(words.into_iter().chain(more), &[END]).unwrap()
}

/// Thinks, and then says yes or no.
fn yes_or_no() -> SamplingSettings {
    let thinking =
        ThinkingSettings { is_open: true, opens: Some(4), closes: CLOSE, budget: None, closing: vec![CLOSE, 8] };
    let grammar = Grammar::choice(&["yes", "no"]).unwrap().text().to_owned();
    SamplingSettings {
        thinking: Some(Box::new(thinking)),
        constraint: Some(Box::new(ConstraintSettings { grammar, ends: vec![END] })),
        ..SamplingSettings::default()
    }
}

/// Rows that want to end, then x, then to close, and of words `y` first.
fn yes_row(closes: bool) -> [f32; 9] {
    let close = if closes { 7.0 } else { 0.0 };
    [1.0, 2.0, 3.0, 0.5, 0.0, close, 9.0, 6.0, 0.1]
}

#[test]
fn a_structure_holds_behind_reasoning_through_drafts_replays_and_moves() {
    let speller = speller();
    let vocabulary = Vocabulary { size: 9, speller: Some(&speller) };
    let mut plain = Sampler::resume(yes_or_no(), vocabulary, 2).unwrap();
    plain.observe(0, &[7, 7]).unwrap();
    let closes = [false, false, true, false, false, false, false];
    let said: Vec<u32> =
        (2..).zip(closes).map(|(position, closes)| token(&mut plain, position, &yes_row(closes))).collect();
    // It may not end while it thinks, closes in form, and says "y" and "es" before it may end.
    assert_eq!(said, [7, 7, CLOSE, 8, 2, 3, END]);
    for cut in 0..said.len() {
        let mut replayed = Sampler::resume(yes_or_no(), vocabulary, 2).unwrap();
        replayed.observe(0, &[&[7, 7], &said[..cut]].concat()).unwrap();
        // Drafts behind what is certain, of which none is right.
        replayed.observe(2 + cut as u32, &[1, 1, 1]).unwrap();
        let mut moved = Sampler::restore(replayed.memory(), vocabulary).unwrap();
        for later in [&mut replayed, &mut moved] {
            let rest: Vec<u32> = (2..)
                .zip(closes)
                .skip(cut)
                .map(|(position, closes)| token(later, position, &yes_row(closes)))
                .collect();
            assert_eq!(rest, said[cut..], "behind {cut}");
        }
    }
}

#[test]
fn a_structure_needs_spellings_and_a_grammar() {
    assert_eq!(Sampler::new(yes_or_no(), 9).err(), Some(Error::NoSpeller));
    let speller = speller();
    let mut settings = yes_or_no();
    settings.constraint = Some(Box::new(ConstraintSettings { grammar: "{".to_owned(), ends: Vec::new() }));
    let vocabulary = Vocabulary { size: 9, speller: Some(&speller) };
    assert!(matches!(Sampler::new(settings, vocabulary).err(), Some(Error::Grammar(_))));
}
