//! What a profile says of the work, against the model itself.

use clap::Parser;
use paceline_compute::device::{MemoryOperation, OperationTime};
use paceline_compute::program::{Op, WeightUse};

use super::cost::Costs;
use super::step::{Direct, Step, Wanted};
use super::{BenchArgs, plan};
use crate::cli::{Cli, Command};
use crate::model;
use crate::row::{self, Plan};

fn arguments(line: &str) -> BenchArgs {
    let cli = Cli::try_parse_from(line.split(' ')).expect("a good command line");
    let Command::Bench(arguments) = cli.command else { panic!("{line} is no bench") };
    arguments
}

/// The model inside the program.
fn embedded() -> (Plan, Direct) {
    let arguments = arguments("paceline bench --prefill 64 --users 2 --threads 2");
    let gguf = model::open(&arguments.model).expect("the embedded model");
    let plan = plan(&gguf, &arguments).expect("it fits");
    let device = row::device(&plan, 0).expect("two threads");
    let direct = Direct::load(&plan, &device).expect("it loads");
    (plan, direct)
}

fn products(plan: &Plan, direct: &Direct, step: &Step) -> u64 {
    let costs = Costs { model: &plan.model, stage: direct.stage.as_ref(), memory: &direct.memory, step };
    let ops = direct.stage.program().ops.iter().filter(|recorded| matches!(recorded.op, Op::Linear { .. }));
    ops.map(|recorded| costs.of(&recorded.op).macs).sum()
}

#[test]
fn a_row_is_multiplied_with_every_matrix_once() {
    let (plan, direct) = embedded();
    let matrices = direct.stage.program().weights.iter().filter(|spec| spec.usage == WeightUse::Matrix);
    let elements = matrices.map(|spec| plan.model.tensor(&spec.tensor).map_or(0, |tensor| tensor.shape.elements()));
    let elements = elements.sum::<usize>() as u64;
    let of = |step: Step| products(&plan, &direct, &step);
    assert_eq!(of(direct.step(1, 4, 1, Wanted::Last)), elements);
    assert_eq!(of(direct.step(2, 4, 1, Wanted::Last)), 2 * elements);
    assert_eq!(of(direct.step(1, 0, 8, Wanted::All)), 8 * elements);
}

#[test]
fn a_measured_step_tells_of_every_operation_once_and_computes_the_same() {
    let (_, mut direct) = embedded();
    let (count, logits) = (direct.stage.program().ops.len(), direct.stage.program().logits.expect("a last stage"));
    let mut rows = [vec![0.0; direct.stage.program().width(logits)], Vec::new()];
    rows[1] = rows[0].clone();
    let step = direct.step(1, 0, 8, Wanted::Last);
    let mut told = Vec::new();
    for (run, row) in rows.iter_mut().enumerate() {
        direct.stage.apply(MemoryOperation::ClearState { slot: 0 }).expect("a slot");
        let mut observe = |operation: OperationTime| {
            assert!(operation.operations.contains(&operation.main));
            told.extend(operation.operations);
        };
        let stage = direct.stage.as_mut();
        let ran = if run == 0 { step.run(stage) } else { step.run_measured(stage, &mut observe) };
        ran.expect("it runs");
        direct.stage.read(logits, 0..1, row).expect("a wanted row");
    }
    assert!(told.iter().copied().eq(0..count), "{told:?}");
    assert_eq!(rows[0], rows[1]);
}
