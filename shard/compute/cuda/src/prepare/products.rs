//! Matrix products and the mixture of experts.

use paceline_compute::Result;
use paceline_compute::blocks::is_quantized;
use paceline_compute::program::{Buffer, Op, Product, Weight};
use paceline_gguf::TensorType;

use super::{Preparation, THREADS};
use crate::driver::Address;
use crate::launch::{Count, Extent, Launch};
use crate::layout::{BLOCK, push_u64};

/// Lanes of a warp.
const WARP: usize = 32;
/// As `OUTPUT_WARPS` in `linear.cu`.
const OUTPUT_WARPS: usize = 4;
/// As `SHARED_ROWS` there.
const SHARED_ROWS: usize = 8;
/// As `FLOAT_THREADS` there.
const FLOAT_THREADS: usize = 128;

/// Rows that weights are multiplied with: as floats, and in blocks for weights in blocks.
#[derive(Clone, Copy)]
struct Input {
    floats: Address,
    blocks: Address,
}

impl Preparation<'_> {
    /// A launch for all products of weights of one type.
    pub(super) fn linear(&mut self, input: Buffer, products: &[Product]) -> Result<Vec<Launch>> {
        let (count, columns) = (self.count(input), self.width(input));
        let op = Op::Linear { input, products: Vec::new() };
        let [blocks] = self.scratch(&op);
        let rows = Input { floats: self.buffer(input), blocks };
        let mut launches = Vec::new();
        if !self.is_rounded && products.iter().any(|product| self.takes_blocks(product.weight)) {
            launches.push(self.quantize(count, rows, columns)?);
        }
        let kind = |product: &Product| self.loaded(product.weight).kind();
        let mut kinds: Vec<TensorType> = products.iter().map(kind).collect();
        kinds.sort_unstable_by_key(|kind| kind.id());
        kinds.dedup();
        for kind in kinds {
            let alike = products.iter().filter(|product| self.loaded(product.weight).kind() == kind);
            let alike: Vec<Product> = alike.copied().collect();
            launches.push(self.products_alike(count, columns, rows, &alike)?);
        }
        Ok(launches)
    }

    /// Products of weights of one type.
    fn products_alike(&mut self, count: Count, columns: usize, rows: Input, products: &[Product]) -> Result<Launch> {
        let first = products[0].weight;
        let (per, threads) = self.outputs_of_a_block(first);
        let (mut table, mut blocks) = (Vec::new(), 0);
        for product in products {
            let outputs = self.width(product.output);
            push_u64(&mut table, self.weight(product.weight));
            push_u64(&mut table, self.buffer(product.output));
            table.extend([blocks as u32, outputs as u32, u32::from(product.add), 0]);
            blocks += outputs.div_ceil(per);
        }
        let table = self.constant(&table);
        let arguments = [count.place(), table, products.len() as u64, self.input_of(first, rows), columns as u64];
        let grid = [Extent::fixed(blocks), Extent::each(count).per(SHARED_ROWS), Extent::ONE];
        self.launch(&self.kernel_of("linear", first), grid, threads, &arguments)
    }

    pub(super) fn experts(&self, op: &Op) -> Result<Vec<Launch>> {
        let Op::Experts { input, route, gate, up, down, output } = *op else { unreachable!("the caller has looked") };
        let (count, width) = (self.count(input), self.width(input));
        let (used, hidden) = (self.width(route) / 2, self.shapes.tensor(gate).shape[1]);
        let [blocks, gates, ups, hidden_blocks, results] = self.scratch(op);
        let rows = Input { floats: self.buffer(input), blocks };
        let inner = Input { floats: gates, blocks: hidden_blocks };
        let sizes = Sizes { count, used, route: self.buffer(route) };

        let mut launches = Vec::new();
        if [gate, up].into_iter().any(|weight| self.takes_blocks(weight)) {
            launches.push(self.quantize(count, rows, width)?);
        }
        launches.push(self.expert_product(sizes, gate, rows, gates, used)?);
        launches.push(self.expert_product(sizes, up, rows, ups, used)?);
        let all_hidden = used * hidden;
        let blocks = if self.takes_blocks(down) { hidden_blocks } else { 0 };
        let arguments = [count.place(), gates, ups, blocks, all_hidden as u64];
        launches.push(self.launch("swiglu", self.values(count, all_hidden), THREADS, &arguments)?);
        launches.push(self.expert_product(sizes, down, inner, results, 1)?);
        let arguments = [count.place(), results, sizes.route, self.buffer(output), used as u64, width as u64];
        launches.push(self.launch("add_experts", self.values(count, width), THREADS, &arguments)?);
        Ok(launches)
    }

    /// The product of each assignment's expert; `share` assignments have the same row of input.
    fn expert_product(
        &self,
        sizes: Sizes,
        weight: Weight,
        input: Input,
        output: Address,
        share: usize,
    ) -> Result<Launch> {
        let [columns, outputs, _] = self.shapes.tensor(weight).shape;
        let Sizes { count, used, route } = sizes;
        let numbers = [columns, outputs, used, share].map(|number| number as u64);
        let input = self.input_of(weight, input);
        let arguments = [&[count.place(), self.weight(weight), route, input, output], &numbers[..]].concat();
        let (per, threads) = self.outputs_of_a_block(weight);
        let grid = [Extent::each(count).times(used), Extent::fixed(outputs).per(per), Extent::ONE];
        self.launch(&self.kernel_of("experts", weight), grid, threads, &arguments)
    }

    /// Rounds rows to blocks.
    fn quantize(&self, count: Count, rows: Input, width: usize) -> Result<Launch> {
        let grid = [Extent::each(count).times(width / BLOCK).per(THREADS / WARP), Extent::ONE, Extent::ONE];
        self.launch("quantize", grid, THREADS, &[count.place(), rows.floats, rows.blocks, width as u64])
    }

    /// What a weight is multiplied with.
    fn input_of(&self, weight: Weight, rows: Input) -> Address {
        if self.takes_blocks(weight) { rows.blocks } else { rows.floats }
    }

    fn takes_blocks(&self, weight: Weight) -> bool {
        is_quantized(self.loaded(weight).kind())
    }

    /// Outputs of a block, and its threads.
    fn outputs_of_a_block(&self, weight: Weight) -> (usize, usize) {
        if self.takes_blocks(weight) { (OUTPUT_WARPS, OUTPUT_WARPS * WARP) } else { (WARP, FLOAT_THREADS) }
    }

    fn kernel_of(&self, operation: &str, weight: Weight) -> String {
        format!("{operation}_{}", self.loaded(weight).kind().name().to_lowercase())
    }
}

/// What the products of a mixture have in common.
#[derive(Clone, Copy)]
struct Sizes {
    count: Count,
    /// Experts of a row.
    used: usize,
    route: Address,
}
