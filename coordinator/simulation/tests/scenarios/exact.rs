//! Rows that are so simple that arithmetic says what comes out.

use std::time::Duration;

use paceline_core::Limits;
use paceline_core::planner::LinkSpeed;
use paceline_simulation::{Arrivals, Measured, Scenario};

use crate::{NOTHING, alike, limits, micros, near, quiet, report, visit};

#[test]
fn one_stage_decodes_without_a_pause() {
    // a step of 10 ms samples a token of each of the sessions, 0.5 ms for each of them
    for sessions in [1, 7, 32] {
        let visits = vec![visit(0, 1, 101); sessions];
        let found = report(&quiet(limits(1), Arrivals::Listed(visits)), &alike(1, 10_000, 500));
        let step = 10.0 + 0.5 * sessions as f64;
        assert!(near(found.gap_ms.max, step), "{sessions} sessions: {:?}", found.gap_ms);
        // the first to come had steps of their own: prompts few at a time, and one that told what decode takes
        let share = found.gap_ms.mean / step;
        assert!(share <= 1.0 && share > 0.92 && (sessions > 1 || near(share, 1.0)), "{:?}", found.gap_ms);
        let rate = found.throughput.decode_tok_s_busy / (1e3 * sessions as f64 / step);
        assert!((rate - 1.0).abs() < 0.08 && (sessions > 1 || near(rate, 1.0)), "{:?}", found.throughput);
        assert!(found.stages[0].busy > 0.999, "{:?}", found.stages);
        assert_eq!((found.sessions.finished, found.throughput.tokens), (sessions as u64, 101 * sessions as u64));
    }
}

#[test]
fn a_prompt_is_read_chunk_behind_chunk() {
    // 40 chunks of 128 rows at 12.8 ms and 7.2 ms; the last follows the first through all stages
    for stages in [1, 4] {
        let limits = Limits { prefill_rows: 128, ..limits(stages) };
        let visits = vec![visit(5_000, 5_120, 1)];
        let found = report(&quiet(limits, Arrivals::Listed(visits)), &alike(stages, 7_200, 100));
        let first_token = 20.0 * (40 + stages - 1) as f64;
        assert!(near(found.first_token_ms.max, first_token), "{stages} stages: {:?}", found.first_token_ms);
        assert!(near(found.ideal.prefill_tok_s, 128.0 / 0.02), "{:?}", found.ideal);
        assert!(near(found.stages[stages - 1].rows_per_step, 128.0), "{:?}", found.stages);
        assert_eq!((found.throughput.prefill_tokens, found.queue_ms.max), (5_120, 0.0));
    }
}

#[test]
fn a_link_carries_rows_and_takes_its_time() {
    let limits = Limits { gather: Duration::ZERO, ..limits(2) };
    let link = LinkSpeed { round_trip: micros(4_000), bytes_per_second: 1e6 };
    let visits = Arrivals::Listed(vec![visit(0, 100, 1)]);
    let links = vec![NOTHING, link, NOTHING];
    let scenario = Scenario { links, width: 50, ..quiet(limits, visits) };
    let found = report(&scenario, &alike(2, 10_000, 0));
    let carried = &found.links[1];
    assert_eq!(carried.frames, 2, "the prompt, and then the session's end");
    // 100 rows of 50 values of 4 bytes, and what describes two steps
    assert!((20_000..20_500).contains(&carried.bytes), "{carried:?}");
    let sent_before = found.first_token_ms.max - 20.0 - 2.0;
    assert!((20.0..20.2).contains(&sent_before), "{:?}", found.first_token_ms);
}

#[test]
fn a_busy_link_is_the_bottleneck() {
    // 512 rows of 1,000 values take 204.8 ms on a link of 10 MB/s, and 20 ms on a stage
    let link = LinkSpeed { round_trip: Duration::ZERO, bytes_per_second: 1e7 };
    let links = vec![NOTHING, link, NOTHING];
    let visits = Arrivals::Listed(vec![visit(0, 51_200, 1)]);
    let limits = Limits::new(2, 4, 1_024, 64, 65_536);
    let found = report(&Scenario { links, width: 1_000, ..quiet(limits, visits) }, &alike(2, 20_000, 0));
    assert!(found.links[1].busy > 0.98, "{:?}", found.links);
    let rate = found.throughput.prefill_tok_s_busy / found.ideal.prefill_tok_s;
    assert!((0.97..=1.0).contains(&rate), "{rate}");
}

#[test]
fn measured_points_are_what_stages_take() {
    let json = r#"{"stages": [{"decode_micros": {"1": 900, "4": 1500}, "prefill_micros_per_row": 50},
                              {"decode_micros": {"1": 600}, "prefill_micros_per_row": 40, "overhead_micros": 100}],
                   "hop_micros": 25}"#;
    let measured: Measured = serde_json::from_str(json).expect("good JSON");
    let visits = Arrivals::Listed(vec![visit(0, 2, 11)]);
    let hop = LinkSpeed { round_trip: 2 * micros(25), bytes_per_second: f64::INFINITY };
    let scenario = Scenario { links: vec![NOTHING, hop, NOTHING], ..quiet(limits(2), visits) };
    let found = report(&scenario, &measured);
    assert!(near(found.first_token_ms.max, 0.1 + 0.025 + 0.18), "{:?}", found.first_token_ms);
    assert!(near(found.gap_ms.mean, 0.9 + 0.025 + 0.7), "{:?}", found.gap_ms);
}

#[test]
fn noise_keeps_the_mean() {
    let visits = Arrivals::Listed(vec![visit(0, 1, 4_000)]);
    let scenario = Scenario { noise: 0.3, ..quiet(limits(1), visits) };
    let found = report(&scenario, &alike(1, 10_000, 0));
    assert!((9.8..10.2).contains(&found.gap_ms.mean), "{:?}", found.gap_ms);
    assert!(found.gap_ms.p95 > 14.0 && found.gap_ms.p50 < 10.0, "{:?}", found.gap_ms);
}
