//! Warm equals cold: requests answered by a row that keeps what it computed, against the same requests answered by one
//! that keeps nothing, bit for bit.

use std::sync::Arc;

use paceline_core::session::FinishReason;
use paceline_gguf::Gguf;
use paceline_proto::{SamplingSettings, SessionId};

use crate::chaos::chance::Chance;
use crate::row::{Row, RowLayout};

/// What a client asks for.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Where in it states are worth keeping.
    pub boundaries: Vec<usize>,
    /// Tokens to generate.
    pub tokens: usize,
    /// How they are chosen.
    pub sampling: SamplingSettings,
}

impl Ask {
    /// Some greedy tokens after a prompt.
    pub fn greedy(prompt: Vec<u32>) -> Self {
        Self { prompt, boundaries: Vec::new(), tokens: 6, sampling: SamplingSettings::default() }
    }

    /// With boundaries.
    #[must_use]
    pub fn with(mut self, boundaries: &[usize]) -> Self {
        self.boundaries = boundaries.to_vec();
        self
    }

    /// With everything that a tail must remember to choose the next token as if nothing had been reused.
    #[must_use]
    pub fn sampled(mut self, seed: u64) -> Self {
        self.sampling = SamplingSettings {
            temperature: 0.9,
            top_p: 0.98,
            seed,
            repetition_penalty: 1.1,
            frequency_penalty: 0.3,
            presence_penalty: 0.2,
            penalty_window: 24,
            logprobs: Some(2),
            ..SamplingSettings::default()
        };
        self
    }
}

/// Tokens without meaning, others for every `seed`.
pub fn text(seed: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|index| ((index * 11 + index * index * 3 + seed * 29 + seed * index * 7) % 320) as u32).collect()
}

/// A row that keeps what it computed, and one that does not.
pub struct Pair {
    /// The one that does.
    pub warm: Row,
    cold: Row,
    layout: RowLayout,
    next: u128,
}

impl Pair {
    /// Loads both.
    ///
    /// # Panics
    /// If they cannot be loaded.
    pub fn new(model: &Arc<Gguf>, layout: &RowLayout) -> Self {
        let layout = RowLayout { caches: true, ..layout.clone() };
        // In one stage, in chunks of another size, and with room for everything.
        let plain = RowLayout {
            caches: false,
            shards: 1,
            run_ahead: false,
            kv_tokens: None,
            disk: None,
            prefill_rows: 48,
            ..layout.clone()
        };
        Self { warm: Row::new(model, &layout), cold: Row::new(model, &plain), layout, next: 1 }
    }

    /// Starts a request on the row that keeps things.
    pub fn start(&mut self, ask: &Ask) -> SessionId {
        self.next += 1;
        self.warm.start_with(self.next, &ask.prompt, &ask.boundaries, ask.tokens, ask.sampling.clone())
    }

    /// Compares a request that is answered with what the other row answers; its tokens, and how many of the prompt's were
    /// cached.
    ///
    /// # Panics
    /// If there is any difference, or no answer.
    pub fn compare(&mut self, ask: &Ask, id: SessionId) -> (Vec<u32>, usize) {
        let warm = self.warm.forget(id).expect("it was started");
        let finish = warm.finish.as_ref().unwrap_or_else(|| panic!("no answer to {ask:?}"));
        assert_eq!(finish.reason, FinishReason::Length, "{ask:?}");
        let cached = finish.usage.cached_tokens;
        self.next += 1;
        let id = self.cold.start(self.next, &ask.prompt, ask.tokens, ask.sampling.clone());
        self.cold.finish();
        let cold = self.cold.forget(id).expect("it was started");
        assert_eq!(cold.finish.map(|finish| finish.usage.cached_tokens), Some(0), "the other row keeps nothing");
        assert_eq!(warm.tokens, cold.tokens, "other tokens with {cached} cached, of {ask:?}");
        let differs = (0..cold.tokens.len()).find(|place| warm.logits[*place] != cold.logits[*place]);
        assert_eq!(differs, None, "other bits with {cached} cached, of {ask:?}");
        (cold.tokens, cached)
    }

    /// Answers a request by both rows and compares.
    ///
    /// # Panics
    /// As [`Pair::compare`].
    pub fn ask(&mut self, ask: &Ask) -> (Vec<u32>, usize) {
        let id = self.start(ask);
        self.warm.finish();
        self.compare(ask, id)
    }

    /// The row that keeps things dies, and another one comes.
    pub fn restart(&mut self, shards: usize) {
        self.warm.fail();
        self.warm.replace(&RowLayout { shards, ..self.layout.clone() });
    }
}

/// A hot prefix among many texts that come once.
#[derive(Debug, Clone, Copy)]
pub struct HotPrefix {
    /// Its tokens.
    pub tokens: usize,
    /// Other prompts, each of which comes once.
    pub others: usize,
    /// Tokens of each.
    pub other_tokens: usize,
    /// After so many of them the prefix comes again, with another end.
    pub every: usize,
}

/// What became of it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct HotTally {
    /// How often the prefix came again.
    pub asked: usize,
    /// How many of its tokens were cached when least were.
    pub least_cached: usize,
    /// Pages and states of other texts that made room.
    pub evicted: (u64, u64),
    /// The fewest pages and states that the cache had, once both had made room.
    pub least_kept: (usize, usize),
}

