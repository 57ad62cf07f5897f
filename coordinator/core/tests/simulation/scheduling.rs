//! How well the row is used: runs without trouble, of which the figures are known.

use std::time::Duration;

use paceline_core::Limits;

use crate::client::Plan;
use crate::row::Costs;
use crate::world::{Settings, World};

/// A model that is slow enough for messages not to matter: reading a stage's weights takes 5 ms.
const COSTS: Costs = Costs { step: 5_000, row: 20, hop: 100 };

fn plan(arrives: u64, prompt: usize, tokens: usize) -> Plan {
    Plan {
        arrives,
        prompt: (0..prompt as u32).map(|place| 10 + place % 300).collect(),
        max_tokens: Some(tokens),
        ignore_end: true,
        vector: false,
        stops_after: None,
        patience: None,
        reader: None,
        unlucky: false,
    }
}

fn run(limits: Limits, plans: Vec<Plan>) -> World {
    run_at(COSTS, limits, plans)
}

fn run_at(costs: Costs, limits: Limits, plans: Vec<Plan>) -> World {
    let mut world = World::new(1, Settings { limits, costs, latency: 100, faults: Vec::new(), plans });
    world.run();
    world.check_end();
    world
}

fn limits(stages: usize) -> Limits {
    Limits::new(stages, 16, 4096, 16, 4096)
}

/// The share of the time that the busiest stage computed.
fn busy(world: &World) -> f64 {
    *world.row.busy.iter().max().expect("a stage") as f64 / world.now as f64
}

fn mean_batch(world: &World) -> f64 {
    let steps = &world.row.decode_steps;
    steps.iter().map(|(decodes, _)| decodes).sum::<usize>() as f64 / steps.len() as f64
}

#[test]
fn run_ahead_hides_the_way_to_the_coordinator() {
    let alone = |run_ahead| run(Limits { run_ahead, ..limits(1) }, vec![plan(0, 20, 200)]);
    let (with, without) = (alone(true), alone(false));
    assert!(busy(&with) > 0.99, "{}", busy(&with));
    assert!(without.now > with.now + 199 * 100, "{} {}", without.now, with.now);
    assert_eq!(with.coordinator.status().run_ahead_tokens, 199);
}

#[test]
fn sessions_that_come_apart_decode_together() {
    for (stages, run_ahead) in [(1, true), (1, false), (2, false), (4, false)] {
        let plans = (0..12).map(|number| plan(number * 7_000, 30, 200)).collect();
        let world = run(Limits { run_ahead, ..limits(stages) }, plans);
        // as many groups as stages follow each other through the row, so each has its share of the sessions
        let batch = mean_batch(&world) * stages as f64;
        assert!(batch > 9.0, "{stages} stages, run-ahead {run_ahead}: {batch}");
    }
}

#[test]
fn stages_are_busy_while_prompts_wait() {
    for stages in [1, 2, 4] {
        let plans = (0..16).map(|_| plan(0, 3_000, 5)).collect();
        let world = run(limits(stages), plans);
        assert!(busy(&world) > 0.95, "{stages} stages: {}", busy(&world));
    }
}

#[test]
fn a_long_prompt_does_not_starve_those_who_decode() {
    let plans = vec![plan(0, 10, 300), plan(1_000, 10, 300), plan(200_000, 4_000, 1)];
    let limits = Limits { step_target: Duration::from_millis(30), ..limits(1) };
    // a step of 512 rows of prompt would take more than 100 ms
    let world = run_at(Costs { row: 200, ..COSTS }, limits, plans);
    let steps = &world.row.decode_steps;
    let longest = steps.iter().map(|(_, busy)| *busy).max().expect("steps with decode");
    assert!(longest < 33_000, "{longest}");
    // and the prompt was not put off: it took the share of the target that decode left
    let shared = steps.iter().filter(|(_, busy)| *busy > 25_000).count();
    assert!((30..50).contains(&shared), "{shared}");
}
