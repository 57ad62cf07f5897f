//! Joining neighbouring symbols, best pair first: the loop that byte pair encoding and SentencePiece share.
//!
//! Symbols are a linked list and candidate pairs a heap, so a word of `n` symbols takes `O(n log n)`.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No symbol.
const NONE: usize = usize::MAX;

/// A piece of the text that is one token, or a character (or byte) that is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    /// Where it begins in the text, in bytes.
    pub(crate) start: usize,
    /// Where it ends.
    pub(crate) end: usize,
    /// The token, if the piece is one.
    pub(crate) token: Option<u32>,
    previous: usize,
    next: usize,
}

impl Symbol {
    /// Symbols that were merged into their left neighbour have no length.
    fn is_gone(&self) -> bool {
        self.start == self.end
    }
}

/// What two neighbours would become.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Merge {
    /// Lower is earlier.
    pub(crate) priority: u32,
    /// The token of the joined piece.
    pub(crate) token: u32,
}

/// A possible merge; ordered by priority, then from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u32,
    left: usize,
    right: usize,
    /// End of the right symbol when the candidate was made: tells whether it has grown since.
    end: usize,
    token: u32,
}

/// The symbols of one word; kept between words for its memory.
#[derive(Debug, Default)]
pub(crate) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<Candidate>>,
}

impl Merger {
    /// Forgets the previous word.
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends a piece of `length` bytes (at least one).
    pub(crate) fn push(&mut self, length: usize, token: Option<u32>) {
        debug_assert!(length > 0, "an empty symbol counts as gone");
        let index = self.symbols.len();
        let start = self.symbols.last().map_or(0, |last| last.end);
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        self.symbols.push(Symbol {
            start,
            end: start + length,
            token,
            previous: index.checked_sub(1).unwrap_or(NONE),
            next: NONE,
        });
    }

    /// Merges until `pair` knows no more merges.
    pub(crate) fn run(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<Merge>) {
        let everywhere = 0..self.symbols.len();
        self.queue.extend(everywhere.filter_map(|left| propose(&self.symbols, left, &pair)));
        while let Some(Reverse(candidate)) = self.queue.pop() {
            if self.is_stale(&candidate) {
                continue;
            }
            self.join(&candidate);
            let previous = self.symbols[candidate.left].previous;
            if previous != NONE {
                self.queue.extend(propose(&self.symbols, previous, &pair));
            }
            self.queue.extend(propose(&self.symbols, candidate.left, &pair));
        }
    }

    /// The remaining symbols, from left to right.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| !symbol.is_gone())
    }

    /// Whether one of the two has been merged with another since.
    fn is_stale(&self, candidate: &Candidate) -> bool {
        let left = &self.symbols[candidate.left];
        left.is_gone() || left.next != candidate.right || self.symbols[candidate.right].end != candidate.end
    }

    fn join(&mut self, candidate: &Candidate) {
        let right = &mut self.symbols[candidate.right];
        let (end, next) = (right.end, right.next);
        right.start = right.end;
        let left = &mut self.symbols[candidate.left];
        left.end = end;
        left.next = next;
        left.token = Some(candidate.token);
        if next != NONE {
            self.symbols[next].previous = candidate.left;
        }
    }
}

/// What symbol `left` and its neighbour could become.
fn propose(
    symbols: &[Symbol],
    left: usize,
    pair: &impl Fn(&Symbol, &Symbol) -> Option<Merge>,
) -> Option<Reverse<Candidate>> {
    let right = symbols[left].next;
    if right == NONE {
        return None;
    }
    let Merge { priority, token } = pair(&symbols[left], &symbols[right])?;
    Some(Reverse(Candidate { priority, left, right, end: symbols[right].end, token }))
}
