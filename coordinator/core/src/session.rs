//! A session's core: one conversation's turn, from its prompt to its end.
//!
//! Read [`Session::on`]. It opens itself with the coordinator, wants its prompt run, then wants each sampled token
//! run in turn together with its guesses at what follows ([`Drafter`]), and knows the three ways to end by itself: an end token, a stop string that the text side found,
//! and the limit of tokens. When it is interrupted it opens again, and wants all tokens run that it has.
//!
//! An end token is not emitted, since it has no text, but it was computed and it counts as a completion token; the
//! usual servers count so too.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use paceline_proto::{Drafted, Outcome, SampledToken, SamplingSettings, Verified, Wanted};

use crate::coordinator::{Input, Loss, Opening, Refusal, Wish};
use crate::drafts::{DraftSettings, Drafter};
use crate::reuse::Reuse;

/// What a session is to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// How many of its tokens come before places where other prompts are likely to branch off. Advice; in any order.
    pub boundaries: Vec<usize>,
    /// How the tail chooses tokens.
    pub sampling: SamplingSettings,
    /// Which drafts it may have. They change how fast its tokens come, and nothing else.
    pub drafts: DraftSettings,
    /// What to produce.
    pub goal: Goal,
}

/// What a session is to produce.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Goal {
    /// Tokens after the prompt.
    Tokens(TokenGoal),
    /// The hidden row of the prompt's last token, as an embedding.
    Vector,
}

/// When to stop producing tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenGoal {
    /// Tokens with which the model ends an answer.
    pub end_tokens: BTreeSet<u32>,
    /// Never end by an end token: they are banned from sampling.
    pub ignore_end: bool,
    /// Tokens with which the client wants the answer to end, whatever `ignore_end` says.
    pub stop_tokens: BTreeSet<u32>,
    /// The most new tokens; without it as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Tokens of prompt and answer together.
    pub context: usize,
}

/// What a session is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Begin.
    Begin,
    /// The coordinator gave it a place, and knows some of its tokens already.
    Opened(Reuse),
    /// The row in which it had its place is over: whatever it wanted and has not got will never come.
    Interrupted,
    /// The coordinator will not run it.
    Refused(Refusal),
    /// A chunk came back.
    Outcome {
        /// What came out.
        outcome: Outcome,
        /// How many tokens are run.
        position: usize,
        /// How many drafts the chunk had.
        drafts: usize,
    },
    /// The text side found a stop string, which the session's `tokens`-th new token completed. If that was the last
    /// token allowed, the session has finished already: then [`Finish::stopped`] corrects what it said.
    Stopped {
        /// New tokens up to the end of the stop string.
        tokens: usize,
    },
    /// The client is gone.
    ClientLeft,
    /// The coordinator lost it.
    Lost(Loss),
    /// The reader is slow: the output has room only for what is under way. The session wants nothing further.
    Full,
    /// The output has room again.
    Room,
}

/// What a session wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// To the coordinator: give it a place.
    Open(Opening),
    /// To the coordinator: run this.
    Want(Wish),
    /// To the coordinator: it is over.
    Leave,
    /// To the text side: the next token of the answer.
    Emit(SampledToken),
    /// To the client: the embedding.
    Vector(Vec<f32>),
    /// To the client: it is over. Nothing follows.
    Finish(Finish),
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// The end or stop token that ended it, which was not emitted.
    pub end_token: Option<SampledToken>,
    /// What it took.
    pub usage: Usage,
    /// What it found when it was first let in; nothing if it never was.
    pub reuse: Reuse,
}

impl Finish {
    /// The same end, when the text side found a stop string in the last tokens that came: not the limit ended it, nor an
    /// end token behind.
    #[must_use]
    pub fn stopped(self, tokens: usize) -> Self {
        let completion_tokens = tokens.min(self.usage.completion_tokens);
        Self { reason: FinishReason::Stop, end_token: None, usage: Usage { completion_tokens, ..self.usage }, ..self }
    }
}

/// Why a session ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token, a stop token or a stop string; or the embedding is there.
    Stop,
    /// The most new tokens, or the context.
    Length,
    /// The client left.
    Cancelled,
    /// It was never let in.
    Refused(Refusal),
    /// It could not go on.
    Lost(Loss),
}

