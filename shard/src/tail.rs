//! The end of the row: turns the wanted rows of a step into tokens or vectors. It alone keeps what sampling
//! needs; a row of logits never leaves it.

use std::collections::HashMap;
use std::sync::Arc;

use paceline_compute::LoadedStage;
use paceline_compute::program::{Buffer, Program};
use paceline_grammar::Speller;
use paceline_proto::{
    Chunk, ChunkInput, ChunkResult, Outcome, Reused, SampledToken, SamplingSettings, SessionId, SessionSampler, StepId,
    Verified, Wanted,
};
use paceline_sampling::{Sampler, Vocabulary};

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
    /// How the model's tokens are spelled, for answers that must follow a grammar.
    speller: Option<Arc<Speller>>,
    /// Each session's newest token and its position, which a chunk sent ahead must begin with.
    newest: HashMap<SessionId, (u32, u32)>,
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
        Self { outputs, speller: None, newest: HashMap::new(), samplers: HashMap::new(), row: Vec::new() }
    }

    pub(crate) fn know(&mut self, speller: Arc<Speller>) {
        self.speller = Some(speller);
    }

    /// `reused` is checked already.
    pub(crate) fn open(
        &mut self,
        session: SessionId,
        settings: &SamplingSettings,
        generated_from: u32,
        reused: &Reused,
    ) -> Result<()> {
        let vocabulary = self.vocabulary()?;
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
        let vocabulary = self.vocabulary()?;
        let restored = memories.into_iter().map(|SessionSampler { session, sampler }| {
            let unusable = |error: paceline_sampling::Error| Error::Sampler { session, reason: error.to_string() };
            let sampler = match sampler {
                Ok(memory) => Ok(Sampler::restore(memory, vocabulary).map_err(unusable)?),
                Err(reason) => Err(reason),
            };
            Ok((session, sampler))
        });
        let restored: Vec<_> = restored.collect::<Result<_>>()?;
        self.samplers.extend(restored);
        Ok(())
    }

    pub(crate) fn close(&mut self, session: SessionId) {
        self.samplers.remove(&session);
        self.newest.remove(&session);
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
            if !chunk.void {
                wanted_row += chunk.wanted.wanted_rows(chunk.input.rows());
            }
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
        if is_ahead(chunk) && self.newest.get(&chunk.session) != first_token(chunk).as_ref() {
            return Ok(Outcome::Void);
        }
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
            Wanted::Sample | Wanted::Verify(_) => {
                self.row.resize(vocabulary, 0.0);
                let mut choose = |index: usize, position: u32| {
                    loaded.read(logits, wanted_row + index..wanted_row + index + 1, &mut self.row)?;
                    Ok(sampler.sample(position, &mut self.row).map_err(|error| error.to_string()))
                };
                let tokens = match sample_rows(chunk, &mut choose)? {
                    Ok(tokens) => tokens,
                    Err(reason) => return Ok(Outcome::Failed(reason)),
                };
                Ok(self.sampled(chunk, tokens))
            }
        }
    }

    fn vocabulary(&self) -> Result<Vocabulary<'_>> {
        Ok(Vocabulary { size: self.outputs()?.vocabulary, speller: self.speller.as_deref() })
    }

    /// The outcome of tokens that follow a chunk, the last of which is the session's newest.
    fn sampled(&mut self, chunk: &Chunk, mut tokens: Vec<SampledToken>) -> Outcome {
        let newest = tokens.last().map(|sampled| sampled.token).expect("at least one row is sampled");
        let first = end_of(chunk) + 1 - wanted_rows(chunk);
        self.newest.insert(chunk.session, (first + count(tokens.len() - 1), newest));
        match chunk.wanted {
            Wanted::Verify(_) => Outcome::Verified(Verified { tokens, drafted: Vec::new() }),
            _ => Outcome::Sampled(tokens.remove(0)),
        }
    }

    fn outputs(&self) -> Result<Outputs> {
        self.outputs.ok_or(Error::NotTail)
    }
}

/// Samples the wanted rows of a chunk, one after another for as long as the chosen token is the draft that follows.
/// `choose` gives the token at a position from one of the wanted rows, or says why there is none.
///
/// What cannot be sampled behind an accepted draft ends the tokens: it is met again when that draft is certain.
fn sample_rows(
    chunk: &Chunk,
    choose: &mut dyn FnMut(usize, u32) -> Result<std::result::Result<SampledToken, String>>,
) -> Result<std::result::Result<Vec<SampledToken>, String>> {
    let rows = wanted_rows(chunk) as usize;
    let drafts: &[u32] = match &chunk.input {
        ChunkInput::Tokens(tokens) => &tokens[tokens.len() + 1 - rows..],
        ChunkInput::Rows { .. } | ChunkInput::Sampled { .. } => &[],
    };
    let first = end_of(chunk) + 1 - count(rows);
    let mut tokens = Vec::with_capacity(rows);
    for index in 0..rows {
        match choose(index, first + count(index))? {
            Ok(sampled) => tokens.push(sampled),
            Err(reason) if tokens.is_empty() => return Ok(Err(reason)),
            Err(_) => break,
        }
        if drafts.get(index) != tokens.last().map(|sampled| &sampled.token) {
            break;
        }
    }
    Ok(Ok(tokens))
}

/// Was the chunk sent before it was known what it follows?
fn is_ahead(chunk: &Chunk) -> bool {
    chunk.wanted.drafts() as usize >= chunk.input.rows()
}

/// Where a chunk starts, and with which token.
fn first_token(chunk: &Chunk) -> Option<(u32, u32)> {
    match &chunk.input {
        ChunkInput::Tokens(tokens) => tokens.first().map(|token| (chunk.start, *token)),
        ChunkInput::Rows { .. } | ChunkInput::Sampled { .. } => None,
    }
}

/// The position behind a chunk's last row.
fn end_of(chunk: &Chunk) -> u32 {
    chunk.start + count(chunk.input.rows())
}

fn wanted_rows(chunk: &Chunk) -> u32 {
    count(chunk.wanted.wanted_rows(chunk.input.rows()))
}

fn count(rows: usize) -> u32 {
    u32::try_from(rows).expect("a chunk has some thousand rows")
}

#[cfg(test)]
mod tests;
