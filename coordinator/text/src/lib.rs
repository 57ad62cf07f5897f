//! Tokenizer, chat templates, incremental detokenizing, stop strings.
//!
//! A [`Tokenizer`] is built once from a model file's [`Vocabulary`] and shared. A request's messages are rendered by
//! the model's [`ChatTemplate`], encoded to tokens, and each session holds a [`TextStream`] that turns the tokens of
//! the answer back into text, piece by piece, and watches for stop strings. An [`AnswerParser`] tells reasoning, text and
//! tool calls in that text apart.

mod answer;
mod byte_alphabet;
mod byte_pairs;
mod chat_template;
mod client_noise;
mod detokenizer;
mod encoding;
mod error;
mod gguf;
mod merging;
mod pretokenizer;
mod sentence_piece;
mod special_tokens;
mod stop_strings;
#[cfg(test)]
mod testing;
mod text_stream;
mod tokenizer;
mod vocabulary;
mod word_piece;

pub use answer::{
    Answer, AnswerFormat, AnswerParser, CallRule, CallSyntax, Callable, Part, ReasoningTags, Tag, ToolCall, ToolTable,
};
pub use chat_template::{ChatTemplate, EncodedChat, MAX_TEMPLATE_BYTES, RenderRequest};
pub use client_noise::{ClientNoise, RemovedNoise};
pub use detokenizer::Detokenizer;
pub use error::{Error, Result};
pub use special_tokens::Special;
pub use stop_strings::{Emit, MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS, StopStrings};
pub use text_stream::{Mark, Piece, TextStream};
pub use tokenizer::Tokenizer;
pub use vocabulary::{TokenKind, Vocabulary, VocabularyModel};