/// What a session took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// New tokens, the one that ended it included.
    pub completion_tokens: usize,
    /// Tokens of the prompt that were not run anew.
    pub cached_tokens: usize,
    /// Drafts that were run.
    pub drafts: usize,
    /// Of these, new tokens.
    pub accepted_drafts: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    New,
    Waiting,
    Running,
    Ended,
}

/// One conversation's turn. See the module's text.
#[derive(Debug)]
pub struct Session {
    state: State,
    goal: Goal,
    /// The prompt, and every new token but the one that ends it.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    boundaries: Arc<[usize]>,
    sampling: SamplingSettings,
    /// When it was first let in.
    reuse: Option<Reuse>,
    completion_tokens: usize,
    drafter: Drafter,
    drafts: usize,
    accepted_drafts: usize,
    full: bool,
    /// What to want when there is room again.
    postponed: Option<Wish>,
}

impl Session {
    /// A session that waits for [`Event::Begin`].
    pub fn new(request: Request) -> Self {
        let Request { prompt, mut boundaries, mut sampling, drafts, goal } = request;
        boundaries.retain(|boundary| (1..=prompt.len()).contains(boundary));
        boundaries.sort_unstable();
        boundaries.dedup();
        if let Goal::Tokens(tokens) = &goal
            && tokens.ignore_end
        {
            sampling.banned.extend(tokens.end_tokens.difference(&tokens.stop_tokens));
        }
        Self {
            state: State::New,
            goal,
            prompt_tokens: prompt.len(),
            tokens: prompt,
            boundaries: boundaries.into(),
            sampling,
            reuse: None,
            completion_tokens: 0,
            drafter: Drafter::new(drafts),
            drafts: 0,
            accepted_drafts: 0,
            full: false,
            postponed: None,
        }
    }

    /// Takes in one event and appends what is to be done. After a `Finish` all events are ignored.
    pub fn on(&mut self, event: Event, actions: &mut Vec<Action>) {
        match (self.state, event) {
            (State::Ended, _) => {}
            (State::New, Event::Begin) => self.begin(actions),
            (State::Waiting, Event::Opened(reuse)) => self.opened(reuse, actions),
            (State::Waiting, Event::Refused(refusal)) => self.finish(FinishReason::Refused(refusal), None, actions),
            (State::Running, Event::Outcome { outcome, position, drafts }) => {
                self.drafts += drafts;
                self.outcome(outcome, position, actions);
            }
            (State::Running, Event::Interrupted) => self.interrupted(actions),
            (State::Waiting | State::Running, Event::Stopped { tokens }) => self.stopped(tokens, actions),
            (_, Event::Lost(loss)) => self.finish(FinishReason::Lost(loss), None, actions),
            (State::New, Event::ClientLeft) => self.finish(FinishReason::Cancelled, None, actions),
            (_, Event::ClientLeft) => self.leave(FinishReason::Cancelled, None, actions),
            (_, Event::Full) => self.full = true,
            (_, Event::Room) => self.room(actions),
            (state, event) => panic!("a session that is {state:?} is told {event:?}"),
        }
    }

    /// The most tokens it may ever have: what the client asked for, cut at the context; but one new token at
    /// least, so that a prompt that fills the context is refused by the coordinator with the figures.
    fn token_limit(&self) -> usize {
        match &self.goal {
            Goal::Vector => self.prompt_tokens,
            Goal::Tokens(goal) => {
                let asked = goal.max_tokens.map_or(goal.context, |max| self.prompt_tokens.saturating_add(max));
                asked.min(goal.context).max(self.prompt_tokens + 1)
            }
        }
    }

    fn begin(&mut self, actions: &mut Vec<Action>) {
        if matches!(&self.goal, Goal::Tokens(TokenGoal { max_tokens: Some(0), .. })) {
            return self.finish(FinishReason::Length, None, actions);
        }
        self.open(false, actions);
    }

    fn open(&mut self, again: bool, actions: &mut Vec<Action>) {
        self.state = State::Waiting;
        actions.push(Action::Open(Opening {
            tokens: self.tokens.as_slice().into(),
            boundaries: Arc::clone(&self.boundaries),
            prompt_tokens: self.prompt_tokens,
            token_limit: self.token_limit(),
            sampling: Box::new(self.sampling.clone()),
            again,
        }));
    }

