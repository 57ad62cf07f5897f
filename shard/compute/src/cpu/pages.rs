//! The paged keys and values of attention layers.
//!
//! A [`Plane`] is the keys, or the values, of one layer: `[page][head][token][padded dim]`, so that the
//! keys of a head in a page are contiguous and a page is copied as one block. Rows are padded with zeros to
//! whole vectors.

#![expect(unsafe_code, reason = "threads borrow disjoint heads and tokens")]

use std::ops::Range;

use half::{bf16, f16};
use paceline_gguf::KvType;

use super::shared::{Plain, Shared};
use super::simd::{Isa, Kernel, LANES, Simd};
use crate::device::MemorySpec;
use crate::program::CacheSpec;
use crate::{Error, Result};

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

/// The stored numbers of a plane.
pub(crate) enum Stored {
    /// As computed.
    F32(Shared<f32>),
    /// Half precision.
    F16(Shared<f16>),
    /// The upper half of single precision.
    BF16(Shared<bf16>),
}

/// Runs the same code for whichever type is stored.
macro_rules! with_stored {
    ($plane:expr, $values:ident => $body:expr) => {
        match $plane.stored() {
            $crate::cpu::pages::Stored::F32($values) => $body,
            $crate::cpu::pages::Stored::F16($values) => $body,
            $crate::cpu::pages::Stored::BF16($values) => $body,
        }
    };
}
pub(crate) use with_stored;

/// The keys or the values of one attention layer, of all pages.
pub(crate) struct Plane {
    stored: Stored,
    heads: usize,
    /// Values per head and token.
    pub(crate) dim: usize,
    /// `dim` up to whole vectors.
    pub(crate) padded: usize,
    page_tokens: usize,
}

impl Plane {
    fn reserve(kind: KvType, heads: usize, dim: usize, memory: &MemorySpec) -> Result<Self> {
        let padded = dim.next_multiple_of(LANES);
        let page = heads.saturating_mul(memory.page_tokens).saturating_mul(padded);
        let length = page.saturating_mul(memory.pages);
        let stored = match kind {
            KvType::F32 => Stored::F32(Shared::zeroed("pages", length)?),
            KvType::F16 => Stored::F16(Shared::zeroed("pages", length)?),
            KvType::BF16 => Stored::BF16(Shared::zeroed("pages", length)?),
            kind => return Err(Error::UnsupportedKvType { kind }),
        };
        Ok(Self { stored, heads, dim, padded, page_tokens: memory.page_tokens })
    }

    /// The numbers, by type.
    pub(crate) fn stored(&self) -> &Stored {
        &self.stored
    }

    /// Where the rows of `tokens` of a page lie for one head.
    pub(crate) fn place(&self, page: u32, head: usize, tokens: Range<usize>) -> Range<usize> {
        assert!(head < self.heads && tokens.end <= self.page_tokens, "outside of the page");
        let first = (page as usize * self.heads + head) * self.page_tokens;
        (first + tokens.start) * self.padded..(first + tokens.end) * self.padded
    }

    /// Stores one head's row of a token.
    ///
    /// # Safety
    /// No other borrow of this token's row exists, in any thread.
    pub(crate) unsafe fn store(&self, isa: Isa, place: Range<usize>, row: &[f32]) {
        with_stored!(self, stored => {
            // SAFETY: the caller's promise.
            let to = unsafe { stored.part_mut(place) };
            isa.run(StoreRow { row, to });
        });
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        let page = self.heads * self.page_tokens * self.padded;
        let from = from as usize * page..(from as usize + 1) * page;
        let to = to as usize * page;
        match &mut self.stored {
            Stored::F32(values) => values.all_mut().copy_within(from, to),
            Stored::F16(values) => values.all_mut().copy_within(from, to),
            Stored::BF16(values) => values.all_mut().copy_within(from, to),
        }
    }

    fn bytes(&self) -> u64 {
        with_stored!(self, values => values.bytes())
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

/// Keys and values of one attention layer.
pub(crate) struct PagedCache {
    /// Rotated and normalized keys.
    pub(crate) keys: Plane,
    /// Values.
    pub(crate) values: Plane,
    /// Tokens per page.
    pub(crate) page_tokens: usize,
}

impl PagedCache {
    /// Reserves all pages.
    pub(crate) fn reserve(spec: &CacheSpec, memory: &MemorySpec) -> Result<Self> {
        let heads = spec.key_value_heads;
        Ok(Self {
            keys: Plane::reserve(memory.key_type, heads, spec.key_dim, memory)?,
            values: Plane::reserve(memory.value_type, heads, spec.value_dim, memory)?,
            page_tokens: memory.page_tokens,
        })
    }

    /// Copies a page over another.
    pub(crate) fn copy_page(&mut self, from: u32, to: u32) {
        self.keys.copy_page(from, to);
        self.values.copy_page(from, to);
    }

    /// Bytes reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.keys.bytes() + self.values.bytes()
    }
}
