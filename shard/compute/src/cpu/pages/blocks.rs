//! Keys or values in blocks of 32 codes of 8 bits with a scale in half precision (`q8_0`).
//!
//! The blocks of sixteen tokens lie together, one token per vector lane, in a *panel*: 512 codes and 16 scales.
//! Within a page and head the panels are in the order in which attention reads them:
//! - keys `[sixteen tokens][block]`, codes `[group of 4][token][4]` with 128 added, as the unsigned side of a dot
//!   product of bytes;
//! - values `[block][sixteen tokens]`, codes `[token][32]`.

#![expect(unsafe_code, reason = "threads borrow disjoint heads and tokens")]

use half::f16;
use paceline_gguf::KvType;

use crate::cpu::shared::Shared;
use crate::cpu::simd::{Isa, Kernel, LANES, Simd};
use crate::{Error, Result};

/// Values that share a scale.
pub(crate) const BLOCK: usize = 32;

/// Codes that lie next to each other and are multiplied at once.
pub(crate) const GROUP: usize = 4;

/// Codes of one block of sixteen tokens.
const PANEL: usize = BLOCK * LANES;

/// The largest code; −128 is not used.
const LARGEST: f32 = 127.0;

/// What is stored decides its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Keys, which are multiplied by queries.
    Keys,
    /// Values, which are summed over tokens.
    Values,
}

/// Blocks of all pages.
pub(crate) struct Blocks {
    content: Content,
    codes: Shared<u8>,
    scales: Shared<f16>,
    heads: usize,
    /// Blocks per row.
    blocks: usize,
    /// Sixteens of tokens per page, the last of which may not be full.
    sixteens: usize,
}

/// The panels of a head in a page.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    /// Codes of each panel.
    pub(crate) codes: &'a [[u8; PANEL]],
    /// Scales of each panel.
    pub(crate) scales: &'a [[f16; LANES]],
    /// Blocks per row.
    pub(crate) blocks: usize,
    /// Sixteens of tokens per page.
    pub(crate) sixteens: usize,
}

impl Blocks {
    /// Reserves all pages.
    ///
    /// # Errors
    /// [`Error::PartialBlock`] for rows that are not whole blocks; memory that cannot be had.
    pub(super) fn reserve(
        content: Content,
        pages: usize,
        heads: usize,
        page_tokens: usize,
        dim: usize,
    ) -> Result<Self> {
        if !dim.is_multiple_of(BLOCK) {
            let kind = KvType::Q8_0.tensor_type();
            return Err(Error::PartialBlock { kind, columns: dim, block: BLOCK });
        }
        let (blocks, sixteens) = (dim / BLOCK, page_tokens.div_ceil(LANES));
        let panels = pages.saturating_mul(heads).saturating_mul(sixteens).saturating_mul(blocks);
        let codes = Shared::zeroed("pages", panels.saturating_mul(PANEL))?;
        let scales = Shared::zeroed("pages", panels.saturating_mul(LANES))?;
        Ok(Self { content, codes, scales, heads, blocks, sixteens })
    }

