//! What kind of character a character is, as far as cutting text into words cares.

use std::sync::LazyLock;

/// The classes that pre-tokenizers tell apart. They do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Unicode category L.
    Letter,
    /// Unicode category M: combining marks.
    Mark,
    /// Unicode category N.
    Number,
    /// Carriage return and line feed.
    Newline,
    /// All other white space.
    Space,
    /// Everything else: punctuation, symbols, control characters.
    Other,
}

/// The class of `letter`.
pub(super) fn class(letter: char) -> Class {
    match letter {
        'a'..='z' | 'A'..='Z' => Class::Letter,
        ' ' | '\t' | '\u{b}' | '\u{c}' => Class::Space,
        '\n' | '\r' => Class::Newline,
        '0'..='9' => Class::Number,
        '\0'..='\x7f' => Class::Other,
        _ if letter.is_whitespace() => Class::Space,
        _ => class_beyond_ascii(letter),
    }
}

/// A run of characters of one class.
struct Range {
    first: char,
    last: char,
    class: Class,
}

/// The letters, marks and numbers of Unicode in order: the regex engine's own tables, so that the hand-written
/// splitters and the patterns they stand for cannot disagree about a character.
static RANGES: LazyLock<Vec<Range>> = LazyLock::new(|| {
    let characters: String = ('\u{80}'..=char::MAX).collect();
    let pattern = r"(?<letters>\p{L}+)|(?<marks>\p{M}+)|\p{N}+";
    let pattern = fancy_regex::Regex::new(pattern).expect("the pattern is constant and valid");
    let mut ranges = Vec::new();
    for run in pattern.captures_iter(&characters) {
        let run = run.expect("a pattern without backtracking cannot run out of steps");
        let class = match (run.name("letters"), run.name("marks")) {
            (Some(_), _) => Class::Letter,
            (_, Some(_)) => Class::Mark,
            _ => Class::Number,
        };
        let mut text = run.get(0).expect("group 0 is the match").as_str().chars();
        let first = text.next().expect("a run has a character");
        ranges.push(Range { first, last: text.next_back().unwrap_or(first), class });
    }
    ranges
});

fn class_beyond_ascii(letter: char) -> Class {
    let found = RANGES.binary_search_by(|range| {
        if range.last < letter {
            std::cmp::Ordering::Less
        } else if range.first > letter {
            std::cmp::Ordering::Greater
        } else {
            std::cmp::Ordering::Equal
        }
    });
    found.map_or(Class::Other, |index| RANGES[index].class)
}
