//! Keys or values as floating-point numbers: `[page][head][token][padded dim]`, so that the rows of a head in a
//! page are contiguous. Rows are padded with zeros to whole vectors.

#![expect(unsafe_code, reason = "threads borrow disjoint heads and tokens")]

use std::ops::Range;

use half::{bf16, f16};

use crate::Result;
use crate::cpu::shared::{Plain, Shared};
use crate::cpu::simd::{Isa, Kernel, LANES, Simd};

/// A number format of stored keys and values.
pub(crate) trait Element: Plain {
    /// Loads and widens one vector, exactly.
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::F;
    /// Rounds to nearest even and stores one vector.
    fn store<S: Simd>(simd: S, x: S::F, to: &mut [Self; LANES]);
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::F {
        simd.load(from)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, x: S::F, to: &mut [Self; LANES]) {
        simd.store(x, to);
    }
}

impl Element for f16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::F {
        simd.load_f16(from)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, x: S::F, to: &mut [Self; LANES]) {
        simd.store_f16(x, to);
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn load<S: Simd>(simd: S, from: &[Self; LANES]) -> S::F {
        simd.load_bf16(from)
    }

    #[inline(always)]
    fn store<S: Simd>(simd: S, x: S::F, to: &mut [Self; LANES]) {
        simd.store_bf16(x, to);
    }
}

/// Rows of numbers of one type.
pub(crate) struct Floats<E: Element> {
    values: Shared<E>,
    heads: usize,
    /// Values per row, whole vectors.
    padded: usize,
    page_tokens: usize,
}

impl<E: Element> Floats<E> {
    /// Reserves all pages.
    pub(super) fn reserve(pages: usize, heads: usize, page_tokens: usize, dim: usize) -> Result<Self> {
        let padded = dim.next_multiple_of(LANES);
        let page = heads.saturating_mul(page_tokens).saturating_mul(padded);
        Ok(Self { values: Shared::zeroed("pages", page.saturating_mul(pages))?, heads, padded, page_tokens })
    }

    /// The rows of some tokens of a page for one head, `(tokens, padded dim)`.
    ///
    /// # Safety
    /// No thread writes to them while the borrow lasts.
    pub(crate) unsafe fn rows(&self, page: u32, head: usize, tokens: Range<usize>) -> &[E] {
        // SAFETY: the caller's promise.
        unsafe { self.values.part(self.place(page, head, tokens)) }
    }

    /// Stores one head's row of a token.
    ///
    /// # Safety
    /// No other borrow of this token's row exists, in any thread.
    pub(super) unsafe fn store(&self, isa: Isa, page: u32, head: usize, token: usize, row: &[f32]) {
        // SAFETY: the caller's promise.
        let to = unsafe { self.values.part_mut(self.place(page, head, token..token + 1)) };
        isa.run(StoreRow { row, to });
    }

    pub(super) fn copy_page(&mut self, from: u32, to: u32) {
        let page = self.heads * self.page_tokens * self.padded;
        let from = from as usize * page..(from as usize + 1) * page;
        self.values.all_mut().copy_within(from, to as usize * page);
    }

    /// The bytes of a page.
    pub(super) fn page_mut(&mut self, page: u32) -> Vec<&mut [u8]> {
        let values = self.heads * self.page_tokens * self.padded;
        vec![self.values.bytes_mut(page as usize * values..(page as usize + 1) * values)]
    }

    pub(super) fn bytes(&self) -> u64 {
        self.values.bytes()
    }

    fn place(&self, page: u32, head: usize, tokens: Range<usize>) -> Range<usize> {
        assert!(head < self.heads && tokens.end <= self.page_tokens, "outside of the page");
        let first = (page as usize * self.heads + head) * self.page_tokens;
        (first + tokens.start) * self.padded..(first + tokens.end) * self.padded
    }
}

struct StoreRow<'a, E> {
    row: &'a [f32],
    to: &'a mut [E],
}

impl<E: Element> Kernel for StoreRow<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (to, _) = self.to.as_chunks_mut::<LANES>();
        for (from, to) in self.row.chunks(LANES).zip(to) {
            E::store(simd, simd.load_partial(from), to);
        }
    }
}
