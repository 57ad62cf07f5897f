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
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

const LLAMA3_NAMES: [&str; 3] = ["llama-bpe", "llama3", "llama-v3"];

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
            VocabularyModel::Bert => vocabulary.read_normalizer(metadata)?,
        }
        vocabulary.read_special_tokens(metadata)?;
        Ok(vocabulary)
    }

    fn read_normalizer(&mut self, metadata: &Metadata) -> Result<()> {
        self.lowercase = metadata.get_bool(LOWERCASE)?.unwrap_or(self.lowercase);
        // Who keeps case keeps accents, where the file says nothing of them.
        self.strip_accents = metadata.get_bool(STRIP_ACCENTS)?.unwrap_or(self.lowercase);
        Ok(())
    }

    fn read_special_tokens(&mut self, metadata: &Metadata) -> Result<()> {
        match self.model {
            // Llama 3 begins every text with a token; its older files do not say so.
            VocabularyModel::Gpt2 => self.add_bos = LLAMA3_NAMES.contains(&self.pre.as_str()),
            // SentencePiece's own numbering, where the file does not say.
            VocabularyModel::Llama => (self.unknown, self.bos, self.eos) = (Some(0), Some(1), Some(2)),
            VocabularyModel::Bert => {
                let spelled = |name: &str| self.tokens.iter().position(|token| **token == *name).map(|id| id as u32);
                let [unknown, first, last] = ["[UNK]", "[CLS]", "[SEP]"].map(spelled);
                self.unknown = unknown;
                self.bos = metadata.get_u32("tokenizer.ggml.cls_token_id")?.or(first);
                self.eos = metadata.get_u32("tokenizer.ggml.seperator_token_id")?.or(last);
            }
        }
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

    /// How many tokens a model file's vocabulary has; much faster than to make its tokenizer.
    pub fn count_tokens(model: &Gguf) -> Result<usize> {
        Ok(model.metadata().strings(TOKENS)?.ok_or(Error::MissingKey(TOKENS))?.len())
    }
}

impl ChatTemplate {
    /// The chat template of a model file, unless `replacement` is given.
    pub fn from_gguf(model: &Gguf, replacement: Option<&str>, tokenizer: &Tokenizer) -> Result<Self> {
        let own = model.metadata().get_str(CHAT_TEMPLATE)?;
        Self::for_model(replacement.or(own), tokenizer)
    }
}

#[cfg(test)]
mod tests {
    use paceline_gguf::testing::GgufWriter;
    use paceline_gguf::{Array, Value};

    use super::*;
    use crate::special_tokens::Special;

    /// A small file of `model`, without the key `missing`.
    fn open(model: &str, missing: &str) -> Gguf {
        let tokens: &[&str] = &["<unk>", "<s>", "</s>", "a", "b", "ab"];
        let merges: &[&str] = &["a b"];
        let kinds: &[i32] = &[2, 3, 3, 1, 1, 1];
        let mut writer = GgufWriter::new();
        for (key, value) in [
            (MODEL, Value::from(model)),
            (PRE, "llama-bpe".into()),
            (TOKENS, tokens.into()),
            (MERGES, merges.into()),
            (TOKEN_TYPE, kinds.into()),
            (SCORES, Array::F32([0.0, 0.0, 0.0, -2.0, -2.0, -1.0].into()).into()),
            ("tokenizer.ggml.bos_token_id", 1_u32.into()),
            ("tokenizer.ggml.eos_token_id", 2_u32.into()),
            (CHAT_TEMPLATE, "{{ bos_token }}{{ eos_token }}".into()),
        ] {
            if key != missing {
                writer.metadata(key, value);
            }
        }
        Gguf::from_vec(writer.to_vec(), "test").unwrap()
    }

    #[test]
    fn both_families_are_read() {
        for (model, expected) in [("gpt2", vec![1, 5]), ("llama", vec![1, 0, 0, 0, 5])] {
            let tokenizer = Tokenizer::from_gguf(&open(model, "")).unwrap();
            assert_eq!(tokenizer.encode("ab", Special::Plain, true), expected);
            assert_eq!(tokenizer.end_of_generation(), [2]);
            assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
        }
    }

    #[test]
    fn missing_keys_are_named() {
        for (model, key) in
            [("gpt2", MODEL), ("gpt2", PRE), ("gpt2", TOKENS), ("gpt2", MERGES), ("llama", TOKENS), ("llama", SCORES)]
        {
            let error = Tokenizer::from_gguf(&open(model, key)).unwrap_err();
            assert!(matches!(error, Error::MissingKey(missing) if missing == key), "{error}");
        }
        assert!(matches!(Tokenizer::from_gguf(&open("t5", "")), Err(Error::UnknownModel(name)) if name == "t5"));
    }

    #[test]
    fn the_template_is_the_files_unless_replaced() {
        let model = open("gpt2", "");
        let tokenizer = Tokenizer::from_gguf(&model).unwrap();
        let render = |replacement| {
            let template = ChatTemplate::from_gguf(&model, replacement, &tokenizer).unwrap();
            template.render(&crate::RenderRequest::default()).unwrap()
        };
        assert_eq!(render(None), "<s></s>");
        assert_eq!(render(Some("mine")), "mine");
        let bare = open("gpt2", CHAT_TEMPLATE);
        assert!(matches!(ChatTemplate::from_gguf(&bare, None, &tokenizer), Err(Error::NoChatTemplate)));
    }
}
