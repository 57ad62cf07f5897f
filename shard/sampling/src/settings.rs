//! Checks of settings that came from outside.

use paceline_proto::SamplingSettings;

use crate::{Error, Result};

/// The most log probabilities of a position that can be asked for.
pub const MAX_LOGPROBS: u32 = 20;

/// Checks that every number is in its range and every token is in the vocabulary.
pub(crate) fn check(settings: &SamplingSettings, vocabulary: usize) -> Result<()> {
    if vocabulary == 0 {
        return Err(Error::EmptyVocabulary);
    }
    check_numbers(settings)?;
    check_tokens(settings, vocabulary)?;
    match settings.logprobs {
        Some(wanted) if wanted > MAX_LOGPROBS => Err(Error::TooManyLogprobs { wanted, limit: MAX_LOGPROBS }),
        _ => Ok(()),
    }
}

fn check_numbers(settings: &SamplingSettings) -> Result<()> {
    let SamplingSettings { temperature, top_p, min_p, repetition_penalty, frequency_penalty, presence_penalty, .. } =
        *settings;
    let demand = |possible: bool, setting, value, allowed| match possible {
        true => Ok(()),
        false => Err(Error::Setting { setting, value, allowed }),
    };
    demand(temperature.is_finite() && temperature >= 0.0, "temperature", temperature, "finite and not negative")?;
    demand((0.0..=1.0).contains(&top_p), "top_p", top_p, "from 0 to 1")?;
    demand((0.0..=1.0).contains(&min_p), "min_p", min_p, "from 0 to 1")?;
    let positive = repetition_penalty.is_finite() && repetition_penalty > 0.0;
    demand(positive, "repetition_penalty", repetition_penalty, "finite and greater than 0")?;
    demand(frequency_penalty.is_finite(), "frequency_penalty", frequency_penalty, "finite")?;
    demand(presence_penalty.is_finite(), "presence_penalty", presence_penalty, "finite")
}

fn check_tokens(settings: &SamplingSettings, vocabulary: usize) -> Result<()> {
    for &(token, bias) in &settings.logit_bias {
        check_token("logit_bias", token, vocabulary)?;
        if !bias.is_finite() {
            return Err(Error::Bias { token, bias });
        }
    }
    for &token in &settings.banned {
        check_token("the list of banned tokens", token, vocabulary)?;
    }
    if let Some(thinking) = &settings.thinking {
        let closing = thinking.closing.iter().chain([&thinking.closes]).chain(&thinking.opens);
        closing.into_iter().try_for_each(|&token| check_token("thinking", token, vocabulary))?;
        if thinking.budget.is_some() && !thinking.closing.contains(&thinking.closes) {
            return Err(Error::Closing { token: thinking.closes });
        }
    }
    let ends = settings.constraint.iter().flat_map(|constraint| &constraint.ends);
    ends.into_iter().try_for_each(|&end| check_token("the constraint", end, vocabulary))?;
    let mut banned = settings.banned.clone();
    banned.sort_unstable();
    banned.dedup();
    if banned.len() == vocabulary {
        return Err(Error::AllBanned { vocabulary });
    }
    Ok(())
}

/// Checks that the model has this token; `what` says where it was named.
pub(crate) fn check_token(what: &'static str, token: u32, vocabulary: usize) -> Result<()> {
    if (token as usize) < vocabulary {
        return Ok(());
    }
    Err(Error::Token { what, token, vocabulary })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut SamplingSettings)) -> String {
        let mut settings = SamplingSettings::default();
        change(&mut settings);
        check(&settings, 4).unwrap_err().to_string()
    }

    #[test]
    fn the_defaults_and_the_ends_of_every_range_are_accepted() {
        check(&SamplingSettings::default(), 1).unwrap();
        let extreme = SamplingSettings {
            temperature: f32::MAX,
            top_k: u32::MAX,
            top_p: 0.0,
            min_p: 1.0,
            repetition_penalty: f32::MIN_POSITIVE,
            frequency_penalty: f32::MIN,
            presence_penalty: f32::MAX,
            penalty_window: u32::MAX,
            logit_bias: vec![(3, f32::MIN), (3, f32::MAX)],
            banned: vec![0, 1, 2, 2],
            seed: u64::MAX,
            choice: u32::MAX,
            logprobs: Some(MAX_LOGPROBS),
            thinking: None,
            constraint: None,
        };
        check(&extreme, 4).unwrap();
    }

    #[test]
    fn numbers_out_of_range_are_refused_by_name() {
        let nan = f32::NAN;
        assert_eq!(refused(|s| s.temperature = -0.5), "temperature is -0.5, it must be finite and not negative");
        assert_eq!(refused(|s| s.temperature = nan), "temperature is NaN, it must be finite and not negative");
        assert_eq!(
            refused(|s| s.temperature = f32::INFINITY),
            "temperature is inf, it must be finite and not negative"
        );
        assert_eq!(refused(|s| s.top_p = 1.01), "top_p is 1.01, it must be from 0 to 1");
        assert_eq!(refused(|s| s.top_p = nan), "top_p is NaN, it must be from 0 to 1");
        assert_eq!(refused(|s| s.min_p = -0.1), "min_p is -0.1, it must be from 0 to 1");
        assert_eq!(
            refused(|s| s.repetition_penalty = 0.0),
            "repetition_penalty is 0, it must be finite and greater than 0"
        );
        assert_eq!(refused(|s| s.frequency_penalty = nan), "frequency_penalty is NaN, it must be finite");
        assert_eq!(refused(|s| s.presence_penalty = f32::INFINITY), "presence_penalty is inf, it must be finite");
    }

    #[test]
    fn tokens_that_do_not_exist_are_refused() {
        assert_eq!(
            refused(|s| s.logit_bias = vec![(0, 1.0), (4, 1.0)]),
            "logit_bias names token 4, the vocabulary has 4 tokens"
        );
        assert_eq!(
            refused(|s| s.logit_bias = vec![(1, f32::NEG_INFINITY)]),
            "the bias of token 1 is -inf, it must be finite (ban the token instead)"
        );
        assert_eq!(
            refused(|s| s.banned = vec![u32::MAX]),
            "the list of banned tokens names token 4294967295, the vocabulary has 4 tokens"
        );
        assert_eq!(refused(|s| s.banned = vec![0, 1, 2, 3]), "all 4 tokens are banned, at least one must be allowed");
        assert_eq!(refused(|s| s.logprobs = Some(21)), "21 log probabilities per token are wanted, the limit is 20");
        assert_eq!(check(&SamplingSettings::default(), 0), Err(Error::EmptyVocabulary));
    }
}
