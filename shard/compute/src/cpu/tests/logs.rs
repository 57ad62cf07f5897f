//! Logs of uncertain tokens: whatever is accepted, results and states are those of tokens that were always certain.

use std::ops::Range;

use super::fused::delta_net;
use super::*;
use crate::cpu::states::Recurrent;
use crate::device::MemoryPart;
use crate::program::{State, StateSpec};

/// Uncertain tokens that a session may have.
const TOKENS: usize = 5;
/// The session of the fixture that has most rows.
const SESSION: usize = 2;

/// A stage that runs one session with drafts.
struct Speculating<'a> {
    fixture: &'a Fixture,
    stage: CpuStage,
    /// Tokens in the state, and those in the log behind them.
    certain: usize,
    logged: usize,
}

impl<'a> Speculating<'a> {
    fn new(fixture: &'a Fixture, isa: Isa, threads: usize, fused: bool) -> Self {
        let memory = MemorySpec { logs: LogSpec { sessions: 2, tokens: TOKENS }, ..fixture.memory() };
        let device = CpuDevice::new(threads, Some(isa)).unwrap();
        let mut stage =
            CpuStage::load(&device, fixture.program.clone(), &fixture.model(), memory, &mut |_| ()).unwrap();
        if !fused {
            stage.unfuse();
        }
        Self { fixture, stage, certain: 0, logged: 0 }
    }

    /// Runs rows of the session, and then rows that are not its: wrong drafts. `uncertain` counts up to their end.
    fn run(&mut self, rows: Range<usize>, wrong: usize, uncertain: usize, outputs: &[Buffer]) -> Vec<Vec<f32>> {
        let count = rows.len() + wrong;
        for (buffer, values) in &self.fixture.sessions[SESSION].buffers {
            let width = self.fixture.program.width(*buffer);
            let into = &mut self.stage.buffer_mut(*buffer)[..count * width];
            let (right, wrong) = into.split_at_mut(rows.len() * width);
            right.copy_from_slice(&values[rows.start * width..rows.end * width]);
            wrong.iter_mut().zip(values.iter().rev()).for_each(|(into, value)| *into = 3.0 - value);
        }
        let positions = vec![[0; 4]; count];
        let log = ChunkLog { place: 1, before: rows.start - self.certain, uncertain };
        let pages = [0, 1, 2, 3];
        let chunks = [ChunkRows { first_row: 0, rows: count, start: rows.start, slot: 1, pages: &pages, log }];
        let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &[], positions: &positions, wanted: &[] };
        self.stage.run(&inputs).unwrap();
        (self.certain, self.logged) = (rows.start + count - uncertain, uncertain);
        let read = |output: &Buffer| {
            let mut values = vec![0.0; rows.len() * self.fixture.program.width(*output)];
            self.stage.read(*output, 0..rows.len(), &mut values).unwrap();
            values
        };
        outputs.iter().map(read).collect()
    }

    fn slot(&mut self) -> Vec<u8> {
        let part = MemoryPart::Slot { state: State(0), slot: 1 };
        let mut bytes = vec![0; self.stage.part_bytes(part).unwrap()];
        self.stage.read_part(part, &mut bytes).unwrap();
        bytes
    }
}

/// Chunks of one certain token and drafts, of which some are right, and what comes out of all that were.
fn speculated(fixture: &Fixture, outputs: &[Buffer], way: (Isa, usize, bool), seed: u64) -> (Vec<Vec<f32>>, Vec<u8>) {
    let rows = fixture.sessions[SESSION].rows;
    let (isa, threads, fused) = way;
    let (mut run, mut random) = (Speculating::new(fixture, isa, threads, fused), Random(seed));
    let mut found = vec![Vec::new(); outputs.len()];
    let mut at = 0;
    while at < rows {
        let mut below = |end: usize| (random.values(1, 1.0)[0].abs() * 1e4) as usize % end;
        let right = below(TOKENS + 1).min(rows - at - 1);
        let wrong = below(TOKENS + 1 - right);
        // Sometimes several tokens are certain, sometimes the chunk was sent ahead and none is.
        let more = below(20).min(rows - at - 1 - right);
        let ahead = right > 0 && run.logged + right + wrong < TOKENS && at == run.certain + run.logged && below(2) == 0;
        let (end, uncertain) = match ahead {
            true => (at + right, run.logged + right + wrong),
            false => (at + 1 + more + right, right + wrong),
        };
        for (found, new) in found.iter_mut().zip(run.run(at..end, wrong, uncertain, outputs)) {
            found.extend(new);
        }
        at = end;
    }
    // The last token once more, this time certain, takes what is left in the log into the state.
    if run.certain < rows {
        run.run(rows - 1..rows, 0, 0, &[]);
    }
    (found, run.slot())
}