    /// The panels of a head in a page.
    ///
    /// # Safety
    /// No thread writes to them while the borrow lasts.
    pub(crate) unsafe fn panels(&self, page: u32, head: usize) -> Panels<'_> {
        let first = self.first_panel(page, head);
        let end = first + self.sixteens * self.blocks;
        // SAFETY: the caller's promise.
        let (codes, scales) =
            unsafe { (self.codes.part(first * PANEL..end * PANEL), self.scales.part(first * LANES..end * LANES)) };
        let (codes, scales) = (codes.as_chunks().0, scales.as_chunks().0);
        Panels { codes, scales, blocks: self.blocks, sixteens: self.sixteens }
    }

    /// Quantizes and stores one head's row of a token.
    ///
    /// # Safety
    /// No other borrow of this token's row exists, in any thread.
    pub(super) unsafe fn store(&self, isa: Isa, page: u32, head: usize, token: usize, row: &[f32]) {
        assert!(token < self.sixteens * LANES, "outside of the page");
        let (sixteen, lane) = (token / LANES, token % LANES);
        for (block, values) in row.as_chunks().0.iter().enumerate() {
            let panel = self.first_panel(page, head)
                + match self.content {
                    Content::Keys => sixteen * self.blocks + block,
                    Content::Values => block * self.sixteens + sixteen,
                };
            let (codes, scale) = isa.run(Quantize { values, scale_in_half: true });
            // SAFETY: the caller's promise; every lane of a panel is one token's.
            unsafe {
                self.scales.part_mut(panel * LANES + lane..panel * LANES + lane + 1)[0] = f16::from_f32(scale);
                self.store_codes(panel, lane, &codes);
            }
        }
    }

    /// # Safety
    /// No other borrow of this lane of the panel exists, in any thread.
    unsafe fn store_codes(&self, panel: usize, lane: usize, codes: &[i8; BLOCK]) {
        let (piece, flip) = match self.content {
            Content::Keys => (GROUP, 0x80),
            Content::Values => (BLOCK, 0),
        };
        for (index, codes) in codes.chunks(piece).enumerate() {
            let first = panel * PANEL + (index * LANES + lane) * piece;
            // SAFETY: the caller's promise.
            let to = unsafe { self.codes.part_mut(first..first + piece) };
            for (to, code) in to.iter_mut().zip(codes) {
                *to = code.cast_unsigned() ^ flip;
            }
        }
    }

    pub(super) fn copy_page(&mut self, from: u32, to: u32) {
        let page = self.heads * self.sixteens * self.blocks;
        let (from, to) = (from as usize * page, to as usize * page);
        self.codes.all_mut().copy_within(from * PANEL..(from + page) * PANEL, to * PANEL);
        self.scales.all_mut().copy_within(from * LANES..(from + page) * LANES, to * LANES);
    }

    /// The bytes of a page: its codes, then its scales.
    pub(super) fn page_mut(&mut self, page: u32) -> Vec<&mut [u8]> {
        let panels = self.heads * self.sixteens * self.blocks;
        let (first, end) = (page as usize * panels, (page as usize + 1) * panels);
        vec![self.codes.bytes_mut(first * PANEL..end * PANEL), self.scales.bytes_mut(first * LANES..end * LANES)]
    }

    pub(super) fn bytes(&self) -> u64 {
        self.codes.bytes() + self.scales.bytes()
    }

    fn first_panel(&self, page: u32, head: usize) -> usize {
        assert!(head < self.heads, "outside of the page");
        (page as usize * self.heads + head) * self.sixteens * self.blocks
    }
}

/// Rounds 32 values to `scale · code`: the scale is the largest magnitude over 127, codes are nearest integers,
/// halves to even.
///
/// The scale of values of which one is not finite is NaN, so that whatever is computed from them is NaN too.
pub(crate) struct Quantize<'a> {
    pub(crate) values: &'a [f32; BLOCK],
    /// Rounds the scale to half precision first. Values too large for it have an infinite scale, and those too
    /// small are zero.
    pub(crate) scale_in_half: bool,
}

