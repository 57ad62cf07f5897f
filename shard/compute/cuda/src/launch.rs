//! Launches as data: all that changes from step to step is how many blocks there are.

use paceline_compute::Result;

use crate::driver::{Driver, Kernel, Shape};

/// How much a step has of what grids are made of, in the order of the words of `Step` in `common.cuh`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Rows.
    pub(crate) rows: u32,
    /// Wanted rows.
    pub(crate) wanted: u32,
    /// Chunks that do anything.
    pub(crate) chunks: u32,
    /// Rows, with those that are replayed before chunks.
    pub(crate) sequence: u32,
    /// Segments of keys that the longest chunk sees.
    pub(crate) segments: u32,
}

/// What a dimension of a grid counts; the number is the word's place in `Step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// Rows.
    Rows,
    /// Wanted rows.
    Wanted,
    /// Chunks.
    Chunks,
    /// Rows, with those that are replayed before chunks.
    Sequence,
    /// Segments of keys.
    Segments,
    /// Nothing of the step.
    One,
}

impl Count {
    /// Its place in `Step`, as kernels take it.
    pub(crate) fn place(self) -> u64 {
        self as u64
    }

    fn of(self, counts: &Counts) -> u32 {
        match self {
            Self::Rows => counts.rows,
            Self::Wanted => counts.wanted,
            Self::Chunks => counts.chunks,
            Self::Sequence => counts.sequence,
            Self::Segments => counts.segments,
            Self::One => 1,
        }
    }
}

/// A dimension of a grid: `count · times / per` blocks, rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    count: Count,
    times: u64,
    per: u64,
}

impl Extent {
    /// One block.
    pub(crate) const ONE: Self = Self { count: Count::One, times: 1, per: 1 };

    /// As many blocks.
    pub(crate) fn fixed(blocks: usize) -> Self {
        Self { times: blocks as u64, ..Self::ONE }
    }

    /// One block for each.
    pub(crate) fn each(count: Count) -> Self {
        Self { count, ..Self::ONE }
    }

    /// As many things for each.
    #[must_use]
    pub(crate) fn times(self, times: usize) -> Self {
        Self { times: self.times * times as u64, ..self }
    }

    /// One block for so many things.
    #[must_use]
    pub(crate) fn per(self, per: usize) -> Self {
        Self { per: per as u64, ..self }
    }

    fn blocks(self, counts: &Counts) -> u32 {
        (u64::from(self.count.of(counts)) * self.times).div_ceil(self.per) as u32
    }
}

/// In which steps a launch happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// In all.
    Always,
    /// Where the parts of all rows and segments of attention are at most so many, and there is more than one segment.
    Split(u64),
    /// In the others.
    Whole(u64),
}

impl When {
    fn applies(self, counts: &Counts) -> bool {
        let split = |most| counts.segments > 1 && u64::from(counts.rows) * u64::from(counts.segments) <= most;
        match self {
            Self::Always => true,
            Self::Split(most) => split(most),
            Self::Whole(most) => !split(most),
        }
    }
}

/// A kernel with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Which kernel.
    pub(crate) kernel: Kernel,
    /// Blocks.
    pub(crate) grid: [Extent; 3],
    /// Threads of a block.
    pub(crate) block: u32,
    /// Bytes of shared memory.
    pub(crate) shared_bytes: u32,
    /// One word each.
    pub(crate) arguments: Vec<u64>,
    /// When it happens.
    pub(crate) when: When,
}

impl Launch {
    /// Starts it, if the step has any blocks of it.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Safety
    /// The arguments are those of the kernel, and as large as any step needs.
    #[expect(unsafe_code, reason = "a device trusts the arguments of kernels")]
    pub(crate) unsafe fn start(&self, driver: &dyn Driver, counts: &Counts) -> Result<()> {
        let grid = self.grid.map(|extent| extent.blocks(counts));
        if !self.when.applies(counts) || grid.contains(&0) {
            return Ok(());
        }
        let shape = Shape { grid, block: self.block, shared_bytes: self.shared_bytes };
        // SAFETY: the caller's promise.
        unsafe { driver.launch(self.kernel, shape, &self.arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: Counts = Counts { rows: 5, wanted: 0, chunks: 2, sequence: 7, segments: 3 };

    #[test]
    fn extents_round_up() {
        assert_eq!(Extent::each(Count::Rows).times(100).per(256).blocks(&COUNTS), 2);
        assert_eq!(Extent::fixed(33).per(32).blocks(&COUNTS), 2);
        assert_eq!(Extent::each(Count::Wanted).times(100).blocks(&COUNTS), 0);
    }

    #[test]
    fn attention_is_split_where_its_parts_fit() {
        assert!(When::Split(15).applies(&COUNTS) && !When::Whole(15).applies(&COUNTS));
        assert!(!When::Split(14).applies(&COUNTS) && When::Whole(14).applies(&COUNTS));
        let short = Counts { segments: 1, ..COUNTS };
        assert!(!When::Split(15).applies(&short) && When::Whole(15).applies(&short));
    }
}
