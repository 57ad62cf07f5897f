//! Texts to vectors: a model that reads whole texts, and remembers nothing of them.
//!
//! Read [`Encoder`] first. Texts are packed into steps (`steps`); what a step leaves of a text's rows is pooled into one
//! vector. [`service`] runs an encoder on a thread of its own for whoever asks. None of this touches sessions, or the
//! memories of any other model.

mod rounds;
pub mod service;
mod steps;

use std::sync::Arc;

use paceline_compute::device::{ChunkLog, ChunkRows, LogSpec, MemoryOperation, MemorySpec, MemoryUse, StepInputs};
use paceline_compute::program::Buffer;
use paceline_compute::{Device, LoadedStage};
use paceline_gguf::{EncoderShape, Gguf, KvType, Pooling};
use paceline_model::Overrides;
use paceline_proto::EncodeText;

use self::steps::{Piece, cut};
use crate::{Error, Result};

/// Tokens per page. Texts are short, and each begins a page of its own.
const PAGE_TOKENS: usize = 16;

/// The most texts of a step: each may leave a page nearly empty.
const STEP_TEXTS: usize = 64;

/// How an encoder is loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderSettings {
    /// How rows are pooled, instead of what the file says.
    pub pooling: Option<Pooling>,
    /// The most tokens of a text; the model's own limit holds besides.
    pub context: usize,
    /// Tokens of a step. Models that see whole texts at once have room for the longest one in any case.
    pub rows: usize,
    /// How keys and values are stored while a text is read.
    pub key_value_type: KvType,
    /// What replaces the file's settings.
    pub overrides: Overrides,
}

/// A model that makes one vector of each text, or one score of each pair of texts.
pub struct Encoder {
    loaded: Box<dyn LoadedStage>,
    hidden: Buffer,
    shape: EncoderShape,
    context: usize,
}

impl EncoderSettings {
    /// The most tokens of a text of this model.
    pub fn context_of(&self, shape: &EncoderShape) -> usize {
        self.context.clamp(1, shape.context_length)
    }

    /// What is reserved for a model of this shape.
    pub fn memory(&self, shape: &EncoderShape) -> MemorySpec {
        let context = self.context_of(shape);
        let rows = if shape.bidirectional { self.rows.max(context) } else { self.rows.max(1) };
        let texts = STEP_TEXTS.min(rows);
        let slots = if shape.layers.iter().all(paceline_gguf::Layer::is_attention) { 0 } else { texts };
        MemorySpec {
            page_tokens: PAGE_TOKENS,
            // A long text that goes on, and the others of its step.
            pages: context.div_ceil(PAGE_TOKENS) + rows.div_ceil(PAGE_TOKENS) + texts,
            slots,
            key_type: self.key_value_type,
            value_type: self.key_value_type,
            rows,
            wanted: if shape.pooling == Pooling::Mean { rows } else { texts },
            logs: LogSpec::NONE,
        }
    }
}

impl Encoder {
    /// Loads an encoder. `progress` is called with the bytes of each tensor read.
    ///
    /// # Errors
    /// A model that cannot be read as an encoder; memory that cannot be had.
    pub fn load(
        device: &dyn Device,
        model: &Arc<Gguf>,
        settings: &EncoderSettings,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let (program, shape) = paceline_model::record_encoder(model, settings.pooling, &settings.overrides)?;
        let hidden = program.hidden.ok_or(Error::NotTail)?;
        let loaded = device.load(program, model, settings.memory(&shape), progress)?;
        Ok(Self { loaded, hidden, context: settings.context_of(&shape), shape })
    }

    /// What it was loaded as.
    pub fn shape(&self) -> &EncoderShape {
        &self.shape
    }

    /// The most tokens of a text.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Tokens that one step has room for.
    pub fn step_tokens(&self) -> usize {
        self.loaded.memory().rows
    }

    /// Bytes it occupies.
    pub fn memory_use(&self) -> MemoryUse {
        self.loaded.memory_use()
    }

