//! How well the row is used: runs without trouble, of which the figures are known.

use paceline_core::Limits;
use paceline_core::drafts::CHUNKS_UNDER_WAY;
use paceline_core::limits::LEAST_PREFILL_ROWS;

use crate::client::Plan;
use crate::row::Costs;
use crate::world::{Settings, World};

/// A model that is slow enough for messages not to matter: reading a stage's weights takes 5 ms.
const COSTS: Costs = Costs { step: 5_000, row: 20, hop: 100 };

fn plan(arrives: u64, prompt: usize, tokens: usize) -> Plan {
    Plan {
        arrives,
        prompt: (0..prompt as u32).map(|place| 10 + place % 300).collect(),
        boundaries: Vec::new(),
        max_tokens: Some(tokens),
        ignore_end: true,
        vector: false,
        stops_after: None,
        patience: None,
        reader: None,
        unlucky: false,
        accepted: 0,
        guesses: None,
    }
}

fn run(limits: Limits, plans: Vec<Plan>) -> World {
    run_at(COSTS, limits, plans)
}

fn run_at(costs: Costs, limits: Limits, plans: Vec<Plan>) -> World {
    let mut world = World::new(
        1,
        Settings { limits, costs, latency: 100, faults: Vec::new(), placements: Vec::new(), moves: Vec::new(), plans },
    );
    world.run();
    world.check_end();
    world
}

/// Nothing hangs here, and the last deadline would count as part of the run.
fn limits(stages: usize) -> Limits {
    Limits { step_deadline: None, ..Limits::new(stages, 16, 4096, 16, 4096) }
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
        // steps of prompts wait for one another where somebody decodes, and the row fills and empties once
        assert!(busy(&world) > 0.92, "{stages} stages: {}", busy(&world));
    }
}

#[test]
fn a_long_prompt_lengthens_the_steps_of_those_who_decode_by_its_share_only() {
    for stages in [1, 2, 4] {
        let decoding = (0..2 * stages as u64).map(|number| plan(number * 500, 10, 400));
        let plans = decoding.chain([plan(400_000, 4_000, 1)]).collect();
        // a step of 512 rows of prompt would take more than 100 ms
        let world = run_at(Costs { row: 200, ..COSTS }, limits(stages), plans);
        let steps = &world.row.decode_steps;
        // prompts of the beginning aside, when it is not yet known what decode takes
        let longest = steps.iter().skip(50).map(|(_, busy)| *busy).max().expect("steps with decode");
        let (alone, least) = (5_000 + 200 * 2, 200 * LEAST_PREFILL_ROWS as u64);
        assert!(longest <= alone + least.max(alone * 8 / 10) + 200, "{stages} stages: {longest}");
        // and the prompt was not put off: it took its share of many steps
        let shared = steps.iter().skip(50).filter(|(_, busy)| *busy > alone + 200).count();
        assert!(shared > 100, "{stages} stages: {shared}");
    }
}

#[test]
fn sessions_that_come_together_are_spread_over_the_stages() {
    for stages in [2, 4] {
        let plans = (0..8).map(|_| plan(0, 30, 200)).collect();
        let world = run(limits(stages), plans);
        let share = world.row.busy.iter().map(|busy| *busy as f64 / world.now as f64).fold(1.0, f64::min);
        assert!(share > 0.9, "{stages} stages: the least busy one computes {share} of the time");
    }
}

#[test]
fn a_prompt_is_cut_so_that_every_stage_has_some_of_it() {
    let costs = Costs { step: 500, row: 100, hop: 100 };
    let time = |stages| run_at(costs, limits(stages), vec![plan(0, 512, 1)]).now;
    let (one, two, four) = (time(1), time(2), time(4));
    // each stage takes as long as the only one does, so without cuts two would take twice as long
    assert!(two < one * 5 / 4 + 10_000, "{one} {two}");
    assert!(four < one * 2, "{one} {four}");
}

