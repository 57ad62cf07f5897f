//! Where in a prompt a state is worth keeping.
//!
//! A state exists at single positions, so what is not kept where another prompt branches off is read again from the
//! kept position before it. Worth keeping are: the boundaries that the text side names (the end of the conversation
//! without what asks for the answer, the starts of messages); the place up to which something else that is known agrees,
//! where this prompt branches off and others will; in a prompt of which nothing is known, the place before its last
//! token, for the same prompt again; some places shortly before the end, each twice as far from it as the one before
//! ([`NEAR_END`]), since the next question about the same document parts from this one there, in the middle of a message;
//! and multiples of the stride.
//!
//! A chunk must end at each, and chunks are what prefill is made of. So no two are closer than [`APART`] tokens, nor is
//! any to the one that the prompt goes on from: those near the end give way to what has a name, multiples of the stride to
//! any other kind, else the earlier stays, as from it everything behind can be reached in one small step. And one prompt
//! takes at most half of the snapshots there are: the stride is doubled until it does, and of too many boundaries the
//! first, where what all users share ends, and the last ones stay.

use crate::limits::Limits;

/// Positions closer than so many tokens are as good as one.
const APART: usize = 16;
/// So many tokens before the end of the conversation, where that is at most a [`NEAR_SHARE`]th of what is to be run: a
/// question of `n` tokens that takes the place of one of about as many has fewer than `2 n` and these read again.
const NEAR_END: [usize; 5] = [64, 128, 256, 512, 1024];
const NEAR_SHARE: usize = 4;

/// What is known of a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prompt<'a> {
    /// All tokens that are to be run or reused.
    pub(super) tokens: usize,
    /// Of these, the tokens of the prompt.
    pub(super) prompt_tokens: usize,
    /// Of these, those that are reused.
    pub(super) cached: usize,
    /// How many agree with anything known.
    pub(super) matched: usize,
    /// What the text side names, ascending.
    pub(super) boundaries: &'a [usize],
}

/// The positions at which to keep the state, ascending.
pub(super) fn worth_keeping(prompt: Prompt<'_>, limits: &Limits) -> Vec<usize> {
    let Prompt { tokens, prompt_tokens, cached, matched, boundaries } = prompt;
    let inside = |position: &usize| (cached + 1..=tokens).contains(position);
    let most = (limits.snapshots / 2).max(1);
    let mut named: Vec<usize> = boundaries.iter().copied().filter(inside).collect();
    if boundaries.is_empty() {
        named.extend(prompt_tokens.checked_sub(1).filter(inside));
    }
    named.extend(Some(matched.min(tokens - 1)).filter(inside));
    named.sort_unstable();
    let known = Some(&cached).filter(|cached| **cached > 0);
    let mut kept: Vec<usize> = Vec::new();
    for position in named {
        if kept.last().or(known).is_none_or(|last| position >= last + APART) {
            kept.push(position);
        }
    }
    if kept.len() > most {
        kept.drain(usize::from(most > 1)..=kept.len() - most);
    }
    let end = boundaries.last().map_or(prompt_tokens, |last| prompt_tokens.min(*last));
    let near = NEAR_END.iter().filter(|before| **before * NEAR_SHARE <= end.saturating_sub(cached));
    let kept = beside(kept, known, near.map(|before| end - before), most);
    let room = most - kept.len().min(most);
    let strides =
        |stride: usize| (cached / stride + 1..).map(move |number| number * stride).take_while(|at| *at <= tokens);
    let mut stride = limits.snapshot_stride;
    while strides(stride).count() > room && stride < tokens {
        stride *= 2;
    }
    beside(kept, known, strides(stride), most)
}

/// Adds those of `more` that are far enough from all others, `most` altogether; ascending.
fn beside(mut kept: Vec<usize>, known: Option<&usize>, more: impl Iterator<Item = usize>, most: usize) -> Vec<usize> {
    for position in more {
        if kept.len() < most && kept.iter().chain(known).all(|other| position.abs_diff(*other) >= APART) {
            kept.push(position);
        }
    }
    kept.sort_unstable();
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(snapshots: usize) -> Limits {
        Limits { snapshots, ..Limits::new(1, 4, 1000, 16, 10_000) }
    }

    fn kept(tokens: usize, cached: usize, matched: usize, boundaries: &[usize]) -> Vec<usize> {
        worth_keeping(Prompt { tokens, prompt_tokens: tokens, cached, matched, boundaries }, &limits(32))
    }

    #[test]
    fn boundaries_branches_and_strides() {
        assert_eq!(kept(150, 0, 0, &[]), [149], "for the same prompt again");
        assert_eq!(kept(150, 0, 0, &[40, 140]), [40, 140]);
        assert_eq!(kept(2000, 0, 0, &[700, 1990]), [512, 700, 1024, 1536, 1734, 1862, 1926, 1990]);
        assert_eq!(kept(2000, 512, 900, &[1990])[..3], [900, 1024, 1536], "where it branches off");
        assert_eq!(kept(2000, 1024, 2000, &[1990]), [1536, 1862, 1926, 1990], "it is known already");
        assert_eq!(kept(2000, 1970, 2000, &[1970]), [1999]);
        assert_eq!(kept(2000, 1990, 2000, &[1990]), [0; 0], "what is there is as good");
        assert_eq!(
            kept(600, 0, 0, &[505, 510, 590]),
            [462, 505, 526, 590],
            "the stride gives way, and the earlier stays"
        );
        assert_eq!(kept(1, 0, 0, &[]), [0; 0]);
    }

    #[test]
    fn another_question_about_a_long_text_is_read_from_shortly_before_the_old_one() {
        let kept = kept(23_000, 0, 0, &[10, 22_990]);
        for question in [10, 30, 60, 120, 250, 500, 1000] {
            let from = kept.iter().rev().find(|position| **position <= 22_990 - question).expect("a position");
            assert!(22_990 - question - from <= question.max(64), "{question}: {kept:?}");
        }
    }

    #[test]
    fn one_prompt_takes_half_of_the_snapshots() {
        assert_eq!(kept(16_000, 0, 0, &[15_990]).len(), 13, "the end, five near it, and every 2048");
        let boundaries: Vec<usize> = (1..100).map(|number| number * 100).collect();
        let kept = kept(10_000, 0, 0, &boundaries);
        assert_eq!((kept.len(), kept[0], kept[1]), (16, 100, 8500));
    }

    proptest! {
        #[test]
        fn they_are_apart_and_bounded(
            tokens in 1usize..5000, cached in 0usize..5000, matched in 0usize..5000, snapshots in 0usize..40,
            mut boundaries in prop::collection::vec(1usize..5000, 0..40),
        ) {
            boundaries.sort_unstable();
            let cached = cached.min(tokens - 1);
            let prompt = Prompt { tokens, prompt_tokens: tokens, cached, matched, boundaries: &boundaries };
            let kept = worth_keeping(prompt, &limits(snapshots));
            prop_assert!(kept.len() <= (snapshots / 2).max(1));
            prop_assert!(kept.iter().all(|position| *position > cached && *position <= tokens));
            prop_assert!(kept.windows(2).all(|pair| pair[1] >= pair[0] + APART));
        }
    }
}
