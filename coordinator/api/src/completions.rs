//! `POST /v1/completions`.

mod completion;
mod events;

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use paceline_coordinator::{Engine, Generate};
use paceline_text::{AnswerParser, Tokenizer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::answers::Answers;
use crate::error::{Error, Result};
use crate::head::Head;
use crate::json::Document;
use crate::prompt::{self, Prompt};
use crate::server::{Api, Host};
use crate::settings::{CommonFields, Delivery, MAX_LOGPROBS, integer};
use crate::unserved::UnservedFields;
use crate::wishes::AnswerShape;
use crate::{reuse, sse, transcript};

/// The most answers of one request, over all prompts.
const MAX_ANSWERS: usize = 128;

/// The fields that only text completions have.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct CompletionFields {
    prompt: Option<Prompts>,
    logprobs: Option<i64>,
    echo: Option<bool>,
}

/// One or several prompts, as text or as tokens.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "expected a string, a list of strings, a list of token ids or a list of such lists")]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<i64>),
    TokenLists(Vec<Vec<i64>>),
}

/// The whole request.
#[derive(ToSchema, Deserialize, Serialize)]
struct CompletionRequest {
    #[serde(flatten)]
    completion: CompletionFields,
    #[serde(flatten)]
    common: CommonFields,
}

impl Prompts {
    fn encode(self, api: &Api) -> Result<Vec<Vec<u32>>> {
        let text = |text: &String| prompt::encode_text(&api.engine, text, api.config.prompt_bytes);
        let vocabulary = api.engine.model().vocabulary;
        match self {
            Self::Text(prompt) => Ok(vec![text(&prompt)?]),
            Self::Texts(prompts) => prompts.iter().map(text).collect(),
            Self::Tokens(prompt) => Ok(vec![prompt::check_tokens("prompt", &prompt, vocabulary)?]),
            Self::TokenLists(prompts) => {
                let lists = prompts.iter().enumerate();
                lists
                    .map(|(index, tokens)| prompt::check_tokens(&format!("prompt[{index}]"), tokens, vocabulary))
                    .collect()
            }
        }
    }

    /// The prompts as texts.
    fn texts(&self, api: &Api) -> Result<Vec<String>> {
        let decode = |tokens: &[i64]| {
            let tokens = prompt::check_tokens("prompt", tokens, api.engine.tokenizer().vocabulary_size())?;
            Ok(api.engine.tokenizer().decode_with_special(&tokens)?)
        };
        match self {
            Self::Text(prompt) => Ok(vec![prompt.clone()]),
            Self::Texts(prompts) => Ok(prompts.clone()),
            Self::Tokens(prompt) => Ok(vec![decode(prompt)?]),
            Self::TokenLists(prompts) => prompts.iter().map(|tokens| decode(tokens)).collect(),
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(prompts) => prompts.len(),
            Self::TokenLists(prompts) => prompts.len(),
        }
    }

    fn check_count(&self, choices: usize) -> Result<()> {
        let answers = self.count() * choices;
        if (1..=MAX_ANSWERS).contains(&answers) {
            return Ok(());
        }
        let count = self.count();
        let problem = format!("{count} prompts with {choices} choices are {answers} answers, from 1 to {MAX_ANSWERS}");
        Err(Error::parameter("prompt", problem))
    }
}

/// What the answers are told with.
struct Reply {
    head: Head,
    tokenizer: Arc<Tokenizer>,
    delivery: Delivery,
    logprobs: bool,
    prompts: Vec<Prompt>,
    /// The texts of the prompts, where answers begin with them.
    echoes: Vec<String>,
}

impl Reply {
    fn new(engine: &Engine, delivery: Delivery, logprobs: bool, prompts: Vec<Prompt>) -> Self {
        let head = Head::new("cmpl", "text_completion", &engine.model().id);
        Self { head, tokenizer: Arc::clone(engine.tokenizer()), delivery, logprobs, prompts, echoes: Vec::new() }
    }

    /// Answers to all prompts.
    fn count(&self) -> usize {
        self.prompts.len() * self.delivery.choices
    }

    /// Completions are text and nothing else.
    fn parsers(&self) -> Vec<AnswerParser> {
        (0..self.count()).map(|_| AnswerShape::default().parser(String::new())).collect()
    }

    /// What an answer begins with.
    fn echo(&self, index: usize) -> &str {
        self.echoes.get(index / self.delivery.choices).map_or("", String::as_str)
    }

    /// The ids of the tokens of an answer's prompt, if they were asked for.
    fn prompt_token_ids(&self, index: usize) -> Option<&[u32]> {
        self.delivery.token_ids.then(|| &*self.prompts[index / self.delivery.choices].tokens)
    }
}

/// Continues texts.
#[utoipa::path(
    post,
    path = "/v1/completions",
    request_body = CompletionRequest,
    responses(
        (
            status = 200,
            description = "The answer, in one piece or as events",
            content((completion::TextCompletion = "application/json"), (String = "text/event-stream")),
        ),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn create(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &host.config).await?;
    let api = host.texts(document.model()?.as_deref()).await?;
    let (requests, reply) = Api::in_background(&api, move |api| prepare(api, &document)).await?;
    let answers = Answers::start(&api, &request, requests)?;
    if reply.delivery.stream {
        return sse::respond(answers, events::TextEvents::new(reply), &api.config).await;
    }
    let (transcripts, tally) = transcript::collect(answers, reply.parsers(), reply.delivery.choices).await?;
    tally.record();
    let completion = completion::TextCompletion::new(&reply, transcripts, &tally);
    Ok(reuse::tell(HttpResponse::Ok(), tally.reuse()).json(completion))
}

/// From the body to the work to be done; takes time with long prompts.
fn prepare(api: &Api, document: &Document) -> Result<(Vec<Generate>, Reply)> {
    document.read::<UnservedFields>()?.check(&["echo"])?;
    let fields: CompletionFields = document.read()?;
    let logprobs = integer("logprobs", fields.logprobs, 0, MAX_LOGPROBS)?.map(|count| count as u32);
    let (settings, delivery) = document.read::<CommonFields>()?.check(api, logprobs)?;
    let echo = fields.echo.unwrap_or(false);
    if echo && logprobs.is_some() {
        let problem = "echo is not served together with logprobs: those of the prompt's tokens are not computed";
        return Err(Error::unsupported("echo", problem));
    }
    let prompts = fields.prompt.ok_or_else(|| Error::parameter("prompt", "prompt is missing"))?;
    prompts.check_count(delivery.choices)?;
    let echoes = if echo { prompts.texts(api)? } else { Vec::new() };
    let prompts: Vec<Prompt> =
        prompts.encode(api)?.into_iter().map(|tokens| Prompt { tokens, ..Prompt::default() }).collect();
    let choices = 0..delivery.choices;
    let requests =
        prompts.iter().flat_map(|prompt| choices.clone().map(|choice| settings.generate(prompt, choice))).collect();
    Ok((requests, Reply { echoes, ..Reply::new(&api.engine, delivery, logprobs.is_some(), prompts) }))
}
