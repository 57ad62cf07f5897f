//! Chunks that are sent ahead: drafts behind drafts of which nothing is known yet.
//!
//! In a row of several stages that has nothing else to run, a session whose chunk is under way may have the next ones
//! sent behind it: drafts that follow its drafts, on the assumption that all of these are accepted and that the token
//! sampled behind them is the first of the next chunk. [`fill()`] decides by measured times and chances whether that
//! brings more tokens in the time. The last free credit is left to whoever comes meanwhile, and prompts go first.
//!
//! What came of a chunk says whether the next one's assumption holds. If it does, that chunk is the session's next: when
//! the session wants the token that the next one begins with, the wish is *matched* with it instead of sent, and with the
//! wish come drafts for what follows everything under way. Its result is held back until then, as a session never gets a
//! token whose predecessor it has not accepted. If the assumption fails, everything sent ahead is *void*: the tail finds
//! that by itself, the session's next chunk goes out at once, and the void results come back to nobody.
//!
//! No chunk sent ahead tells the stages that a token is certain which its session has not accepted. So a session may end
//! anywhere and still settle: its last chunk starts behind what it accepted, whatever was sent ahead.

use std::collections::VecDeque;

use paceline_proto::{Chunk, ChunkInput, Outcome, SessionId, StepId, Verify, Wanted};

use super::compose::{InFlight, Making, Sent};
use super::running::{Came, Running};
use super::speculation::tokens_in;
use super::{Coordinator, Input, Wish};
use crate::drafts::{Draft, Load, expected, fill};

/// A chunk that was sent ahead, is not known to be void, and is not yet matched by a wish.
#[derive(Debug)]
struct AheadChunk {
    /// The step it is in.
    step: StepId,
    /// Its first token.
    first: u32,
    /// Its own result, held back.
    held: Option<Came>,
}

/// A session's drafts under way, chunk behind chunk.
#[derive(Debug, Default)]
pub(super) struct Chain {
    /// Those of which nothing is known, in the order of their places.
    unknown: VecDeque<Draft>,
    /// Chunks sent ahead, in order.
    chunks: VecDeque<AheadChunk>,
    /// Guesses at what follows all that is sent.
    further: VecDeque<Draft>,
}

impl Chain {
    /// A chunk that follows what is certain is sent, with the first `sent` of these drafts. The others may follow.
    pub(super) fn begin(&mut self, drafts: &[Draft], sent: usize) {
        let (sent, further) = drafts.split_at(sent);
        *self = Self { unknown: sent.iter().copied().collect(), chunks: VecDeque::new(), further: VecDeque::new() };
        self.further.extend(further);
    }

    /// Whether something was sent ahead whose turn has not come.
    pub(super) fn is_ahead(&self) -> bool {
        !self.chunks.is_empty()
    }

    /// Whether the session's chunk in this step is one of those.
    pub(super) fn has(&self, step: StepId) -> bool {
        self.chunks.iter().any(|chunk| chunk.step == step)
    }

    /// Whether something is sent behind the chunk in this step.
    pub(super) fn follows(&self, step: StepId) -> bool {
        self.chunks.iter().any(|chunk| chunk.step > step)
    }

    /// How probable it is that all drafts under way are right.
    fn chance(&self) -> f64 {
        self.unknown.iter().map(|draft| f64::from(draft.chance)).product()
    }

    /// Takes the first `rows` further drafts for a chunk of `step`.
    fn take(&mut self, step: StepId, rows: usize) -> Vec<u32> {
        let drafts: Vec<Draft> = self.further.drain(..rows).collect();
        self.chunks.push_back(AheadChunk { step, first: drafts[0].token, held: None });
        self.unknown.extend(&drafts);
        drafts.iter().map(|draft| draft.token).collect()
    }

    /// What came of a chunk decides about those behind it; says whether they are void. They are forgotten then.
    pub(super) fn breaks(&mut self, sent: &Sent, outcome: &Outcome, step: StepId) -> bool {
        // More of the prompt follows, or the session is lost, whatever comes of the rest.
        if matches!(outcome, Outcome::Stored | Outcome::Failed(_)) {
            return false;
        }
        let next = self.chunks.iter().find(|chunk| chunk.step > step);
        let newest = match outcome {
            Outcome::Sampled(sampled) => Some(sampled.token),
            Outcome::Verified(verified) => verified.tokens.last().map(|sampled| sampled.token),
            _ => None,
        };
        let holds = tokens_in(outcome) == sent.drafts.len() + 1 && next.is_some_and(|next| newest == Some(next.first));
        if holds {
            self.unknown.drain(..(sent.drafts.len() + 1).min(self.unknown.len()));
            return false;
        }
        let is_void = next.is_some();
        self.chunks.retain(|chunk| chunk.step <= step);
        self.unknown.clear();
        self.further.clear();
        is_void
    }

    /// Holds back the result of a chunk whose turn has not come; gives it back where it has.
    pub(super) fn hold(&mut self, step: StepId, came: Came) -> Option<Came> {
        match self.chunks.iter_mut().find(|chunk| chunk.step == step) {
            Some(chunk) => {
                chunk.held = Some(came);
                None
            }
            None => Some(came),
        }
    }

