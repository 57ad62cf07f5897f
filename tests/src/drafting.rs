//! Rows of stages that make drafts with whatever their model has for it.

use std::ops::Range;
use std::sync::Arc;

use paceline_compute::device::{Device, MemorySpec};
use paceline_core::planner::TailDrafter;
use paceline_gguf::{Gguf, ModelShape};
use paceline_model::{Overrides, StageLayers, record_features, record_tapped, record_with};
use paceline_proto::Epoch;
use paceline_shard::{DflashDrafter, Drafter, Feedback, ModelDrafter, MtpDrafter, Place, Stage};

use crate::hand_row::HandRow;

/// Ranges of `layers` layers, as even as can be.
pub fn cuts(layers: usize, stages: usize) -> Vec<Range<usize>> {
    (0..stages).map(|stage| stage * layers / stages..(stage + 1) * layers / stages).collect()
}

/// Loads a row of so many stages. Its tail makes drafts with the model that is open together with `model`, or with the
/// model's own block for multi-token prediction, if there is one of the two.
///
/// # Panics
/// If a stage cannot be recorded or loaded.
pub fn row(model: &Arc<Gguf>, stages: usize, device: &dyn Device, memory: MemorySpec, epoch: Epoch) -> HandRow {
    let shape = ModelShape::read(model).expect("a shape");
    let MemorySpec { key_type, value_type, .. } = memory;
    let drafter = match model.draft() {
        Some(_) => Some(TailDrafter::Model { key_type, value_type }.beside(&shape)),
        None => (!shape.mtp.is_empty()).then_some(TailDrafter::Mtp),
    };
    let layers = shape.layers.len();
    HandRow::of(&cuts(layers, stages), epoch, |place, cut| {
        stage(model, &StageLayers::of(cut.clone(), layers), device, memory, place, drafter)
    })
}

/// Loads one stage; `drafter` makes drafts at the tail.
///
/// # Panics
/// If it cannot be recorded or loaded.
pub fn stage(
    model: &Arc<Gguf>,
    layers: &StageLayers,
    device: &dyn Device,
    memory: MemorySpec,
    place: Place,
    drafter: Option<TailDrafter>,
) -> Stage {
    let overrides = Overrides::default();
    let record = if matches!(drafter, Some(TailDrafter::Dflash { .. })) { record_tapped } else { record_with };
    let mut program = record(model, layers, &overrides).expect("a program");
    let drafter = drafter.filter(|_| layers.last);
    if drafter == Some(TailDrafter::Mtp) {
        record_features(model, &overrides, &mut program).expect("features");
    }
    let loaded = device.load(program, model, memory, &mut |_| {}).expect("a stage");
    let stage = Stage::new(place, loaded, Feedback::own());
    let drafter: Box<dyn Drafter> = match drafter {
        None => return stage,
        Some(TailDrafter::Mtp) => {
            Box::new(MtpDrafter::load(device, model, memory, &overrides, &mut |_| {}).expect("a block for prediction"))
        }
        Some(TailDrafter::Model { key_type, value_type }) => {
            let memory = MemorySpec { key_type, value_type, ..memory };
            Box::new(ModelDrafter::load(device, model, memory, &mut |_| {}).expect("a draft model"))
        }
        Some(TailDrafter::Dflash { key_type, value_type }) => {
            let memory = MemorySpec { key_type, value_type, ..memory };
            Box::new(DflashDrafter::load(device, model, memory, &mut |_| {}).expect("a draft model"))
        }
    };
    stage.with_drafter(drafter).expect("it is recorded for it")
}
