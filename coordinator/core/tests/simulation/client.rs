//! A client: what it asks for, when it loses patience, and whether it got what it should.

use std::collections::BTreeSet;

use paceline_core::drafts::{Draft, DraftSettings};
use paceline_core::session::{Event, Finish, FinishReason, Goal, Request, TokenGoal};
use paceline_core::{Limits, Loss, Refusal, Session};
use paceline_proto::SamplingSettings;

use crate::model::{END, answer};
use crate::random::{Random, mix};
use crate::row::UNLUCKY;

/// Tokens that may come after a reader's output is full: two chunks of which all drafts are right.
const UNDER_WAY: usize = 18;

/// What a client will do.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) arrives: u64,
    pub(crate) prompt: Vec<u32>,
    pub(crate) boundaries: Vec<usize>,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) ignore_end: bool,
    /// It wants an embedding, not tokens.
    pub(crate) vector: bool,
    /// Its stop string is complete with this token.
    pub(crate) stops_after: Option<usize>,
    /// How long after its arrival it hangs up.
    pub(crate) patience: Option<u64>,
    /// Tokens that fit its output, and how long it takes to read one.
    pub(crate) reader: Option<(usize, u64)>,
    pub(crate) unlucky: bool,
    /// How many of the guesses at its tokens are right, in percent.
    pub(crate) accepted: u64,
    /// It always has so many guesses, knows how good they are, and guesses the same again at the same place; without it any
    /// number, of which it thinks anything.
    pub(crate) guesses: Option<usize>,
}

/// A prompt that begins like many others, up to somewhere.
pub(crate) fn prompt(random: &mut Random, tokens: usize) -> Vec<u32> {
    let (document, shared) = (random.between(0, 3), random.size(0, tokens));
    let shared = if random.once_in(4) { 0 } else { shared };
    let known = |place: usize| 10 + (mix(document << 32 | place as u64) % 490) as u32;
    (0..tokens).map(|place| if place < shared { known(place) } else { random.between(10, 500) as u32 }).collect()
}

impl Plan {
    pub(crate) fn random(random: &mut Random, limits: &Limits) -> Self {
        let long = random.once_in(8);
        let longest = if long { limits.context + 2 } else { limits.context.min(40) };
        let tokens = random.size(0, longest);
        let prompt = prompt(random, tokens);
        let boundaries = (0..random.size(0, 2)).map(|_| random.size(0, longest)).collect();
        Self {
            arrives: random.between(0, 1_500_000),
            prompt,
            boundaries,
            max_tokens: (!random.once_in(10)).then(|| random.size(0, 30)),
            ignore_end: random.once_in(4),
            vector: random.once_in(20),
            stops_after: random.once_in(5).then(|| random.size(1, 12)),
            patience: random.once_in(4).then(|| random.between(0, 300_000)),
            reader: random.once_in(6).then(|| (random.size(2, 5), random.between(100, 20_000))),
            unlucky: random.once_in(25),
            accepted: random.between(0, 100),
            guesses: None,
        }
    }

    fn session(&self, limits: &Limits) -> Session {
        let tokens = TokenGoal {
            end_tokens: BTreeSet::from([END]),
            ignore_end: self.ignore_end,
            stop_tokens: BTreeSet::new(),
            max_tokens: self.max_tokens,
            context: limits.context,
        };
        let goal = if self.vector { Goal::Vector } else { Goal::Tokens(tokens) };
        let seed = if self.unlucky { UNLUCKY } else { 0 };
        Session::new(Request {
            prompt: self.prompt.clone(),
            boundaries: self.boundaries.clone(),
            sampling: SamplingSettings { seed, ..Default::default() },
            drafts: DraftSettings::NONE,
            goal,
        })
    }

    /// All tokens it should get if nothing goes wrong, the end token last if it comes.
    fn expected(&self, limits: &Limits) -> Vec<u32> {
        if self.vector {
            return Vec::new();
        }
        // one that fills the context may be let in where another placement has a longer one
        let room = limits.context.saturating_sub(self.prompt.len()).max(1);
        let most = self.max_tokens.unwrap_or(room).min(room);
        answer(&self.prompt, most.min(self.stops_after.unwrap_or(most)), self.ignore_end)
    }
}

/// A client and its session.
pub(crate) struct Client {
    pub(crate) plan: Plan,
    pub(crate) session: Session,
    pub(crate) tokens: Vec<u32>,
    pub(crate) vector: Option<Vec<f32>>,
    pub(crate) finish: Option<Finish>,
    /// How often it was interrupted.
    pub(crate) interruptions: usize,
    unread: usize,
    full: bool,
    /// All that follows its prompt if nothing stops it.
    future: Vec<u32>,
}

