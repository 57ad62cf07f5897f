//! `POST /v1/chat/completions`.

mod completion;
mod events;

use std::sync::Arc;

use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use paceline_coordinator::{Engine, Generate};
use paceline_text::Tokenizer;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::answers::Answers;
use crate::error::{Error, Result};
use crate::head::Head;
use crate::json::Document;
use crate::prompt::{self, Conversation, Prompt};
use crate::server::Api;
use crate::settings::{CommonFields, Delivery, MAX_LOGPROBS, integer};
use crate::unserved::UnservedFields;
use crate::{reuse, sse, transcript};

/// Says what was taken out of the messages ([`ClientNoise`](paceline_text::ClientNoise)).
const REMOVED: HeaderName = HeaderName::from_static("x-paceline-removed");

/// The fields that only chat requests have.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ChatFields {
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
}

impl ChatFields {
    fn logprobs(&self) -> Result<Option<u32>> {
        let top = integer("top_logprobs", self.top_logprobs, 0, MAX_LOGPROBS)?;
        match (self.logprobs.unwrap_or(false), top) {
            (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
            (false, Some(top)) if top > 0 => {
                let problem = format!("top_logprobs is {top}, but logprobs is not true");
                Err(Error::parameter("top_logprobs", problem))
            }
            (false, _) => Ok(None),
        }
    }

    fn conversation(self) -> Result<Conversation> {
        let missing = || Error::parameter("messages", "messages is missing, send a list of messages");
        let mut variables = self.chat_template_kwargs.unwrap_or_default();
        if let Some(effort) = self.reasoning_effort {
            variables.entry("reasoning_effort").or_insert(effort);
        }
        // Who forbids tools need not read about them.
        let tools = self.tools.filter(|tools| !tools.is_empty() && self.tool_choice != Some("none".into()));
        Ok(Conversation { messages: self.messages.ok_or_else(missing)?, tools, variables })
    }
}

/// What the answers are told with.
struct Reply {
    head: Head,
    tokenizer: Arc<Tokenizer>,
    delivery: Delivery,
    logprobs: bool,
    prompt: Prompt,
}

impl Reply {
    fn new(engine: &Engine, delivery: Delivery, logprobs: bool, prompt: Prompt) -> Self {
        let object = if delivery.stream { "chat.completion.chunk" } else { "chat.completion" };
        let head = Head::new("chatcmpl", object, &engine.model().id);
        Self { head, tokenizer: Arc::clone(engine.tokenizer()), delivery, logprobs, prompt }
    }

    /// The ids of the prompt's tokens, if they were asked for.
    fn prompt_token_ids(&self) -> Option<&[u32]> {
        self.delivery.token_ids.then_some(&self.prompt.tokens)
    }
}

/// Answers a conversation.
pub(crate) async fn create(api: web::Data<Api>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &api.config).await?;
    let (requests, reply) = Api::in_background(&api, move |api| prepare(api, &document)).await?;
    let answers = Answers::start(&api.engine, requests);
    let removed = reply.prompt.removed.first().map(|removed| removed.noise);
    let mut response = if reply.delivery.stream {
        sse::respond(answers, events::ChatEvents::new(reply), &api.config).await?
    } else {
        let choices = reply.delivery.choices;
        let (transcripts, tally) = transcript::collect(answers, choices, choices).await?;
        tally.record();
        let completion = completion::ChatCompletion::new(&reply, transcripts, &tally);
        reuse::tell(HttpResponse::Ok(), tally.reuse()).json(completion)
    };
    if let Some(noise) = removed {
        response.headers_mut().insert(REMOVED, HeaderValue::from_static(noise.name()));
    }
    Ok(response)
}

/// From the body to the work to be done; takes time with long conversations.
fn prepare(api: &Api, document: &Document) -> Result<(Vec<Generate>, Reply)> {
    document.read::<UnservedFields>()?.check()?;
    let fields: ChatFields = document.read()?;
    let logprobs = fields.logprobs()?;
    let (settings, delivery) = document.read::<CommonFields>()?.check(api, logprobs)?;
    let conversation = fields.conversation()?;
    let prompt = prompt::encode_conversation(api, conversation)?;
    let requests = (0..delivery.choices).map(|choice| settings.generate(&prompt, choice)).collect();
    Ok((requests, Reply::new(&api.engine, delivery, logprobs.is_some(), prompt)))
}
