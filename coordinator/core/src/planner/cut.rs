//! Where to cut, and how to divide threads.

use std::ops::Range;

use paceline_gguf::ModelShape;

use super::{Error, Result, memory::read_per_token};

/// A contiguous part of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stage {
    pub(super) layers: Range<usize>,
    /// It embeds tokens.
    pub(super) first: bool,
    /// It makes logits.
    pub(super) last: bool,
}

/// Cuts the model between blocks so that the stage that reads most per token reads as little as possible.
pub(super) fn cut(shape: &ModelShape, shards: usize) -> Result<Vec<Stage>> {
    let blocks = shape.blocks();
    if shards > blocks.len() {
        return Err(Error::TooManyShards { shards, blocks: blocks.len() });
    }
    let end = shape.layers.len();
    let stage = |layers: Range<usize>| Stage { first: layers.start == 0, last: layers.end == end, layers };
    let costs: Vec<u64> = blocks.iter().map(|block| read_per_token(shape, &stage(block.clone()))).collect();
    let parts = divide(&costs, shards);
    Ok(parts.into_iter().map(|part| stage(blocks[part.start].start..blocks[part.end - 1].end)).collect())
}

/// How good a division is: the cost of its largest part, then the sum of all parts' squares, which is smaller the more
/// even they are.
type Quality = (u64, u128);

/// The best division of the blocks before some end.
#[derive(Clone, Copy)]
struct Best {
    quality: Quality,
    /// Where its last part begins.
    start: usize,
}

/// Divides blocks into so many contiguous parts, none empty, so that the largest part's cost is the least possible;
/// of several such divisions an even one.
///
/// The best division of the first `end` blocks into `n` parts is, for some `start`, the best division of the first
/// `start` blocks into `n - 1` parts and a last part `start..end`.
fn divide(costs: &[u64], parts: usize) -> Vec<Range<usize>> {
    assert!((1..=costs.len()).contains(&parts), "{} blocks cannot be {parts} parts", costs.len());
    let mut sums = vec![0];
    sums.extend(costs.iter().scan(0, |sum, cost| {
        *sum += cost;
        Some(*sum)
    }));
    // Row `n - 1` is for `n` parts and column `end` for the blocks before `end`, where there are enough.
    let mut table: Vec<Vec<Option<Best>>> = Vec::with_capacity(parts);
    for row in 0..parts {
        let best = |end| match table.last() {
            None => Some(Best { quality: with_part((0, 0), sums[end]), start: 0 }),
            Some(fewer) => best_last_part(fewer, &sums, row, end),
        };
        let column = |end| if end > row { best(end) } else { None };
        table.push((0..=costs.len()).map(column).collect());
    }
    read_back(&table, costs.len())
}

fn best_last_part(fewer: &[Option<Best>], sums: &[u64], least_start: usize, end: usize) -> Option<Best> {
    let mut best: Option<Best> = None;
    for start in (least_start..end).rev() {
        let part = sums[end] - sums[start];
        // The part only grows from here on.
        if best.is_some_and(|best| part > best.quality.0) {
            break;
        }
        let quality = with_part(fewer[start]?.quality, part);
        if best.is_none_or(|best| quality < best.quality) {
            best = Some(Best { quality, start });
        }
    }
    best
}

fn with_part((largest, squares): Quality, part: u64) -> Quality {
    let square = u128::from(part).pow(2);
    (largest.max(part), squares.saturating_add(square))
}

fn read_back(table: &[Vec<Option<Best>>], blocks: usize) -> Vec<Range<usize>> {
    let mut end = blocks;
    let mut parts = Vec::with_capacity(table.len());
    for row in table.iter().rev() {
        let start = row[end].expect("there are at least as many blocks as parts").start;
        parts.push(start..end);
        end = start;
    }
    parts.reverse();
    parts
}

