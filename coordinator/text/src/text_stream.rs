//! What a session holds: tokens in, text out, stop strings watched.

use std::sync::Arc;

use crate::detokenizer::Detokenizer;
use crate::error::Result;
use crate::stop_strings::{Emit, StopStrings};
use crate::tokenizer::Tokenizer;

/// The text of one answer as its tokens arrive.
#[derive(Debug, Clone)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stop_strings: StopStrings,
}

impl TextStream {
    /// A stream that leaves control tokens out and ends at any of `stops`.
    pub fn new<S: AsRef<str>>(tokenizer: Arc<Tokenizer>, stops: &[S]) -> Result<Self> {
        Self::with_detokenizer(Detokenizer::new(tokenizer), stops)
    }

    /// A stream over a detokenizer that was set up otherwise.
    pub fn with_detokenizer<S: AsRef<str>>(detokenizer: Detokenizer, stops: &[S]) -> Result<Self> {
        Ok(Self { detokenizer, stop_strings: StopStrings::new(stops)? })
    }

    /// Takes the next token and gives the text that may be shown.
    pub fn push(&mut self, token: u32) -> Emit {
        self.stop_strings.push(self.detokenizer.push(token))
    }

    /// What was held back, when no more tokens come. A character that was cut short may still complete a stop
    /// string that contains U+FFFD.
    pub fn finish(&mut self) -> Emit {
        let mut emit = self.stop_strings.push(&self.detokenizer.finish());
        emit.text.push_str(&self.stop_strings.finish());
        emit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::byte_tokenizer;

    fn stream(text: &[u8], stops: &[&str]) -> (Vec<String>, Option<usize>) {
        let mut stream = TextStream::new(byte_tokenizer(&[]), stops).unwrap();
        let mut pieces = Vec::new();
        for &byte in text {
            let emit = stream.push(u32::from(byte));
            pieces.push(emit.text);
            if emit.stopped.is_some() {
                return (pieces, emit.stopped);
            }
        }
        let last = stream.finish();
        pieces.push(last.text);
        (pieces, last.stopped)
    }

    #[test]
    fn holds_back_half_characters_and_half_stop_strings() {
        let (pieces, stopped) = stream("é\n\nab".as_bytes(), &["\n\nb", "\n\nac"]);
        assert_eq!(pieces, ["", "é", "", "", "", "\n\nab", ""]);
        assert_eq!(stopped, None);
    }

    #[test]
    fn stops_across_tokens() {
        let (pieces, stopped) = stream(b"one User: two", &["x", "User:"]);
        assert_eq!(pieces.concat(), "one ");
        assert_eq!(stopped, Some(1));
    }

    #[test]
    fn the_end_gives_everything_back() {
        let (pieces, stopped) = stream(b"Us\xe2", &["User:"]);
        assert_eq!(pieces.concat(), "Us\u{fffd}");
        assert_eq!(stopped, None);
    }
}
