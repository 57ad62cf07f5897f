//! How a stage's memories lie on the device, and the tables in which kernels read that.

use paceline_compute::device::MemorySpec;
use paceline_compute::program::{CacheSpec, StateSpec};
use paceline_compute::{Error, Result};
use paceline_gguf::KvType;

use crate::memory::Section;

/// Values that share a scale, of keys and values as of activations.
pub(crate) const BLOCK: usize = 32;
/// The most values that are rotated together.
const MOST_ROTATED: usize = 256;
/// What the parts of a page are aligned to.
const PART_ALIGNMENT: usize = 16;

/// Keys and values of one layer, page by page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pages {
    spec: CacheSpec,
    kinds: [KvType; 2],
    page_tokens: usize,
    rotated: bool,
    /// Where they lie in the arena.
    pub(crate) section: Section,
}

impl Pages {
    /// The layout, not placed yet; `rotated` says whether rows in blocks are rotated first.
    ///
    /// # Errors
    /// Rows that are not whole blocks.
    pub(crate) fn new(spec: CacheSpec, memory: &MemorySpec, rotated: bool) -> Result<Self> {
        let kinds = [memory.key_type, memory.value_type];
        for (kind, columns) in kinds.into_iter().zip([spec.key_dim, spec.value_dim]) {
            if in_blocks(kind) && !columns.is_multiple_of(BLOCK) {
                return Err(Error::PartialBlock { kind: kind.tensor_type(), columns, block: BLOCK });
            }
        }
        Ok(Self { spec, kinds, page_tokens: memory.page_tokens, rotated, section: Section::default() })
    }

    /// Bytes of a page, keys and values.
    pub(crate) fn page_bytes(&self) -> usize {
        self.part_bytes(0).saturating_add(self.part_bytes(1))
    }

    /// Bytes of the keys and values of a token.
    pub(crate) fn token_bytes(&self) -> u64 {
        let row = |part: usize| self.kinds[part].bytes_for(self.dim(part));
        (self.spec.key_value_heads * (row(0) + row(1))) as u64
    }

    /// Bytes of the keys (`0`) or values (`1`) of a page.
    fn part_bytes(&self, part: usize) -> usize {
        let rows = self.spec.key_value_heads.saturating_mul(self.page_tokens);
        let row = match self.dim(part) < usize::MAX / 8 {
            true => self.kinds[part].bytes_for(self.dim(part)),
            false => usize::MAX,
        };
        rows.saturating_mul(row).checked_next_multiple_of(PART_ALIGNMENT).unwrap_or(usize::MAX)
    }

    fn dim(&self, part: usize) -> usize {
        [self.spec.key_dim, self.spec.value_dim][part]
    }

    /// The table of the keys (`0`) or values (`1`), as `Plane` in `pages.cuh`; `base` is the address of all pages.
    pub(crate) fn plane(&self, part: usize, base: u64) -> Vec<u32> {
        let first = if part == 0 { 0 } else { self.part_bytes(0) as u64 };
        let dim = self.dim(part);
        let mut words = Vec::new();
        push_u64(&mut words, base + first);
        push_u64(&mut words, self.page_bytes() as u64);
        let rotation = if self.rotated && in_blocks(self.kinds[part]) { rotation(dim) } else { 0 };
        let heads = self.spec.key_value_heads;
        let numbers = [kind_number(self.kinds[part]), dim, heads, self.page_tokens, rotation, 0];
        words.extend(numbers.map(|number| number as u32));
        words
    }
}

/// How many values of a row are rotated together: the largest power of two that divides it, but not too many.
fn rotation(dim: usize) -> usize {
    (1 << dim.trailing_zeros()).min(MOST_ROTATED)
}

/// As `KIND_…` in `pages.cuh`.
fn kind_number(kind: KvType) -> usize {
    match kind {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::BF16 => 2,
        KvType::Q8_0 => 3,
        KvType::Q4_0 => 4,
        KvType::Q4_1 => 5,
        KvType::Iq4Nl => 6,
    }
}

fn in_blocks(kind: KvType) -> bool {
    !matches!(kind, KvType::F32 | KvType::F16 | KvType::BF16)
}

/// Slots and logs of one recurrent layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    /// The sizes.
    pub(crate) spec: StateSpec,
    /// Where the slots lie in the arena.
    pub(crate) section: Section,
    /// Where the logs lie.
    pub(crate) logs: Section,
}

impl Slots {
    /// The layout, not placed yet.
    pub(crate) fn new(spec: StateSpec) -> Self {
        assert!(spec.taps > 0, "a convolution has at least the tap of the current row");
        Self { spec, section: Section::default(), logs: Section::default() }
    }

    /// Bytes of a slot: the window, and then the matrices.
    pub(crate) fn slot_bytes(&self) -> usize {
        let StateSpec { channels, taps, value_heads, head_dim } = self.spec;
        let matrices = value_heads.saturating_mul(head_dim).saturating_mul(head_dim);
        (taps - 1).saturating_mul(channels).saturating_add(matrices).saturating_mul(size_of::<f32>())
    }

    /// Bytes of what a log holds of a token.
    pub(crate) fn logged_bytes(&self) -> usize {
        let StateSpec { channels, value_heads, .. } = self.spec;
        channels.saturating_add(value_heads.saturating_mul(2)).saturating_mul(size_of::<f32>())
    }

    /// The table, as `Memory` in `recurrent.cu`.
    pub(crate) fn table(&self, slots: u64, logs: u64, memory: &MemorySpec) -> Vec<u32> {
        let StateSpec { channels, taps, value_heads, head_dim } = self.spec;
        let mut words = Vec::new();
        push_u64(&mut words, slots);
        push_u64(&mut words, logs);
        let numbers = [channels, taps, value_heads, head_dim, memory.logs.tokens, memory.rows];
        words.extend(numbers.map(|number| number as u32));
        words
    }
}

/// Adds a number of 64 bits, the low word first.
pub(crate) fn push_u64(words: &mut Vec<u32>, number: u64) {
    words.extend([number as u32, (number >> 32) as u32]);
}
