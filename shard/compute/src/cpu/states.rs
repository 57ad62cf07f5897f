//! The recurrent memories of gated-delta-net layers.
//!
//! A slot holds the window of the convolution, `[tap][channel]`, and a matrix per value head. A matrix is cut
//! into tiles of 16 columns, `[head][tile][row][16]`: a tile fits the first-level cache, and all that the delta
//! rule does to it goes down the rows with one vector. The last tile is padded with zero columns.
//!
//! A log holds inputs of tokens that may yet be rejected, so that a state need never be taken back: it stays behind the
//! last token that is certain.

#![expect(unsafe_code, reason = "threads borrow disjoint channels and tiles")]

use std::ops::Range;

use super::shared::Shared;
use super::simd::LANES;
use crate::Result;
use crate::device::LogSpec;
use crate::program::StateSpec;

/// The memories of one layer, of all slots.
pub(crate) struct Recurrent {
    /// The sizes.
    pub(crate) spec: StateSpec,
    windows: Shared<f32>,
    matrices: Shared<f32>,
    /// `[place][position modulo tokens][row]`, see [`Recurrent::log_row`].
    logs: Shared<f32>,
    log: LogSpec,
    /// Bytes of states and logs that operations asked for.
    #[cfg(test)]
    moved: std::sync::atomic::AtomicUsize,
}

impl Recurrent {
    /// Reserves `slots` slots, all zero.
    pub(crate) fn reserve(spec: &StateSpec, slots: usize, log: LogSpec) -> Result<Self> {
        assert!(spec.taps > 0, "a convolution has at least the tap of the current row");
        let window = (spec.taps - 1).saturating_mul(spec.channels);
        let matrices = spec.head_dim.next_multiple_of(LANES).saturating_mul(spec.head_dim);
        let slot = matrices.saturating_mul(spec.value_heads);
        Ok(Self {
            spec: *spec,
            windows: Shared::zeroed("states", window.saturating_mul(slots))?,
            matrices: Shared::zeroed("states", slot.saturating_mul(slots))?,
            logs: Shared::zeroed("logs", log_row(spec).saturating_mul(log.rows()))?,
            log,
            #[cfg(test)]
            moved: std::sync::atomic::AtomicUsize::new(0),
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
        #[cfg(test)]
        self.count(channels.len());
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
        #[cfg(test)]
        self.count(length);
        // SAFETY: the caller's promise.
        unsafe { self.matrices.part_mut(index * length..(index + 1) * length) }.as_chunks_mut().0
    }

    /// What a log holds of some values of the token at a position: the inputs of the convolution's channels, then the
    /// alphas and then the betas of all value heads.
    ///
    /// # Safety
    /// No other borrow of them exists while this one lasts, in any thread.
    #[expect(clippy::mut_from_ref, reason = "threads borrow disjoint channels and heads")]
    pub(crate) unsafe fn logged(&self, place: usize, position: usize, values: Range<usize>) -> &mut [f32] {
        #[cfg(test)]
        self.count(values.len());
        let first = self.log_range(place, position).start;
        // SAFETY: the caller's promise.
        unsafe { self.logs.part_mut(first + values.start..first + values.end) }
    }

    /// The bytes of what a log holds of the token at a position.
    pub(crate) fn logged_mut(&mut self, place: usize, position: usize) -> &mut [u8] {
        let row = self.log_range(place, position);
        self.logs.bytes_mut(row)
    }

    #[cfg(test)]
    fn count(&self, values: usize) {
        self.moved.fetch_add(values * size_of::<f32>(), std::sync::atomic::Ordering::Relaxed);
    }

    /// Bytes of states and logs that operations asked for so far.
    #[cfg(test)]
    pub(crate) fn moved_bytes(&self) -> usize {
        self.moved.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Bytes of what a log holds of a token.
    pub(crate) fn logged_bytes(&self) -> u64 {
        (self.log_row() * size_of::<f32>()) as u64
    }

    fn log_row(&self) -> usize {
        log_row(&self.spec)
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
        self.slot_bytes() + self.logs.bytes()
    }

    /// Bytes of all slots.
    pub(crate) fn slot_bytes(&self) -> u64 {
        self.windows.bytes() + self.matrices.bytes()
    }

    /// A log is a ring: the token at a position overwrites one that is certain or rejected by now.
    fn log_range(&self, place: usize, position: usize) -> Range<usize> {
        assert!(place < self.log.sessions, "logs are checked before a step runs");
        let row = place * self.log.tokens + position % self.log.tokens;
        row * self.log_row()..(row + 1) * self.log_row()
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

/// Values that a log holds of a token.
fn log_row(spec: &StateSpec) -> usize {
    spec.channels.saturating_add(spec.value_heads.saturating_mul(2))
}
