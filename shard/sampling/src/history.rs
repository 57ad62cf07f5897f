//! The tokens a session has had, and the penalties on having them again.
//!
//! Every token is recorded under its position, and what is said of a position replaces what was known from there on.
//! So nothing can count twice: not the sampled token that comes back as the next chunk's input, not a draft that was
//! rejected, not a prompt that is read again.

use std::collections::HashMap;

use paceline_proto::SamplingSettings;

use crate::rank::usable;

/// What was seen of a session, and how that changes logits.
pub(crate) struct History {
    repetition: f32,
    frequency: f32,
    presence: f32,
    /// How many of the last tokens the repetition penalty sees.
    window: usize,
    /// The position of the first generated token, once known.
    prompt_end: Option<u32>,
    /// By position, ascending. Positions may be missing (images, prompts that nobody showed us).
    tokens: Vec<Seen>,
    counts: HashMap<u32, Count>,
}

#[derive(Clone, Copy)]
struct Seen {
    position: u32,
    token: u32,
}

/// How often a token occurred.
#[derive(Default, Clone, Copy, PartialEq, Debug)]
struct Count {
    in_window: u32,
    generated: u32,
}

impl History {
    /// A history, if these settings need one.
    pub(crate) fn new(settings: &SamplingSettings, prompt_end: Option<u32>) -> Option<Self> {
        let SamplingSettings { repetition_penalty, frequency_penalty, presence_penalty, penalty_window, .. } =
            *settings;
        if repetition_penalty == 1.0 && frequency_penalty == 0.0 && presence_penalty == 0.0 {
            return None;
        }
        Some(Self {
            repetition: repetition_penalty,
            frequency: frequency_penalty,
            presence: presence_penalty,
            window: if penalty_window == 0 { usize::MAX } else { penalty_window as usize },
            prompt_end,
            tokens: Vec::new(),
            counts: HashMap::new(),
        })
    }

    /// Forgets everything at and after a position.
    pub(crate) fn rewind(&mut self, position: u32) {
        while let Some(last) = self.tokens.pop_if(|seen| seen.position >= position) {
            if self.is_generated(last) {
                self.change(last.token, |count| count.generated -= 1);
            }
            self.change(last.token, |count| count.in_window -= 1);
            // The window moves back by one and sees an older token again.
            if let Some(outside) = self.tokens.len().checked_sub(self.window) {
                self.change(self.tokens[outside].token, |count| count.in_window += 1);
            }
        }
    }

    /// From this position on tokens are generated, unless an earlier one was named before.
    pub(crate) fn generate_from(&mut self, position: u32) {
        self.prompt_end.get_or_insert(position);
    }

    /// Adds a token behind all others.
    pub(crate) fn push(&mut self, position: u32, token: u32) {
        if let Some(outside) = self.tokens.len().checked_sub(self.window) {
            self.change(self.tokens[outside].token, |count| count.in_window -= 1);
        }
        let seen = Seen { position, token };
        self.tokens.push(seen);
        let generated = self.is_generated(seen);
        self.change(token, |count| {
            count.in_window += 1;
            count.generated += u32::from(generated);
        });
    }

    /// The position of the first generated token, once known.
    pub(crate) fn prompt_end(&self) -> Option<u32> {
        self.prompt_end
    }

