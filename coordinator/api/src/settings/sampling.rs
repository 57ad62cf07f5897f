//! The fields that decide how tokens are chosen.

use std::ops::RangeInclusive;

use paceline_proto::SamplingSettings;
use serde_json::{Map, Number, Value};
use uuid::Uuid;

use super::{CommonFields, integer};
use crate::error::{Error, Result};
use crate::server::Api;

/// Above this every token is about equally probable.
const TEMPERATURES: RangeInclusive<f64> = 0.0..=10.0;

const PENALTIES: RangeInclusive<f64> = -2.0..=2.0;

const REPETITION_PENALTIES: RangeInclusive<f64> = 0.01..=10.0;

const PROBABILITIES: RangeInclusive<f64> = 0.0..=1.0;

const BIASES: RangeInclusive<f64> = -100.0..=100.0;

/// The most tokens with a bias; they travel with the session.
const MAX_BIASES: usize = 1024;

impl CommonFields {
    pub(super) fn sampling(&self, api: &Api) -> Result<SamplingSettings> {
        let defaults = &api.defaults;
        let number = |name, value: Option<f64>, range, default| match value {
            Some(value) => in_range(name, value, &range),
            None => Ok(default),
        };
        Ok(SamplingSettings {
            temperature: number("temperature", self.temperature, TEMPERATURES, defaults.temperature)?,
            top_p: number("top_p", self.top_p, PROBABILITIES, defaults.top_p)?,
            top_k: self.top_k()?.unwrap_or(defaults.top_k),
            min_p: number("min_p", self.min_p, PROBABILITIES, defaults.min_p)?,
            repetition_penalty: number(
                "repetition_penalty",
                self.repetition_penalty,
                REPETITION_PENALTIES,
                defaults.repetition_penalty,
            )?,
            frequency_penalty: number(
                "frequency_penalty",
                self.frequency_penalty,
                PENALTIES,
                defaults.frequency_penalty,
            )?,
            presence_penalty: number("presence_penalty", self.presence_penalty, PENALTIES, defaults.presence_penalty)?,
            penalty_window: defaults.penalty_window,
            logit_bias: biases(self.logit_bias.as_ref(), api.engine.model().vocabulary)?,
            seed: seed(self.seed.as_ref())?,
            ..SamplingSettings::default()
        })
    }

    /// -1 is how some clients say "all".
    fn top_k(&self) -> Result<Option<u32>> {
        if self.top_k == Some(-1) {
            return Ok(Some(0));
        }
        Ok(integer("top_k", self.top_k, 0, u64::from(u32::MAX))?.map(|count| count as u32))
    }
}

fn in_range(name: &str, value: f64, range: &RangeInclusive<f64>) -> Result<f32> {
    if range.contains(&value) {
        return Ok(value as f32);
    }
    let (least, most) = (range.start(), range.end());
    Err(Error::parameter(name, format!("{name} is {value}, it must be from {least} to {most}")))
}

fn biases(fields: Option<&Map<String, Value>>, vocabulary: usize) -> Result<Vec<(u32, f32)>> {
    let Some(fields) = fields else { return Ok(Vec::new()) };
    if fields.len() > MAX_BIASES {
        let problem = format!("logit_bias has {} tokens, the most is {MAX_BIASES}", fields.len());
        return Err(Error::parameter("logit_bias", problem));
    }
    fields.iter().map(|(token, value)| bias(token, value, vocabulary)).collect()
}

fn bias(token: &str, value: &Value, vocabulary: usize) -> Result<(u32, f32)> {
    let id = token.parse().ok().filter(|id: &u32| (*id as usize) < vocabulary).ok_or_else(|| {
        let problem = format!("logit_bias: {token:?} is no token id, they are below {vocabulary}");
        Error::parameter("logit_bias", problem)
    })?;
    let name = format!("logit_bias.{id}");
    let number = value.as_f64().ok_or_else(|| Error::parameter(&name, format!("{name} is {value}, not a number")))?;
    Ok((id, in_range(&name, number, &BIASES)?))
}

/// Every integer is a seed, except that -1, as some clients say, is none. Without one each request has its own.
fn seed(seed: Option<&Number>) -> Result<u64> {
    let Some(seed) = seed else { return Ok(random_seed()) };
    match (seed.as_u64(), seed.as_i64()) {
        (Some(seed), _) => Ok(seed),
        (None, Some(-1)) => Ok(random_seed()),
        (None, Some(seed)) => Ok(seed.cast_unsigned()),
        (None, None) => Err(Error::parameter("seed", format!("seed is {seed}, it must be an integer of 64 bits"))),
    }
}

fn random_seed() -> u64 {
    Uuid::new_v4().as_u64_pair().1
}
