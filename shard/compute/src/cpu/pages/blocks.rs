//! Keys or values in blocks of 32 codes with a scale in half precision: `q8_0`, `q4_0`, `q4_1` and `iq4_nl`.
//!
//! The blocks of sixteen tokens lie together, one token per vector lane, in a *panel*: the codes, 16 scales, and for
//! `q4_1` 16 minimums. Codes of 4 bits lie in pairs, value `i` of a block in the low bits and value `i + 16` in the
//! high ones. Within a page and head the panels are in the order in which attention reads them:
//! - keys `[sixteen tokens][block]`, bytes of codes `[group of 4][token][4]`; codes of 8 bits with 128 added, as the
//!   unsigned side of a dot product of bytes;
//! - values `[block][sixteen tokens]`, bytes of codes `[token][32 or 16]`.
//!
//! Rows are rotated before they are rounded (see [`rotation`](super::rotation)), unless that is switched off.

#![expect(unsafe_code, reason = "threads borrow disjoint heads and tokens")]

use half::f16;
use paceline_gguf::KvType;

use super::quantize::{Quantize, QuantizeNonlinear, QuantizeSpan, QuantizeSymmetric};
use super::rotation::{MOST, Rotate, width};
use crate::cpu::shared::Shared;
use crate::cpu::simd::{Isa, LANES};
use crate::{Error, Result};

/// Values that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Codes that lie next to each other and are multiplied at once.
pub(crate) const GROUP: usize = 4;

/// What is stored decides its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Keys, which are multiplied by queries.
    Keys,
    /// Values, which are summed over tokens.
    Values,
}

/// What the codes of a block stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Integers of −127 to 127, times the scale.
    Q8_0,
    /// Integers of −8 to 7, times the scale.
    Q4_0,
    /// Integers of 0 to 15, times the scale, more than the minimum.
    Q4_1,
    /// Sixteen integers that lie closer together near zero, times the scale.
    Iq4Nl,
}

impl Format {
    /// The type that has it.
    const fn kind(self) -> KvType {
        match self {
            Self::Q8_0 => KvType::Q8_0,
            Self::Q4_0 => KvType::Q4_0,
            Self::Q4_1 => KvType::Q4_1,
            Self::Iq4Nl => KvType::Iq4Nl,
        }
    }

    /// Bytes of the codes of a block.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Q8_0 => BLOCK,
            Self::Q4_0 | Self::Q4_1 | Self::Iq4Nl => BLOCK / 2,
        }
    }

    /// Bytes of the codes of a panel.
    const fn panel(self) -> usize {
        self.bytes() * LANES
    }

    /// Minimums of a panel.
    const fn minimums(self) -> usize {
        match self {
            Self::Q4_1 => LANES,
            Self::Q8_0 | Self::Q4_0 | Self::Iq4Nl => 0,
        }
    }
}

/// Blocks of all pages.
pub(crate) struct Blocks {
    content: Content,
    format: Format,
    /// Values that are rotated together; `None` if rows are stored as they come.
    rotation: Option<usize>,
    codes: Shared<u8>,
    scales: Shared<f16>,
    minimums: Shared<f16>,
    heads: usize,
    /// Blocks per row.
    blocks: usize,
    /// Sixteens of tokens per page, the last of which may not be full.
    sixteens: usize,
}

/// The panels of a head in a page.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    pub(crate) format: Format,
    /// Codes, panel by panel.
    pub(crate) codes: &'a [u8],
    /// Scales of each panel.
    pub(crate) scales: &'a [[f16; LANES]],
    /// Minimums of each panel, of a format that has any.
    pub(crate) minimums: &'a [[f16; LANES]],
    /// Blocks per row.
    pub(crate) blocks: usize,
    /// Sixteens of tokens per page.
    pub(crate) sixteens: usize,
}

/// How rows are stored.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) content: Content,
    pub(super) format: Format,
    /// Whether rows are rotated first.
    pub(super) rotated: bool,
}

/// A block as it is stored.
struct Rounded {
    /// One byte a code.
    codes: [u8; BLOCK],
    scale: f16,
    minimum: f16,
}

impl Blocks {
    /// Reserves all pages.
    ///
    /// # Errors
    /// [`Error::PartialBlock`] for rows that are not whole blocks; memory that cannot be had.
    pub(super) fn reserve(style: Style, pages: usize, heads: usize, page_tokens: usize, dim: usize) -> Result<Self> {
        let Style { content, format, rotated } = style;
        if !dim.is_multiple_of(BLOCK) {
            let kind = format.kind().tensor_type();
            return Err(Error::PartialBlock { kind, columns: dim, block: BLOCK });
        }
        let (blocks, sixteens) = (dim / BLOCK, page_tokens.div_ceil(LANES));
        let panels = pages.saturating_mul(heads).saturating_mul(sixteens).saturating_mul(blocks);
        let codes = Shared::zeroed("pages", panels.saturating_mul(format.panel()))?;
        let scales = Shared::zeroed("pages", panels.saturating_mul(LANES))?;
        let minimums = Shared::zeroed("pages", panels.saturating_mul(format.minimums()))?;
        let rotation = rotated.then(|| width(dim));
        Ok(Self { content, format, rotation, codes, scales, minimums, heads, blocks, sixteens })
    }