/// How much sooner than without drafts it is over, where so many percent of them are right.
fn gain(costs: Costs, stages: usize, sessions: u64, accepted: u64) -> f64 {
    let time = |log_tokens| {
        let plans = (0..sessions).map(|_| Plan { accepted, guesses: Some(7), ..plan(0, 20, 600) }).collect();
        let usual = limits(stages);
        let step_wanted = usual.step_wanted + 2 * log_tokens;
        run_at(costs, Limits { log_sessions: 4, log_tokens, step_wanted, ..usual }, plans).now as f64
    };
    time(0) / time(7)
}

#[test]
fn drafts_never_cost_much_and_bring_much_where_they_are_right() {
    for (stages, hop) in [(1, 100), (2, 100), (4, 5_000)] {
        for row in [0, 100, 400, 1_250, 5_000] {
            for accepted in [0, 30, 60, 80, 90, 100] {
                let costs = Costs { row, hop, ..COSTS };
                let alone = gain(costs, stages, 1, accepted);
                assert!(alone > 0.95, "{costs:?}, {stages} stages, {accepted}% right: {alone}");
                if row <= 100 && accepted >= 80 {
                    assert!(alone > 2.5, "{costs:?}, {stages} stages, {accepted}% right: {alone}");
                }
                let many = gain(costs, stages, 8, accepted);
                assert!(many > 0.95, "8 sessions, {costs:?}, {stages} stages, {accepted}% right: {many}");
            }
        }
    }
}

/// How much sooner it is over with chunks that are sent ahead than with one block of seven drafts of a session after the
/// other, and how many were sent ahead.
fn filled(costs: Costs, stages: usize, sessions: u64, accepted: u64) -> (f64, u64) {
    let usual = limits(stages);
    let run = |credits: usize| {
        let guesses = Some(7 * CHUNKS_UNDER_WAY);
        let plans = (0..sessions).map(|_| Plan { accepted, guesses, ..plan(0, 20, 1_500) }).collect();
        let logs = Limits { log_sessions: 4, log_tokens: 7 * CHUNKS_UNDER_WAY, chunk_drafts: 7, ..usual.clone() };
        let world = run_at(costs, Limits { credits, step_wanted: usual.step_wanted + 2 * 7, ..logs }, plans);
        (world.now as f64, world.coordinator.status().speculation.sent_ahead)
    };
    // The last credit is for others.
    let ((one_by_one, none), (filled, sent_ahead)) =
        (run(usual.credits.min(sessions as usize + 1)), run(usual.credits));
    assert!(none == 0 || sessions > 1);
    let gain = one_by_one / filled;
    println!("{costs:?}, {stages} stages, {sessions} sessions, {accepted}% right: {gain}, {sent_ahead} sent ahead");
    (gain, sent_ahead)
}

#[test]
fn idle_stages_are_filled_where_drafts_are_likely() {
    for row in [20, 200] {
        for hop in [1_000, 5_000, 20_000] {
            let costs = Costs { row, hop, ..COSTS };
            let (gain, sent_ahead) = filled(costs, 4, 1, 90);
            assert!(gain > 1.3 && sent_ahead > 100, "{costs:?}, 90% right: {gain}");
            let (gain, _) = filled(costs, 4, 1, 60);
            assert!(gain > 0.97, "{costs:?}, 60% right: {gain}");
        }
    }
}

#[test]
fn chunks_sent_ahead_never_cost_much() {
    for (stages, hop) in [(1, 100), (2, 100), (4, 5_000)] {
        for row in [0, 400, 5_000] {
            for accepted in [0, 60, 90, 100] {
                for sessions in [1, 3] {
                    let costs = Costs { row, hop, ..COSTS };
                    let (gain, sent_ahead) = filled(costs, stages, sessions, accepted);
                    assert!(gain > 0.95, "{costs:?}, {stages} stages, {sessions} sessions, {accepted}% right: {gain}");
                    assert!(stages > 1 || sent_ahead == 0);
                }
            }
        }
    }
}
