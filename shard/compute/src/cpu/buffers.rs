//! The buffers of a program: rows of activations that live for one step.

#![expect(unsafe_code, reason = "threads borrow disjoint rows")]

use std::ops::Range;

use super::shared::Shared;
use crate::Result;
use crate::program::{BufferSpec, RowSpace};

/// One buffer, `(reserved rows, width)`, rows one after another.
pub(crate) struct Rows {
    values: Shared<f32>,
    /// Values per row.
    pub(crate) width: usize,
    /// Which rows it has.
    pub(crate) space: RowSpace,
}

impl Rows {
    /// Reserves `rows` rows.
    pub(crate) fn reserve(spec: &BufferSpec, rows: usize) -> Result<Self> {
        let values = Shared::zeroed("buffers", spec.width.saturating_mul(rows))?;
        Ok(Self { values, width: spec.width, space: spec.rows })
    }

    /// Bytes reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.values.bytes()
    }

    /// All reserved rows, when no thread works on them.
    pub(crate) fn all_mut(&mut self) -> &mut [f32] {
        self.values.all_mut()
    }

    /// Rows that this thread reads.
    ///
    /// # Safety
    /// No thread writes to them while the borrow lasts.
    pub(crate) unsafe fn rows(&self, rows: Range<usize>) -> &[f32] {
        // SAFETY: the caller's promise.
        unsafe { self.values.part(rows.start * self.width..rows.end * self.width) }
    }

    /// One row that this thread reads.
    ///
    /// # Safety
    /// No thread writes to it while the borrow lasts.
    pub(crate) unsafe fn row(&self, row: usize) -> &[f32] {
        // SAFETY: the caller's promise.
        unsafe { self.rows(row..row + 1) }
    }

    /// Rows that this thread writes.
    ///
    /// # Safety
    /// No other borrow of them exists while this one lasts, in any thread.
    #[expect(clippy::mut_from_ref, reason = "threads borrow disjoint rows")]
    pub(crate) unsafe fn rows_mut(&self, rows: Range<usize>) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.values.part_mut(rows.start * self.width..rows.end * self.width) }
    }

    /// Some columns of a row that this thread writes.
    ///
    /// # Safety
    /// No other borrow of them exists while this one lasts, in any thread.
    #[expect(clippy::mut_from_ref, reason = "threads borrow disjoint columns")]
    pub(crate) unsafe fn columns_mut(&self, row: usize, columns: Range<usize>) -> &mut [f32] {
        assert!(columns.end <= self.width, "columns outside of the row");
        let start = row * self.width;
        // SAFETY: the caller's promise.
        unsafe { self.values.part_mut(start + columns.start..start + columns.end) }
    }

    /// Some columns of a row that this thread reads.
    ///
    /// # Safety
    /// No thread writes to them while the borrow lasts.
    pub(crate) unsafe fn columns(&self, row: usize, columns: Range<usize>) -> &[f32] {
        assert!(columns.end <= self.width, "columns outside of the row");
        let start = row * self.width;
        // SAFETY: the caller's promise.
        unsafe { self.values.part(start + columns.start..start + columns.end) }
    }

    /// All reserved values, for operations that split them in their own way.
    pub(crate) fn values(&self) -> &Shared<f32> {
        &self.values
    }
}
