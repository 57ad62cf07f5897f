//! Cutting text into words before merging: merges never cross a word's border.
//!
//! Each rule is published as a regular expression with look-ahead. They are written out here as plain code,
//! which is many times faster on long prompts; the tests hold every rule against its expression.

mod classes;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use classes::{Class, class};

/// How a vocabulary wants its text cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreTokenizer {
    /// GPT-2: words with their leading space, numbers, punctuation.
    Gpt2,
    /// GPT-2 after every number character has been cut out by itself.
    SmolLm,
    /// The rule of GPT-4 and later: punctuation before letters sticks to them, newlines to punctuation.
    Modern {
        /// At most this many number characters make a word.
        digits: usize,
        /// Whether combining marks count as letters.
        marks_are_letters: bool,
        /// Whether a word that is a token is never taken apart.
        whole_words: bool,
    },
}

const QWEN2: PreTokenizer = PreTokenizer::Modern { digits: 1, marks_are_letters: false, whole_words: false };
const QWEN35: PreTokenizer = PreTokenizer::Modern { digits: 1, marks_are_letters: true, whole_words: false };
const LLAMA3: PreTokenizer = PreTokenizer::Modern { digits: 3, marks_are_letters: false, whole_words: true };

/// The rules by the names that model files use (`tokenizer.ggml.pre`).
const NAMES: [(&str, PreTokenizer); 10] = [
    ("qwen35", QWEN35),
    ("qwen2", QWEN2),
    ("deepseek-r1-qwen", QWEN2),
    ("megrez", QWEN2),
    ("llama-bpe", LLAMA3),
    ("llama3", LLAMA3),
    ("llama-v3", LLAMA3),
    ("smollm", PreTokenizer::SmolLm),
    ("gpt-2", PreTokenizer::Gpt2),
    ("gpt2", PreTokenizer::Gpt2),
];

impl PreTokenizer {
    /// The rule of a `tokenizer.ggml.pre` value.
    pub(crate) fn from_name(name: &str) -> Result<Self> {
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, rule)| rule).ok_or_else(|| Error::UnknownPreTokenizer {
            name: name.to_owned(),
            known: NAMES.map(|(known, _)| known).join(", "),
        })
    }

    /// Whether a word that is a token is taken as it is, without looking at the merges.
    pub(crate) fn prefers_whole_words(self) -> bool {
        matches!(self, Self::Modern { whole_words: true, .. })
    }

    /// Length in bytes of the first word of `text`, which must not be empty.
    pub(crate) fn first_word(self, text: &str) -> usize {
        let length = match self {
            Self::Gpt2 => gpt2_word(text, |_| false),
            Self::SmolLm => smollm_word(text),
            Self::Modern { digits, marks_are_letters, .. } => modern_word(text, digits, marks_are_letters),
        };
        debug_assert!(length > 0, "a word has at least one character");
        length
    }
}

/// Length in bytes of the longest start of `text` in which all characters are `wanted`.
fn run(text: &str, wanted: impl Fn(char) -> bool) -> usize {
    text.find(|letter| !wanted(letter)).unwrap_or(text.len())
}

fn is_space(letter: char) -> bool {
    matches!(class(letter), Class::Space | Class::Newline)
}

/// `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
/// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, in one line.
fn modern_word(text: &str, digits: usize, marks_are_letters: bool) -> usize {
    let is_letter = |letter| match class(letter) {
        Class::Letter => true,
        Class::Mark => marks_are_letters,
        _ => false,
    };
    let is_other = |letter| match class(letter) {
        Class::Other => true,
        Class::Mark => !marks_are_letters,
        _ => false,
    };
    let mut characters = text.chars();
    let Some(first) = characters.next() else { return 0 };
    let second = characters.next();
    if let Some(length) = contraction(text, true) {
        return length;
    }
    if is_letter(first) {
        return run(text, is_letter);
    }
    if class(first) == Class::Number {
        return text.chars().take(digits).take_while(|&c| class(c) == Class::Number).map(char::len_utf8).sum();
    }
    let after_first = first.len_utf8();
    if class(first) != Class::Newline && second.is_some_and(is_letter) {
        return after_first + run(&text[after_first..], is_letter);
    }
    if is_other(first) || (first == ' ' && second.is_some_and(is_other)) {
        let end = after_first + run(&text[after_first..], is_other);
        return end + run(&text[end..], |letter| class(letter) == Class::Newline);
    }
    let spaces = &text[..run(text, is_space)];
    match spaces.rfind(['\r', '\n']) {
        Some(newline) => newline + 1,
        None => spaces_before_word(spaces, spaces.len() == text.len()),
    }
}

/// `\p{N}` cut out first, then GPT-2's rule on what lies between.
fn smollm_word(text: &str) -> usize {
    let Some(first) = text.chars().next() else { return 0 };
    if class(first) == Class::Number {
        return first.len_utf8();
    }
    gpt2_word(text, |letter| class(letter) == Class::Number)
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` on the start of `text` up to
/// the first character that is a `border`; only white space could look beyond it.
fn gpt2_word(text: &str, border: impl Fn(char) -> bool) -> usize {
    if let Some(length) = contraction(text, false) {
        return length;
    }
    let after_space = usize::from(text.starts_with(' '));
    let word = &text[after_space..];
    let Some(first) = word.chars().next() else { return after_space };
    if !is_space(first) && !border(first) {
        let kind = gpt2_class(first);
        return after_space + run(word, |letter| gpt2_class(letter) == kind && !border(letter));
    }
    let spaces = &text[..run(text, is_space)];
    let at_border = text[spaces.len()..].chars().next().is_none_or(border);
    spaces_before_word(spaces, at_border)
}

/// For GPT-2 combining marks are like punctuation.
fn gpt2_class(letter: char) -> Class {
    match class(letter) {
        Class::Mark => Class::Other,
        Class::Newline => Class::Space,
        class => class,
    }
}

/// `\s+(?!\S)|\s+`: all of `spaces` if nothing follows; else all but the last, which goes with what follows.
fn spaces_before_word(spaces: &str, nothing_follows: bool) -> usize {
    let last = spaces.chars().next_back().map_or(0, char::len_utf8);
    if nothing_follows || spaces.len() == last { spaces.len() } else { spaces.len() - last }
}

/// Length of an English contraction (`'s`, `'ll`, ...) at the start of `text`.
fn contraction(text: &str, any_case: bool) -> Option<usize> {
    let rest = text.as_bytes().strip_prefix(b"'")?;
    let letter = |index: usize| {
        let byte = rest.get(index).copied().unwrap_or(0);
        if any_case { byte.to_ascii_lowercase() } else { byte }
    };
    match (letter(0), letter(1)) {
        (b's' | b't' | b'm' | b'd', _) => Some(2),
        (b'r' | b'v', b'e') | (b'l', b'l') => Some(3),
        _ => None,
    }
}