    /// How many values are rotated together, if they are: what is multiplied with these keys must be rotated as well,
    /// and what is summed of these values rotated back, which is the same.
    pub(crate) fn rotation(&self) -> Option<usize> {
        self.rotation
    }

    /// What the codes stand for.
    pub(crate) fn format(&self) -> Format {
        self.format
    }

    /// The panels of a head in a page.
    ///
    /// # Safety
    /// No thread writes to them while the borrow lasts.
    pub(crate) unsafe fn panels(&self, page: u32, head: usize) -> Panels<'_> {
        let first = self.first_panel(page, head);
        let end = first + self.sixteens * self.blocks;
        let (panel, minimums) = (self.format.panel(), self.format.minimums());
        // SAFETY: the caller's promise.
        let (codes, scales, minimums) = unsafe {
            (
                self.codes.part(first * panel..end * panel),
                self.scales.part(first * LANES..end * LANES),
                self.minimums.part(first * minimums..end * minimums),
            )
        };
        let (scales, minimums) = (scales.as_chunks().0, minimums.as_chunks().0);
        Panels { format: self.format, codes, scales, minimums, blocks: self.blocks, sixteens: self.sixteens }
    }

    /// Rotates, quantizes and stores one head's row of a token.
    ///
    /// # Safety
    /// No other borrow of this token's row exists, in any thread.
    pub(super) unsafe fn store(&self, isa: Isa, page: u32, head: usize, token: usize, row: &[f32]) {
        assert!(token < self.sixteens * LANES, "outside of the page");
        assert_eq!(row.len(), self.blocks * BLOCK, "a row is whole blocks");
        let (sixteen, lane) = (token / LANES, token % LANES);
        let mut rotated = [0.0; MOST];
        for (part, row) in row.chunks(MOST).enumerate() {
            let rotated = &mut rotated[..row.len()];
            rotated.copy_from_slice(row);
            if let Some(width) = self.rotation {
                isa.run(Rotate { values: rotated, width });
            }
            for (block, values) in rotated.as_chunks().0.iter().enumerate() {
                let block = part * (MOST / BLOCK) + block;
                let panel = self.first_panel(page, head)
                    + match self.content {
                        Content::Keys => sixteen * self.blocks + block,
                        Content::Values => block * self.sixteens + sixteen,
                    };
                let rounded = self.round(isa, values);
                // SAFETY: the caller's promise; every lane of a panel is one token's.
                unsafe { self.store_block(panel, lane, &rounded) };
            }
        }
    }

    fn round(&self, isa: Isa, values: &[f32; BLOCK]) -> Rounded {
        let zero = f16::ZERO;
        match self.format {
            Format::Q8_0 => {
                let (codes, scale) = isa.run(Quantize { values, scale_in_half: true });
                // Keys are the unsigned side of a product.
                let flip = if self.content == Content::Keys { 0x80 } else { 0 };
                let codes = codes.map(|code| code.cast_unsigned() ^ flip);
                Rounded { codes, scale: f16::from_f32(scale), minimum: zero }
            }
            Format::Q4_0 => {
                let (codes, scale) = isa.run(QuantizeSymmetric { values });
                Rounded { codes, scale, minimum: zero }
            }
            Format::Q4_1 => {
                let (codes, scale, minimum) = isa.run(QuantizeSpan { values });
                Rounded { codes, scale, minimum }
            }
            Format::Iq4Nl => {
                let (codes, scale) = isa.run(QuantizeNonlinear { values });
                Rounded { codes, scale, minimum: zero }
            }
        }
    }

    /// # Safety
    /// No other borrow of this lane of the panel exists, in any thread.
    unsafe fn store_block(&self, panel: usize, lane: usize, rounded: &Rounded) {
        let mut bytes = rounded.codes;
        let count = self.format.bytes();
        if count < BLOCK {
            let (low, high) = bytes.split_at_mut(count);
            for (low, high) in low.iter_mut().zip(high) {
                *low |= *high << 4;
            }
        }
        let piece = match self.content {
            Content::Keys => GROUP,
            Content::Values => count,
        };
        for (index, bytes) in bytes[..count].chunks(piece).enumerate() {
            let first = panel * self.format.panel() + (index * LANES + lane) * piece;
            // SAFETY: the caller's promise.
            unsafe { self.codes.part_mut(first..first + piece) }.copy_from_slice(bytes);
        }
        let scale = panel * LANES + lane;
        // SAFETY: the caller's promise.
        unsafe { self.scales.part_mut(scale..scale + 1)[0] = rounded.scale };
        if self.format.minimums() > 0 {
            // SAFETY: the caller's promise.
            unsafe { self.minimums.part_mut(scale..scale + 1)[0] = rounded.minimum };
        }
    }

    pub(super) fn copy_page(&mut self, from: u32, to: u32) {
        let page = self.heads * self.sixteens * self.blocks;
        let (from, to) = (from as usize * page, to as usize * page);
        let (panel, minimums) = (self.format.panel(), self.format.minimums());
        self.codes.all_mut().copy_within(from * panel..(from + page) * panel, to * panel);
        self.scales.all_mut().copy_within(from * LANES..(from + page) * LANES, to * LANES);
        self.minimums.all_mut().copy_within(from * minimums..(from + page) * minimums, to * minimums);
    }

    /// The bytes of a page: its codes, then its scales, then its minimums.
    pub(super) fn page_mut(&mut self, page: u32) -> Vec<&mut [u8]> {
        let panels = self.heads * self.sixteens * self.blocks;
        let (first, end) = (page as usize * panels, (page as usize + 1) * panels);
        let (panel, minimums) = (self.format.panel(), self.format.minimums());
        vec![
            self.codes.bytes_mut(first * panel..end * panel),
            self.scales.bytes_mut(first * LANES..end * LANES),
            self.minimums.bytes_mut(first * minimums..end * minimums),
        ]
    }

    pub(super) fn bytes(&self) -> u64 {
        self.codes.bytes() + self.scales.bytes() + self.minimums.bytes()
    }

    fn first_panel(&self, page: u32, head: usize) -> usize {
        assert!(head < self.heads, "outside of the page");
        (page as usize * self.heads + head) * self.sixteens * self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMATS: [Format; 4] = [Format::Q8_0, Format::Q4_0, Format::Q4_1, Format::Iq4Nl];

    fn style(content: Content, format: Format) -> Style {
        Style { content, format, rotated: true }
    }

    #[test]
    fn rows_are_whole_blocks() {
        for format in FORMATS {
            let error = Blocks::reserve(style(Content::Keys, format), 1, 1, 16, 48).err().unwrap();
            assert!(matches!(error, Error::PartialBlock { columns: 48, block: 32, .. }), "{error}");
        }
    }

    /// Rows longer than what is rotated at once included.
    #[test]
    fn a_page_has_the_same_bytes_whatever_kernels_store_it() {
        let contents = [Content::Keys, Content::Values];
        for (content, format) in contents.into_iter().flat_map(|content| FORMATS.map(|format| (content, format))) {
            let page = |isa: Isa| {
                let mut blocks = Blocks::reserve(style(content, format), 2, 2, 20, 320).unwrap();
                for (token, head) in (0..20).flat_map(|token| [(token, 0), (token, 1)]) {
                    let row: Vec<f32> = (0..320).map(|at| ((at * 31 + token * 7 + head) % 97) as f32 - 48.3).collect();
                    // SAFETY: one thread, no other borrow.
                    unsafe { blocks.store(isa, 1, head, token, &row) };
                }
                blocks.page_mut(1).concat()
            };
            let expected = page(Isa::Scalar);
            assert!(expected.iter().any(|byte| *byte != 0));
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                assert!(page(isa) == expected, "{content:?} in {format:?}, {isa}");
            }
        }
    }

    #[test]
    fn as_many_bytes_as_the_format_has() {
        for format in FORMATS {
            for content in [Content::Keys, Content::Values] {
                let blocks = Blocks::reserve(style(content, format), 3, 2, 64, 96).unwrap();
                assert_eq!(blocks.bytes(), (3 * 2 * 64 * format.kind().bytes_for(96)) as u64);
            }
        }
    }

    /// A page is all that is copied, and all of it.
    #[test]
    fn copied_pages_are_equal() {
        for format in FORMATS {
            let mut blocks = Blocks::reserve(style(Content::Values, format), 3, 2, 16, 64).unwrap();
            for (page, token) in (0..3).flat_map(|page| (0..16).map(move |token| (page, token))) {
                let row: Vec<f32> = (0..64).map(|at| (at as f32 * 0.7 + page as f32 + token as f32).sin()).collect();
                // SAFETY: one thread, no other borrow.
                unsafe { blocks.store(Isa::Scalar, page, token % 2, token, &row) };
            }
            let [first, second, third] = [0, 1, 2].map(|page| blocks.page_mut(page).concat());
            assert!(first != second && second != third);
            blocks.copy_page(2, 0);
            assert!([0, 1, 2].map(|page| blocks.page_mut(page).concat()) == [third.clone(), second, third]);
        }
    }
}
