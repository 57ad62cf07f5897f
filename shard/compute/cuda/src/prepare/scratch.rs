//! How much space operations need beside buffers and memories.

use paceline_compute::device::MemorySpec;
use paceline_compute::program::{Buffer, Op, Program, RowSpace};
use paceline_compute::shapes::Shapes;

use crate::inputs::SEGMENT;
use crate::layout::BLOCK;

/// Bytes of a block of 32 activations, as `Activations` in `linear.cu`.
const ACTIVATIONS_BYTES: usize = 48;
/// Values of scratch for parts of attention that wait to be joined, 8 MiB. Steps with more parts are not split.
const SPLIT_VALUES: usize = 2 << 20;
/// What parts of scratch are aligned to.
const ALIGNMENT: usize = 256;
/// Words of `Product` in `linear.cu`, of two `Plane` and two `Heads` in `pages.cuh` and `norms.cu`, of `Attention` in
/// `attention.cu`, and of `Memory` in `recurrent.cu`, each up to whole lines of four.
const PRODUCT_WORDS: usize = 8;
const STORE_WORDS: usize = 2 * 10 + 2 * 8;
const ATTENTION_WORDS: usize = 28;
const MEMORY_WORDS: usize = 12;

/// Bytes of scratch that the operation that needs most of it has.
pub(crate) fn scratch_bytes(shapes: &Shapes<'_>, memory: &MemorySpec) -> usize {
    let of = |op: &Op| {
        let parts = parts(shapes, memory, op);
        parts.into_iter().map(aligned).fold(0, usize::saturating_add)
    };
    shapes.program.ops.iter().map(|recorded| of(&recorded.op)).max().unwrap_or(0)
}

/// Bytes of all tables that stay the same.
pub(crate) fn constant_bytes(program: &Program) -> usize {
    let of = |op: &Op| match op {
        Op::Linear { products, .. } => products.len() * PRODUCT_WORDS,
        Op::StoreKeysValues { .. } => STORE_WORDS,
        Op::Attention { .. } => ATTENTION_WORDS,
        Op::Convolve { .. } | Op::DeltaRule { .. } => MEMORY_WORDS,
        _ => 0,
    };
    program.ops.iter().map(|recorded| of(&recorded.op)).sum::<usize>() * size_of::<u32>()
}

/// Bytes of each part of an operation's scratch.
pub(super) fn parts(shapes: &Shapes<'_>, memory: &MemorySpec, op: &Op) -> Vec<usize> {
    let program = shapes.program;
    let rows = |buffer: Buffer| match program.buffers[usize::from(buffer.0)].rows {
        RowSpace::Step => memory.rows,
        RowSpace::Wanted => memory.wanted,
    };
    let floats = |values: usize| values.saturating_mul(size_of::<f32>());
    match op {
        Op::Linear { input, .. } => vec![activations(rows(*input), program.width(*input))],
        // Results in blocks lie before parts, where products look for them.
        Op::Attention { output, .. } => {
            vec![activations(memory.rows, program.width(*output)), floats(split_values(program, memory, op))]
        }
        Op::DeltaRule { key_heads, state, .. } => {
            let spec = &program.states[usize::from(state.0)];
            let row = key_heads.saturating_mul(spec.head_dim).saturating_add(spec.value_heads).saturating_mul(2);
            vec![floats(memory.rows.saturating_add(memory.logs.rows()).saturating_mul(row))]
        }
        Op::Experts { input, route, gate, output, .. } => {
            let used = program.width(*route) / 2;
            let hidden = shapes.tensor(*gate).shape[1];
            let assignments = rows(*input).saturating_mul(used);
            vec![
                activations(rows(*input), program.width(*input)),
                floats(assignments.saturating_mul(hidden)),
                floats(assignments.saturating_mul(hidden)),
                activations(assignments, hidden),
                floats(assignments.saturating_mul(program.width(*output))),
            ]
        }
        _ => Vec::new(),
    }
}

/// Values of parts of attention that can wait to be joined.
fn split_values(program: &Program, memory: &MemorySpec, op: &Op) -> usize {
    let segments = memory.pages.saturating_mul(memory.page_tokens).div_ceil(SEGMENT);
    memory.rows.saturating_mul(segments).saturating_mul(part_values(program, op)).min(SPLIT_VALUES)
}

/// Parts of rows and segments that can wait to be joined.
pub(super) fn split_parts(program: &Program, memory: &MemorySpec, op: &Op) -> u64 {
    (split_values(program, memory, op) / part_values(program, op).max(1)) as u64
}

/// Values of the parts of all heads of a row in a segment.
fn part_values(program: &Program, op: &Op) -> usize {
    let Op::Attention { query_heads, cache, .. } = op else { return 0 };
    query_heads.count.saturating_mul(program.caches[usize::from(cache.0)].value_dim.saturating_add(2))
}

/// Bytes of rows of activations in blocks.
fn activations(rows: usize, width: usize) -> usize {
    rows.saturating_mul(width / BLOCK).saturating_mul(ACTIVATIONS_BYTES)
}

pub(super) fn aligned(bytes: usize) -> usize {
    bytes.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX)
}