/// Runs the prompts, and says how the prefix fared.
///
/// # Panics
/// If something is left over.
pub fn hot_prefix(model: &Arc<Gguf>, layout: &RowLayout, plan: HotPrefix) -> HotTally {
    let mut row = Row::new(model, &RowLayout { caches: true, ..layout.clone() });
    let hot = text(1, plan.tokens);
    let mut tally = HotTally { least_cached: usize::MAX, least_kept: (usize::MAX, usize::MAX), ..HotTally::default() };
    // Three users come one after the other before anybody else does: that is what makes it hot.
    let asked = (0..3).chain((plan.every..=plan.others).step_by(plan.every).map(|number| number + 3));
    let mut asked = asked.peekable();
    for number in 0..plan.others + 4 {
        if asked.next_if_eq(&number).is_some() {
            let prompt = [&hot[..], &text(1000 + number, 20)].concat();
            let id = row.start_with(2 * number as u128, &prompt, &[hot.len()], 4, SamplingSettings::default());
            row.finish();
            let finish = row.forget(id).and_then(|answer| answer.finish).expect("it ended");
            if number >= 3 {
                tally.asked += 1;
                tally.least_cached = tally.least_cached.min(finish.usage.cached_tokens);
            }
        }
        if number < 3 {
            continue;
        }
        let prompt = text(7 + number, plan.other_tokens);
        let id =
            row.start_with(2 * number as u128 + 1, &prompt, &[plan.other_tokens / 2], 4, SamplingSettings::default());
        row.finish();
        row.forget(id).and_then(|answer| answer.finish).expect("it ended");
        let cache = row.status().index;
        tally.evicted = (cache.evicted_pages, cache.evicted_snapshots + cache.stranded_snapshots);
        if tally.evicted.0 > 0 && tally.evicted.1 > 0 {
            let (pages, states) = tally.least_kept;
            tally.least_kept = (pages.min(cache.pages), states.min(cache.snapshots));
        }
    }
    assert!(row.is_clean(), "pages or slots are not free: {:?}", row.status());
    tally
}

/// What a run of random operations did.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// Answers compared.
    pub compared: usize,
    /// Of these, answers that reused something.
    pub hits: usize,
    /// Tokens reused.
    pub cached: usize,
    /// Tokens of all prompts.
    pub prompts: usize,
    /// Clients that left.
    pub left: usize,
    /// Rows that died.
    pub restarts: usize,
    /// Sessions that made room for others.
    pub pauses: u64,
    /// Pages and snapshots that the cache gave up.
    pub evicted: u64,
    /// Entries that the disk tier kept, and texts that came back from there.
    pub kept: u64,
    /// See `kept`.
    pub fetched: u64,
}

/// Random operations by seed: requests that are new, go on from an old one or branch off anywhere, clients that leave, rows
/// that die; several at once. Every answer is compared.
///
/// # Panics
/// If any answer is another one than cold, or pages or slots are not free in the end.
pub fn random_operations(model: &Arc<Gguf>, layout: &RowLayout, seed: u64, operations: usize) -> Tally {
    let mut chance = Chance::new(seed);
    let mut pair = Pair::new(model, layout);
    let mut tally = Tally::default();
    let mut known: Vec<Vec<u32>> = Vec::new();
    let mut running: Vec<(Ask, SessionId)> = Vec::new();
    for operation in 0..operations {
        match chance.below(20) {
            0..12 => {
                let ask = next_ask(&mut chance, &known, layout.context, operation);
                let id = pair.start(&ask);
                running.push((ask, id));
            }
            12 if !running.is_empty() => {
                let (_, id) = running.swap_remove(chance.below(running.len()));
                pair.warm.leave(id);
                tally.left += 1;
            }
            13 if chance.below(6) == 0 => {
                pair.restart(1 + chance.below(layout.shards));
                tally.restarts += 1;
            }
            _ => {}
        }
        for _ in 0..chance.below(12) {
            pair.warm.step();
        }
        if running.len() > 6 || operation + 1 == operations {
            pair.warm.finish();
        }
        let is_over = |one: &(Ask, SessionId)| pair.warm.answer(one.1).finish.is_some();
        let (over, rest): (Vec<_>, Vec<_>) = running.into_iter().partition(is_over);
        running = rest;
        for (ask, id) in over {
            let (tokens, cached) = pair.compare(&ask, id);
            tally.compared += 1;
            tally.hits += usize::from(cached > 0);
            tally.cached += cached;
            tally.prompts += ask.prompt.len();
            known.push([ask.prompt, tokens].concat());
            if known.len() > 24 {
                known.swap_remove(chance.below(12));
            }
        }
    }
    let status = pair.warm.status();
    assert!(pair.warm.is_clean(), "seed {seed}: pages or slots are not free: {status:?}");
    if let Some(disk) = &status.disk {
        (tally.kept, tally.fetched) = (disk.counts.kept, disk.counts.fetched);
    }
    tally.pauses = status.pauses;
    tally.evicted = status.index.evicted_pages + status.index.evicted_snapshots;
    tally
}

fn next_ask(chance: &mut Chance, known: &[Vec<u32>], context: usize, number: usize) -> Ask {
    let tokens = 1 + chance.below(10);
    let room = context - tokens;
    let mut prompt = if known.is_empty() || chance.below(4) == 0 {
        text(number, 1 + chance.below(room.min(120)))
    } else {
        let old = chance.of(known).clone();
        // Whole, at the edge of a page or beside it, or anywhere.
        let kept = match chance.below(4) {
            0 => old.len(),
            1 => (old.len() / 16 * 16 + chance.below(3)).saturating_sub(1),
            _ => 1 + chance.below(old.len()),
        };
        old[..kept.clamp(1, old.len())].to_vec()
    };
    prompt.truncate(room);
    let more = chance.below(40).min(room - prompt.len());
    prompt.extend(text(number + 1000, more));
    let boundaries = if chance.below(2) == 0 { vec![chance.below(prompt.len() + 3), prompt.len()] } else { vec![] };
    let ask = Ask { tokens, ..Ask::greedy(prompt).with(&boundaries) };
    if chance.below(3) == 0 { ask.sampled(number as u64) } else { ask }
}
