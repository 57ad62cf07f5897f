//! The end of the row: turns the wanted rows of a step into tokens or vectors. It alone keeps what sampling
//! needs; a row of logits never leaves it.

use std::collections::HashMap;

use paceline_compute::LoadedStage;
use paceline_compute::program::{Buffer, Program};
use paceline_proto::{
    Chunk, ChunkInput, ChunkResult, Outcome, Reused, SamplingSettings, SessionId, SessionSampler, StepId, Wanted,
};
use paceline_sampling::Sampler;

use crate::feedback::Feedback;
use crate::{Error, Result};

/// Where the results of a step lie on the device.
#[derive(Debug, Clone, Copy)]
struct Outputs {
    logits: Buffer,
    vocabulary: usize,
    hidden: Buffer,
    width: usize,
}

/// The samplers of all open sessions.
pub(crate) struct Tail {
    outputs: Option<Outputs>,
    /// Settings that cannot be used fail their own session, when it wants its first token.
    samplers: HashMap<SessionId, std::result::Result<Sampler, String>>,
    row: Vec<f32>,
}

impl Tail {
    pub(crate) fn new(program: &Program) -> Self {
        let outputs = program.logits.zip(program.hidden).map(|(logits, hidden)| Outputs {
            logits,
            vocabulary: program.width(logits),
            hidden,
            width: program.width(hidden),
        });
        Self { outputs, samplers: HashMap::new(), row: Vec::new() }
    }

    /// `reused` is checked already.
    pub(crate) fn open(
        &mut self,
        session: SessionId,
        settings: &SamplingSettings,
        generated_from: u32,
        reused: &Reused,
    ) -> Result<()> {
        let vocabulary = self.outputs()?.vocabulary;
        let known_from = reused.tokens - reused.last.len() as u32;
        let sampler = Sampler::resume(settings.clone(), vocabulary, generated_from)
            .and_then(|mut sampler| sampler.observe(known_from, &reused.last).map(|()| sampler))
            .map_err(|error| error.to_string());
        self.samplers.insert(session, sampler);
        Ok(())
    }

    /// What all samplers remember, in the order of their sessions.
    pub(crate) fn memories(&self) -> Vec<SessionSampler> {
        let memory = |(session, sampler): (&SessionId, &std::result::Result<Sampler, String>)| SessionSampler {
            session: *session,
            sampler: sampler.as_ref().map(Sampler::memory).map_err(String::clone),
        };
        let mut memories: Vec<SessionSampler> = self.samplers.iter().map(memory).collect();
        memories.sort_unstable_by_key(|sampler| sampler.session);
        memories
    }

    /// Takes over the samplers of another tail.
    pub(crate) fn restore(&mut self, memories: Vec<SessionSampler>) -> Result<()> {
        let vocabulary = self.outputs()?.vocabulary;
        for SessionSampler { session, sampler } in memories {
            let unusable = |error: paceline_sampling::Error| Error::Sampler { session, reason: error.to_string() };
            let sampler = match sampler {
                Ok(memory) => Ok(Sampler::restore(memory, vocabulary).map_err(unusable)?),
                Err(reason) => Err(reason),
            };
            self.samplers.insert(session, sampler);
        }
        Ok(())
    }

    pub(crate) fn close(&mut self, session: SessionId) {
        self.samplers.remove(&session);
    }

    /// The logits of the last step, `(rows, vocabulary)`.
    pub(crate) fn read_logits(&self, loaded: &mut dyn LoadedStage, rows: usize) -> Result<Vec<f32>> {
        let Outputs { logits, vocabulary, .. } = self.outputs()?;
        let mut values = vec![0.0; rows * vocabulary];
        loaded.read(logits, 0..rows, &mut values)?;
        Ok(values)
    }

    /// The results of all chunks of a step that has just been run.
    pub(crate) fn results(
        &mut self,
        loaded: &mut dyn LoadedStage,
        step: StepId,
        chunks: &[Chunk],
        feedback: &mut Feedback,
    ) -> Result<Vec<ChunkResult>> {
        let mut results = Vec::with_capacity(chunks.len());
        let mut wanted_row = 0;
        for chunk in chunks {
            let outcome = self.outcome(loaded, chunk, wanted_row)?;
            wanted_row += usize::from(!chunk.void && chunk.wanted != Wanted::Nothing);
            // The head waits for no token of a session that has closed.
            if chunk.wanted == Wanted::Sample && self.samplers.contains_key(&chunk.session) {
                let token = if let Outcome::Sampled(sampled) = &outcome { Some(sampled.token) } else { None };
                feedback.tell(chunk.session, step, token)?;
            }
            results.push(ChunkResult { session: chunk.session, outcome });
        }
        Ok(results)
    }

    fn outcome(&mut self, loaded: &mut dyn LoadedStage, chunk: &Chunk, wanted_row: usize) -> Result<Outcome> {
        if chunk.void {
            return Ok(Outcome::Void);
        }
        let sampler = self.samplers.get_mut(&chunk.session).ok_or(Error::UnknownSession { session: chunk.session })?;
        let sampler = match sampler {
            Ok(sampler) => sampler,
            Err(reason) => return Ok(Outcome::Failed(reason.clone())),
        };
        if let ChunkInput::Tokens(tokens) = &chunk.input
            && let Err(error) = sampler.observe(chunk.start, tokens)
        {
            return Ok(Outcome::Failed(error.to_string()));
        }
        let Some(Outputs { logits, vocabulary, hidden, width }) = self.outputs else { return Err(Error::NotTail) };
        match chunk.wanted {
            Wanted::Nothing => Ok(Outcome::Stored),
            Wanted::Vector => {
                let mut vector = vec![0.0; width];
                loaded.read(hidden, wanted_row..wanted_row + 1, &mut vector)?;
                Ok(Outcome::Vector(vector))
            }
            Wanted::Sample => {
                self.row.resize(vocabulary, 0.0);
                loaded.read(logits, wanted_row..wanted_row + 1, &mut self.row)?;
                let rows = u32::try_from(chunk.input.rows()).expect("a chunk has some thousand rows");
                let sampled = sampler.sample(chunk.start + rows, &mut self.row);
                Ok(sampled.map_or_else(|error| Outcome::Failed(error.to_string()), Outcome::Sampled))
            }
        }
    }

    fn outputs(&self) -> Result<Outputs> {
        self.outputs.ok_or(Error::NotTail)
    }
}
