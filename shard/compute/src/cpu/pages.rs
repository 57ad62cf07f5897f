//! The paged keys and values of attention layers.
//!
//! A [`Plane`] is the keys, or the values, of one layer, page by page, so that a page is copied as one block; how
//! its rows are stored is up to [`Floats`] and [`Blocks`].

#![expect(unsafe_code, reason = "threads borrow disjoint heads and tokens")]

pub(crate) mod blocks;
mod floats;

use half::{bf16, f16};
use paceline_gguf::KvType;

pub(crate) use blocks::{Blocks, Content};
pub(crate) use floats::{Element, Floats};

use super::simd::{Isa, LANES};
use crate::device::MemorySpec;
use crate::program::CacheSpec;
use crate::{Error, Result};

/// The stored rows of a plane.
pub(crate) enum Stored {
    /// As computed.
    F32(Floats<f32>),
    /// Half precision.
    F16(Floats<f16>),
    /// The upper half of single precision.
    BF16(Floats<bf16>),
    /// Codes of 8 bits with a scale for every 32.
    Q8_0(Blocks),
}

/// Runs the same code for whichever type is stored.
macro_rules! with_stored {
    ($stored:expr, $rows:ident => $body:expr) => {
        match $stored {
            Stored::F32($rows) => $body,
            Stored::F16($rows) => $body,
            Stored::BF16($rows) => $body,
            Stored::Q8_0($rows) => $body,
        }
    };
}

/// The keys or the values of one attention layer, of all pages.
pub(crate) struct Plane {
    /// The rows, by type.
    pub(crate) stored: Stored,
    /// Values per head and token.
    pub(crate) dim: usize,
    /// `dim` up to whole vectors.
    pub(crate) padded: usize,
}

impl Plane {
    fn reserve(kind: KvType, content: Content, heads: usize, dim: usize, memory: &MemorySpec) -> Result<Self> {
        let &MemorySpec { pages, page_tokens, .. } = memory;
        let stored = match kind {
            KvType::F32 => Stored::F32(Floats::reserve(pages, heads, page_tokens, dim)?),
            KvType::F16 => Stored::F16(Floats::reserve(pages, heads, page_tokens, dim)?),
            KvType::BF16 => Stored::BF16(Floats::reserve(pages, heads, page_tokens, dim)?),
            KvType::Q8_0 => Stored::Q8_0(Blocks::reserve(content, pages, heads, page_tokens, dim)?),
            kind => return Err(Error::UnsupportedKvType { kind }),
        };
        Ok(Self { stored, dim, padded: dim.next_multiple_of(LANES) })
    }

    /// Stores one head's row of a token of a page.
    ///
    /// # Safety
    /// No other borrow of this token's row exists, in any thread.
    pub(crate) unsafe fn store(&self, isa: Isa, page: u32, head: usize, token: usize, row: &[f32]) {
        // SAFETY: the caller's promise.
        with_stored!(&self.stored, rows => unsafe { rows.store(isa, page, head, token, row) });
    }

    fn copy_page(&mut self, from: u32, to: u32) {
        with_stored!(&mut self.stored, rows => rows.copy_page(from, to));
    }

    fn page_mut(&mut self, page: u32) -> Vec<&mut [u8]> {
        with_stored!(&mut self.stored, rows => rows.page_mut(page))
    }

    fn bytes(&self) -> u64 {
        with_stored!(&self.stored, rows => rows.bytes())
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
            keys: Plane::reserve(memory.key_type, Content::Keys, heads, spec.key_dim, memory)?,
            values: Plane::reserve(memory.value_type, Content::Values, heads, spec.value_dim, memory)?,
            page_tokens: memory.page_tokens,
        })
    }

    /// Copies a page over another.
    pub(crate) fn copy_page(&mut self, from: u32, to: u32) {
        self.keys.copy_page(from, to);
        self.values.copy_page(from, to);
    }

    /// The bytes of a page as it is stored, piece by piece.
    pub(crate) fn page_mut(&mut self, page: u32) -> Vec<&mut [u8]> {
        let mut pieces = self.keys.page_mut(page);
        pieces.extend(self.values.page_mut(page));
        pieces
    }

    /// Bytes reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.keys.bytes() + self.values.bytes()
    }
}