impl Client {
    pub(crate) fn new(plan: Plan, limits: &Limits) -> Self {
        let session = plan.session(limits);
        let most = plan.max_tokens.map_or(200, |most| most + 8).min(limits.context);
        let future = if plan.prompt.is_empty() { Vec::new() } else { answer(&plan.prompt, most, plan.ignore_end) };
        Self {
            plan,
            session,
            tokens: Vec::new(),
            vector: None,
            finish: None,
            interruptions: 0,
            unread: 0,
            full: false,
            future,
        }
    }

    /// Guesses at what follows, as many of them right as its plan says.
    pub(crate) fn guess(&self, random: &mut Random) -> Vec<Draft> {
        let chance = if self.plan.guesses.is_some() { self.plan.accepted } else { random.between(0, 100) };
        let chance = chance as f32 / 100.0;
        let count = self.plan.guesses.unwrap_or_else(|| random.size(0, 30));
        let future = self.future.iter().copied().chain([7, 8, 9]).enumerate().skip(self.tokens.len()).take(count);
        let mut guess = |(place, token)| {
            let drawn = if self.plan.guesses.is_some() { mix(place as u64) % 100 + 1 } else { random.between(1, 100) };
            if drawn <= self.plan.accepted { token } else { token + 1 }
        };
        future.map(&mut guess).map(|token| Draft { token, chance }).collect()
    }

    /// Takes a token; returns what the session is told of it.
    pub(crate) fn emitted(&mut self, token: u32) -> Option<Event> {
        self.tokens.push(token);
        if let Some((room, _)) = self.plan.reader {
            self.unread += 1;
            assert!(self.unread <= room + UNDER_WAY, "a slow reader's output overflows");
        }
        if self.plan.stops_after == Some(self.tokens.len()) {
            return Some(Event::Stopped { tokens: self.tokens.len() });
        }
        let (room, _) = self.plan.reader?;
        (self.unread + 1 >= room && !std::mem::replace(&mut self.full, true)).then_some(Event::Full)
    }

    /// Reads a token; returns whether its output has room again.
    pub(crate) fn read(&mut self) -> bool {
        let (room, _) = self.plan.reader.expect("only slow readers take time");
        self.unread = self.unread.saturating_sub(1);
        self.unread + 1 < room && std::mem::replace(&mut self.full, false)
    }

    pub(crate) fn finished(&mut self, finish: Finish) {
        let before = self.finish.replace(finish);
        assert_eq!(before, None, "a session finished twice");
    }

    /// Whether it got what it should.
    pub(crate) fn check(&self, limits: &Limits) {
        let finish = self.finish.as_ref().expect("every session ends");
        let expected = self.plan.expected(limits);
        let text = expected.strip_suffix(&[END]).unwrap_or(&expected);
        match &finish.reason {
            FinishReason::Stop if self.plan.vector => assert!(self.vector.is_some()),
            FinishReason::Stop => {
                assert_eq!(self.tokens, text, "{finish:?}");
                assert_eq!(finish.usage.completion_tokens, expected.len());
                assert_eq!(finish.end_token.as_ref().map(|end| end.token), (text != expected).then_some(END));
                let stopped = self.plan.stops_after == Some(self.tokens.len());
                assert!(stopped || text != expected, "it stopped for no reason");
            }
            FinishReason::Length => {
                assert_eq!(self.tokens, expected);
                assert_eq!(finish.usage.completion_tokens, expected.len());
            }
            FinishReason::Cancelled => {
                assert!(self.plan.patience.is_some() && expected.starts_with(&self.tokens));
            }
            FinishReason::Refused(refusal) => assert_eq!(self.tokens, [], "{refusal}"),
            FinishReason::Lost(loss) => {
                assert!(expected.starts_with(&self.tokens));
                match loss {
                    Loss::Session { .. } => assert!(self.plan.unlucky),
                    Loss::NotRestored { waited, .. } => {
                        assert!(self.interruptions > 0 && *waited >= limits.restore_deadline);
                    }
                    Loss::Restores { restores, .. } => assert!(self.interruptions >= *restores as usize),
                    Loss::TooSmall(Refusal::TooLong { tokens, context }) => {
                        assert!(self.interruptions > 0 && *tokens > *context);
                    }
                    Loss::TooSmall(Refusal::NeverFits { needed, total }) => {
                        assert!(self.interruptions > 0 && *needed > *total);
                    }
                    other => panic!("{other}"),
                }
            }
        }
        assert_eq!(finish.usage.prompt_tokens, self.plan.prompt.len());
    }
}
