//! A step's rows as the device wants them, laid out from the chunks that are still wanted.

use std::ops::Range;

use paceline_compute::device::NO_TOKEN;
use paceline_proto::{Chunk, ChunkInput, Payload};

use crate::stage::Place;
use crate::{Error, Result};

/// The rows of one step; kept from step to step for its capacity.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// First stage: one per row.
    pub(crate) tokens: Vec<u32>,
    /// First stage: rows that have no token; other stages: all rows.
    pub(crate) vectors: Vec<f32>,
    /// One per row.
    pub(crate) positions: Vec<[u32; 4]>,
    /// Rows whose results are wanted.
    pub(crate) wanted: Vec<u32>,
    /// What the frame carried, later what the stage passes on.
    stream: Vec<f32>,
}

/// The rows that a frame carried, handed out chunk by chunk.
#[derive(Debug)]
pub(crate) struct Carried {
    values: usize,
    taken: usize,
    width: usize,
}

impl Carried {
    /// The place of the next `rows` rows in the stream.
    pub(crate) fn take(&mut self, rows: usize) -> Result<Range<usize>> {
        let end = self.taken.saturating_add(rows.saturating_mul(self.width));
        if end > self.values {
            return Err(Error::Rows { found: self.values, expected: end });
        }
        let range = self.taken..end;
        self.taken = end;
        Ok(range)
    }

    /// Checks that nothing is left over.
    pub(crate) fn finish(self) -> Result<()> {
        if self.taken == self.values {
            return Ok(());
        }
        Err(Error::Rows { found: self.values, expected: self.taken })
    }
}

impl Rows {
    /// Forgets the last step and reads what the frame carries, which must be rows of `width` values.
    pub(crate) fn begin(&mut self, payload: &Payload, width: usize) -> Result<Carried> {
        self.tokens.clear();
        self.vectors.clear();
        self.positions.clear();
        self.wanted.clear();
        self.stream.clear();
        let Payload::Host { width: found, rows } = payload;
        if !rows.is_empty() && *found as usize != width {
            return Err(Error::Width { found: *found as usize, expected: width });
        }
        payload.read_rows(&mut self.stream);
        Ok(Carried { values: self.stream.len(), taken: 0, width })
    }

    /// Adds the rows of a chunk, which has some; `carried` is where its vectors lie in what the frame carried.
    pub(crate) fn add(&mut self, chunk: &Chunk, place: Place, carried: Range<usize>) -> Result<()> {
        self.vectors.extend_from_slice(&self.stream[carried]);
        match &chunk.input {
            ChunkInput::Tokens(tokens) => self.add_tokens(chunk.start, tokens, place),
            ChunkInput::Rows { positions } => self.add_vectors(positions, place),
            ChunkInput::Sampled { step } => {
                return Err(Error::Unresolved { session: chunk.session, step: *step });
            }
        }
        if place.last {
            let end = self.positions.len();
            let wanted = end - chunk.wanted.wanted_rows(chunk.input.rows())..end;
            self.wanted.extend(wanted.map(|row| u32::try_from(row).expect("a step has some thousand rows")));
        }
        Ok(())
    }

    /// Room for the activations that the stage passes on.
    pub(crate) fn stream(&mut self, values: usize) -> &mut [f32] {
        self.stream.resize(values, 0.0);
        &mut self.stream
    }

    fn add_tokens(&mut self, start: u32, tokens: &[u32], place: Place) {
        let positions = (start..).take(tokens.len());
        self.positions.extend(positions.map(|position| [position, position, position, 0]));
        if place.first {
            self.tokens.extend_from_slice(tokens);
        }
    }

    fn add_vectors(&mut self, positions: &[[u32; 4]], place: Place) {
        self.positions.extend_from_slice(positions);
        if place.first {
            self.tokens.extend(std::iter::repeat_n(NO_TOKEN, positions.len()));
        }
    }
}
