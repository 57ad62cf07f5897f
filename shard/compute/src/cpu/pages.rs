//! The paged keys and values of attention layers.
//!
//! A [`Plane`] is the keys, or the values, of one layer, page by page, so that a page is copied as one block; how
//! its rows are stored is up to [`Floats`] and [`Blocks`].

#![expect(unsafe_code, reason = "threads borrow disjoint heads and tokens")]

pub(crate) mod blocks;
mod floats;
pub(crate) mod quantize;
pub(crate) mod rotation;

use half::{bf16, f16};
use paceline_gguf::KvType;

use blocks::Style;
pub(crate) use blocks::{Blocks, Content, Format};
pub(crate) use floats::{Element, Floats};

use super::simd::{Isa, LANES};
use crate::Result;
use crate::device::MemorySpec;
use crate::program::CacheSpec;

/// The stored rows of a plane.
pub(crate) enum Stored {
    /// As computed.
    F32(Floats<f32>),
    /// Half precision.
    F16(Floats<f16>),
    /// The upper half of single precision.
    BF16(Floats<bf16>),
    /// Codes with a scale for every 32, in any of the quantized formats.
    Blocks(Blocks),
}

/// Runs the same code for whichever type is stored.
macro_rules! with_stored {
    ($stored:expr, $rows:ident => $body:expr) => {
        match $stored {
            Stored::F32($rows) => $body,
            Stored::F16($rows) => $body,
            Stored::BF16($rows) => $body,
            Stored::Blocks($rows) => $body,
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
    fn reserve(content: Content, heads: usize, dim: usize, memory: &MemorySpec, rotated: bool) -> Result<Self> {
        let &MemorySpec { pages, page_tokens, key_type, value_type, .. } = memory;
        let kind = match content {
            Content::Keys => key_type,
            Content::Values => value_type,
        };
        let blocks = |format| {
            let style = Style { content, format, rotated };
            Blocks::reserve(style, pages, heads, page_tokens, dim).map(Stored::Blocks)
        };
        let stored = match kind {
            KvType::F32 => Stored::F32(Floats::reserve(pages, heads, page_tokens, dim)?),
            KvType::F16 => Stored::F16(Floats::reserve(pages, heads, page_tokens, dim)?),
            KvType::BF16 => Stored::BF16(Floats::reserve(pages, heads, page_tokens, dim)?),
            KvType::Q8_0 => blocks(Format::Q8_0)?,
            KvType::Q4_0 => blocks(Format::Q4_0)?,
            KvType::Q4_1 => blocks(Format::Q4_1)?,
            KvType::Iq4Nl => blocks(Format::Iq4Nl)?,
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

    /// How many values are rotated together, if they are (see [`Blocks::rotation`]).
    pub(crate) fn rotation(&self) -> Option<usize> {
        if let Stored::Blocks(blocks) = &self.stored { blocks.rotation() } else { None }
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
    /// Reserves all pages; `rotated` says whether rows in blocks are rotated first.
    pub(crate) fn reserve(spec: &CacheSpec, memory: &MemorySpec, rotated: bool) -> Result<Self> {
        let heads = spec.key_value_heads;
        Ok(Self {
            keys: Plane::reserve(Content::Keys, heads, spec.key_dim, memory, rotated)?,
            values: Plane::reserve(Content::Values, heads, spec.value_dim, memory, rotated)?,
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
