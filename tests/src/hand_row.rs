//! Stages in a row that are fed by hand: one step after the other, each run to its end before the next.

use std::ops::Range;
use std::sync::Arc;

use paceline_compute::device::{Device, MemorySpec};
use paceline_gguf::{Gguf, ModelShape};
use paceline_model::StageLayers;
use paceline_proto::{Chunk, Epoch, Frame, Operation, Outcome, Payload, SamplingSettings, Step, StepId};
use paceline_shard::{Error, Feedback, Passed, Place, SharedStage, Stage};

/// What a step says: what came of its chunks, and the bits of all logits.
pub type Said = (Vec<Outcome>, Vec<u32>);

/// Settings with which the next token depends on chance, and on much of what was before.
pub fn by_chance() -> SamplingSettings {
    SamplingSettings {
        temperature: 0.9,
        top_p: 0.98,
        seed: 5,
        repetition_penalty: 1.2,
        frequency_penalty: 0.3,
        presence_penalty: 0.2,
        penalty_window: 7,
        logprobs: Some(2),
        ..SamplingSettings::default()
    }
}

/// A row of stages.
pub struct HandRow {
    /// From head to tail.
    pub stages: Vec<SharedStage>,
    epoch: Epoch,
}

impl HandRow {
    /// Loads a stage for each of these ranges of layers.
    ///
    /// # Panics
    /// If a stage cannot be recorded or loaded.
    pub fn load(
        model: &Arc<Gguf>,
        cuts: &[Range<usize>],
        device: &dyn Device,
        memory: MemorySpec,
        epoch: Epoch,
    ) -> HandRow {
        let layers = ModelShape::read(model).expect("a shape").layers.len();
        let stage = |place, cut: &Range<usize>| {
            let program = paceline_model::record(model, &StageLayers::of(cut.clone(), layers)).expect("a program");
            let loaded = device.load(program, model, memory, &mut |_| {}).expect("a stage");
            Stage::new(place, loaded, Feedback::own())
        };
        HandRow::of(cuts, epoch, stage)
    }

    /// A row of stages that are made so.
    pub fn of(cuts: &[Range<usize>], epoch: Epoch, make: impl Fn(Place, &Range<usize>) -> Stage) -> HandRow {
        let stage = |(index, cut)| {
            let place = Place { index, first: index == 0, last: index + 1 == cuts.len(), epoch };
            SharedStage::new(make(place, cut))
        };
        HandRow { stages: cuts.iter().enumerate().map(stage).collect(), epoch }
    }

    /// Runs a step.
    ///
    /// # Panics
    /// If a stage refuses it.
    pub fn run(&self, id: u64, operations: Vec<Operation>, chunks: Vec<Chunk>) -> Said {
        self.run_changed(id, operations, chunks, |_, _| ()).expect("the stages run")
    }

    /// Runs a step; `change` may change its frame in front of each stage, of which it is told the index.
    ///
    /// # Errors
    /// What a stage says when it refuses the step.
    ///
    /// # Panics
    /// If the last stage is no tail.
    pub fn run_changed(
        &self,
        id: u64,
        operations: Vec<Operation>,
        chunks: Vec<Chunk>,
        change: impl Fn(usize, &mut Frame),
    ) -> Result<Said, Error> {
        let step = Step { epoch: self.epoch, id: StepId(id), operations, chunks };
        let mut frame = Frame { step, payload: Payload::empty(), times: Vec::new() };
        for (index, stage) in self.stages.iter().enumerate() {
            change(index, &mut frame);
            match stage.with(|stage| stage.run(frame))? {
                Passed::On(next) => frame = next,
                Passed::Done(done) => {
                    let logits = stage.with(Stage::logits)?.into_iter().map(f32::to_bits).collect();
                    return Ok((done.results.into_iter().map(|result| result.outcome).collect(), logits));
                }
            }
        }
        unreachable!("the tail gives results")
    }
}
