//! Where products go: rows of floats that several threads fill together.

#![expect(unsafe_code, reason = "threads write disjoint columns of the same rows")]

use std::marker::PhantomData;

use super::PANEL_ROWS;
use crate::cpu::simd::Simd;

/// Which rows of the input are multiplied, and where their products go.
#[derive(Clone, Copy, Debug)]
pub enum Rows<'a> {
    /// The first so many rows, each to the row of the same index.
    First(usize),
    /// Chosen rows; no output row may occur twice.
    Listed(&'a [RowPair]),
}

/// A row of the input and the row of the output that its product goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPair {
    /// Row of the input.
    pub input: u32,
    /// Row of the output.
    pub output: u32,
}

impl Rows<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Rows::First(count) => *count,
            Rows::Listed(pairs) => pairs.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline(always)]
    pub(super) fn input(&self, index: usize) -> usize {
        match self {
            Rows::First(_) => index,
            Rows::Listed(pairs) => pairs[index].input as usize,
        }
    }

    #[inline(always)]
    pub(super) fn output(&self, index: usize) -> usize {
        match self {
            Rows::First(_) => index,
            Rows::Listed(pairs) => pairs[index].output as usize,
        }
    }

    /// Panics unless an input of `length` items has every input row and the output every output row.
    pub(super) fn check(&self, length: usize, row_length: usize, output_rows: usize) {
        let inputs = length.checked_div(row_length).unwrap_or(usize::MAX);
        match self {
            Rows::First(count) => {
                assert!(*count <= inputs, "{count} of {inputs} input rows");
                assert!(*count <= output_rows, "{count} of {output_rows} output rows");
            }
            Rows::Listed(pairs) => {
                let exist = |pair: &RowPair| (pair.input as usize) < inputs && (pair.output as usize) < output_rows;
                assert!(pairs.iter().all(exist), "{inputs} input and {output_rows} output rows");
            }
        }
    }
}

/// Rows of floats to write products to, or to add them to.
#[derive(Debug)]
pub struct OutputRows<'a> {
    start: *mut f32,
    rows: usize,
    columns: usize,
    stride: usize,
    accumulate: bool,
    lifetime: PhantomData<&'a mut [f32]>,
}

// SAFETY: it is an exclusive reference to what it writes, which may move to another thread.
unsafe impl Send for OutputRows<'_> {}

impl<'a> OutputRows<'a> {
    /// Rows of `columns` floats, one behind the other. With `accumulate`, products are added to what
    /// is there, as the last operation.
    ///
    /// Threads that share an output each make their own with [`from_raw`](Self::from_raw).
    ///
    /// # Panics
    /// If `values` is not a whole number of rows.
    pub fn new(values: &'a mut [f32], columns: usize, accumulate: bool) -> Self {
        assert!(columns > 0 && values.len().is_multiple_of(columns), "whole rows of {columns} values");
        let rows = values.len() / columns;
        // SAFETY: the slice is borrowed for as long as the result lives, and has all rows.
        unsafe { Self::from_raw(values.as_mut_ptr(), rows, columns, columns, accumulate) }
    }

    /// `rows` rows of `columns` floats that begin `stride` floats apart.
    ///
    /// # Safety
    /// For as long as the result lives, all rows must be valid for reads and writes, and nothing else
    /// may touch the elements that are written through it: the columns of the panels given to
    /// [`linear`](super::linear), in the rows given to it.
    pub unsafe fn from_raw(start: *mut f32, rows: usize, columns: usize, stride: usize, accumulate: bool) -> Self {
        assert!(columns <= stride || rows <= 1, "rows overlap");
        Self { start, rows, columns, stride, accumulate, lifetime: PhantomData }
    }

    /// Floats per row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes (or adds) one panel's products to columns `first_column..` of a row, `count` of them.
    #[inline(always)]
    pub(super) fn put<S: Simd>(&mut self, s: S, row: usize, first_column: usize, count: usize, products: S::F) {
        assert!(row < self.rows && first_column + count <= self.columns, "inside the output");
        // SAFETY: the row and the columns exist, and no one else touches them now.
        let lanes = unsafe {
            let start = self.start.add(row * self.stride + first_column);
            std::slice::from_raw_parts_mut(start, count)
        };
        if let Some(lanes) = lanes.first_chunk_mut::<PANEL_ROWS>() {
            let sums = if self.accumulate { s.add(s.load(lanes), products) } else { products };
            s.store(sums, lanes);
        } else {
            let old = s.load_partial(lanes);
            let sums = if self.accumulate { s.add(old, products) } else { products };
            s.store_partial(sums, lanes);
        }
    }
}
