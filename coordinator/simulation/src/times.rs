//! How long a stage computes a step: from measured points, from a formula, or with noise on top of either.

mod measured;
mod planned;

use std::time::Duration;

use paceline_core::planner::StepShape;
use paceline_proto::{Chunk, Step, Wanted};

pub use measured::{Measured, MeasuredStage};
pub use planned::Planned;

/// What a stage has to do for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepLoad {
    /// Rows of prompts.
    pub prefill_rows: usize,
    /// Chunks of one row of which a token is wanted.
    pub decode_rows: usize,
    /// Rows of which a token or a vector is wanted.
    pub wanted: usize,
    /// Sessions with rows in the step.
    pub sessions: usize,
    /// Tokens before each row and the row itself, summed over all rows: the keys that attention reads.
    pub keys: u64,
}

impl StepLoad {
    /// The load of a step's chunks that are not void.
    pub fn of(step: &Step) -> Self {
        let mut load = Self::default();
        step.chunks.iter().filter(|chunk| !chunk.void).for_each(|chunk| load.add(chunk));
        load
    }

    fn add(&mut self, chunk: &Chunk) {
        let rows = chunk.input.rows();
        if rows == 1 && chunk.wanted == Wanted::Sample {
            self.decode_rows += 1;
        } else {
            self.prefill_rows += rows;
        }
        self.wanted += usize::from(chunk.wanted != Wanted::Nothing);
        self.sessions += 1;
        let (start, rows) = (u64::from(chunk.start), rows as u64);
        self.keys += rows * start + rows * (rows + 1) / 2;
    }

    /// All rows.
    pub fn rows(&self) -> usize {
        self.prefill_rows + self.decode_rows
    }

    /// One row of each of so many sessions, which attends to `depth` tokens before it and to itself.
    pub fn decode(sessions: usize, depth: usize) -> Self {
        let keys = StepShape::decode(sessions, depth).context_tokens;
        Self { prefill_rows: 0, decode_rows: sessions, wanted: sessions, sessions, keys }
    }

    /// So many rows of one prompt after `depth` tokens; none is wanted.
    pub fn prefill(rows: usize, depth: usize) -> Self {
        let keys = StepShape::prefill(rows, depth).context_tokens;
        Self { prefill_rows: rows, decode_rows: 0, wanted: 0, sessions: rows.min(1), keys }
    }

    /// As the planner's cost model sees it.
    pub fn shape(&self) -> StepShape {
        StepShape { rows: self.rows(), wanted: self.wanted, sessions: self.sessions, context_tokens: self.keys }
    }
}

/// How long each stage of a row takes.
pub trait StageTimes {
    /// Stages in the row.
    fn stages(&self) -> usize;

    /// The time that a stage computes for a step; zero rows are a step too.
    fn time(&self, stage: usize, load: &StepLoad) -> Duration;
}

/// Every step costs so much on a stage, and every row some more.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// By stage.
    pub stages: Vec<LinearTimes>,
}

/// One stage's constants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearTimes {
    /// Of every step with rows: reading the weights.
    pub step: Duration,
    /// Of every row.
    pub row: Duration,
}

impl StageTimes for Linear {
    fn stages(&self) -> usize {
        self.stages.len()
    }

    fn time(&self, stage: usize, load: &StepLoad) -> Duration {
        let LinearTimes { step, row } = self.stages[stage];
        if load.rows() == 0 { Duration::ZERO } else { step + row * load.rows() as u32 }
    }
}

/// No time of a stage can be longer: a mistake in a file should not overflow the clock.
const MOST_MICROS: f64 = 1e12;

/// A duration of so many microseconds, from 0 to the most there may be.
pub(crate) fn micros(micros: f64) -> Duration {
    Duration::from_nanos((micros.clamp(0.0, MOST_MICROS) * 1e3) as u64)
}

#[cfg(test)]
mod tests {
    use paceline_proto::{ChunkInput, Epoch, SessionId, StepId};
    use uuid::Uuid;

    use super::*;

    fn chunk(start: u32, rows: usize, wanted: Wanted) -> Chunk {
        let session = SessionId(Uuid::from_u128(1));
        Chunk { session, start, input: ChunkInput::Tokens(vec![0; rows]), wanted, void: false }
    }

    fn load(chunks: Vec<Chunk>) -> StepLoad {
        StepLoad::of(&Step { epoch: Epoch(0), id: StepId(0), operations: Vec::new(), chunks })
    }

    #[test]
    fn a_load_counts_rows_and_keys_of_what_is_not_void() {
        let void = Chunk { void: true, ..chunk(0, 9, Wanted::Nothing) };
        let load = load(vec![chunk(10, 1, Wanted::Sample), void, chunk(4, 3, Wanted::Nothing)]);
        assert_eq!(load, StepLoad { prefill_rows: 3, decode_rows: 1, wanted: 1, sessions: 2, keys: 11 + 5 + 6 + 7 });
        assert_eq!((load.rows(), load.shape().context_tokens), (4, 29));
    }

    #[test]
    fn steps_of_one_kind_are_what_the_planner_takes_them_for() {
        let decode = load((0..3).map(|_| chunk(10, 1, Wanted::Sample)).collect());
        assert_eq!((decode, decode.shape()), (StepLoad::decode(3, 10), StepShape::decode(3, 10)));
        let prefill = load(vec![chunk(7, 5, Wanted::Nothing)]);
        assert_eq!((prefill, prefill.shape()), (StepLoad::prefill(5, 7), StepShape::prefill(5, 7)));
    }
}
