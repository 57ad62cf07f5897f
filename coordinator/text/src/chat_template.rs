//! Chat templates: a conversation rendered to the text that the model was trained on.
//!
//! Templates are Jinja programs from untrusted model files, written for Python. They run on a budget of work that
//! also bounds their memory, and with Python's habits where MiniJinja's differ. What MiniJinja's fuel does not see is
//! the length of a list added to itself very often, and comparing or joining values nested very deep.

mod boundaries;
mod clock;
mod json;
mod manners;
mod messages;
mod python;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, ErrorKind, context};
use serde_json::Map;

pub use self::boundaries::EncodedChat;
use self::manners::Manners;
use crate::answer::AnswerFormat;
use crate::error::{Error, Result};
use crate::special_tokens::Special;
use crate::tokenizer::Tokenizer;

/// Work that one rendering may do: about one unit an instruction and one per 64 bytes made. Bounds memory at about
/// 128 MiB and time at about a second; real templates need a few hundred units a message.
const FUEL: u64 = 2_000_000;

/// Stack for one rendering, mapped as it is used: lists can be nested as deep as the fuel allows, and are dropped
/// level by level.
const STACK_BYTES: usize = 256 << 20;

/// Nesting of blocks, macros and loops.
const RECURSION_LIMIT: usize = 200;

/// Templates longer than this are refused; the longest in use have 30 KB.
pub const MAX_TEMPLATE_BYTES: usize = 1 << 20;

/// The format that models with `<|im_start|>` in their vocabulary understand.
const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

const NAME: &str = "chat template";

/// What to render.
#[derive(Debug, Clone, Copy, Default)]
pub struct RenderRequest<'a> {
    /// Messages as in the chat completions API: `role`, `content` (text, null or text parts), `tool_calls`, ...
    pub messages: &'a [serde_json::Value],
    /// Tool definitions as in the chat completions API.
    pub tools: Option<&'a [serde_json::Value]>,
    /// Whether the text ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Further variables for the template, such as `enable_thinking`.
    pub kwargs: Option<&'a Map<String, serde_json::Value>>,
    /// The time that `strftime_now` tells; the current time if none is given.
    pub now: Option<SystemTime>,
}

/// A compiled chat template.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
    format: AnswerFormat,
    /// Names that the template looks at.
    variables: BTreeSet<String>,
    /// Found out when first needed, which takes a few renderings.
    manners: Arc<OnceLock<Manners>>,
}