    /// The vectors of `texts`, as pooled and not normalized; of pairs, one score. Whatever else is read with it, a text has
    /// the same vector, bit for bit.
    ///
    /// # Errors
    /// A text without tokens or with too many, or with a token that the model does not have. No text is read then.
    pub fn encode(&mut self, texts: &[EncodeText]) -> Result<Vec<Vec<f32>>> {
        texts.iter().try_for_each(|text| self.check(text))?;
        let lengths: Vec<usize> = texts.iter().map(|text| text.tokens.len()).collect();
        let width = self.loaded.program().width(self.hidden);
        let mut pools = vec![vec![0.0_f64; width]; texts.len()];
        for pieces in cut(&lengths, self.loaded.memory().rows, STEP_TEXTS) {
            self.step(texts, &pieces, &mut pools)?;
        }
        let rows = |length: usize| if self.shape.pooling == Pooling::Mean { length as f64 } else { 1.0 };
        let vector =
            |(pool, length): (Vec<f64>, usize)| pool.into_iter().map(|sum| (sum / rows(length)) as f32).collect();
        Ok(pools.into_iter().zip(lengths).map(vector).collect())
    }

    /// Refuses a text that the model cannot read.
    pub(crate) fn check(&self, text: &EncodeText) -> Result<()> {
        let (found, limit) = (text.tokens.len(), self.context);
        if found == 0 {
            return Err(Error::EmptyText);
        }
        if found > limit {
            return Err(Error::OverLimit { what: "tokens in a text", found, limit });
        }
        let (kinds, second) = (self.shape.token_kinds, text.second.is_some());
        if second && kinds < 2 {
            return Err(Error::NoPairs);
        }
        match text.tokens.iter().find(|token| **token as usize >= self.shape.vocabulary) {
            Some(token) => Err(Error::UnknownToken { token: *token, vocabulary: self.shape.vocabulary }),
            None => Ok(()),
        }
    }

    /// Runs one step, and adds what it leaves of each text to the text's pool.
    fn step(&mut self, texts: &[EncodeText], pieces: &[Piece], pools: &mut [Vec<f64>]) -> Result<()> {
        let pages = pages_of(texts, pieces);
        let (mut chunks, mut tokens, mut positions, mut wanted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (slot, (piece, pages)) in pieces.iter().zip(&pages).enumerate() {
            let (first_row, start) = (tokens.len(), piece.tokens.start);
            let text = &texts[piece.text];
            let log = ChunkLog::default();
            chunks.push(ChunkRows { first_row, rows: piece.tokens.len(), start, slot, pages, log });
            tokens.extend_from_slice(&text.tokens[piece.tokens.clone()]);
            positions.extend(piece.tokens.clone().map(|at| [at as u32, at as u32, at as u32, text.kind(at)]));
            let kept = self.kept(piece, text.tokens.len()).map(|at| (at - start + first_row) as u32);
            wanted.extend(kept.map(|row| (row, piece.text)));
        }
        self.clear_states(pieces)?;
        let rows: Vec<u32> = wanted.iter().map(|(row, _)| *row).collect();
        let (tokens, positions) = (&tokens[..], &positions[..]);
        self.loaded.run(&StepInputs { chunks: &chunks, tokens, vectors: &[], positions, wanted: &rows })?;
        let mut row = vec![0.0; self.loaded.program().width(self.hidden)];
        for (index, (_, text)) in wanted.iter().enumerate() {
            self.loaded.read(self.hidden, index..index + 1, &mut row)?;
            pools[*text].iter_mut().zip(&row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        Ok(())
    }

    /// Which positions of a piece of a text of `length` tokens are pooled.
    fn kept(&self, piece: &Piece, length: usize) -> std::ops::Range<usize> {
        let std::ops::Range { start, end } = piece.tokens;
        match self.shape.pooling {
            Pooling::Mean => start..end,
            Pooling::First | Pooling::Rank if start == 0 => 0..1,
            Pooling::Last if end == length => end - 1..end,
            _ => start..start,
        }
    }

    /// Texts that begin have no state. One that goes on is alone in the first slot.
    fn clear_states(&mut self, pieces: &[Piece]) -> Result<()> {
        if self.loaded.memory().slots == 0 {
            return Ok(());
        }
        for (slot, _) in pieces.iter().enumerate().filter(|(_, piece)| piece.tokens.start == 0) {
            self.loaded.apply(MemoryOperation::ClearState { slot })?;
        }
        Ok(())
    }
}

/// The pages of each piece: the first text's begin with page 0, so that it finds them again where it goes on.
fn pages_of(texts: &[EncodeText], pieces: &[Piece]) -> Vec<Vec<u32>> {
    let mut next = 0;
    let pages = pieces.iter().map(|piece| {
        let first = next;
        next += texts[piece.text].tokens.len().div_ceil(PAGE_TOKENS) as u32;
        (first..next).collect()
    });
    pages.collect()
}
