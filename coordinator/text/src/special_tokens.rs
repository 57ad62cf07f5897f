//! Finding whole tokens (`<|im_start|>`, `<think>`) in text before it is cut into words.
//!
//! Longer spellings are matched first, wherever they stand; then the next shorter ones in what is left.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::vocabulary::{TokenKind, Vocabulary};

/// Whether text may contain control tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Control tokens spelled out in the text become those tokens: for rendered templates.
    Parse,
    /// The text is only text: for what people write.
    Plain,
}

/// A stretch of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment<'t> {
    Text(&'t str),
    Token(u32),
}

#[derive(Debug)]
struct Literal {
    token: u32,
    length: usize,
    /// Not text: looked for only with [`Special::Parse`].
    hidden: bool,
}

/// A node of the tree of spellings.
#[derive(Debug, Default)]
struct Node {
    /// Children by byte, sorted.
    children: Vec<(u8, usize)>,
    /// Index of the literal that ends here.
    literal: Option<usize>,
}

/// The special tokens of a vocabulary.
#[derive(Debug)]
pub(crate) struct SpecialTokens {
    /// Longest first, then by id.
    literals: Vec<Literal>,
    nodes: Vec<Node>,
}

/// A literal found in a text; ordered by which goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Occurrence {
    literal: usize,
    start: usize,
}

impl SpecialTokens {
    pub(crate) fn new(vocabulary: &Vocabulary) -> Self {
        let mut special: Vec<(usize, &str)> = Vec::new();
        for (id, spelling) in vocabulary.tokens.iter().enumerate() {
            let wanted =
                matches!(vocabulary.kind(id), TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined);
            if wanted && !spelling.is_empty() {
                special.push((id, spelling));
            }
        }
        special.sort_by_key(|&(id, spelling)| (Reverse(spelling.len()), id));
        let mut built = Self { literals: Vec::new(), nodes: vec![Node::default()] };
        for (id, spelling) in special {
            built.insert(spelling);
            built.literals.push(Literal {
                token: id as u32,
                length: spelling.len(),
                hidden: vocabulary.kind(id).is_hidden(),
            });
        }
        built
    }

    fn insert(&mut self, spelling: &str) {
        let mut node = 0;
        for &byte in spelling.as_bytes() {
            let children = &self.nodes[node].children;
            node = match children.binary_search_by_key(&byte, |child| child.0) {
                Ok(found) => children[found].1,
                Err(place) => {
                    let child = self.nodes.len();
                    self.nodes[node].children.insert(place, (byte, child));
                    self.nodes.push(Node::default());
                    child
                }
            };
        }
        self.nodes[node].literal.get_or_insert(self.literals.len());
    }

    /// Cuts `text` into tokens and the text between them.
    pub(crate) fn split<'t>(&self, text: &'t str, special: Special) -> Vec<Fragment<'t>> {
        let mut fragments = Vec::new();
        let mut position = 0;
        for (start, literal) in self.choose(text, special) {
            if position < start {
                fragments.push(Fragment::Text(&text[position..start]));
            }
            fragments.push(Fragment::Token(self.literals[literal].token));
            position = start + self.literals[literal].length;
        }
        if position < text.len() {
            fragments.push(Fragment::Text(&text[position..]));
        }
        fragments
    }

    /// The literals that win, by their place in `text`.
    fn choose(&self, text: &str, special: Special) -> BTreeMap<usize, usize> {
        let mut found = self.occurrences(text.as_bytes(), special);
        found.sort_unstable();
        let mut chosen: BTreeMap<usize, usize> = BTreeMap::new();
        for Occurrence { literal, start } in found {
            let end = start + self.literals[literal].length;
            let before = chosen.range(..end).next_back();
            if before.is_none_or(|(&other, &taken)| other + self.literals[taken].length <= start) {
                chosen.insert(start, literal);
            }
        }
        chosen
    }

    fn occurrences(&self, text: &[u8], special: Special) -> Vec<Occurrence> {
        let mut found = Vec::new();
        for start in 0..text.len() {
            let mut node = &self.nodes[0];
            for byte in &text[start..] {
                let Ok(child) = node.children.binary_search_by_key(byte, |child| child.0) else { break };
                node = &self.nodes[node.children[child].1];
                if let Some(literal) = node.literal
                    && (special == Special::Parse || !self.literals[literal].hidden)
                {
                    found.push(Occurrence { literal, start });
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::vocabulary::VocabularyModel;

    fn special_tokens(spellings: &[(&str, TokenKind)]) -> SpecialTokens {
        let mut vocabulary = Vocabulary::new(VocabularyModel::Gpt2);
        for &(spelling, kind) in spellings {
            vocabulary.tokens.push(spelling.into());
            vocabulary.kinds.push(kind);
        }
        SpecialTokens::new(&vocabulary)
    }

    /// One literal after the other, each over all text that is left.
    fn naive<'t>(spellings: &[&str], text: &'t str) -> Vec<Fragment<'t>> {
        let mut order: Vec<usize> = (0..spellings.len()).collect();
        order.sort_by_key(|&index| (Reverse(spellings[index].len()), index));
        let mut fragments = vec![Fragment::Text(text)];
        for index in order {
            let mut next = Vec::new();
            for fragment in fragments {
                let Fragment::Text(text) = fragment else {
                    next.push(fragment);
                    continue;
                };
                for (place, piece) in text.split(spellings[index]).enumerate() {
                    if place > 0 {
                        next.push(Fragment::Token(index as u32));
                    }
                    if !piece.is_empty() {
                        next.push(Fragment::Text(piece));
                    }
                }
            }
            fragments = next;
        }
        fragments
    }

    proptest! {
        #[test]
        fn splits_like_one_search_after_the_other(
            spellings in prop::collection::btree_set("[abc]{1,4}", 1..6),
            text in "[abcd]{0,40}",
        ) {
            let spellings: Vec<&str> = spellings.iter().map(String::as_str).collect();
            let kinds: Vec<_> = spellings.iter().map(|&spelling| (spelling, TokenKind::UserDefined)).collect();
            prop_assert_eq!(special_tokens(&kinds).split(&text, Special::Plain), naive(&spellings, &text));
        }
    }

    #[test]
    fn control_tokens_in_plain_text_are_text() {
        let tokens = special_tokens(&[
            ("<s>", TokenKind::Control),
            ("<think>", TokenKind::UserDefined),
            ("s", TokenKind::Normal),
        ]);
        let text = "<s><think>s";
        assert_eq!(tokens.split(text, Special::Parse), [Fragment::Token(0), Fragment::Token(1), Fragment::Text("s")]);
        assert_eq!(
            tokens.split(text, Special::Plain),
            [Fragment::Text("<s>"), Fragment::Token(1), Fragment::Text("s")]
        );
    }
}
