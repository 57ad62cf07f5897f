//! What users want of a placement, and what would give it to them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use paceline_gguf::ModelShape;
use serde::{Deserialize, Serialize};

use super::{
    Cluster, Load, Prediction, Wishes,
    device::number,
    fit::largest,
    place::{called, find},
    predict::RowSpeed,
    render::seconds,
};

const UNDERSTOOD: &str = "first-token<800ms, decode>20 (tokens per second and user), users=3, prompt=2000, answer=250 and \
                          depth=16000 are understood";

/// Times that a placement should keep, and the load under which it should.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Targets {
    /// The most time until the first token, for the last of users who all bring a prompt at once.
    pub first_token: Option<Duration>,
    /// The least tokens per second of each user, when all users' answers are written at once.
    pub decode: Option<f64>,
    /// Users at once [default: all sessions].
    pub users: Option<usize>,
    /// Tokens of a prompt.
    pub prompt: Option<usize>,
    /// Tokens of an answer.
    pub answer: Option<usize>,
    /// Tokens of conversation that an answer's rows attend to [default: half the context].
    pub depth: Option<usize>,
}

/// A description of targets that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is no target: {problem}; {UNDERSTOOD}")]
pub struct TargetError {
    /// The word that is wrong.
    pub word: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Whether a target is met.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// What is wanted.
    pub target: String,
    /// What is predicted.
    pub predicted: String,
    /// Whether that is enough.
    pub met: bool,
    /// Each of these alone would make it enough.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub would_meet: Vec<String>,
}

impl Targets {
    /// The load that these targets speak of.
    pub(super) fn load(&self, context: usize, sessions: usize) -> Load {
        let usual = Load::usual(context, sessions);
        Load {
            prompt: self.prompt.unwrap_or(usual.prompt),
            answer: self.answer.unwrap_or(usual.answer),
            depth: self.depth.unwrap_or(usual.depth),
            users: self.users.unwrap_or(usual.users),
        }
    }
}

/// Words such as `first-token<800ms users=3 prompt=2000`.
impl FromStr for Targets {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let mut targets = Self::default();
        for word in text.split([' ', ',', '\t', '\n']).filter(|word| !word.is_empty()) {
            targets.add(word).map_err(|problem| TargetError { word: word.to_owned(), problem })?;
        }
        Ok(targets)
    }
}

impl Targets {
    fn add(&mut self, word: &str) -> Result<(), String> {
        let at = word.find(['<', '>', '=']).ok_or("it has none of <, > and =")?;
        let (name, value) = (&word[..at], &word[at + 1..]);
        match (name, &word[at..=at]) {
            ("first-token", "<") => set(&mut self.first_token, duration(value)?),
            ("decode", ">") => set(&mut self.decode, rate(value)?),
            ("users", "=") => set(&mut self.users, count(value)?),
            ("prompt", "=") => set(&mut self.prompt, count(value)?),
            ("answer", "=") => set(&mut self.answer, count(value)?),
            ("depth", "=") => set(&mut self.depth, count(value)?),
            _ => Err("there is no such target".to_owned()),
        }
    }
}

fn set<T>(target: &mut Option<T>, value: T) -> Result<(), String> {
    match target.replace(value) {
        None => Ok(()),
        Some(_) => Err("it is there twice".to_owned()),
    }
}

fn count(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("{value:?} is no whole number above 0")),
    }
}

fn rate(value: &str) -> Result<f64, String> {
    number(value).ok_or_else(|| format!("{value:?} is no number above 0"))
}

fn duration(value: &str) -> Result<Duration, String> {
    let (digits, unit) = match value.strip_suffix("ms") {
        Some(digits) => (digits, 1e-3),
        None => (value.strip_suffix('s').unwrap_or(""), 1.0),
    };
    let seconds = number(digits).map(|number| number * unit).filter(|seconds| *seconds < 1e6);
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("{value:?} is no time such as 800ms or 2s"))
}

