//! Finding stop strings in text that arrives in pieces.

use crate::error::{Error, Result};

/// More stop strings than this should be refused where requests are read.
pub const MAX_STOP_STRINGS: usize = 16;

/// Longer stop strings (in bytes) should be refused where requests are read.
pub const MAX_STOP_STRING_BYTES: usize = 1024;

/// Text that may be shown, and whether it ends at a stop string.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Emit {
    /// Text that belongs to no stop string.
    pub text: String,
    /// Position (in the list given) of the stop string that was found; nothing after it counts.
    pub stopped: Option<usize>,
}

/// One stop string and how much of it the text ends with.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Box<[u8]>,
    /// For each length of a matched start: the longest shorter start that it ends with.
    borders: Box<[usize]>,
    matched: usize,
}

impl Pattern {
    fn new(text: &str) -> Self {
        let bytes: Box<[u8]> = text.as_bytes().into();
        let mut pattern = Self { borders: vec![0; bytes.len()].into(), bytes, matched: 0 };
        for index in 1..pattern.bytes.len() {
            pattern.advance(pattern.bytes[index]);
            pattern.borders[index] = pattern.matched;
        }
        pattern.matched = 0;
        pattern
    }

    /// Takes the next byte of the text; true if the stop string is complete.
    fn advance(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        self.matched == self.bytes.len()
    }
}

/// Watches a text for stop strings and holds back only what could still become one.
///
/// The first stop string to be complete wins; of several complete at the same place, the longest. So the result
/// does not depend on how the text is cut into pieces.
#[derive(Debug, Clone)]
pub struct StopStrings {
    patterns: Vec<Pattern>,
    /// The end of the text that is the beginning of a stop string.
    held: String,
    stopped: Option<usize>,
}

impl StopStrings {
    /// Watches for `stops`, which must not be empty strings.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self> {
        if let Some(empty) = stops.iter().position(|stop| stop.as_ref().is_empty()) {
            return Err(Error::EmptyStopString(empty));
        }
        let patterns = stops.iter().map(|stop| Pattern::new(stop.as_ref())).collect();
        Ok(Self { patterns, held: String::new(), stopped: None })
    }

    /// Takes the next piece of text and gives what may be shown. After a stop string nothing is.
    pub fn push(&mut self, piece: &str) -> Emit {
        if self.stopped.is_some() {
            return Emit { text: String::new(), stopped: self.stopped };
        }
        let seen = self.held.len();
        self.held.push_str(piece);
        for (index, byte) in piece.bytes().enumerate() {
            if let Some(stop) = self.advance(byte) {
                let end = seen + index + 1;
                self.stopped = Some(stop);
                self.held.truncate(end - self.patterns[stop].bytes.len());
                return Emit { text: std::mem::take(&mut self.held), stopped: self.stopped };
            }
        }
        // The held part begins like a stop string, so it begins at a character.
        let hold = self.patterns.iter().map(|pattern| pattern.matched).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - hold);
        Emit { text: std::mem::replace(&mut self.held, rest), stopped: None }
    }

    /// What was held back, when no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop string that ends with `byte`, the longest if several do.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut found: Option<usize> = None;
        for index in 0..self.patterns.len() {
            let length = self.patterns[index].bytes.len();
            if self.patterns[index].advance(byte) && found.is_none_or(|best| self.patterns[best].bytes.len() < length) {
                found = Some(index);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first end at which the text ends with a stop string; the longest there.
    fn naive(text: &str, stops: &[String]) -> Emit {
        for end in 1..=text.len() {
            let ending = |stop: &str| text.as_bytes()[..end].ends_with(stop.as_bytes());
            let longest =
                (0..stops.len()).rev().filter(|&index| ending(&stops[index])).max_by_key(|&index| stops[index].len());
            if let Some(stop) = longest {
                return Emit { text: text[..end - stops[stop].len()].to_owned(), stopped: Some(stop) };
            }
        }
        Emit { text: text.to_owned(), stopped: None }
    }

    /// Whether `text` ends with the beginning of a stop string, and with how much.
    fn longest_start(text: &str, stops: &[String]) -> usize {
        let starts = stops.iter().flat_map(|stop| (1..stop.len()).map(move |length| &stop.as_bytes()[..length]));
        starts.filter(|start| text.as_bytes().ends_with(start)).map(<[u8]>::len).max().unwrap_or(0)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_cut_gives_what_a_search_of_the_whole_text_gives(
            pieces in prop::collection::vec("[abé€]{0,4}", 0..8),
            stops in prop::collection::vec("[abé€]{1,5}", 0..4),
        ) {
            let mut watcher = StopStrings::new(&stops).unwrap();
            let mut all = Emit::default();
            let mut seen = String::new();
            for piece in &pieces {
                let emit = watcher.push(piece);
                seen.push_str(piece);
                all.text.push_str(&emit.text);
                all.stopped = emit.stopped;
                if emit.stopped.is_none() {
                    prop_assert_eq!(seen.len() - all.text.len(), longest_start(&seen, &stops), "held too much or too little");
                }
            }
            all.text.push_str(&watcher.finish());
            prop_assert_eq!(all, naive(&pieces.concat(), &stops));
        }
    }

    #[test]
    fn nothing_comes_after_a_stop() {
        let mut watcher = StopStrings::new(&["END"]).unwrap();
        assert_eq!(watcher.push("textE"), Emit { text: "text".into(), stopped: None });
        assert_eq!(watcher.push("N"), Emit::default());
        assert_eq!(watcher.push("D more"), Emit { text: String::new(), stopped: Some(0) });
        assert_eq!(watcher.push("END"), Emit { text: String::new(), stopped: Some(0) });
        assert_eq!(watcher.finish(), "");
    }

    #[test]
    fn empty_stop_strings_are_refused() {
        assert!(matches!(StopStrings::new(&["a", ""]), Err(Error::EmptyStopString(1))));
    }
}
