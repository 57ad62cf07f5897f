//! How a model writes its answers, read off its chat template and vocabulary.

use super::{AnswerParser, ToolTable};
use crate::tokenizer::Tokenizer;

/// The tags around reasoning that are known, as opening and closing tag.
const KNOWN_TAGS: [(&str, &str); 3] =
    [("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")];

/// The token that Llama puts before calls.
const PYTHON_TAG: &str = "<|python_tag|>";

/// How a model writes its answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerFormat {
    /// Around reasoning; none if the model does not reason.
    pub reasoning: Option<ReasoningTags>,
    /// How tools are called.
    pub calls: CallSyntax,
    /// The token that is put before calls, where there is one ([`CallSyntax::Llama`]).
    pub call_token: Option<u32>,
    /// Whether the template shows tools to the model at all.
    pub shows_tools: bool,
}

/// What stands around reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningTags {
    /// Opens it.
    pub open: Tag,
    /// Closes it.
    pub close: Tag,
}

/// A tag, as a token where the vocabulary has one for it: text that only looks like the tag is then text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag {
    /// How it is spelled.
    pub text: &'static str,
    /// The token.
    pub token: Option<u32>,
}

/// How a model writes tool calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CallSyntax {
    /// `<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>`: Hermes, Qwen 2.5 and 3, and whoever knows nothing else.
    #[default]
    Hermes,
    /// `<tool_call><function=f><parameter=a>1</parameter></function></tool_call>`: Qwen 3.5 and later, Qwen Coder.
    QwenXml,
    /// `{"name": "f", "parameters": {"a": 1}}` with nothing around it: Llama 3.
    Llama,
}

impl CallSyntax {
    /// The syntax that `template` teaches the model.
    fn of_template(template: &str) -> Self {
        if template.contains("<function=") {
            Self::QwenXml
        } else if template.contains(PYTHON_TAG)
            || (template.contains("\"parameters\"") && !template.contains("<tool_call>"))
        {
            Self::Llama
        } else {
            Self::Hermes
        }
    }
}

impl Tag {
    fn new(text: &'static str, tokenizer: &Tokenizer) -> Self {
        Self { text, token: tokenizer.token_id(text) }
    }
}

impl AnswerFormat {
    /// The format of a model with this chat template.
    pub fn detect(template: &str, tokenizer: &Tokenizer) -> Self {
        let known = KNOWN_TAGS.iter().find(|(_, close)| template.contains(close));
        // A template may leave thinking to the model, which then has tokens for it.
        let spoken = || {
            KNOWN_TAGS.iter().find(|(open, close)| [open, close].iter().all(|tag| tokenizer.token_id(tag).is_some()))
        };
        let reasoning = known
            .or_else(spoken)
            .map(|(open, close)| ReasoningTags { open: Tag::new(open, tokenizer), close: Tag::new(close, tokenizer) });
        Self {
            reasoning,
            calls: CallSyntax::of_template(template),
            call_token: tokenizer.token_id(PYTHON_TAG),
            shows_tools: template.contains("tools"),
        }
    }

    /// Whether an answer to `prompt`, a rendered conversation, begins with reasoning, because the tag is open already.
    pub fn is_reasoning_open(&self, prompt: &str) -> bool {
        self.reasoning.as_ref().is_some_and(|tags| prompt.trim_end().ends_with(tags.open.text))
    }

    /// A parser for one answer. Without `tools` nothing is a call. Ids of calls are `call_ids` and a number, so it should be
    /// a text that no other answer has.
    pub fn parser(&self, reasoning_open: bool, tools: Option<ToolTable>, call_ids: String) -> AnswerParser {
        AnswerParser::new(self.clone(), reasoning_open, tools, call_ids)
    }
}
