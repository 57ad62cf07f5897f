//! Grammars as text.

use llguidance::api::TopLevelGrammar;
use serde_json::{Value, json};

use crate::{Error, Result};

/// Longer grammars are refused: they travel with sessions, and a schema of this length is no schema.
pub const MAX_GRAMMAR_BYTES: usize = 512 << 10;

/// White space between the parts of JSON: some, so that a model may write as it is used to, but not without end.
const WHITE_SPACE: &str = r"[ \n]{0,24}";

/// What a text must look like. It is not checked before a [`Speller`](crate::Speller) makes a follower of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grammar {
    text: String,
}

impl Grammar {
    /// JSON that is valid under `schema`.
    ///
    /// # Errors
    /// A schema that is too long.
    pub fn json_schema(schema: &Value) -> Result<Self> {
        Self::new(&TopLevelGrammar::from_json_schema(spaced(schema.clone())))
    }

    /// Any JSON object.
    pub fn json_object() -> Self {
        Self::json_schema(&json!({"type": "object"})).expect("it is short")
    }

    /// Texts that match a regular expression from beginning to end.
    ///
    /// # Errors
    /// An expression that is too long.
    pub fn regex(expression: &str) -> Result<Self> {
        Self::new(&TopLevelGrammar::from_regex(expression))
    }

    /// One of these texts.
    ///
    /// # Errors
    /// No texts, or too many.
    pub fn choice<S: AsRef<str>>(choices: &[S]) -> Result<Self> {
        if choices.is_empty() {
            return Err(Error::Grammar("there is nothing to choose from".to_owned()));
        }
        let choices: Vec<String> = choices.iter().map(|choice| quoted(choice.as_ref())).collect();
        Self::lark(&format!("start: {}", choices.join(" | ")))
    }

    /// A grammar in the syntax of Lark, as `llguidance` has it.
    ///
    /// # Errors
    /// A grammar that is too long.
    pub fn lark(text: &str) -> Result<Self> {
        Self::new(&TopLevelGrammar::from_lark(text.to_owned()))
    }

    /// A grammar that was sent as text.
    ///
    /// # Errors
    /// A text that is too long.
    pub fn from_text(text: String) -> Result<Self> {
        match text.len() {
            bytes if bytes > MAX_GRAMMAR_BYTES => Err(Error::TooLong { bytes, limit: MAX_GRAMMAR_BYTES }),
            _ => Ok(Self { text }),
        }
    }

    /// The grammar as text.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn new(grammar: &TopLevelGrammar) -> Result<Self> {
        Self::from_text(serde_json::to_string(grammar).map_err(|error| Error::Grammar(error.to_string()))?)
    }

    pub(crate) fn parse(&self) -> Result<TopLevelGrammar> {
        serde_json::from_str(&self.text).map_err(|error| Error::Grammar(error.to_string()))
    }
}

/// A text as a grammar in Lark's syntax writes it.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The schema with our rule about white space, unless it has one of its own.
fn spaced(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("x-guidance").or_insert_with(|| json!({"whitespace_pattern": WHITE_SPACE}));
    }
    schema
}
