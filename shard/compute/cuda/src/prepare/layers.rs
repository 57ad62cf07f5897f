//! The operations that have a memory: attention over pages, and recurrent layers.

use paceline_compute::Result;
use paceline_compute::program::{Buffer, Cache, Heads, Op, Queries, RopeStyle, Rotation, State, StateSpec, Weight};

use super::{NORM_THREADS, Preparation, float, no_encoders, scratch};
use crate::driver::Address;
use crate::inputs::SEGMENT;
use crate::launch::{Count, Extent, Launch, When};
use crate::layout::{BLOCK, push_u64};

/// As `ATTENTION_THREADS` in `attention.cu`.
const ATTENTION_THREADS: usize = 128;
/// As `NO_GATE` there.
const NO_GATE: u32 = u32::MAX;
/// As `TILE_COLUMNS` and `COLUMN_THREADS` in `recurrent.cu`.
const TILE_COLUMNS: usize = 32;
const COLUMN_THREADS: usize = 4;
/// Threads of blocks that go over channels or heads.
const CHANNEL_THREADS: usize = 128;

/// The heads of a buffer that are normed and rotated.
struct Prepared {
    buffer: Buffer,
    heads: Heads,
    norm: Option<Weight>,
}

impl Preparation<'_> {
    pub(super) fn store_keys_values(&mut self, op: &Op) -> Result<Vec<Launch>> {
        let Op::StoreKeysValues { queries, key, value, key_norm, epsilon, rotation, cache } = *op else {
            unreachable!("the caller has looked")
        };
        let Rotation { style, table: rope } = rotation.ok_or_else(no_encoders)?;
        let spec = self.program().caches[usize::from(cache.0)];
        let heads = Heads { count: spec.key_value_heads, dim: spec.key_dim, stride: spec.key_dim };
        let queries = queries.map(|Queries { buffer, heads, norm }| Prepared { buffer, heads, norm });
        let keys = Prepared { buffer: key, heads, norm: key_norm };
        let prepared: Vec<Prepared> = queries.into_iter().chain([keys]).collect();
        let mut planes = self.plane(cache, 0);
        planes.extend(self.plane(cache, 1));
        let arguments = [self.constant(&planes), self.buffer(key), self.buffer(value)];
        let grid = [Extent::fixed(2 * spec.key_value_heads), Extent::each(Count::Rows), Extent::ONE];
        let store = self.launch("store_rows", grid, NORM_THREADS, &arguments)?;
        let store = store.with_shared(2 * spec.key_dim.max(spec.value_dim) * size_of::<f32>());
        Ok(vec![self.prepare_heads(&prepared, epsilon, style, rope)?, store])
    }

    fn prepare_heads(&mut self, all: &[Prepared], epsilon: f32, style: RopeStyle, rope: Buffer) -> Result<Launch> {
        let (mut table, mut first) = (Vec::new(), 0);
        for Prepared { buffer, heads, norm } in all {
            push_u64(&mut table, self.buffer(*buffer));
            push_u64(&mut table, norm.map_or(0, |weight| self.weight(weight)));
            table.extend([first, self.width(*buffer), heads.stride, heads.dim].map(|number| number as u32));
            first += heads.count;
        }
        let table = self.constant(&table);
        let (dimensions, adjacent) = (self.width(rope) as u64, u64::from(style == RopeStyle::Adjacent));
        let arguments = [table, all.len() as u64, self.buffer(rope), float(epsilon), dimensions, adjacent];
        let grid = [Extent::fixed(first), Extent::each(Count::Rows), Extent::ONE];
        self.launch("prepare_heads", grid, NORM_THREADS, &arguments)
    }

    /// The table of the keys (`0`) or values (`1`) of a layer.
    fn plane(&self, cache: Cache, part: usize) -> Vec<u32> {
        let layer = &self.places.pages[usize::from(cache.0)];
        layer.plane(part, self.arena.address(layer.section))
    }

    pub(super) fn attention(&mut self, op: &Op) -> Result<Vec<Launch>> {
        let Op::Attention { query, query_heads, gate_offset, scale, causal, cache, output } = *op else {
            unreachable!("the caller has looked")
        };
        let spec = self.program().caches[usize::from(cache.0)];
        let Heads { count, dim, stride } = query_heads;
        let mut table = self.plane(cache, 0);
        table.extend(self.plane(cache, 1));
        let sizes = [self.width(query), count, dim, stride, count / spec.key_value_heads];
        table.extend(sizes.map(|size| size as u32));
        table.extend([gate_offset.map_or(NO_GATE, |offset| offset as u32), u32::from(causal), scale.to_bits()]);
        let table = self.constant(&table);

        // As `query_in` in `attention.cu` cuts it.
        let floats = dim + SEGMENT + spec.value_dim + dim.max(spec.value_dim) + 2 + 2 * (dim / BLOCK);
        let shared = floats * size_of::<f32>() + dim;
        let [_, parts] = self.scratch(op);
        let most = scratch::split_parts(self.program(), self.memory, op);
        let [queries, output] = [query, output].map(|buffer| self.buffer(buffer));
        let blocks = self.blocks_for_next();
        let by_head = |segments| [Extent::fixed(count), Extent::each(Count::Rows), segments];
        let one = |name: &str, segments, arguments: &[u64]| {
            let launch = self.launch(name, by_head(segments), ATTENTION_THREADS, arguments)?;
            Ok(launch.with_shared(shared))
        };
        let segments = Extent::each(Count::Segments);
        Ok(vec![
            one("attention", Extent::ONE, &[table, queries, output, blocks])?.when(When::Whole(most)),
            one("attention_parts", segments, &[table, queries, parts])?.when(When::Split(most)),
            one("attention_join", Extent::ONE, &[table, queries, parts, output, blocks])?.when(When::Split(most)),
        ])
    }

    /// Keeps the table of a recurrent layer.
    fn recurrent(&mut self, state: State) -> (Address, StateSpec) {
        let layer = &self.places.slots[usize::from(state.0)];
        let [slots, logs] = [layer.section, layer.logs].map(|section| self.arena.address(section));
        (self.constant(&layer.table(slots, logs, self.memory)), layer.spec)
    }

    pub(super) fn convolve(
        &mut self,
        input: Buffer,
        weight: Weight,
        state: State,
        output: Buffer,
    ) -> Result<Vec<Launch>> {
        let (table, spec) = self.recurrent(state);
        let channels = Extent::fixed(spec.channels).per(CHANNEL_THREADS);
        let grid = |count| [channels, Extent::each(count), Extent::ONE];
        let (input, output) = (self.buffer(input), self.buffer(output));
        let arguments = [table, input, self.weight(weight), output];
        Ok(vec![
            self.launch("convolve", grid(Count::Sequence), CHANNEL_THREADS, &arguments)?,
            self.launch("remember_inputs", grid(Count::Chunks), CHANNEL_THREADS, &[table, input])?,
        ])
    }

    pub(super) fn delta_rule(&mut self, op: &Op) -> Result<Vec<Launch>> {
        let Op::DeltaRule { input, alpha, beta, time_bias, decay, key_heads, epsilon, state, output } = *op else {
            unreachable!("the caller has looked")
        };
        let (table, StateSpec { value_heads, head_dim, .. }) = self.recurrent(state);
        let [prepared] = self.scratch(op);
        let [input, alpha, beta, output] = [input, alpha, beta, output].map(|buffer| self.buffer(buffer));
        let (time_bias, decay) = (self.weight(time_bias), self.weight(decay));
        let keys = key_heads as u64;

        let sequence = Extent::each(Count::Sequence);
        let heads = [Extent::fixed(value_heads).per(CHANNEL_THREADS), sequence, Extent::ONE];
        let norms = [Extent::fixed(2 * key_heads), sequence, Extent::ONE];
        let tiles = Extent::fixed(head_dim).per(TILE_COLUMNS);
        let tiles = [tiles, Extent::fixed(value_heads), Extent::each(Count::Chunks)];
        let normalize = [table, input, prepared, keys, float(epsilon)];
        let gates = [table, alpha, beta, time_bias, decay, prepared, keys];
        let mut launches = vec![
            self.launch("normalize_heads", norms, NORM_THREADS, &normalize)?,
            self.launch("delta_gates", heads, CHANNEL_THREADS, &gates)?,
        ];
        if self.memory.logs.rows() > 0 {
            launches.push(self.launch("log_gates", heads, CHANNEL_THREADS, &[table, alpha, beta])?);
        }
        let arguments = [table, input, prepared, output, keys];
        let rule = self.launch("delta_rule", tiles, TILE_COLUMNS * COLUMN_THREADS, &arguments)?;
        launches.push(rule.with_shared(head_dim * TILE_COLUMNS * size_of::<f32>()));
        Ok(launches)
    }
}
