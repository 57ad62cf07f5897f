//! Weights in panels of sixteen rows.

use std::ops::Range;

use half::{bf16, f16};
use paceline_gguf::TensorType;

use super::PANEL_ROWS;
use super::formats::{Format, PackedBlock, WithFormat, with_format};
use super::memory::{PanelMemory, Plain, cast, cast_mut};
use crate::blocks::{self, Block};
use crate::{Error, Result};

/// One matrix, or several of one shape (the experts of a layer), as the kernels read them.
///
/// The rows of a matrix are padded to whole panels with zeros; panels of a matrix, and then
/// matrices, follow one another.
#[derive(Debug)]
pub struct PackedWeight {
    kind: TensorType,
    matrices: usize,
    rows: usize,
    columns: usize,
    panel_bytes: usize,
    memory: PanelMemory,
}

impl PackedWeight {
    /// Reserves memory for `matrices` matrices of `(rows, columns)` values; all zero until the parts
    /// of [`panels_mut`](Self::panels_mut) are filled.
    ///
    /// # Errors
    /// If a row would not be whole blocks, or memory cannot be had.
    pub fn zeroed(kind: TensorType, matrices: usize, rows: usize, columns: usize) -> Result<Self> {
        let block = kind.block_len();
        if !columns.is_multiple_of(block) {
            return Err(Error::PartialBlock { kind, columns, block });
        }
        let panel_bytes = (columns / block).checked_mul(packed_block_bytes(kind));
        let panels = rows.div_ceil(PANEL_ROWS).checked_mul(matrices);
        let bytes = panel_bytes.zip(panels).and_then(|(bytes, panels)| bytes.checked_mul(panels));
        let too_many = Error::OutOfMemory { what: "packed weights", bytes: u64::MAX };
        let memory = PanelMemory::zeroed(bytes.ok_or(too_many)?)?;
        let panel_bytes = panel_bytes.unwrap_or(0);
        Ok(Self { kind, matrices, rows, columns, panel_bytes, memory })
    }

    /// Packs one matrix of `(rows, columns)` values, given as in a model file.
    ///
    /// # Errors
    /// If `bytes` is not such a matrix, or memory cannot be had.
    pub fn pack(kind: TensorType, rows: usize, columns: usize, bytes: &[u8]) -> Result<Self> {
        let mut weight = Self::zeroed(kind, 1, rows, columns)?;
        let panels = weight.panels();
        for mut part in weight.panels_mut(panels) {
            part.fill(bytes)?;
        }
        Ok(weight)
    }

    /// Parts of at most so many panels that several threads can fill at once.
    ///
    /// # Panics
    /// If `panels_per_part` is zero and there are panels.
    pub fn panels_mut(&mut self, panels_per_part: usize) -> impl Iterator<Item = PanelsMut<'_>> {
        let source = Source {
            kind: self.kind,
            matrices: self.matrices,
            rows: self.rows,
            columns: self.columns,
            panel_bytes: self.panel_bytes,
        };
        let part_bytes = (panels_per_part * self.panel_bytes).max(1);
        let parts = self.memory.as_mut_slice().chunks_mut(part_bytes);
        parts.enumerate().map(move |(index, memory)| PanelsMut { source, first: index * panels_per_part, memory })
    }

    /// The type it was packed from.
    pub fn kind(&self) -> TensorType {
        self.kind
    }

    /// How many matrices.
    pub fn matrices(&self) -> usize {
        self.matrices
    }

    /// Rows of each matrix: outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of each matrix: inputs.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Panels of each matrix.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL_ROWS)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.memory.as_slice().len()
    }

    /// Whether products need [`Input::Quantized`](super::Input::Quantized).
    pub fn needs_quantized_input(&self) -> bool {
        blocks::is_quantized(self.kind)
    }

    /// The rows that a panel holds, without padding.
    pub(super) fn panel_rows(&self, panel: usize) -> usize {
        PANEL_ROWS.min(self.rows - panel * PANEL_ROWS)
    }

    /// One panel of one matrix.
    #[inline(always)]
    pub(super) fn panel<T: Plain>(&self, matrix: usize, panel: usize) -> &[T] {
        assert!(matrix < self.matrices && panel < self.panels(), "the panel exists");
        let start = (matrix * self.panels() + panel) * self.panel_bytes;
        cast(&self.memory.as_slice()[start..start + self.panel_bytes])
    }
}

