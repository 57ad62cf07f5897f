//! A chat answer in one piece.

use paceline_text::{Answer, ToolCall};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Reply, finish_reason};
use crate::head::Head;
use crate::logprobs::ChatLogprobs;
use crate::transcript::Transcript;
use crate::usage::{Tally, Timings, Usage};

/// The response.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChatCompletion<'r> {
    #[serde(flatten)]
    head: &'r Head,
    choices: Vec<Choice<'r>>,
    usage: Usage,
    timings: Timings,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChoice)]
struct Choice<'r> {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<u32>>)]
    prompt_token_ids: Option<&'r [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnswerMessage)]
struct Message {
    role: &'static str,
    /// Null if the answer consists of calls.
    content: Option<String>,
    #[schema(value_type = Option<String>)]
    refusal: Option<()>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Call {
    id: String,
    r#type: &'static str,
    function: Function,
}

#[derive(Debug, Serialize, ToSchema)]
struct Function {
    name: String,
    arguments: String,
}

impl Message {
    fn new(Answer { reasoning, text, calls }: Answer) -> Self {
        let call =
            |ToolCall { id, name, arguments }| Call { id, r#type: "function", function: Function { name, arguments } };
        Self {
            role: "assistant",
            content: (calls.is_empty() || !text.is_empty()).then_some(text),
            refusal: None,
            reasoning_content: (!reasoning.is_empty()).then_some(reasoning),
            tool_calls: calls.into_iter().map(call).collect(),
        }
    }
}

impl<'r> ChatCompletion<'r> {
    pub(super) fn new(reply: &'r Reply, transcripts: Vec<Transcript>, tally: &Tally) -> Self {
        let choices = transcripts.into_iter().enumerate();
        Self {
            head: &reply.head,
            choices: choices.map(|(index, transcript)| Choice::new(reply, index, transcript)).collect(),
            usage: tally.usage(),
            timings: tally.timings(),
        }
    }
}

impl<'r> Choice<'r> {
    fn new(reply: &'r Reply, index: usize, transcript: Transcript) -> Self {
        let logprobs = reply.logprobs.then(|| {
            let mut logprobs = ChatLogprobs::default();
            transcript.tokens.iter().for_each(|update| logprobs.push(update, &reply.tokenizer));
            logprobs
        });
        Self {
            index,
            logprobs,
            finish_reason: finish_reason(transcript.finish_reason, !transcript.answer.calls.is_empty()),
            prompt_token_ids: reply.prompt_token_ids(),
            token_ids: reply.delivery.token_ids.then(|| transcript.token_ids()),
            message: Message::new(transcript.answer),
        }
    }
}
