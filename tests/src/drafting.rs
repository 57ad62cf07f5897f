//! Rows of stages that make drafts with whatever their model has for it.

use std::ops::Range;
use std::sync::Arc;

use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::{Device, MemorySpec};
use paceline_gguf::{Gguf, ModelShape};
use paceline_model::{Overrides, StageLayers, has_mtp, record_features, record_tapped, record_with};
use paceline_proto::Epoch;
use paceline_shard::{DflashDrafter, Drafter, Feedback, MtpDrafter, Place, Stage};

use crate::hand_row::HandRow;

/// Ranges of `layers` layers, as even as can be.
pub fn cuts(layers: usize, stages: usize) -> Vec<Range<usize>> {
    (0..stages).map(|stage| stage * layers / stages..(stage + 1) * layers / stages).collect()
}

/// Loads a row of so many stages. Its tail makes drafts with the DFlash model that is open together with `model`, or with
/// the model's own block for multi-token prediction, if there is one of the two.
///
/// # Panics
/// If a stage cannot be recorded or loaded.
pub fn row(model: &Arc<Gguf>, stages: usize, device: &CpuDevice, memory: MemorySpec, epoch: Epoch) -> HandRow {
    let layers = ModelShape::read(model).expect("a shape").layers.len();
    let mtp = has_mtp(model).expect("a shape");
    HandRow::of(&cuts(layers, stages), epoch, |place, cut| {
        stage(model, &StageLayers::of(cut.clone(), layers), device, memory, place, mtp)
    })
}

/// Loads one stage, with the draft model at the tail, or with `mtp` the model's own block.
///
/// # Panics
/// If it cannot be recorded or loaded.
pub fn stage(
    model: &Arc<Gguf>,
    layers: &StageLayers,
    device: &CpuDevice,
    memory: MemorySpec,
    place: Place,
    mtp: bool,
) -> Stage {
    let (overrides, is_drafted) = (Overrides::default(), model.draft().is_some());
    let record = if is_drafted { record_tapped } else { record_with };
    let mut program = record(model, layers, &overrides).expect("a program");
    if mtp && !is_drafted && layers.last {
        record_features(model, &overrides, &mut program).expect("features");
    }
    let loaded = device.load(program, model, memory, &mut |_| {}).expect("a stage");
    let stage = Stage::new(place, loaded, Feedback::own());
    let drafter: Box<dyn Drafter> = match (layers.last, is_drafted, mtp) {
        (true, true, _) => Box::new(DflashDrafter::load(device, model, memory, &mut |_| {}).expect("a draft model")),
        (true, false, true) => {
            Box::new(MtpDrafter::load(device, model, memory, &overrides, &mut |_| {}).expect("a block for prediction"))
        }
        _ => return stage,
    };
    stage.with_drafter(drafter).expect("it is recorded for it")
}
