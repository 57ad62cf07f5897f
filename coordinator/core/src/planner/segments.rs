//! What every contiguous run of blocks needs and does, worked out once for all devices.

use std::ops::Range;

use paceline_gguf::ModelShape;

use super::{Error, Memory, Result, Speed, StageCost, Wishes, Work, cut::Stage, footprint::Footprint, load::Steps};

/// More blocks than any model has; the table grows with their square.
const MAX_BLOCKS: usize = 512;

/// The runs of blocks of a model, by where they start and end.
pub(super) struct Segments {
    blocks: Vec<Range<usize>>,
    layers: usize,
    memory: Vec<u64>,
    work: Vec<SegmentWork>,
    /// How often a device does the work while a group of sessions reads prompts and writes answers.
    decode_steps: f64,
    prefill_steps: f64,
}

/// What a run does in each kind of step.
#[derive(Debug, Clone, Copy, Default)]
struct SegmentWork {
    alone: Work,
    decode: Work,
    prefill: Work,
}

impl Segments {
    /// The runs of a model's blocks.
    ///
    /// # Errors
    /// [`Error::TooManyBlocks`]
    pub(super) fn new(shape: &ModelShape, wishes: &Wishes, steps: &Steps) -> Result<Self> {
        let mut segments = Self::needs(shape, wishes)?;
        (segments.decode_steps, segments.prefill_steps) = (steps.decode_steps, steps.prefill_steps);
        let costs: Vec<StageCost> = segments.blocks.iter().map(|block| segments.cost(shape, wishes, block)).collect();
        segments.work = vec![SegmentWork::default(); segments.memory.len()];
        for start in 0..segments.len() {
            let mut sum = SegmentWork::default();
            for (end, cost) in (start + 1..).zip(&costs[start..]) {
                sum.alone = sum.alone + cost.work(&steps.alone);
                sum.decode = sum.decode + cost.work(&steps.decode);
                sum.prefill = sum.prefill + cost.work(&steps.prefill);
                let index = segments.index(start, end);
                segments.work[index] = sum;
            }
        }
        Ok(segments)
    }

    /// The same without what they do.
    pub(super) fn needs(shape: &ModelShape, wishes: &Wishes) -> Result<Self> {
        let blocks = shape.blocks();
        let count = blocks.len();
        if count > MAX_BLOCKS {
            return Err(Error::TooManyBlocks { blocks: count, limit: MAX_BLOCKS });
        }
        let footprint = |block: &Range<usize>| -> Footprint {
            shape.layers[block.clone()].iter().map(|layer| Footprint::of(layer, shape, wishes)).sum()
        };
        let footprints: Vec<Footprint> = blocks.iter().map(footprint).collect();
        let (layers, memory) = (shape.layers.len(), vec![0; (count + 1) * (count + 1)]);
        let (decode_steps, prefill_steps) = (0.0, 0.0);
        let mut segments = Self { blocks, layers, memory, work: Vec::new(), decode_steps, prefill_steps };
        for start in 0..count {
            let mut sum = Footprint::default();
            for (end, footprint) in (start + 1..).zip(&footprints[start..]) {
                sum = sum + footprint.clone();
                let ends = (start == 0, end == count);
                let index = segments.index(start, end);
                segments.memory[index] = Memory::of_footprint(shape, &sum, ends, wishes).total();
            }
        }
        Ok(segments)
    }

    /// A block is first or last where the model is.
    fn cost(&self, shape: &ModelShape, wishes: &Wishes, block: &Range<usize>) -> StageCost {
        let ends = (block.start == 0, block.end == self.layers);
        StageCost::of(shape, block.clone(), ends.0, ends.1, wishes.key_type, wishes.value_type)
    }

    /// How many blocks.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The layers of a run of blocks.
    pub(super) fn stage(&self, start: usize, end: usize) -> Stage {
        let layers = self.blocks[start].start..self.blocks[end - 1].end;
        Stage { first: layers.start == 0, last: layers.end == self.layers, layers }
    }

    /// Bytes that a run needs.
    pub(super) fn memory(&self, start: usize, end: usize) -> u64 {
        self.memory[self.index(start, end)]
    }

    /// Seconds that a device works on a run while a group of sessions reads its prompts and writes its answers.
    pub(super) fn load(&self, start: usize, end: usize, speed: &Speed) -> f64 {
        let work = &self.work[self.index(start, end)];
        self.decode_steps * work.decode.seconds(speed) + self.prefill_steps * work.prefill.seconds(speed)
    }

    /// Seconds of a decode step of one session alone.
    pub(super) fn alone(&self, start: usize, end: usize, speed: &Speed) -> f64 {
        self.work[self.index(start, end)].alone.seconds(speed)
    }

    fn index(&self, start: usize, end: usize) -> usize {
        start * (self.blocks.len() + 1) + end
    }
}
