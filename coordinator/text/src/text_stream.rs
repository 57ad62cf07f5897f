//! What a session holds: tokens in, text out, stop strings watched.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::detokenizer::Detokenizer;
use crate::error::Result;
use crate::stop_strings::{Emit, StopStrings};
use crate::tokenizer::Tokenizer;
use crate::vocabulary::TokenKind;

/// Text that may be shown, what tokens stand in it, and whether it ends at a stop string.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Piece {
    /// Whole characters that belong to no stop string.
    pub text: String,
    /// The tokens in it that are no ordinary text, in order.
    pub marks: Vec<Mark>,
    /// Position (in the list given) of the stop string that was found; nothing after it counts.
    pub stopped: Option<usize>,
}

/// Where in a text a token stands that the vocabulary has as a whole, such as `<think>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The token.
    pub token: u32,
    /// Where its spelling begins, in bytes.
    pub start: usize,
    /// How long its spelling is; 0 if it is not shown.
    pub length: usize,
}

/// The text of one answer as its tokens arrive.
#[derive(Debug, Clone)]
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    stop_strings: StopStrings,
    /// Bytes of text that went into `stop_strings`, and that were shown.
    written: usize,
    shown: usize,
    /// What is not shown yet, with places in the whole text.
    marks: VecDeque<Mark>,
    /// The beginning of a marked token whose end is held back.
    cut: String,
}

impl TextStream {
    /// A stream that leaves control tokens out and ends at any of `stops`.
    pub fn new<S: AsRef<str>>(tokenizer: Arc<Tokenizer>, stops: &[S]) -> Result<Self> {
        Self::with_detokenizer(Detokenizer::new(tokenizer), stops)
    }

    /// A stream over a detokenizer that was set up otherwise.
    pub fn with_detokenizer<S: AsRef<str>>(detokenizer: Detokenizer, stops: &[S]) -> Result<Self> {
        Ok(Self {
            tokenizer: Arc::clone(detokenizer.tokenizer()),
            detokenizer,
            stop_strings: StopStrings::new(stops)?,
            written: 0,
            shown: 0,
            marks: VecDeque::new(),
            cut: String::new(),
        })
    }

    /// Takes the next token and gives the text that may be shown.
    pub fn push(&mut self, token: u32) -> Piece {
        let text = self.detokenizer.push(token);
        self.written += text.len();
        if matches!(self.tokenizer.token_kind(token), TokenKind::Control | TokenKind::UserDefined) {
            let spelling = self.tokenizer.token_bytes(token);
            let length = if text.as_bytes().ends_with(spelling) { spelling.len() } else { 0 };
            self.marks.push_back(Mark { token, start: self.written - length, length });
        }
        let emit = self.stop_strings.push(text);
        self.show(&emit, false)
    }

    /// What was held back, when no more tokens come. A character that was cut short may still complete a stop
    /// string that contains U+FFFD.
    pub fn finish(&mut self) -> Piece {
        let rest = self.detokenizer.finish();
        self.written += rest.len();
        let mut emit = self.stop_strings.push(&rest);
        emit.text.push_str(&self.stop_strings.finish());
        self.show(&emit, true)
    }

    /// Puts marks to a text, which is cut before a token that is not all in it, unless nothing follows.
    fn show(&mut self, emit: &Emit, last: bool) -> Piece {
        let mut text = std::mem::take(&mut self.cut) + &emit.text;
        let end = self.shown + text.len();
        let mut marks = Vec::new();
        while let Some(mark) = self.marks.front().filter(|mark| mark.start + mark.length <= end) {
            marks.push(Mark { start: mark.start - self.shown, ..*mark });
            self.marks.pop_front();
        }
        let next = self.marks.front().filter(|mark| mark.start < end && !last && emit.stopped.is_none());
        if let Some(mark) = next {
            self.cut = text.split_off(mark.start - self.shown);
        }
        self.shown += text.len();
        Piece { text, marks, stopped: emit.stopped }
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

    #[test]
    fn tokens_are_marked_where_they_stand() {
        let tokenizer = byte_tokenizer(&[("<think>", TokenKind::UserDefined), ("<s>", TokenKind::Control)]);
        let mut stream = TextStream::new(tokenizer, &["k>!", "yz"]).unwrap();
        let mark = |token, start, length| Mark { token, start, length };
        let mut push = |token: u32| {
            let piece = stream.push(token);
            (piece.text, piece.marks)
        };
        assert_eq!(push(0xc3), (String::new(), vec![]));
        assert_eq!(push(257), (String::new(), vec![mark(257, 0, 0)]), "a hidden token does not interrupt a character");
        assert_eq!(push(0xbc), ("ü".to_owned(), vec![]));
        assert_eq!(push(256), (String::new(), vec![]), "the end of the token is held back, so the token is");
        assert_eq!(push(u32::from(b'y')), ("<think>".to_owned(), vec![mark(256, 0, 7)]));
        assert_eq!(push(u32::from(b'x')), ("yx".to_owned(), vec![]));
        assert_eq!(push(256), (String::new(), vec![]));
        assert_eq!(push(u32::from(b'!')), ("<thin".to_owned(), vec![]), "a token that a stop string cuts is none");
        assert_eq!(stream.finish().text, "");
    }
}
