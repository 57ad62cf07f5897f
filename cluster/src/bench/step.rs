//! A model as one stage without the service around it, and steps that are run again and again.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::{ChunkLog, ChunkRows, MemoryOperation, MemorySpec, OperationTime, StepInputs};
use paceline_compute::{Device, LoadedStage};
use paceline_model::StageLayers;

use crate::row::Plan;

/// A loaded model and its memories.
pub(super) struct Direct {
    pub(super) stage: Box<dyn LoadedStage>,
    pub(super) memory: MemorySpec,
    vocabulary: usize,
    pages_per_session: usize,
}

/// The rows of one step, the same number for each of some sessions.
#[derive(Debug, Clone)]
pub(super) struct Step {
    /// Tokens of each session that came before.
    pub(super) start: usize,
    /// Rows of each session.
    pub(super) rows: usize,
    pages: Vec<Vec<u32>>,
    tokens: Vec<u32>,
    positions: Vec<[u32; 4]>,
    pub(super) wanted: Vec<u32>,
}

/// Which rows' logits a step wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The last of each session, as when text is read or generated.
    Last,
    /// Every row, as when drafts are verified.
    All,
}

impl Direct {
    /// Loads the whole model on one device.
    pub(super) fn load(plan: &Plan, device: &CpuDevice) -> Result<Self> {
        let stages = &plan.placement.stages;
        ensure!(stages.len() == 1, "this measures one stage, not {}: leave --shards away", stages.len());
        let layers = StageLayers { layers: stages[0].layers.clone(), first: true, last: true };
        let program = paceline_model::record_with(&plan.model, &layers, &plan.overrides)?;
        let vocabulary = program.logits.map_or(1, |logits| program.width(logits));
        let stage = device.load(program, &plan.model, plan.memory, &mut |_| {})?;
        let pages_per_session = plan.placement.context.div_ceil(plan.memory.page_tokens);
        let mut direct = Self { stage, memory: plan.memory, vocabulary, pages_per_session };
        direct.fill()?;
        Ok(direct)
    }

    /// A step of `sessions` sessions with `start` tokens before and `rows` rows each.
    pub(super) fn step(&self, sessions: usize, start: usize, rows: usize, wanted: Wanted) -> Step {
        let all = sessions * rows;
        let token = |index: usize| ((index + 1) as u64 * 2_654_435_761 % self.vocabulary as u64) as u32;
        let pages = |session: usize| {
            let first = session * self.pages_per_session;
            (first as u32..).take((start + rows).div_ceil(self.memory.page_tokens)).collect()
        };
        let position = |row: usize| {
            let at = (start + row % rows) as u32;
            [at, at, at, 0]
        };
        let is_wanted = |row: &u32| wanted == Wanted::All || (*row as usize + 1).is_multiple_of(rows);
        Step {
            start,
            rows,
            pages: (0..sessions).map(pages).collect(),
            tokens: (0..all).map(token).collect(),
            positions: (0..all).map(position).collect(),
            wanted: (0..all as u32).filter(is_wanted).collect(),
        }
    }

    /// Writes all pages, so that later steps read memory as a service does: pages that were never written are one
    /// page of zeros, which stays in the cache.
    fn fill(&mut self) -> Result<()> {
        let rows = self.memory.page_tokens.min(self.memory.rows);
        self.step(1, 0, rows, Wanted::Last).run(self.stage.as_mut())?;
        for page in 1..self.memory.pages as u32 {
            self.stage.apply(MemoryOperation::CopyPage { from: 0, to: page })?;
        }
        Ok(())
    }
}

impl Step {
    /// How many sessions take part.
    pub(super) fn sessions(&self) -> usize {
        self.pages.len()
    }

    /// Rows of all sessions.
    pub(super) fn all_rows(&self) -> usize {
        self.tokens.len()
    }

    /// Runs the step and returns how long it took.
    pub(super) fn run(&self, stage: &mut dyn LoadedStage) -> Result<Duration> {
        let chunks = self.chunks();
        let begun = Instant::now();
        stage.run(&self.inputs(&chunks))?;
        Ok(begun.elapsed())
    }

    /// Runs the step, tells `observe` how long each operation took, and returns how long all took.
    pub(super) fn run_measured(
        &self,
        stage: &mut dyn LoadedStage,
        observe: &mut dyn FnMut(OperationTime),
    ) -> Result<Duration> {
        let chunks = self.chunks();
        let begun = Instant::now();
        stage.run_measured(&self.inputs(&chunks), observe)?;
        Ok(begun.elapsed())
    }

    fn chunks(&self) -> Vec<ChunkRows<'_>> {
        let mut chunks = Vec::with_capacity(self.pages.len());
        for (slot, pages) in self.pages.iter().enumerate() {
            chunks.push(ChunkRows {
                first_row: slot * self.rows,
                rows: self.rows,
                start: self.start,
                slot,
                pages,
                log: ChunkLog::default(),
            });
        }
        chunks
    }

    fn inputs<'a>(&'a self, chunks: &'a [ChunkRows<'a>]) -> StepInputs<'a> {
        StepInputs { chunks, tokens: &self.tokens, vectors: &[], positions: &self.positions, wanted: &self.wanted }
    }
}