/// Divides threads among stages so that the one with the most cost per thread has as little as possible; each gets at
/// least one, even where there are fewer threads than stages.
pub(super) fn divide_threads(costs: &[u64], threads: usize) -> Vec<usize> {
    let mut shares = vec![1; costs.len()];
    for _ in costs.len()..threads {
        // a / x < b / y where a · y < b · x; of equals the last, which also samples.
        let slowest = (0..costs.len()).max_by(|&one, &other| {
            let load = |stage: usize, factor: usize| u128::from(costs[stage]) * shares[factor] as u128;
            load(one, other).cmp(&load(other, one))
        });
        if let Some(slowest) = slowest {
            shares[slowest] += 1;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums(costs: &[u64], parts: &[Range<usize>]) -> Vec<u64> {
        parts.iter().map(|part| costs[part.clone()].iter().sum()).collect()
    }

    /// The least bottleneck over every possible choice of cuts.
    fn brute_force(costs: &[u64], parts: usize) -> u64 {
        if parts == 1 {
            return costs.iter().sum();
        }
        let with_first = |first: usize| {
            let (head, rest) = costs.split_at(first);
            brute_force(rest, parts - 1).max(head.iter().sum())
        };
        (1..=costs.len() - (parts - 1)).map(with_first).min().unwrap()
    }

    #[test]
    fn equal_blocks_are_divided_evenly() {
        let sizes = |blocks: usize, parts| {
            let mut sizes = sums(&vec![1; blocks], &divide(&vec![1; blocks], parts));
            sizes.sort_unstable();
            sizes
        };
        assert_eq!(sizes(16, 1), [16]);
        assert_eq!(sizes(16, 4), [4, 4, 4, 4]);
        assert_eq!(sizes(16, 5), [3, 3, 3, 3, 4]);
        assert_eq!(sizes(16, 16), [1; 16]);
    }

    #[test]
    fn a_costly_head_gets_fewer_blocks() {
        assert_eq!(divide(&[2, 2, 2, 2, 2, 7], 3), [0..3, 3..5, 5..6]);
    }

    #[test]
    fn many_blocks_are_no_problem() {
        let costs = vec![1; 3000];
        let parts = divide(&costs, 16);
        assert_eq!(sums(&costs, &parts).into_iter().max(), Some(188));
    }

    #[test]
    fn threads_follow_the_cost() {
        assert_eq!(divide_threads(&[1, 1], 8), [4, 4]);
        assert_eq!(divide_threads(&[3, 1], 8), [6, 2]);
        assert_eq!(divide_threads(&[100, 1, 1], 8), [6, 1, 1]);
        assert_eq!(divide_threads(&[1, 1, 1], 2), [1, 1, 1]);
        assert_eq!(divide_threads(&[0, 0], 3), [1, 2]);
        assert_eq!(divide_threads(&[u64::MAX], 3), [3]);
    }

    proptest! {
        #[test]
        fn the_bottleneck_is_the_least_possible(costs in prop::collection::vec(0u64..50, 1..10), parts in 1usize..10) {
            prop_assume!(parts <= costs.len());
            let divided = divide(&costs, parts);
            prop_assert_eq!(divided.len(), parts);
            prop_assert!(divided.iter().all(|part| !part.is_empty()));
            prop_assert_eq!(divided.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..costs.len()).collect::<Vec<_>>());
            prop_assert_eq!(sums(&costs, &divided).into_iter().max(), Some(brute_force(&costs, parts)));
        }

        #[test]
        fn no_other_division_of_threads_is_faster(costs in prop::collection::vec(1u64..50, 1..5), threads in 1usize..10) {
            let slowest = |shares: &[usize]| {
                costs.iter().zip(shares).map(|(&cost, &share)| cost as f64 / share as f64).fold(0.0, f64::max)
            };
            let shares = divide_threads(&costs, threads);
            prop_assert_eq!(shares.iter().sum::<usize>(), threads.max(costs.len()));
            prop_assert!(shares.iter().all(|&share| share > 0));
            // A move of one thread from any stage to any other gains nothing.
            for from in 0..costs.len() {
                for to in 0..costs.len() {
                    let mut moved = shares.clone();
                    if moved[from] > 1 {
                        moved[from] -= 1;
                        moved[to] += 1;
                        prop_assert!(slowest(&moved) >= slowest(&shares));
                    }
                }
            }
        }
    }
}
