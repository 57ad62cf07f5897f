//! Reading vocabularies and templates from model files.

use paceline_gguf::{Gguf, Metadata};

use crate::chat_template::ChatTemplate;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use crate::vocabulary::{TokenKind, Vocabulary, VocabularyModel};

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

impl Vocabulary {
    /// The vocabulary in the metadata of a model file.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let model = metadata.get_str(MODEL)?.ok_or(Error::MissingKey(MODEL))?;
        let model = VocabularyModel::from_name(model)?;
        let mut vocabulary = Self::new(model);
        vocabulary.tokens = strings(metadata, TOKENS)?;
        if let Some(kinds) = metadata.i32s(TOKEN_TYPE)? {
            vocabulary.kinds = kinds.into_iter().map(TokenKind::from_gguf).collect();
        }
        match model {
            VocabularyModel::Gpt2 => {
                vocabulary.pre = metadata.get_str(PRE)?.ok_or(Error::MissingKey(PRE))?.to_owned();
                vocabulary.merges = strings(metadata, MERGES)?;
            }
            VocabularyModel::Llama => {
                vocabulary.scores = metadata.f32s(SCORES)?.ok_or(Error::MissingKey(SCORES))?;
            }
        }
        vocabulary.read_special_tokens(metadata)?;
        Ok(vocabulary)
    }

    fn read_special_tokens(&mut self, metadata: &Metadata) -> Result<()> {
        for (place, key) in [
            (&mut self.bos, "tokenizer.ggml.bos_token_id"),
            (&mut self.eos, "tokenizer.ggml.eos_token_id"),
            (&mut self.eot, "tokenizer.ggml.eot_token_id"),
            (&mut self.eom, "tokenizer.ggml.eom_token_id"),
            (&mut self.unknown, "tokenizer.ggml.unknown_token_id"),
        ] {
            *place = metadata.get_u32(key)?.or(*place);
        }
        for (place, key) in [
            (&mut self.add_bos, "tokenizer.ggml.add_bos_token"),
            (&mut self.add_eos, "tokenizer.ggml.add_eos_token"),
            (&mut self.add_space_prefix, "tokenizer.ggml.add_space_prefix"),
        ] {
            *place = metadata.get_bool(key)?.unwrap_or(*place);
        }
        Ok(())
    }
}

fn strings(metadata: &Metadata, key: &'static str) -> Result<Vec<Box<str>>> {
    let strings = metadata.strings(key)?.ok_or(Error::MissingKey(key))?;
    Ok(strings.iter().map(Box::from).collect())
}

impl Tokenizer {
    /// The tokenizer of a model file.
    pub fn from_gguf(model: &Gguf) -> Result<Self> {
        Self::new(Vocabulary::from_metadata(model.metadata())?)
    }
}

impl ChatTemplate {
    /// The chat template of a model file, unless `replacement` is given.
    pub fn from_gguf(model: &Gguf, replacement: Option<&str>, tokenizer: &Tokenizer) -> Result<Self> {
        let own = model.metadata().get_str(CHAT_TEMPLATE)?;
        Self::for_model(replacement.or(own), tokenizer)
    }
}