    /// Matches a wish with the first chunk, if it is its token; gives that, and the result if it was held back.
    pub(super) fn matched(&mut self, wish: &Wish) -> Option<(u32, Option<Came>)> {
        let is_wanted =
            |chunk: &mut AheadChunk| wish.wanted == Wanted::Sample && wish.input == Input::Tokens(vec![chunk.first]);
        self.chunks.pop_front_if(is_wanted).map(|chunk| (chunk.first, chunk.held))
    }

    /// Guesses at what follows the token that was matched: they begin with those under way, or the session has thought
    /// better of it, and nothing further is sent.
    pub(super) fn offer(&mut self, drafts: &[Draft]) {
        self.further.clear();
        let same = self.unknown.iter().zip(drafts).all(|(sent, draft)| sent.token == draft.token);
        if let Some(further) = drafts.get(self.unknown.len()..).filter(|_| same) {
            self.unknown = drafts[..self.unknown.len()].iter().copied().collect();
            self.further.extend(further);
        }
    }
}

impl Sent {
    /// Whether it was sent before it was known what it follows.
    pub(super) fn is_ahead(&self) -> bool {
        self.wanted.drafts() as usize > self.drafts.len()
    }
}

impl InFlight {
    /// Whether it has nothing but chunks sent ahead.
    pub(super) fn is_ahead(&self) -> bool {
        !self.chunks.is_empty() && self.chunks.iter().all(Sent::is_ahead)
    }

    /// Whether it has nothing but chunks that are void.
    pub(super) fn is_void(&self) -> bool {
        !self.chunks.is_empty() && self.chunks.iter().all(|chunk| chunk.void)
    }
}

impl Running {
    /// Whether there are drafts that could be sent behind its chunk under way.
    fn has_further(&self) -> bool {
        !self.speculation.chain.further.is_empty() && self.waits_for_token()
    }

    /// The chunk that runs the first `rows` further drafts.
    fn send_ahead(&mut self, step: StepId, rows: usize) -> Chunk {
        let tokens = self.speculation.chain.take(step, rows);
        let uncertain = self.sent() + rows - self.speculation.certain;
        let drafts = u32::try_from(uncertain).expect("a log has fewer tokens than that");
        self.chunk(step, ChunkInput::Tokens(tokens), Wanted::Verify(Verify { drafts, ..Verify::default() }))
    }
}

impl Coordinator {
    /// A step with one chunk sent ahead, if one is worth it.
    pub(super) fn send_ahead(&mut self, making: &mut Making) {
        let reads_prompts = self.steps.iter().any(|step| step.prefill_rows > 0);
        if self.limits.stages == 1
            || self.steps.is_empty()
            || reads_prompts
            || self.steps.len() + 1 >= self.limits.credits
        {
            return;
        }
        let Some(load) = self.load() else { return };
        let most = self.limits.chunk_drafts.min(making.rows_left).min(making.wanted_left);
        let offers = self.running.iter().filter(|(_, running)| running.has_further());
        let chosen = offers.filter_map(|(session, running)| {
            let further = self.further(running, most);
            let chance = running.speculation.chain.chance();
            let rows = fill(&further, chance, load, |rows| self.pace.slowest(rows));
            (rows > 0).then(|| (chance * expected(&further[..rows]), *session, rows))
        });
        let Some((_, session, rows)) = chosen.max_by(|(one, ..), (other, ..)| one.total_cmp(other)) else { return };
        let rows = self.make_room_for_drafts(session, rows);
        if rows == 0 {
            return;
        }
        let running = self.running.get_mut(&session).expect("it runs");
        let chunk = running.send_ahead(making.id, rows);
        making.decode_rows += rows;
        self.counts.speculation.sent_ahead += 1;
        self.push(making, chunk);
    }

    /// What the row has to do, as far as that is known.
    fn load(&self) -> Option<Load> {
        let rows = self.steps.iter().map(|step| step.decode_rows).filter(|rows| *rows > 0);
        let rounds: Option<Vec<f64>> = rows.clone().map(|rows| self.pace.round(rows)).collect();
        let occupied: Option<f64> = rows.map(|rows| self.pace.slowest(rows)).sum();
        let decoding = self.running.values().filter(|running| running.decodes());
        let tokens = |running: &Running| {
            let unknown: Vec<Draft> = running.speculation.chain.unknown.iter().copied().collect();
            1.0 + expected(&unknown)
        };
        let round = rounds?.into_iter().min_by(f64::total_cmp)?;
        Some(Load { round, occupied: occupied?, tokens: decoding.map(tokens).sum() })
    }

    /// At most `most` of a session's further drafts, as far as its log lasts.
    fn further(&self, running: &Running, most: usize) -> Vec<Draft> {
        let uncertain = running.sent() - running.speculation.certain;
        let has_log = running.speculation.has_log || self.free_logs() > 0;
        let room = if has_log { self.limits.log_tokens.saturating_sub(uncertain) } else { 0 };
        running.speculation.chain.further.iter().take(most.min(room)).copied().collect()
    }

    /// Everything of the session that is under way is void.
    pub(super) fn void_ahead(&mut self, session: SessionId) {
        let chunks = self.steps.iter_mut().flat_map(|step| &mut step.chunks);
        chunks.filter(|chunk| chunk.session == session).for_each(|chunk| chunk.void = true);
    }
}
