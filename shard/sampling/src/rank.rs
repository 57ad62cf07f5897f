//! The most probable tokens of a row, without sorting the row.

use std::cmp::Ordering;

/// A token that may be chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) token: u32,
    pub(crate) logit: f32,
}

/// The logit as everything behind this works with it: "not a number" counts as impossible, infinity as the largest
/// number.
pub(crate) fn usable(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit.min(f32::MAX) }
}

/// The token with the largest logit, the lowest of several; none if all are impossible.
pub(crate) fn best(logits: &[f32]) -> Option<Candidate> {
    let largest = largest(logits);
    let token = (0..).zip(logits).find(|(_, logit)| **logit == largest).map(|(token, _)| token)?;
    (largest > f32::NEG_INFINITY).then_some(Candidate { token, logit: largest })
}

/// The largest logit that is a number. A vocabulary has some hundred thousand: this is written so that a compiler looks at several at once.
fn largest(logits: &[f32]) -> f32 {
    let larger = |one: f32, other: f32| if other > one { other } else { one };
    const LANES: usize = 32;
    let mut largest = [f32::NEG_INFINITY; LANES];
    let (pieces, rest) = logits.as_chunks::<LANES>();
    for piece in pieces {
        for (largest, logit) in largest.iter_mut().zip(piece) {
            *largest = larger(*largest, *logit);
        }
    }
    largest.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, larger)
}

/// Replaces `found` by the `count` most probable tokens, most probable first and the lower token first of two that
/// are equal; fewer if the others are impossible. No logit may be "not a number".
pub(crate) fn most_probable(logits: &[f32], count: usize, found: &mut Vec<Candidate>) {
    found.clear();
    if count == 0 {
        return;
    }
    // Everything up to the floor is out: `count` tokens above it, or equal and lower, are in already.
    let mut floor = f32::NEG_INFINITY;
    for (token, &logit) in (0..).zip(logits) {
        if logit > floor {
            found.push(Candidate { token, logit });
            if found.len() >= 2 * count {
                keep(found, count);
                floor = found[count - 1].logit;
            }
        }
    }
    keep(found, count);
    found.sort_unstable_by(more_probable);
}

/// Keeps the `count` most probable; the last of them comes last, the others in any order.
fn keep(found: &mut Vec<Candidate>, count: usize) {
    if found.len() > count {
        found.select_nth_unstable_by(count - 1, more_probable);
        found.truncate(count);
    }
}

fn more_probable(one: &Candidate, other: &Candidate) -> Ordering {
    let by_logit = other.logit.partial_cmp(&one.logit).expect("logits are made usable before they are ranked");
    by_logit.then(one.token.cmp(&other.token))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tokens(found: &[Candidate]) -> Vec<u32> {
        found.iter().map(|candidate| candidate.token).collect()
    }

    #[test]
    fn ties_go_to_the_lower_token() {
        assert_eq!(best(&[0.0, 2.0, 2.0]), Some(Candidate { token: 1, logit: 2.0 }));
        assert_eq!(best(&[-0.0, 0.0]).unwrap().token, 0);
        let mut found = Vec::new();
        most_probable(&[1.0, 2.0, 1.0, 2.0, 1.0, -0.0, 0.0], 6, &mut found);
        assert_eq!(tokens(&found), [1, 3, 0, 2, 4, 5]);
    }

    #[test]
    fn what_is_no_number_is_never_the_best() {
        assert_eq!(best(&[f32::NAN, -3.0, f32::NAN]).unwrap().token, 1);
        assert_eq!(best(&[1.0, f32::INFINITY, f32::INFINITY]).unwrap().token, 1);
        assert_eq!(best(&[f32::NAN, f32::NEG_INFINITY]), None);
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn usable_logits_are_never_nan_or_infinite_upwards() {
        assert_eq!(usable(f32::NAN), f32::NEG_INFINITY);
        assert_eq!(usable(-f32::NAN), f32::NEG_INFINITY);
        assert_eq!(usable(f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert_eq!(usable(f32::INFINITY), f32::MAX);
        assert_eq!(usable(-1.5), -1.5);
    }

    proptest! {
        #[test]
        fn equal_to_sorting_everything(
            // Few different values, so that there are many ties.
            logits in prop::collection::vec(prop_oneof![
                4 => (-3i8..3).prop_map(f32::from),
                1 => Just(f32::NEG_INFINITY),
                2 => -10f32..10.0,
            ], 0..200),
            count in 0usize..250,
        ) {
            let mut sorted: Vec<_> = (0..).zip(&logits)
                .map(|(token, &logit)| Candidate { token, logit })
                .filter(|candidate| candidate.logit > f32::NEG_INFINITY)
                .collect();
            sorted.sort_by(|a, b| b.logit.partial_cmp(&a.logit).unwrap());
            prop_assert_eq!(best(&logits), sorted.first().copied());
            sorted.truncate(count);
            let mut found = vec![Candidate { token: 9, logit: 9.0 }];
            most_probable(&logits, count, &mut found);
            prop_assert_eq!(found, sorted);
        }
    }
}
