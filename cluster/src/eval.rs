//! `paceline eval`: how well a model foresees and remembers a text here, for choosing types of keys and values on
//! evidence.

mod kv;
mod perplexity;
mod recall;

use std::sync::Arc;

use anyhow::{Context, Result};
use paceline_compute::cpu::CpuDevice;
use paceline_evaluation::perplexity::{ROWS, WANTED, Windows};
use paceline_evaluation::{Layout, ModelRun};
use paceline_gguf::{Gguf, KvType};
use paceline_text::{Special, Tokenizer};

use crate::cli::{EvalCommand, ReadingArgs};
use crate::{host, model, row};

/// A part of the King James Bible that the model inside this program was not trained on.
pub(crate) const TEXT: &str = include_str!("../models/heldout.txt");

/// Tokens per page; figures do not depend on it.
const PAGE_TOKENS: usize = 64;

/// Measures what is asked for.
pub(crate) fn eval(command: &EvalCommand) -> Result<()> {
    match command {
        EvalCommand::Perplexity(arguments) => perplexity::perplexity(arguments),
        EvalCommand::Kv(arguments) => kv::kv(arguments),
    }
}

/// A model and a text to read with it.
struct Reading {
    model: Arc<Gguf>,
    name: String,
    tokenizer: Arc<Tokenizer>,
    text: String,
    tokens: Vec<u32>,
    windows: Windows,
    arguments: ReadingArgs,
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy)]
struct Storage {
    key_value_types: [KvType; 2],
    rotated: bool,
}

impl Reading {
    fn open(arguments: &ReadingArgs) -> Result<Self> {
        let model = model::open(&arguments.model)?;
        let tokenizer = Arc::new(Tokenizer::from_gguf(&model).context("cannot use the model's vocabulary")?);
        let text = match &arguments.text {
            None => TEXT.to_owned(),
            Some(path) => {
                std::fs::read_to_string(path).with_context(|| format!("cannot read the text {}", path.display()))?
            }
        };
        let tokens = tokenizer.encode(&text, Special::Plain, tokenizer.adds_bos());
        let begin = if tokenizer.adds_bos() { tokenizer.bos() } else { None };
        let most = arguments.windows.map_or(usize::MAX, |windows| windows as usize);
        let windows = Windows { context: arguments.ctx as usize, begin, most };
        let name = model::name(&arguments.model);
        Ok(Self { model, name, tokenizer, text, tokens, windows, arguments: arguments.clone() })
    }

    /// Loads the model with room for some sessions of so many tokens.
    fn load(&self, storage: Storage, context: usize, sessions: usize) -> Result<ModelRun> {
        let threads = self.arguments.threads.unwrap_or_else(host::cores);
        let device = CpuDevice::new(threads, self.arguments.isa.map(row::kernels))?;
        let device = if storage.rotated { device } else { device.without_rotation() };
        let layout = Layout {
            key_value_types: storage.key_value_types,
            page_tokens: PAGE_TOKENS,
            // Whole pages for every session.
            context: context.next_multiple_of(PAGE_TOKENS),
            sessions,
            rows: ROWS,
            wanted: WANTED,
            overrides: model::overrides(&self.arguments.model),
            ..Layout::default()
        };
        Ok(ModelRun::new(&device, &self.model, layout)?)
    }
}
