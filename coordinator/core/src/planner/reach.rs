//! Whether devices in a given order can hold all blocks at all.

use super::{Cluster, fit::largest, segments::Segments};

/// Whether some row of these devices holds all blocks, of exactly `stages` stages if so many are wanted.
///
/// A device that can hold the blocks `start..end` can hold any shorter run that starts there. So from all blocks that
/// rows so far can end before, the next device reaches everything up to the furthest of its runs.
pub(super) fn can_hold(segments: &Segments, cluster: &Cluster, order: &[usize], stages: Option<usize>) -> bool {
    let blocks = segments.len();
    let counted = stages.is_some();
    // By stages so far (one layer only, if any number will do) and block.
    let layers = stages.map_or(1, |stages| stages + 1);
    let mut reached = vec![vec![false; blocks + 1]; layers];
    reached[0][0] = true;
    for &device in order {
        let runs = Runs::of(segments, cluster.devices[device].memory_bytes);
        for layer in (0..layers).rev() {
            let to = if counted { layer + 1 } else { layer };
            if to < layers {
                let from = reached[layer].clone();
                runs.extend(&from, &mut reached[to]);
            }
        }
    }
    reached[layers - 1][blocks]
}

/// The runs that a device can hold.
struct Runs {
    /// For each start, the furthest end that is not the last.
    furthest: Vec<usize>,
    /// For each start, whether the run up to the last block fits.
    to_end: Vec<bool>,
}

impl Runs {
    fn of(segments: &Segments, memory_bytes: u64) -> Self {
        let blocks = segments.len();
        let fits = |start: usize, end: usize| segments.memory(start, end) <= memory_bytes;
        let furthest = |start: usize| {
            let inner = blocks - 1 - start;
            start + largest(inner, |count| fits(start, start + count)).unwrap_or(0)
        };
        Self {
            furthest: (0..blocks).map(furthest).collect(),
            to_end: (0..blocks).map(|start| fits(start, blocks)).collect(),
        }
    }

    fn extend(&self, from: &[bool], reached: &mut [bool]) {
        let blocks = self.furthest.len();
        let mut furthest = 0;
        for start in (0..blocks).filter(|&start| from[start]) {
            let known = furthest.max(start);
            furthest = known.max(self.furthest[start]);
            reached[known + 1..=furthest].fill(true);
            reached[blocks] |= self.to_end[start];
        }
    }
}