/// What a target asks of a prediction.
#[derive(Clone, Copy)]
enum Target {
    FirstToken(Duration),
    Decode(f64),
}

impl Target {
    fn is_met(self, prediction: &Prediction) -> bool {
        match self {
            Self::FirstToken(most) => prediction.first_token_all <= most.as_secs_f64(),
            Self::Decode(least) => per_user(prediction) >= least,
        }
    }

    fn predicted(self, prediction: &Prediction) -> String {
        match self {
            Self::FirstToken(_) => seconds(prediction.first_token_all),
            Self::Decode(_) => format!("{:.1} tok/s", per_user(prediction)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FirstToken(most) => write!(f, "first token within {}", seconds(most.as_secs_f64())),
            Self::Decode(least) => write!(f, "{least} tok/s for each user"),
        }
    }
}

fn per_user(prediction: &Prediction) -> f64 {
    prediction.decode_all / prediction.users.max(1) as f64
}

/// Whether a row meets the wished targets, and what would where it does not.
pub(super) fn judge(
    shape: &ModelShape,
    wishes: &Wishes,
    cluster: &Cluster,
    row: &RowSpeed,
    prediction: &Prediction,
) -> Vec<Verdict> {
    let first_token = wishes.targets.first_token.map(Target::FirstToken);
    let decode = wishes.targets.decode.map(Target::Decode);
    let verdict = |target: Target| {
        let met = target.is_met(prediction);
        let would_meet = if met { Vec::new() } else { Advice { shape, wishes, cluster, row, target }.would_meet() };
        Verdict { target: target.to_string(), predicted: target.predicted(prediction), met, would_meet }
    };
    first_token.into_iter().chain(decode).map(verdict).collect()
}

/// Looks for what would meet a target.
struct Advice<'a> {
    shape: &'a ModelShape,
    wishes: &'a Wishes,
    cluster: &'a Cluster,
    row: &'a RowSpeed,
    target: Target,
}

impl Advice<'_> {
    fn would_meet(&self) -> Vec<String> {
        [self.fewer_users(), self.shorter(), self.one_more_device()].into_iter().flatten().collect()
    }

    fn meets(&self, row: &RowSpeed, change: impl FnOnce(&mut Load)) -> bool {
        let mut load = self.wishes.load();
        change(&mut load);
        self.target.is_met(&row.predict(&load, self.wishes))
    }

    fn fewer_users(&self) -> Option<String> {
        let users = self.wishes.load().users;
        // Groups make this no straight line: every number is tried, from the most.
        let fits = (1..users).rev().take(1024).find(|&fewer| self.meets(self.row, |load| load.users = fewer))?;
        Some(if fits == 1 { "1 user at a time".to_owned() } else { format!("{fits} users at a time") })
    }

    fn shorter(&self) -> Option<String> {
        let Load { prompt, depth, .. } = self.wishes.load();
        match self.target {
            Target::FirstToken(_) => {
                let fits = largest(prompt - 1, |shorter| self.meets(self.row, |load| load.prompt = shorter))?;
                Some(format!("prompts of {fits} tokens"))
            }
            Target::Decode(_) => {
                let fits = largest(depth.saturating_sub(1), |less| self.meets(self.row, |load| load.depth = less))?;
                Some(format!("{fits} tokens of conversation"))
            }
        }
    }

    /// One more device like the fastest.
    fn one_more_device(&self) -> Option<String> {
        let read = |index: &usize| self.cluster.devices[*index].speed.map_or(0.0, |speed| speed.read);
        let fastest = (0..self.cluster.devices.len()).max_by(|one, other| read(one).total_cmp(&read(other)))?;
        let mut larger = self.cluster.clone();
        larger.devices.push(larger.devices[fastest].clone());
        let wishes = Wishes { shards: None, ..self.wishes.clone() };
        let found = find(self.shape, &wishes, &larger).ok()??;
        let name = called(self.cluster, fastest);
        self.meets(&found.speed, |_| {}).then(|| format!("one more device like {name}"))
    }
}
