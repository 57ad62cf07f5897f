//! Where heads of queries and keys lie in rows, and how they rotate.

use super::{Buffer, Weight};

/// Which coordinates rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeStyle {
    /// Dimension `i` with `i + dimensions / 2`.
    Neox,
    /// Dimension `2 i` with `2 i + 1`.
    Adjacent,
}

/// YaRN, a stretch of the positions past the trained context (arXiv 2309.00071).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yarn {
    /// Trained context in tokens.
    pub original_context: u32,
    /// Share of the extrapolated angle, usually 1.
    pub extrapolation: f32,
    /// Factor on the magnitude, usually 1.
    pub attention_factor: f32,
    /// Rotations at which interpolation ends.
    pub beta_fast: f32,
    /// Rotations at which interpolation is complete.
    pub beta_slow: f32,
}

/// Rotary positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Which coordinates rotate together.
    pub style: RopeStyle,
    /// How many dimensions of a head rotate; the others pass.
    pub dimensions: usize,
    /// Base of the frequencies.
    pub base: f32,
    /// Positions are divided by this; 1 for none.
    pub factor: f32,
    /// YaRN on top of `factor`.
    pub yarn: Option<Yarn>,
    /// For four-component positions: how many pairs follow time, height, width and the fourth
    /// component, interleaved. Without it only the first component is used.
    pub sections: Option<[u32; 4]>,
    /// A divisor of each frequency (`rope_freqs.weight`), `(dimensions / 2)`.
    pub divisors: Option<Weight>,
}

/// How heads rotate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// Which coordinates rotate together.
    pub style: RopeStyle,
    /// The table made by [`Op::RopeTable`](super::Op::RopeTable), which says how many.
    pub table: Buffer,
}

/// Where heads lie in a buffer's row: head `h` starts at `h * stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// How many.
    pub count: usize,
    /// Values of one head.
    pub dim: usize,
    /// Distance between the starts of two heads.
    pub stride: usize,
}

/// Query heads that attention is prepared for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Queries {
    /// `(rows, query heads)`.
    pub buffer: Buffer,
    /// Layout of the buffer.
    pub heads: Heads,
    /// Weight of the norm of every query head, `(head dim)`.
    pub norm: Option<Weight>,
}
