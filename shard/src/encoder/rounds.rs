//! Whose texts are read next: everybody who asks gets a turn, and short requests share a step.

use std::collections::VecDeque;

/// A request: the lengths of its texts, and how many of them have been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) lengths: Vec<usize>,
    pub(super) read: usize,
}

impl Asked {
    pub(super) fn new(lengths: Vec<usize>) -> Self {
        Self { lengths, read: 0 }
    }

    pub(super) fn is_done(&self) -> bool {
        self.read == self.lengths.len()
    }
}

/// How many texts of each request are read in the next round: up to `tokens`, those who have waited longest first, and at
/// least one text in all.
pub(super) fn shares<'a>(asked: impl Iterator<Item = &'a Asked>, tokens: usize) -> Vec<usize> {
    let mut left = tokens;
    let mut is_first = true;
    let shares = asked.map(|asked| {
        let mut count = 0;
        for length in &asked.lengths[asked.read..] {
            if *length > left && !is_first {
                left = 0;
                break;
            }
            left = left.saturating_sub(*length);
            is_first = false;
            count += 1;
        }
        count
    });
    shares.collect()
}

/// Puts the one who was first at the end, unless it is done.
pub(super) fn rotate<T>(requests: &mut VecDeque<T>) {
    if !requests.is_empty() {
        requests.rotate_left(1);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn asked(lengths: &[usize], read: usize) -> Asked {
        Asked { lengths: lengths.to_vec(), read }
    }

    #[test]
    fn a_round_is_filled_with_those_who_waited_longest() {
        let all = [asked(&[5, 5, 5], 1), asked(&[2], 0), asked(&[9, 1], 0)];
        assert_eq!(shares(all.iter(), 12), [2, 1, 0]);
        assert_eq!(shares(all.iter(), 100), [2, 1, 2]);
        assert_eq!(shares(all.iter(), 1), [1, 0, 0], "a text that is longer than a round is read all the same");
    }

    proptest! {
        #[test]
        fn all_requests_are_read_to_their_end(
            lengths in proptest::collection::vec(proptest::collection::vec(1usize..20, 1..9), 1..6),
            tokens in 1usize..30,
        ) {
            let mut waiting: VecDeque<Asked> = lengths.into_iter().map(Asked::new).collect();
            let (mut rounds, most) = (0, waiting.iter().map(|asked| asked.lengths.len()).sum::<usize>());
            while !waiting.is_empty() {
                let shares = shares(waiting.iter(), tokens);
                prop_assert!(shares.iter().sum::<usize>() > 0);
                for (asked, share) in waiting.iter_mut().zip(shares) {
                    asked.read += share;
                }
                waiting.retain(|asked| !asked.is_done());
                rotate(&mut waiting);
                rounds += 1;
                prop_assert!(rounds <= most);
            }
        }
    }
}
