//! Log probabilities of the model itself.
//!
//! As in OpenAI's interface they are those of the distribution that the model gave, before biases, bans, penalties,
//! temperature and filters. So a chosen token may have a low one, and a banned token may be among the most probable.

use paceline_proto::{Logprobs, TokenLogprob};

use crate::{
    rank::{Candidate, best, most_probable},
    weight::Scale,
};

/// Reports log probabilities; keeps what the choice's report needs while logits are changed.
#[derive(Default)]
pub(crate) struct Reporter {
    /// The row as the model gave it.
    raw: Vec<f32>,
    ranked: Vec<Candidate>,
}

impl Reporter {
    /// Keeps a copy of a row (of usable logits).
    pub(crate) fn keep(&mut self, logits: &[f32]) {
        self.raw.clear();
        self.raw.extend_from_slice(logits);
    }

    /// The report on the row kept: of the token chosen from it, and of the `count` most probable ones (fewer if the
    /// others are impossible).
    pub(crate) fn report(&mut self, chosen: u32, count: u32) -> Logprobs {
        let normaliser = log_sum_exp(&self.raw);
        // What is impossible, or rounded to nothing, is reported as the lowest number: JSON has no infinity.
        let logprob = |logit: f32| ((f64::from(logit) - normaliser) as f32).clamp(f32::MIN, 0.0);
        most_probable(&self.raw, count as usize, &mut self.ranked);
        let top = self.ranked.iter().map(|&Candidate { token, logit }| TokenLogprob { token, logprob: logprob(logit) });
        Logprobs { chosen: logprob(self.raw[chosen as usize]), top: top.collect() }
    }
}

/// The most probable token, the lowest of several, and its probability; none in a row without a possible one, or with
/// one that is not a number.
pub fn most_probable_token(logits: &[f32]) -> Option<(u32, f32)> {
    let Candidate { token, logit: largest } = best(logits).filter(|best| best.logit.is_finite())?;
    let mass = Scale { largest, temperature: 1.0 }.mass(logits);
    mass.is_finite().then_some((token, (1.0 / mass) as f32))
}

/// The logarithm of the sum of the exponentials; exact zeros for a row of only impossible tokens.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let Some(Candidate { logit: largest, .. }) = best(logits) else { return 0.0 };
    let scale = Scale { largest, temperature: 1.0 };
    f64::from(largest) + libm::log(scale.mass(logits))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(logits: &[f32], chosen: u32, count: u32) -> Logprobs {
        let mut reporter = Reporter::default();
        reporter.keep(logits);
        reporter.report(chosen, count)
    }

    #[test]
    fn the_most_probable_token_is_the_lowest_of_several() {
        let (token, probability) = most_probable_token(&[0.0, 2.0_f32.ln(), 2.0_f32.ln(), f32::NEG_INFINITY]).unwrap();
        assert_eq!(token, 1);
        assert!((probability - 0.4).abs() < 1e-6, "{probability}");
        for improbable in [&[f32::NEG_INFINITY; 2][..], &[0.0, f32::NAN], &[f32::NAN; 2], &[0.0, f32::INFINITY], &[]] {
            assert_eq!(most_probable_token(improbable), None);
        }
    }

    #[test]
    fn two_equal_tokens_are_halves() {
        let found = report(&[5.0, f32::NEG_INFINITY, 5.0], 2, 3);
        let half = 0.5f32.ln();
        let top = vec![TokenLogprob { token: 0, logprob: half }, TokenLogprob { token: 2, logprob: half }];
        assert_eq!(found, Logprobs { chosen: half, top });
    }

    #[test]
    fn the_most_probable_come_first_and_ties_by_number() {
        let found = report(&[0.0, 1.0, 3.0, 1.0, 3.0, -1.0], 0, 5);
        assert_eq!(found.top.iter().map(|top| top.token).collect::<Vec<_>>(), [2, 4, 1, 3, 0]);
        assert!(found.top.is_sorted_by(|a, b| a.logprob >= b.logprob));
        assert_eq!(found.chosen, found.top[4].logprob);
    }

    #[test]
    fn no_infinities_come_out() {
        assert_eq!(report(&[0.0, f32::NEG_INFINITY], 1, 0), Logprobs { chosen: f32::MIN, top: vec![] });
        assert_eq!(report(&[f32::MAX, 0.0], 0, 0).chosen, 0.0);
        assert_eq!(report(&[f32::MAX, f32::MIN], 1, 0).chosen, f32::MIN);
        assert_eq!(report(&[f32::NEG_INFINITY], 0, 1), Logprobs { chosen: f32::MIN, top: vec![] });
    }

    proptest! {
        #[test]
        fn probabilities_sum_to_one_and_are_those_of_softmax(
            logits in prop::collection::vec(-30f32..30.0, 1..40),
        ) {
            let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            let found = report(&logits, 0, 40);
            prop_assert_eq!(found.top.len(), logits.len());
            for top in &found.top {
                let wanted = f64::from(logits[top.token as usize]) - total.ln();
                prop_assert!((f64::from(top.logprob) - wanted).abs() < 1e-5, "{} {wanted}", top.logprob);
            }
            let sum: f64 = found.top.iter().map(|top| f64::from(top.logprob).exp()).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        }
    }
}