    /// All tokens and their positions, ascending.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (u32, u32)> {
        self.tokens.iter().map(|seen| (seen.position, seen.token))
    }

    /// Applies the penalties to a row of logits.
    pub(crate) fn penalise(&self, logits: &mut [f32]) {
        for (&token, &count) in &self.counts {
            let logit = &mut logits[token as usize];
            *logit = usable(self.penalised(*logit, count));
        }
    }

    fn penalised(&self, logit: f32, count: Count) -> f32 {
        let repeated = match count.in_window {
            0 => logit,
            _ if logit > 0.0 => logit / self.repetition,
            _ => logit * self.repetition,
        };
        match count.generated {
            0 => repeated,
            times => repeated - (times as f32 * self.frequency + self.presence),
        }
    }

    fn is_generated(&self, seen: Seen) -> bool {
        self.prompt_end.is_some_and(|end| seen.position >= end)
    }

    fn change(&mut self, token: u32, change: impl FnOnce(&mut Count)) {
        let count = self.counts.entry(token).or_default();
        change(count);
        if *count == Count::default() {
            self.counts.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn history(repetition: f32, frequency: f32, presence: f32, window: u32, prompt_end: Option<u32>) -> History {
        let settings = SamplingSettings {
            repetition_penalty: repetition,
            frequency_penalty: frequency,
            presence_penalty: presence,
            penalty_window: window,
            ..SamplingSettings::default()
        };
        History::new(&settings, prompt_end).unwrap()
    }

    #[test]
    fn no_penalties_need_no_history() {
        let settings = SamplingSettings { penalty_window: 64, ..SamplingSettings::default() };
        assert!(History::new(&settings, None).is_none());
    }

    #[test]
    fn a_table_of_penalties() {
        // (repetition, frequency, presence), times in the window, times generated, logit, result.
        #[rustfmt::skip]
        let table = [
            ((2.0, 0.0, 0.0), 0, 0,  3.0,  3.0),
            ((2.0, 0.0, 0.0), 1, 0,  3.0,  1.5),
            ((2.0, 0.0, 0.0), 5, 0,  3.0,  1.5),
            ((2.0, 0.0, 0.0), 1, 0, -3.0, -6.0),
            ((2.0, 0.0, 0.0), 1, 0,  0.0,  0.0),
            ((0.5, 0.0, 0.0), 1, 0,  3.0,  6.0),
            ((1.0, 0.5, 0.0), 4, 0,  3.0,  3.0),
            ((1.0, 0.5, 0.0), 4, 3,  3.0,  1.5),
            ((1.0, 0.0, 0.25), 4, 3, 3.0,  2.75),
            ((1.0, -1.0, 0.0), 0, 2, 3.0,  5.0),
            ((2.0, 0.5, 0.25), 3, 2, 3.0,  0.25),
            ((2.0, 0.5, 0.25), 0, 2, 3.0,  1.75),
            ((2.0, 0.5, 0.25), 3, 2, f32::NEG_INFINITY, f32::NEG_INFINITY),
            ((f32::MIN_POSITIVE, 0.0, 0.0), 1, 0, 9.0, f32::MAX),
            ((1.0, f32::MAX, 0.0), 0, 2, 3.0, f32::NEG_INFINITY),
            ((1.0, f32::MIN, 0.0), 0, 2, f32::NEG_INFINITY, f32::NEG_INFINITY),
        ];
        for ((repetition, frequency, presence), in_window, generated, logit, wanted) in table {
            let mut history = history(repetition, frequency, presence, 0, None);
            history.counts.insert(1, Count { in_window, generated });
            let mut logits = [7.0, logit];
            history.penalise(&mut logits);
            assert_eq!(logits, [7.0, wanted], "{repetition} {frequency} {presence} {in_window} {generated} {logit}");
        }
    }

    #[test]
    fn the_prompt_counts_for_repetition_only() {
        let mut history = history(2.0, 1.0, 0.0, 0, None);
        history.push(0, 4);
        history.push(1, 5);
        history.generate_from(2);
        history.push(2, 5);
        history.generate_from(3);
        history.push(3, 6);
        assert_eq!(history.counts[&4], Count { in_window: 1, generated: 0 });
        assert_eq!(history.counts[&5], Count { in_window: 2, generated: 1 });
        assert_eq!(history.counts[&6], Count { in_window: 1, generated: 1 });
    }

    /// Counts everything anew.
    fn recounted(history: &History) -> HashMap<u32, Count> {
        let mut counts = HashMap::<u32, Count>::new();
        for (back, seen) in history.tokens.iter().rev().enumerate() {
            let count = counts.entry(seen.token).or_default();
            count.in_window += u32::from(back < history.window);
            count.generated += u32::from(history.is_generated(*seen));
        }
        counts.retain(|_, count| *count != Count::default());
        counts
    }

    proptest! {
        #[test]
        fn counts_survive_any_moving_to_and_fro(
            window in 0u32..6,
            prompt_end in 0u32..12,
            moves in prop::collection::vec((0u32..20, prop::collection::vec(0u32..4, 0..8)), 1..20),
        ) {
            let mut history = history(1.5, 0.5, 0.5, window, Some(prompt_end));
            for (start, tokens) in moves {
                history.rewind(start);
                prop_assert!(history.tokens.iter().all(|seen| seen.position < start));
                for (position, token) in (start..).zip(tokens) {
                    history.push(position, token);
                }
                prop_assert_eq!(&history.counts, &recounted(&history));
            }
        }
    }
}