impl ChatTemplate {
    /// Compiles `source` for the vocabulary of `tokenizer`.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self> {
        if source.len() > MAX_TEMPLATE_BYTES {
            let problem = format!("{} bytes of source; at most {MAX_TEMPLATE_BYTES} are possible", source.len());
            return Err(Error::TemplateLimit(problem));
        }
        let mut environment = environment()?;
        environment
            .add_template_owned(NAME, python::without_generation_tags(source))
            .map_err(|error| Error::TemplateSyntax(error.to_string()))?;
        let variables = environment.get_template(NAME).map(|template| template.undeclared_variables(false));
        let variables = variables.unwrap_or_default().into_iter().collect();
        let spelling = |token: Option<u32>| token.and_then(|token| tokenizer.token_spelling(token)).map(str::to_owned);
        Ok(Self {
            environment,
            bos: spelling(tokenizer.bos()),
            eos: spelling(tokenizer.eos()),
            format: AnswerFormat::detect(source, tokenizer),
            variables,
            manners: Arc::default(),
        })
    }

    /// Whether the template looks at a variable of this name, such as `enable_thinking`.
    pub fn knows_variable(&self, name: &str) -> bool {
        self.variables.contains(name)
    }

    /// How a model writes answers that was trained on this template.
    pub fn answer_format(&self) -> &AnswerFormat {
        &self.format
    }

    /// Compiles the model's own template, or ChatML if it has none but its vocabulary is ChatML's.
    pub fn for_model(source: Option<&str>, tokenizer: &Tokenizer) -> Result<Self> {
        match source {
            Some(source) => Self::new(source, tokenizer),
            None if speaks_chatml(tokenizer) => Self::new(CHATML, tokenizer),
            None => Err(Error::NoChatTemplate),
        }
    }

    /// Renders a conversation. Encode the text with [`Special::Parse`] and without adding a beginning token.
    pub fn render(&self, request: &RenderRequest<'_>) -> Result<String> {
        let messages = messages::normalize(request.messages)?;
        let manners = self.manners.get_or_init(|| Manners::of(self));
        self.render_context(self.context(request, manners.apply(messages)))
    }

    /// Renders what the template may refuse.
    fn render_as_it_is(&self, request: &RenderRequest<'_>) -> Result<String> {
        self.render_context(self.context(request, messages::normalize(request.messages)?))
    }

    fn render_context(&self, context: Value) -> Result<String> {
        std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name(NAME.to_owned()).stack_size(STACK_BYTES);
            let rendering = builder.spawn_scoped(scope, || self.render_here(context));
            let rendering =
                rendering.map_err(|error| Error::TemplateLimit(format!("no thread to render on: {error}")))?;
            rendering.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn render_here(&self, context: Value) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(|error| explain(&error))?;
        template.render(context).map_err(|error| explain(&error))
    }

    /// How much (in bytes) of `rendered`, which is what [`render`](Self::render) gave for `request`, stands before
    /// the generation prompt. Nothing if the template renders the conversation differently without one.
    pub fn stable_boundary(&self, request: &RenderRequest<'_>, rendered: &str) -> Result<Option<usize>> {
        if !request.add_generation_prompt {
            return Ok(Some(rendered.len()));
        }
        let conversation = self.render(&RenderRequest { add_generation_prompt: false, ..*request })?;
        Ok(rendered.starts_with(&conversation).then_some(conversation.len()))
    }

    fn context(&self, request: &RenderRequest<'_>, messages: Vec<serde_json::Value>) -> Value {
        let now = request.now.unwrap_or_else(SystemTime::now);
        let own = context! {
            messages => Value::from(Serde(messages)),
            // Python callers pass these always; templates ask whether they are none.
            tools => request.tools.map(|tools| Value::from(Serde(tools))),
            documents => Value::from(()),
            add_generation_prompt => request.add_generation_prompt,
            bos_token => self.bos.as_deref().unwrap_or(""),
            eos_token => self.eos.as_deref().unwrap_or(""),
            strftime_now => Value::from_function(move |format: String| clock::format(now, &format)),
        };
        match request.kwargs {
            Some(kwargs) => context! { ..own, ..Value::from(Serde(kwargs)) },
            None => own,
        }
    }
}

/// Whether both of ChatML's brackets are tokens.
fn speaks_chatml(tokenizer: &Tokenizer) -> bool {
    ["<|im_start|>", "<|im_end|>"].iter().all(|bracket| tokenizer.encode(bracket, Special::Parse, false).len() == 1)
}

/// Jinja as Hugging Face sets it up.
fn environment() -> Result<Environment<'static>> {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    let mut environment = Environment::new();
    environment.set_syntax(syntax.build().expect("the delimiters are the default ones"));
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    python::install(&mut environment);
    Ok(environment)
}

/// Finds out whose fault it is that a template failed.
fn explain(error: &minijinja::Error) -> Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(python::Raised(message)) = current.downcast_ref() {
            return Error::TemplateRaised(message.clone());
        }
        if let Some(current) = current.downcast_ref::<minijinja::Error>()
            && (current.kind() == ErrorKind::OutOfFuel || current.detail() == Some("recursion limit exceeded"))
        {
            return Error::TemplateLimit(error.to_string());
        }
        cause = current.source();
    }
    Error::TemplateFailed(error.to_string())
}