impl Kernel for Quantize<'_> {
    /// Codes of −127 to 127, and the scale.
    type Output = ([i8; BLOCK], f32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (halves, _) = self.values.as_chunks();
        let halves = [s.load(&halves[0]), s.load(&halves[1])];
        let largest = s.reduce_max(s.max(s.abs(halves[0]), s.abs(halves[1])));
        // Zero, or NaN if any value is not finite.
        let poison = s.reduce_sum(s.add(s.mul(halves[0], s.zero()), s.mul(halves[1], s.zero())));
        let exact = largest / LARGEST + poison;
        let scale = if self.scale_in_half { f16::from_f32(exact).to_f32() } else { exact };
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut codes = [[0; LANES]; 2];
        for (codes, values) in codes.iter_mut().zip(halves) {
            let scaled = s.mul(values, s.splat(inverse));
            let limited = s.max(s.splat(-LARGEST), s.min(s.splat(LARGEST), scaled));
            s.store_i8(s.to_i32(limited), codes);
        }
        let mut all = [0; BLOCK];
        all.copy_from_slice(codes.as_flattened());
        (all, scale)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantized(values: &[f32; BLOCK], scale_in_half: bool) -> ([i8; BLOCK], f32) {
        let expected = Isa::Scalar.run(Quantize { values, scale_in_half });
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let (codes, scale) = isa.run(Quantize { values, scale_in_half });
            assert_eq!(codes, expected.0, "{isa}");
            assert!(scale.to_bits() == expected.1.to_bits() || scale.is_nan() && expected.1.is_nan(), "{isa}");
        }
        expected
    }

    proptest! {
        #[test]
        fn codes_are_within_half_a_step(values in prop::array::uniform32(-3f32..3.0), power in -20i32..15, half: bool) {
            let values = values.map(|value| value * 2f32.powi(power));
            let (codes, scale) = quantized(&values, half);
            for (value, code) in values.iter().zip(codes) {
                // Half a step, and what the last code may fall short of by the rounding of the scale.
                let error = (value - f32::from(code) * scale).abs();
                let lost = if half { 127.0 * (scale / 2048.0 + 3e-8) } else { 0.0 };
                prop_assert!(error <= scale * 0.50001 + lost, "{value} became {code} times {scale}");
            }
        }

        #[test]
        fn any_bits_give_the_same_everywhere(bits in prop::array::uniform32(any::<u32>()), half: bool) {
            let values = bits.map(f32::from_bits);
            let (_, scale) = quantized(&values, half);
            prop_assert!(values.iter().all(|value| value.is_finite()) || scale.is_nan());
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        assert_eq!(quantized(&[0.0; BLOCK], true), ([0; BLOCK], 0.0));
        assert_eq!(quantized(&[1e-9; BLOCK], true), ([0; BLOCK], 0.0));
        assert_eq!(quantized(&[-127.0; BLOCK], true), ([-127; BLOCK], 1.0));
        assert_eq!(quantized(&[1e9; BLOCK], true), ([0; BLOCK], f32::INFINITY));
    }

    #[test]
    fn rows_are_whole_blocks() {
        let error = Blocks::reserve(Content::Keys, 1, 1, 16, 48).err().unwrap();
        assert!(matches!(error, Error::PartialBlock { columns: 48, block: 32, .. }), "{error}");
    }

    #[test]
    fn a_page_has_the_same_bytes_whatever_kernels_store_it() {
        for content in [Content::Keys, Content::Values] {
            let page = |isa: Isa| {
                let mut blocks = Blocks::reserve(content, 2, 2, 20, 64).unwrap();
                for (token, head) in (0..20).flat_map(|token| [(token, 0), (token, 1)]) {
                    let row: Vec<f32> = (0..64).map(|at| ((at * 31 + token * 7 + head) % 97) as f32 - 48.3).collect();
                    // SAFETY: one thread, no other borrow.
                    unsafe { blocks.store(isa, 1, head, token, &row) };
                }
                blocks.page_mut(1).concat()
            };
            let expected = page(Isa::Scalar);
            assert!(expected.iter().any(|byte| *byte != 0));
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                assert!(page(isa) == expected, "{content:?}, {isa}");
            }
        }
    }

    #[test]
    fn as_many_bytes_as_the_format_has() {
        for content in [Content::Keys, Content::Values] {
            let blocks = Blocks::reserve(content, 3, 2, 64, 96).unwrap();
            assert_eq!(blocks.bytes(), (3 * 2 * 64 * KvType::Q8_0.bytes_for(96)) as u64);
        }
    }
}
