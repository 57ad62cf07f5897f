//! What chat and text completions have in common: how tokens are chosen, when the answer ends, how it is sent.

mod sampling;

use paceline_coordinator::Generate;
use paceline_proto::SamplingSettings;
use paceline_text::{MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::prompt::Prompt;
use crate::server::Api;

/// The most choices for one prompt.
pub(crate) const MAX_CHOICES: u64 = 16;

/// The most alternatives whose log probabilities are reported.
pub(crate) const MAX_LOGPROBS: u64 = 20;

/// The fields of both request bodies.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub(crate) struct CommonFields {
    model: Option<String>,
    n: Option<i64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    return_token_ids: Option<bool>,
    stop: Option<Stop>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    #[serde(alias = "repeat_penalty")]
    repetition_penalty: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    logit_bias: Option<Map<String, Value>>,
    #[schema(value_type = Option<i64>)]
    seed: Option<Number>,
}

#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

/// How the answer goes to the client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    /// Choices for each prompt.
    pub(crate) choices: usize,
    /// As events, while it is made.
    pub(crate) stream: bool,
    /// With a last event that counts tokens.
    pub(crate) include_usage: bool,
    /// With the ids of all tokens.
    pub(crate) token_ids: bool,
}

/// What is wanted of every prompt of the request.
#[derive(Debug)]
pub(crate) struct Settings {
    max_tokens: Option<usize>,
    stop: Vec<String>,
    sampling: SamplingSettings,
    ignore_end: bool,
    show_special: bool,
}

impl Settings {
    /// The work for one choice. Choices differ only in their number, so the first is what a single one would be.
    pub(crate) fn generate(&self, prompt: &Prompt, choice: usize) -> Generate {
        Generate {
            prompt: prompt.tokens.clone(),
            boundaries: prompt.boundaries.clone(),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            sampling: SamplingSettings {
                choice: choice as u32,
                thinking: prompt.answer.thinking.clone(),
                constraint: prompt.answer.constraint.clone(),
                ..self.sampling.clone()
            },
            // A text that is complete must be able to end.
            ignore_end: self.ignore_end && prompt.answer.constraint.is_none(),
            show_special: self.show_special,
        }
    }
}

impl CommonFields {
    /// Checks everything but the log probabilities, whose form differs.
    pub(crate) fn check(self, api: &Api, logprobs: Option<u32>) -> Result<(Settings, Delivery)> {
        let delivery = self.delivery()?;
        let settings = Settings {
            max_tokens: self.max_tokens(api)?,
            sampling: SamplingSettings { logprobs, ..self.sampling(api)? },
            ignore_end: self.ignore_eos.unwrap_or(false),
            show_special: !self.skip_special_tokens.unwrap_or(true),
            stop: self.stop.map_or_else(|| Ok(Vec::new()), Stop::check)?,
        };
        Ok((settings, delivery))
    }

    fn delivery(&self) -> Result<Delivery> {
        let options = self.stream_options.as_ref();
        Ok(Delivery {
            choices: integer("n", self.n, 1, MAX_CHOICES)?.unwrap_or(1) as usize,
            stream: self.stream.unwrap_or(false),
            include_usage: options.and_then(|options| options.include_usage).unwrap_or(false),
            token_ids: self.return_token_ids.unwrap_or(false),
        })
    }

    /// The newer name wins.
    fn max_tokens(&self, api: &Api) -> Result<Option<usize>> {
        let limit = u64::from(u32::MAX);
        let older = integer("max_tokens", self.max_tokens, 1, limit)?;
        let newer = integer("max_completion_tokens", self.max_completion_tokens, 1, limit)?;
        let wanted = newer.or(older).map(|tokens| tokens as usize);
        Ok(wanted.or(api.defaults.max_tokens))
    }
}

impl Stop {
    fn check(self) -> Result<Vec<String>> {
        let texts = match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        };
        if texts.len() > MAX_STOP_STRINGS {
            let problem = format!("stop has {} strings, the most is {MAX_STOP_STRINGS}", texts.len());
            return Err(Error::parameter("stop", problem));
        }
        for (index, text) in texts.iter().enumerate() {
            if text.is_empty() || text.len() > MAX_STOP_STRING_BYTES {
                let length = text.len();
                let problem = format!("stop[{index}] has {length} bytes, it must have 1 to {MAX_STOP_STRING_BYTES}");
                return Err(Error::parameter(format!("stop[{index}]"), problem));
            }
        }
        Ok(texts)
    }
}

/// Checks that an integer is in `least..=most`.
pub(crate) fn integer(name: &str, value: Option<i64>, least: u64, most: u64) -> Result<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    match u64::try_from(value) {
        Ok(value) if (least..=most).contains(&value) => Ok(Some(value)),
        _ => Err(Error::parameter(name, format!("{name} is {value}, it must be from {least} to {most}"))),
    }
}
