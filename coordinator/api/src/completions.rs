//! `POST /v1/completions`.

mod completion;
mod events;

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use paceline_coordinator::{Engine, Generate};
use paceline_text::Tokenizer;
use serde::Deserialize;

use crate::answers::Answers;
use crate::error::{Error, Result};
use crate::head::Head;
use crate::json::Document;
use crate::prompt::{self, Prompt};
use crate::server::Api;
use crate::settings::{CommonFields, Delivery, MAX_LOGPROBS, integer};
use crate::unserved::UnservedFields;
use crate::{reuse, sse, transcript};

/// The most answers of one request, over all prompts.
const MAX_ANSWERS: usize = 128;

/// The fields that only text completions have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CompletionFields {
    prompt: Option<Prompts>,
    logprobs: Option<i64>,
}

/// One or several prompts, as text or as tokens.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string, a list of strings, a list of token ids or a list of such lists")]
enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<i64>),
    TokenLists(Vec<Vec<i64>>),
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
}

impl Reply {
    fn new(engine: &Engine, delivery: Delivery, logprobs: bool, prompts: Vec<Prompt>) -> Self {
        let head = Head::new("cmpl", "text_completion", &engine.model().id);
        Self { head, tokenizer: Arc::clone(engine.tokenizer()), delivery, logprobs, prompts }
    }

    /// Answers to all prompts.
    fn count(&self) -> usize {
        self.prompts.len() * self.delivery.choices
    }

    /// The ids of the tokens of an answer's prompt, if they were asked for.
    fn prompt_token_ids(&self, index: usize) -> Option<&[u32]> {
        self.delivery.token_ids.then(|| &*self.prompts[index / self.delivery.choices].tokens)
    }
}

/// Continues texts.
pub(crate) async fn create(api: web::Data<Api>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &api.config).await?;
    let (requests, reply) = Api::in_background(&api, move |api| prepare(api, &document)).await?;
    let answers = Answers::start(&api.engine, requests);
    if reply.delivery.stream {
        return sse::respond(answers, events::TextEvents::new(reply), &api.config).await;
    }
    let (transcripts, tally) = transcript::collect(answers, reply.count(), reply.delivery.choices).await?;
    tally.record();
    let completion = completion::TextCompletion::new(&reply, transcripts, &tally);
    Ok(reuse::tell(HttpResponse::Ok(), tally.reuse()).json(completion))
}

/// From the body to the work to be done; takes time with long prompts.
fn prepare(api: &Api, document: &Document) -> Result<(Vec<Generate>, Reply)> {
    document.read::<UnservedFields>()?.check()?;
    let fields: CompletionFields = document.read()?;
    let logprobs = integer("logprobs", fields.logprobs, 0, MAX_LOGPROBS)?.map(|count| count as u32);
    let (settings, delivery) = document.read::<CommonFields>()?.check(api, logprobs)?;
    let prompts = fields.prompt.ok_or_else(|| Error::parameter("prompt", "prompt is missing"))?;
    prompts.check_count(delivery.choices)?;
    let prompts: Vec<Prompt> =
        prompts.encode(api)?.into_iter().map(|tokens| Prompt { tokens, ..Prompt::default() }).collect();
    let choices = 0..delivery.choices;
    let requests =
        prompts.iter().flat_map(|prompt| choices.clone().map(|choice| settings.generate(prompt, choice))).collect();
    Ok((requests, Reply::new(&api.engine, delivery, logprobs.is_some(), prompts)))
}
