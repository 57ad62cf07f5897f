//! The convolution and the gated delta rule: the bits of the CPU device, and logs that leave no trace.

use paceline_compute::LoadedStage;
use paceline_compute::device::{ChunkLog, LogSpec, MemoryPart};
use paceline_compute::program::{Op, State, StateSpec};
use paceline_cuda::CudaDevice;
use paceline_emulation::Order;
use proptest::prelude::*;

use crate::harness::{Case, Random, WAYS, WHOLE, Way, cpu, emulated};

fn delta_net(key_heads: usize, value_heads: usize, dim: usize, taps: usize, rows: &[usize], seed: u64) -> Case {
    let mut case = Case::new(seed);
    let channels = (2 * key_heads + value_heads) * dim;
    let [input, alpha, beta] = case.inputs([channels, value_heads, value_heads]);
    let state = case.program.state(StateSpec { channels, taps, value_heads, head_dim: dim });
    let weights = case.random.values(channels * taps, 1.0);
    let weight = case.vector_of(&[taps, channels], &weights);
    let convolved = case.output(channels);
    case.record(Op::Convolve { input, weight, state, output: convolved });
    let time_bias = case.vector(value_heads, 4.0);
    let rates: Vec<f32> = case.random.values(value_heads, 0.5).iter().map(|rate| -rate.abs()).collect();
    let decay = case.vector_of(&[value_heads], &rates);
    let output = case.output(value_heads * dim);
    let rule =
        Op::DeltaRule { input: convolved, alpha, beta, time_bias, decay, key_heads, epsilon: 1e-6, state, output };
    case.record(rule);
    case.sessions(rows, 3.0);
    case
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn layers(
        key_heads in 1usize..3,
        group in 1usize..3,
        dim in 1usize..70,
        taps in 1usize..6,
        rows in prop::collection::vec(1usize..8, 1..4),
        seed in 1u64..,
    ) {
        delta_net(key_heads, key_heads * group, dim, taps, &rows, seed).check(&WAYS);
    }
}

#[test]
fn the_heads_of_models() {
    delta_net(1, 2, 128, 4, &[5, 2], 11).check(&WAYS);
}

/// Uncertain tokens that a session may have.
const TOKENS: usize = 5;
/// The session that has drafts, and its log.
const SESSION: usize = 1;
const PLACE: usize = 1;

/// A stage that runs one session with drafts.
struct Speculating<'a> {
    case: &'a Case,
    stage: Box<dyn LoadedStage>,
    /// Tokens in the state, and those in the log behind them.
    certain: usize,
    logged: usize,
}

impl Speculating<'_> {
    /// Runs rows of the session, and then rows that are not its: wrong drafts. `uncertain` counts up to their end.
    fn run(&mut self, rows: std::ops::Range<usize>, wrong: usize, uncertain: usize) -> Vec<Vec<u32>> {
        let log = ChunkLog { place: PLACE, before: rows.start - self.certain, uncertain };
        // Another session goes along, whose rows come first and have no log.
        let other = (0, 0..1, 0, ChunkLog::default());
        let own = (SESSION, rows.clone(), wrong, log);
        let (parts, first) = if rows.start.is_multiple_of(2) { (vec![other, own], 1) } else { (vec![own], 0) };
        self.case.step_with(self.stage.as_mut(), &parts);
        (self.certain, self.logged) = (rows.end + wrong - uncertain, uncertain);
        let read = |output| self.case.read(self.stage.as_mut(), output, first..first + rows.len());
        self.case.outputs.iter().copied().map(read).collect()
    }

    fn slot(&mut self) -> Vec<u8> {
        let part = MemoryPart::Slot { state: State(0), slot: SESSION };
        let mut bytes = vec![0; self.stage.part_bytes(part).expect("the slot is there")];
        self.stage.read_part(part, &mut bytes).expect("the slot is there");
        bytes
    }
}

/// Chunks of certain tokens and drafts, of which some are right: what comes out of all that were, and the state.
fn speculated(case: &Case, device: &CudaDevice, random: &mut Random) -> (Vec<Vec<u32>>, Vec<u8>) {
    let rows = case.rows_of(SESSION);
    let mut run = Speculating { case, stage: case.load(device), certain: 0, logged: 0 };
    let mut found = vec![Vec::new(); case.outputs.len()];
    let mut at = 0;
    while at < rows {
        let right = random.below(TOKENS + 1).min(rows - at - 1);
        let wrong = random.below(TOKENS + 1 - right);
        // Sometimes several tokens are certain, sometimes the chunk was sent ahead and none is.
        let more = random.below(4).min(rows - at - 1 - right);
        let behind_all = at == run.certain + run.logged;
        let ahead = right > 0 && run.logged + right + wrong < TOKENS && behind_all && random.below(2) == 0;
        let (end, uncertain) = match ahead {
            true => (at + right, run.logged + right + wrong),
            false => (at + 1 + more + right, right + wrong),
        };
        for (found, new) in found.iter_mut().zip(run.run(at..end, wrong, uncertain)) {
            found.extend(new);
        }
        at = end;
    }
    // The last token once more, this time certain, takes what is left in the log into the state.
    if run.certain < rows {
        run.run(rows - 1..rows, 0, 0);
    }
    (found, run.slot())
}

#[test]
fn drafts_that_are_rejected_leave_no_trace() {
    let mut case = delta_net(1, 2, 36, 4, &[1, 40], 21);
    case.logs = LogSpec { sessions: 2, tokens: TOKENS };
    let expected = case.run(&cpu(), Way { chunk: WHOLE, together: false });
    let expected = &expected[SESSION * case.outputs.len()..];
    let device = emulated(Order::Forwards);
    let mut plain = Speculating { case: &case, stage: case.load(&device), certain: 0, logged: 0 };
    assert!(plain.run(0..40, 0, 0) == expected);
    let state = plain.slot();
    for seed in 1..7 {
        let order = if seed % 2 == 0 { Order::Forwards } else { Order::Backwards };
        let (found, slot) = speculated(&case, &emulated(order), &mut Random(seed));
        assert!(found == expected, "seed {seed}: other results");
        assert!(slot == state, "seed {seed}: another state");
    }
}