/// Where panels come from.
#[derive(Clone, Copy, Debug)]
struct Source {
    kind: TensorType,
    matrices: usize,
    rows: usize,
    columns: usize,
    panel_bytes: usize,
}

impl Source {
    /// Rows of the file's tensor that a panel, counted through all matrices, holds.
    fn rows_of(&self, panel: usize) -> Range<usize> {
        let panels = self.rows.div_ceil(PANEL_ROWS);
        let (matrix, panel) = (panel / panels, panel % panels);
        let start = panel * PANEL_ROWS;
        let end = self.rows.min(start + PANEL_ROWS);
        matrix * self.rows + start..matrix * self.rows + end
    }

    fn check(&self, bytes: &[u8]) -> Result<()> {
        let (rows, found) = (self.matrices.saturating_mul(self.rows), bytes.len());
        let row_bytes = self.kind.bytes_for(self.columns);
        let expected = rows.saturating_mul(row_bytes);
        if found == expected {
            return Ok(());
        }
        Err(Error::WrongLength { kind: self.kind, rows, columns: self.columns, expected, found })
    }
}

/// Some panels of a weight, to be filled.
#[derive(Debug)]
pub struct PanelsMut<'a> {
    source: Source,
    first: usize,
    memory: &'a mut [u8],
}

impl PanelsMut<'_> {
    /// The rows of the file's tensor, counted through all matrices, that these panels hold.
    pub fn source_rows(&self) -> Range<usize> {
        let panels = self.memory.len() / self.source.panel_bytes.max(1);
        let last = self.first + panels.max(1) - 1;
        self.source.rows_of(self.first).start..self.source.rows_of(last).end
    }

    /// Packs these panels' rows of `bytes`, which hold all matrices as in a model file.
    ///
    /// # Errors
    /// If `bytes` has another length.
    pub fn fill(&mut self, bytes: &[u8]) -> Result<()> {
        self.source.check(bytes)?;
        let row_bytes = self.source.kind.bytes_for(self.source.columns);
        let panels = self.memory.chunks_exact_mut(self.source.panel_bytes);
        for (index, memory) in panels.enumerate() {
            let rows = self.source.rows_of(self.first + index);
            let rows = &bytes[rows.start * row_bytes..rows.end * row_bytes];
            memory.fill(0);
            pack_panel(self.source.kind, rows, row_bytes, memory);
        }
        Ok(())
    }
}

fn packed_block_bytes(kind: TensorType) -> usize {
    match kind {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => PANEL_ROWS * kind.block_bytes(),
        _ => with_format(kind, BlockBytes),
    }
}

fn pack_panel(kind: TensorType, rows: &[u8], row_bytes: usize, memory: &mut [u8]) {
    let rows = rows.chunks_exact(row_bytes);
    match kind {
        TensorType::F32 => interleave(rows, cast_mut(memory), f32::from_le_bytes),
        TensorType::F16 => interleave(rows, cast_mut(memory), f16::from_le_bytes),
        TensorType::BF16 => interleave(rows, cast_mut(memory), bf16::from_le_bytes),
        _ => with_format(kind, PackBlocks { kind, rows, memory }),
    }
}

fn interleave<'a, T, const BYTES: usize>(
    rows: impl Iterator<Item = &'a [u8]>,
    memory: &mut [[T; PANEL_ROWS]],
    read: impl Fn([u8; BYTES]) -> T,
) {
    for (lane, row) in rows.enumerate() {
        for (column, bytes) in memory.iter_mut().zip(row.as_chunks().0) {
            column[lane] = read(*bytes);
        }
    }
}

struct BlockBytes;

impl WithFormat for BlockBytes {
    type Output = usize;

    fn call<F: Format>(self) -> usize {
        size_of::<PackedBlock<F>>()
    }
}

struct PackBlocks<'a, R> {
    kind: TensorType,
    rows: R,
    memory: &'a mut [u8],
}

impl<'a, R: Iterator<Item = &'a [u8]>> WithFormat for PackBlocks<'_, R> {
    type Output = ();

    fn call<F: Format>(self) {
        let packed = cast_mut::<PackedBlock<F>>(self.memory);
        for (lane, row) in self.rows.enumerate() {
            let blocks = row.chunks_exact(self.kind.block_bytes());
            for (packed, bytes) in packed.iter_mut().zip(blocks) {
                packed.store(lane, &Block::read(self.kind, bytes));
            }
        }
    }
}