    fn opened(&mut self, reuse: Reuse, actions: &mut Vec<Action>) {
        self.state = State::Running;
        self.reuse.get_or_insert(reuse);
        let wanted = if self.goal == Goal::Vector { Wanted::Vector } else { Wanted::Sample };
        self.want(Wish::new(Input::Tokens(self.tokens[reuse.cached..].to_vec()), wanted), actions);
    }

    /// Everything that is known of the answer so far is in the tokens.
    fn interrupted(&mut self, actions: &mut Vec<Action>) {
        self.postponed = None;
        self.open(true, actions);
    }

    fn want(&mut self, wish: Wish, actions: &mut Vec<Action>) {
        if self.full {
            self.postponed = Some(wish);
        } else {
            actions.push(Action::Want(wish));
        }
    }

    fn outcome(&mut self, outcome: Outcome, position: usize, actions: &mut Vec<Action>) {
        match outcome {
            Outcome::Stored => {}
            Outcome::Sampled(sampled) => {
                let verified = Verified { tokens: vec![sampled], drafted: Vec::new() };
                self.verified(verified, position, actions);
            }
            Outcome::Verified(verified) => self.verified(verified, position, actions),
            Outcome::Vector(vector) => {
                actions.push(Action::Vector(vector));
                self.leave(FinishReason::Stop, None, actions);
            }
            Outcome::Void | Outcome::Failed(_) => panic!("the coordinator turns these into a loss"),
        }
    }

    /// Takes in tokens that follow, up to the one that ends it.
    fn verified(&mut self, verified: Verified, position: usize, actions: &mut Vec<Action>) {
        let Verified { tokens, drafted } = verified;
        assert_eq!(position + 1, self.tokens.len() + tokens.len(), "tokens came out of order");
        self.drafter.learn(&tokens.iter().map(|sampled| sampled.token));
        let accepted = tokens.len() - 1;
        for (place, sampled) in tokens.into_iter().enumerate() {
            self.completion_tokens += 1;
            self.accepted_drafts += usize::from(place < accepted);
            let token = sampled.token;
            if self.ends(token) {
                return self.leave(FinishReason::Stop, Some(sampled), actions);
            }
            self.tokens.push(token);
            actions.push(Action::Emit(sampled));
            if self.tokens.len() >= self.token_limit() {
                return self.leave(FinishReason::Length, None, actions);
            }
        }
        let next = self.next(&drafted);
        self.want(next, actions);
    }

    /// The wish for what follows the last token, with what may.
    fn next(&mut self, drafted: &[Drafted]) -> Wish {
        let last = *self.tokens.last().expect("it has got a token");
        // the one behind the last draft must be one that it may have
        let most = self.token_limit() - self.tokens.len() - 1;
        let drafts = self.drafter.drafts(&self.tokens, drafted, most);
        let wish = Wish::new(Input::Tokens(vec![last]), Wanted::Sample);
        Wish { drafts, proposals: self.drafter.proposals(), ..wish }
    }

    fn ends(&self, token: u32) -> bool {
        let Goal::Tokens(goal) = &self.goal else { return false };
        goal.stop_tokens.contains(&token) || (!goal.ignore_end && goal.end_tokens.contains(&token))
    }

    fn stopped(&mut self, tokens: usize, actions: &mut Vec<Action>) {
        self.completion_tokens = tokens.min(self.completion_tokens);
        self.leave(FinishReason::Stop, None, actions);
    }

    fn room(&mut self, actions: &mut Vec<Action>) {
        self.full = false;
        actions.extend(self.postponed.take().map(Action::Want));
    }

    fn leave(&mut self, reason: FinishReason, end_token: Option<SampledToken>, actions: &mut Vec<Action>) {
        actions.push(Action::Leave);
        self.finish(reason, end_token, actions);
    }

    fn finish(&mut self, reason: FinishReason, end_token: Option<SampledToken>, actions: &mut Vec<Action>) {
        self.state = State::Ended;
        let reuse = self.reuse.unwrap_or_default();
        let usage = Usage {
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens: reuse.cached,
            drafts: self.drafts,
            accepted_drafts: self.accepted_drafts,
        };
        actions.push(Action::Finish(Finish { reason, end_token, usage, reuse }));
    }
}
