//! A text's tokens together with the stretches of text that they came from, so that two texts can be compared by
//! their tokens without encoding both.

use crate::special_tokens::{Fragment, Special};
use crate::tokenizer::Tokenizer;

/// The tokens of a text with its control tokens parsed, and what each of its stretches became.
#[derive(Debug)]
pub(crate) struct Encoding<'t> {
    pub(crate) tokens: Vec<u32>,
    /// The stretches, in order, each with the number of tokens before it.
    stretches: Vec<(usize, Fragment<'t>)>,
}

impl<'t> Encoding<'t> {
    /// Encodes `text` as [`Tokenizer::encode`] does with [`Special::Parse`] and without a beginning token.
    pub(crate) fn new(tokenizer: &Tokenizer, text: &'t str) -> Self {
        let mut encoding = Self { tokens: Vec::with_capacity(text.len() / 3 + 1), stretches: Vec::new() };
        for fragment in tokenizer.fragments(text, Special::Parse) {
            encoding.stretches.push((encoding.tokens.len(), fragment));
            push(tokenizer, fragment, &mut encoding.tokens);
        }
        encoding
    }

    /// How many tokens `other` would begin with that this text begins with as well.
    ///
    /// A stretch between special tokens is encoded by itself, so equal stretches are equal tokens, and only the first
    /// one that differs need be encoded.
    pub(crate) fn tokens_shared_with(&self, tokenizer: &Tokenizer, other: &str) -> usize {
        let theirs = tokenizer.fragments(other, Special::Parse);
        let differs = |(place, (_, ours)): &(usize, &(usize, Fragment<'_>))| theirs.get(*place) != Some(ours);
        let Some((place, &(start, ours))) = self.stretches.iter().enumerate().find(differs) else {
            return self.tokens.len();
        };
        match (ours, theirs.get(place)) {
            (Fragment::Text(_), Some(&theirs @ Fragment::Text(_))) => {
                let mut tokens = Vec::new();
                push(tokenizer, theirs, &mut tokens);
                let end = self.stretches.get(place + 1).map_or(self.tokens.len(), |next| next.0);
                let pairs = self.tokens[start..end].iter().zip(&tokens);
                start + pairs.take_while(|(ours, theirs)| ours == theirs).count()
            }
            _ => start,
        }
    }
}

/// Stretches of text stand at the beginning or behind a special token, never behind each other.
fn push(tokenizer: &Tokenizer, fragment: Fragment<'_>, tokens: &mut Vec<u32>) {
    match fragment {
        Fragment::Token(token) => tokens.push(token),
        Fragment::Text(text) => tokenizer.encode_plain(text, true, tokens),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::byte_tokenizer;
    use crate::vocabulary::TokenKind;

    proptest! {
        #[test]
        fn shared_tokens_are_those_of_the_whole_encodings(
            before in "(<s>|<t>|a|b|\n){0,6}",
            ours in "(<s>|<t>|a|b|\n){0,6}",
            theirs in "(<s>|<t>|a|b|\n){0,6}",
        ) {
            let tokenizer = byte_tokenizer(&[("<s>", TokenKind::Control), ("<t>", TokenKind::UserDefined)]);
            let (ours, theirs) = (before.clone() + &ours, before + &theirs);
            let encoding = Encoding::new(&tokenizer, &ours);
            prop_assert_eq!(&encoding.tokens, &tokenizer.encode(&ours, Special::Parse, false));
            let other = tokenizer.encode(&theirs, Special::Parse, false);
            let shared = encoding.tokens.iter().zip(&other).take_while(|(ours, theirs)| ours == theirs).count();
            prop_assert_eq!(encoding.tokens_shared_with(&tokenizer, &theirs), shared);
        }
    }
}