fn plain(fixture: &Fixture, outputs: &[Buffer]) -> (Vec<Vec<f32>>, Vec<u8>) {
    let rows = fixture.sessions[SESSION].rows;
    let mut run = Speculating::new(fixture, Isa::Scalar, 1, false);
    let found = run.run(0..rows, 0, 0, outputs);
    (found, run.slot())
}

#[test]
fn drafts_that_are_rejected_leave_no_trace() {
    for key_heads in [1, 4] {
        let (fixture, outputs) = delta_net(key_heads);
        let (results, state) = plain(&fixture, &outputs);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for (threads, fused, seed) in [(1, true, 1), (2, true, 2), (3, true, 3), (1, false, 4), (3, false, 5)] {
                for seed in (0..8).map(|more| seed + 10 * more) {
                    let (found, slot) = speculated(&fixture, &outputs, (isa, threads, fused), seed);
                    assert!(bits(&[found]) == bits(std::slice::from_ref(&results)), "{isa:?} {threads} {seed}");
                    assert!(slot == state, "{isa:?} {threads} {seed}: another state");
                }
            }
        }
    }
}

#[test]
fn a_thousand_rejections_change_no_bit_of_the_state() {
    let (fixture, _) = delta_net(4);
    let (mut run, mut plain) =
        (Speculating::new(&fixture, Isa::detect(), 2, true), Speculating::new(&fixture, Isa::detect(), 1, true));
    run.run(0..7, 3, 3, &[]);
    plain.run(0..7, 0, 0, &[]);
    for _ in 0..1000 {
        // All drafts are rejected, and the token that is certain is one that changes nothing: the chunk is sent again.
        run.run(7..7, 3, 3, &[]);
    }
    assert!(run.slot() == plain.slot());
    run.run(7..9, 4, 4, &[]);
    plain.run(7..9, 0, 0, &[]);
    assert!(run.slot() == plain.slot());
}

#[test]
fn a_rejection_moves_no_more_bytes_than_an_acceptance() {
    let (fixture, _) = delta_net(4);
    let moved = |accepted: usize| {
        let mut run = Speculating::new(&fixture, Isa::detect(), 1, true);
        let mut at = 0;
        run.run(at..at + 1, 4, 4, &[]);
        at += 1;
        let before = run.stage.moved_bytes();
        for _ in 0..4 {
            // As many of the drafts before as are accepted are replayed.
            run.run(at + accepted..at + accepted + 1, 4, 4, &[]);
            at += accepted + 1;
        }
        run.stage.moved_bytes() - before
    };
    let by_acceptance = [0, 1, 2, 3, 4].map(moved);
    assert!(by_acceptance.is_sorted(), "bytes by drafts accepted: {by_acceptance:?}");
    assert!(by_acceptance[0] > 0 && by_acceptance[2] <= by_acceptance[4]);
}

/// Of the shapes that are published: 0.8B, 35B-A3B, 27B.
#[test]
fn a_token_of_a_log_is_a_fortieth_of_a_state_at_most() {
    for (key_heads, value_heads) in [(16, 16), (16, 32), (16, 48)] {
        let spec = StateSpec { channels: (2 * key_heads + value_heads) * 128, taps: 4, value_heads, head_dim: 128 };
        let state = Recurrent::reserve(&spec, 1, LogSpec { sessions: 1, tokens: 1 }).unwrap();
        assert!(state.logged_bytes() * 40 <= state.slot_bytes(), "{} values", spec.channels);
        assert_eq!(state.bytes(), state.slot_bytes() + state.logged_bytes());
    }
}

#[test]
fn logs_that_do_not_exist_are_refused() {
    let (fixture, _) = delta_net(1);
    let mut run = Speculating::new(&fixture, Isa::detect(), 1, true);
    let mut refused = |start: usize, log: ChunkLog| {
        let chunks = [ChunkRows { first_row: 0, rows: 2, start, slot: 0, pages: &[0, 1], log }];
        let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &[], positions: &[[0; 4]; 2], wanted: &[] };
        run.stage.run(&inputs).unwrap_err().to_string()
    };
    let log = ChunkLog { place: 0, before: 1, uncertain: 2 };
    assert_eq!(refused(0, log), "the step has 1 replayed tokens, but 0 were reserved");
    assert_eq!(refused(9, ChunkLog { place: 2, ..log }), "log 2 does not exist; there are 2");
    assert_eq!(refused(9, ChunkLog { uncertain: 4, ..log }), "the step has 4 uncertain tokens, but 3 were reserved");
    assert_eq!(refused(9, ChunkLog { before: 6, ..log }), "the step has 6 replayed tokens, but 5 were reserved");
}
