//! Answers that are sent in one piece.

use paceline_coordinator::{FinishReason, TokenUpdate};
use paceline_text::{Answer, AnswerParser};

use crate::answers::{Answers, Progress};
use crate::error::Result;
use crate::usage::Tally;

/// One complete answer.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) answer: Answer,
    /// Its tokens; their texts are in `answer`.
    pub(crate) tokens: Vec<TokenUpdate>,
    pub(crate) finish_reason: &'static str,
}

impl Transcript {
    /// The ids of its tokens.
    pub(crate) fn token_ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|update| update.token).collect()
    }
}

/// The reason as clients of the OpenAI API know it.
pub(crate) fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::EndToken | FinishReason::StopString(_) => "stop",
        FinishReason::Length => "length",
    }
}

/// Waits for as many answers as there are parsers to be complete. Every `choices` of them answer the same prompt.
pub(crate) async fn collect(
    mut answers: Answers,
    mut parsers: Vec<AnswerParser>,
    choices: usize,
) -> Result<(Vec<Transcript>, Tally)> {
    let mut transcripts: Vec<Transcript> = parsers.iter().map(|_| Transcript::default()).collect();
    let mut tally = Tally::default();
    while let Some((index, progress)) = answers.next().await {
        let (transcript, parser) = (&mut transcripts[index], &mut parsers[index]);
        match progress {
            Progress::Admitted(_) => {}
            Progress::Token(mut update) => {
                transcript.answer.extend(parser.push(&std::mem::take(&mut update.text), &update.marks));
                transcript.tokens.push(update);
            }
            Progress::Finished(finished) => {
                transcript.answer.extend(parser.end(&finished.text, &finished.marks));
                transcript.finish_reason = finish_reason(&finished.reason);
                tally.add(&finished, index.is_multiple_of(choices));
                tally.add_reasoning(parser.reasoning_tokens());
            }
            Progress::Failed(error) => return Err(error),
        }
    }
    Ok((transcripts, tally))
}
