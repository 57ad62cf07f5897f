//! Many sessions in few pages: the newest are paused and go on, and all get exactly their tokens.

use std::time::Duration;

use paceline_core::Limits;
use paceline_core::session::FinishReason;

use crate::client::Plan;
use crate::random::Random;
use crate::row::Costs;
use crate::world::{Settings, World};

const SEEDS: u64 = 200;
const CLIENTS: usize = 30;

/// Pages for one session of the longest kind, and little more.
fn tiny(random: &mut Random) -> Limits {
    let (stages, page_tokens) = (random.size(1, 3), random.size(1, 8));
    let context = random.size(40, 120);
    let pages = context.div_ceil(page_tokens) + random.size(0, 8);
    Limits {
        growth_tokens: random.size(0, 12),
        queue: CLIENTS,
        queue_deadline: Duration::from_secs(1_000_000),
        step_deadline: None,
        step_rows: random.size(17, 80),
        step_wanted: random.size(2, 20),
        log_sessions: random.size(0, 4),
        log_tokens: random.size(0, 8),
        credits: random.size(1, 2 * stages + 1),
        gather: Duration::from_micros(random.between(0, 500)),
        run_ahead: random.once_in(2),
        snapshots: random.size(0, 4),
        has_states: !random.once_in(3),
        snapshot_stride: random.size(4, 64),
        ..Limits::new(stages, random.size(2, 8), pages, page_tokens, context)
    }
}

fn plan(random: &mut Random, context: usize) -> Plan {
    let prompt = random.size(1, context / 3);
    Plan {
        arrives: random.between(0, 200_000),
        prompt: crate::client::prompt(random, prompt),
        boundaries: Vec::new(),
        max_tokens: (!random.once_in(4)).then(|| random.size(1, context - prompt)),
        ignore_end: !random.once_in(4),
        vector: random.once_in(20),
        stops_after: None,
        patience: random.once_in(10).then(|| random.between(0, 300_000)),
        reader: random.once_in(4).then(|| (random.size(2, 5), random.between(100, 20_000))),
        unlucky: false,
        accepted: random.between(0, 100),
        guesses: None,
    }
}

#[test]
fn the_newest_are_paused_and_all_end_with_exactly_their_tokens() {
    let (mut pauses, mut reads, mut needed) = (0, 0, 0);
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let limits = tiny(&mut random);
        let plans: Vec<_> = (0..CLIENTS).map(|_| plan(&mut random, limits.context)).collect();
        let costs = Costs { step: random.between(100, 3_000), row: random.between(5, 300), hop: 100 };
        let latency = random.between(1, 900);
        needed += plans.iter().map(|plan| plan.prompt.len() as u64).sum::<u64>();
        let settings = Settings { limits, costs, latency, faults: vec![], placements: vec![], moves: vec![], plans };
        let mut world = World::new(seed, settings);
        world.run(); // the world also checks that the oldest is never paused
        world.check_end();
        for client in &world.clients {
            let reason = &client.finish.as_ref().expect("it ended").reason;
            let whole = matches!(reason, FinishReason::Stop | FinishReason::Length | FinishReason::Cancelled);
            assert!(whole, "seed {seed}: {reason:?}");
        }
        let status = world.coordinator.status();
        pauses += status.pauses;
        reads += status.prefill_tokens;
    }
    println!("{pauses} pauses; {reads} tokens read as prompts, {needed} in prompts");
    assert!(pauses > 10 * SEEDS, "{pauses} pauses: too few to prove anything");
}
