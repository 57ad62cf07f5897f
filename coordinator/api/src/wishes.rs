//! What a request wants of an answer besides its words: how much thinking, which tools. Every API has its own fields for
//! this; here is what they mean.

use paceline_proto::{ConstraintSettings, ThinkingSettings};
use paceline_text::{AnswerFormat, AnswerParser, ChatTemplate, Special, Tokenizer, ToolTable};
use serde_json::{Map, Value};

use crate::config::Defaults;
use crate::error::{Error, Result};
use crate::structure::{self, Structure};

/// What is wanted.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wishes {
    pub(crate) thinking: Thinking,
    pub(crate) tool_choice: ToolChoice,
    /// At most one call.
    pub(crate) one_call: bool,
    /// Reasoning stays in the text, with its tags.
    pub(crate) keep_tags: bool,
    /// What the text must look like.
    pub(crate) structure: Option<Structure>,
}

/// How much the model thinks before it answers. What is not said is up to the server's settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    /// Whether at all.
    pub(crate) enabled: Option<bool>,
    /// Roughly how much.
    pub(crate) effort: Option<Effort>,
    /// The most tokens.
    pub(crate) budget: Option<u32>,
}

/// Roughly how much thinking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
}

/// The names of efforts; the last ones all mean as much as the model wants.
const EFFORTS: [(&str, Effort); 8] = [
    ("none", Effort::None),
    ("minimal", Effort::Minimal),
    ("low", Effort::Low),
    ("medium", Effort::Medium),
    ("high", Effort::High),
    ("xhigh", Effort::High),
    ("max", Effort::High),
    ("default", Effort::High),
];

/// Who is to be called.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// Whoever the model wants, or nobody.
    #[default]
    Auto,
    /// Nobody.
    None,
    /// Somebody.
    Required,
    /// This one.
    Named(String),
}

/// How an answer is to be read, and what holds while it is made.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerShape {
    format: AnswerFormat,
    reasoning_open: bool,
    tools: Option<ToolTable>,
    one_call: bool,
    /// For the tail.
    pub(crate) thinking: Option<Box<ThinkingSettings>>,
    /// For the tail.
    pub(crate) constraint: Option<Box<ConstraintSettings>>,
}

impl Effort {
    /// The effort that `param` names.
    pub(crate) fn read(param: &str, name: &str) -> Result<Self> {
        let found = EFFORTS.iter().find(|(known, _)| *known == name).map(|(_, effort)| *effort);
        found.ok_or_else(|| {
            let names: Vec<&str> = EFFORTS.iter().map(|(name, _)| *name).collect();
            Error::parameter(param, format!("{param} is {name:?}, it must be one of {names:?}"))
        })
    }

    /// The name that templates know.
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }

    /// The most tokens of thinking, for models that know no efforts.
    fn budget(self) -> Option<u32> {
        match self {
            Self::None => Some(0),
            Self::Minimal => Some(512),
            Self::Low => Some(2048),
            Self::Medium => Some(8192),
            Self::High => None,
        }
    }
}

impl Thinking {
    /// Tells the template, in its own words, and gives what the tail must enforce: the most tokens.
    pub(crate) fn settle(
        self,
        defaults: &Defaults,
        template: &ChatTemplate,
        variables: &mut Map<String, Value>,
    ) -> Option<u32> {
        let told = variables.get("enable_thinking").or(variables.get("thinking")).and_then(Value::as_bool);
        let never = self.budget == Some(0) || self.effort == Some(Effort::None);
        let asked = self.budget.is_some() || self.effort.is_some();
        let enabled = told.or(self.enabled).or(never.then_some(false)).or(asked.then_some(true)).or(defaults.thinking);
        if let Some(enabled) = enabled {
            for name in ["enable_thinking", "thinking"].into_iter().filter(|name| template.knows_variable(name)) {
                variables.entry(name).or_insert(enabled.into());
            }
        }
        let mut effort = self.effort;
        if let Some(level) = effort
            && template.knows_variable("reasoning_effort")
            && level != Effort::None
        {
            variables.entry("reasoning_effort").or_insert(level.name().into());
            effort = None;
        }
        if enabled == Some(false) {
            // A template that cannot leave thinking out opens it; then it is closed at once.
            return Some(0);
        }
        self.budget.or(effort.and_then(Effort::budget)).or(defaults.thinking_budget)
    }
}

impl ToolChoice {
    /// Refuses a choice among tools that are not there.
    pub(crate) fn check(&self, tools: Option<&[Value]>) -> Result<()> {
        let missing = |problem: String| Err(Error::parameter("tool_choice", problem));
        match self {
            Self::Auto | Self::None => Ok(()),
            Self::Required if tools.is_none() => missing("tool_choice wants a call, but there are no tools".to_owned()),
            Self::Required => Ok(()),
            Self::Named(name) if ToolTable::new(tools.unwrap_or_default()).has(name) => Ok(()),
            Self::Named(name) => missing(format!("tool_choice names {name:?}, but tools has no such function")),
        }
    }
}

