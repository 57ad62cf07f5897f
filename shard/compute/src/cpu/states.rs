//! The recurrent memories of gated-delta-net layers.
//!
//! A slot holds the window of the convolution, `[tap][channel]`, and a matrix per value head. A matrix is cut
//! into tiles of 16 columns, `[head][tile][row][16]`: a tile fits the first-level cache, and all that the delta
//! rule does to it goes down the rows with one vector. The last tile is padded with zero columns.

#![expect(unsafe_code, reason = "threads borrow disjoint channels and tiles")]

use std::ops::Range;

use super::shared::Shared;
use super::simd::LANES;
use crate::Result;
use crate::program::StateSpec;

/// The memories of one layer, of all slots.
pub(crate) struct Recurrent {
    /// The sizes.
    pub(crate) spec: StateSpec,
    windows: Shared<f32>,
    matrices: Shared<f32>,
}

impl Recurrent {
    /// Reserves `slots` slots, all zero.
    pub(crate) fn reserve(spec: &StateSpec, slots: usize) -> Result<Self> {
        assert!(spec.taps > 0, "a convolution has at least the tap of the current row");
        let window = (spec.taps - 1).saturating_mul(spec.channels);
        let matrices = spec.head_dim.next_multiple_of(LANES).saturating_mul(spec.head_dim);
        let slot = matrices.saturating_mul(spec.value_heads);
        Ok(Self {
            spec: *spec,
            windows: Shared::zeroed("states", window.saturating_mul(slots))?,
            matrices: Shared::zeroed("states", slot.saturating_mul(slots))?,
        })
    }

    /// Tiles of a head.
    pub(crate) fn tiles(&self) -> usize {
        self.spec.head_dim.div_ceil(LANES)
    }

    /// What tap `tap` remembers of some channels.
    ///
    /// # Safety
    /// No other borrow of them exists while this one lasts, in any thread.
    #[expect(clippy::mut_from_ref, reason = "threads borrow disjoint channels")]
    pub(crate) unsafe fn window(&self, slot: usize, tap: usize, channels: Range<usize>) -> &mut [f32] {
        let first = (slot * (self.spec.taps - 1) + tap) * self.spec.channels;
        // SAFETY: the caller's promise.
        unsafe { self.windows.part_mut(first + channels.start..first + channels.end) }
    }

    /// The rows of one tile of a head's matrix.
    ///
    /// # Safety
    /// No other borrow of the tile exists while this one lasts, in any thread.
    #[expect(clippy::mut_from_ref, reason = "threads borrow disjoint tiles")]
    pub(crate) unsafe fn tile(&self, slot: usize, head: usize, tile: usize) -> &mut [[f32; LANES]] {
        let index = (slot * self.spec.value_heads + head) * self.tiles() + tile;
        let length = self.spec.head_dim * LANES;
        // SAFETY: the caller's promise.
        unsafe { self.matrices.part_mut(index * length..(index + 1) * length) }.as_chunks_mut().0
    }

    /// Zeroes a slot.
    pub(crate) fn clear(&mut self, slot: usize) {
        let (window, matrices) = (self.window_range(slot), self.matrix_range(slot));
        self.windows.all_mut()[window].fill(0.0);
        self.matrices.all_mut()[matrices].fill(0.0);
    }

    /// Copies a slot over another.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        let (window, matrices) = (self.window_range(from), self.matrix_range(from));
        let (window_to, matrices_to) = (self.window_range(to).start, self.matrix_range(to).start);
        self.windows.all_mut().copy_within(window, window_to);
        self.matrices.all_mut().copy_within(matrices, matrices_to);
    }

    /// The bytes of a slot as it is stored, piece by piece.
    pub(crate) fn slot_mut(&mut self, slot: usize) -> Vec<&mut [u8]> {
        let (window, matrices) = (self.window_range(slot), self.matrix_range(slot));
        vec![self.windows.bytes_mut(window), self.matrices.bytes_mut(matrices)]
    }

    /// Bytes reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.windows.bytes() + self.matrices.bytes()
    }

    fn window_range(&self, slot: usize) -> Range<usize> {
        let length = (self.spec.taps - 1) * self.spec.channels;
        slot * length..(slot + 1) * length
    }

    fn matrix_range(&self, slot: usize) -> Range<usize> {
        let length = self.spec.value_heads * self.tiles() * LANES * self.spec.head_dim;
        slot * length..(slot + 1) * length
    }
}
