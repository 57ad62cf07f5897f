//! The fake model: the next token is a hash of all tokens before it, so a token that is lost, doubled, swapped or
//! read from another session's memory changes everything after it.

use crate::random::mix;

/// Ends an answer, unless it is banned.
pub(crate) const END: u32 = 2;
/// Stands in for `END` where that is banned.
const NOT_THE_END: u32 = 3;

/// The recurrent state after `token` was run.
pub(crate) fn advance(state: u64, token: u32) -> u64 {
    mix(state.rotate_left(7) ^ u64::from(token)).wrapping_add(1)
}

/// What attention makes of all tokens so far.
pub(crate) fn attend(tokens: impl Iterator<Item = u32>) -> u64 {
    tokens.zip(1u64..).fold(0, |sum, (token, place)| sum.wrapping_add(mix(place << 32 | u64::from(token))))
}

/// The next token.
pub(crate) fn sample(state: u64, attended: u64, end_is_banned: bool) -> u32 {
    let logits = mix(state ^ attended);
    match logits % 40 {
        0 if end_is_banned => NOT_THE_END,
        0 => END,
        _ => 10 + (logits >> 8) as u32 % 1000,
    }
}

/// The `count` tokens after `prompt`, the end token included if it comes before.
pub(crate) fn answer(prompt: &[u32], count: usize, end_is_banned: bool) -> Vec<u32> {
    let mut tokens = prompt.to_vec();
    let mut state = tokens.iter().fold(0, |state, token| advance(state, *token));
    while tokens.len() < prompt.len() + count {
        let attended = attend(tokens.iter().copied()).wrapping_add(prompt.len() as u64);
        let token = sample(state, attended, end_is_banned);
        tokens.push(token);
        state = advance(state, token);
        if token == END {
            break;
        }
    }
    tokens.split_off(prompt.len())
}