impl AnswerShape {
    /// The shape of answers to `prompt`, a rendered conversation.
    ///
    /// # Errors
    /// A budget that cannot be kept, because the model's vocabulary has no tokens for reasoning.
    pub(crate) fn new(
        wishes: &Wishes,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        prompt: &str,
        tools: Option<&[Value]>,
        budget: Option<u32>,
    ) -> Result<Self> {
        let mut format = template.answer_format().clone();
        let reasoning_open = format.is_reasoning_open(prompt);
        let thinking = thinking_settings(&format, tokenizer, reasoning_open, budget);
        let wanted = wishes.thinking.budget.or(wishes.thinking.effort.and_then(Effort::budget));
        if thinking.is_none() && reasoning_open && wanted.is_some() {
            let problem =
                "the model's vocabulary has no token that ends reasoning, so it cannot be limited; leave it out";
            return Err(Error::unsupported("thinking_budget_tokens", problem.to_owned()));
        }
        let constraint = structure::constraint(wishes, &format, tokenizer, tools)?;
        if constraint.is_some() && thinking.is_none() && reasoning_open {
            let problem = "the model's vocabulary has no token that ends reasoning, so what follows it cannot be held to a structure";
            return Err(Error::unsupported("response_format", format!("{problem}; turn thinking off")));
        }
        if wishes.keep_tags {
            format.reasoning = None;
        }
        let callable = tools.filter(|_| wishes.tool_choice != ToolChoice::None).map(ToolTable::new);
        Ok(Self { format, reasoning_open, tools: callable, one_call: wishes.one_call, thinking, constraint })
    }

    /// A parser for one answer, whose calls have ids that begin with `call_ids`.
    pub(crate) fn parser(&self, call_ids: String) -> AnswerParser {
        let parser = self.format.parser(self.reasoning_open, self.tools.clone(), call_ids);
        if self.one_call { parser.with_one_call() } else { parser }
    }
}

/// What the tail must know of reasoning, if the vocabulary has tokens for it.
fn thinking_settings(
    format: &AnswerFormat,
    tokenizer: &Tokenizer,
    is_open: bool,
    budget: Option<u32>,
) -> Option<Box<ThinkingSettings>> {
    let tags = format.reasoning.as_ref()?;
    let closes = tags.close.token?;
    let closing = format!("\n{}\n\n", tags.close.text);
    let closing = tokenizer.encode(&closing, Special::Parse, false);
    Some(Box::new(ThinkingSettings { is_open, opens: tags.open.token, closes, budget, closing }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paceline_text::{TokenKind, Vocabulary, VocabularyModel};
    use serde_json::json;

    use super::*;

    fn template(source: &str) -> ChatTemplate {
        let mut vocabulary = Vocabulary::new(VocabularyModel::Gpt2);
        vocabulary.pre = "gpt-2".to_owned();
        vocabulary.tokens = (b'!'..=b'~').map(|byte| char::from(byte).to_string().into()).collect();
        vocabulary.tokens.extend(["Ċ".into(), "Ġ".into()]);
        vocabulary.kinds = vec![TokenKind::Normal; vocabulary.tokens.len()];
        let tokenizer = Arc::new(Tokenizer::new(vocabulary).unwrap());
        ChatTemplate::new(source, &tokenizer).unwrap()
    }

    /// What a template is told, and what is enforced.
    fn settled(source: &str, thinking: Thinking, mut variables: Value) -> (Value, Option<u32>) {
        let budget = thinking.settle(&Defaults::default(), &template(source), variables.as_object_mut().unwrap());
        (variables, budget)
    }

    #[test]
    fn thinking_is_said_in_the_templates_words() {
        let qwen = "{% if enable_thinking %}{% endif %}";
        let none = Thinking::default();
        let effort = |effort| Thinking { effort: Some(effort), ..none };
        let budget = |budget| Thinking { budget: Some(budget), ..none };
        for (source, thinking, variables, wanted, limit) in [
            (qwen, none, json!({}), json!({}), None),
            (qwen, Thinking { enabled: Some(false), ..none }, json!({}), json!({"enable_thinking": false}), Some(0)),
            (qwen, budget(0), json!({}), json!({"enable_thinking": false}), Some(0)),
            (qwen, budget(7), json!({}), json!({"enable_thinking": true}), Some(7)),
            (qwen, effort(Effort::None), json!({}), json!({"enable_thinking": false}), Some(0)),
            (qwen, effort(Effort::Low), json!({}), json!({"enable_thinking": true}), Some(2048)),
            (qwen, effort(Effort::High), json!({}), json!({"enable_thinking": true}), None),
            (qwen, budget(7), json!({"enable_thinking": false}), json!({"enable_thinking": false}), Some(0)),
            ("{{ reasoning_effort }}", effort(Effort::Low), json!({}), json!({"reasoning_effort": "low"}), None),
            ("plain", effort(Effort::Low), json!({}), json!({}), Some(2048)),
            ("plain", effort(Effort::None), json!({}), json!({}), Some(0)),
        ] {
            assert_eq!(
                settled(source, thinking, variables.clone()),
                (wanted, limit),
                "{source} {thinking:?} {variables}"
            );
        }
    }

    #[test]
    fn efforts_have_names() {
        assert_eq!(Effort::read("reasoning_effort", "xhigh").unwrap(), Effort::High);
        let error = Effort::read("reasoning_effort", "much").unwrap_err().to_string();
        assert!(error.contains("reasoning_effort is \"much\"") && error.contains("medium"), "{error}");
    }
}
