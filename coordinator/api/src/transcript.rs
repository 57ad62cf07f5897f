//! Answers that are sent in one piece.

use paceline_coordinator::{FinishReason, TokenUpdate};

use crate::answers::{Answers, Progress};
use crate::error::Result;
use crate::usage::Tally;

/// One complete answer.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) text: String,
    /// Its tokens; their texts are in `text`.
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

/// Waits for `count` answers to be complete. Every `choices` of them answer the same prompt.
pub(crate) async fn collect(mut answers: Answers, count: usize, choices: usize) -> Result<(Vec<Transcript>, Tally)> {
    let mut transcripts: Vec<Transcript> = (0..count).map(|_| Transcript::default()).collect();
    let mut tally = Tally::default();
    while let Some((index, progress)) = answers.next().await {
        let transcript = &mut transcripts[index];
        match progress {
            Progress::Admitted(_) => {}
            Progress::Token(mut update) => {
                transcript.text.push_str(&std::mem::take(&mut update.text));
                transcript.tokens.push(update);
            }
            Progress::Finished(finished) => {
                transcript.text.push_str(&finished.text);
                transcript.finish_reason = finish_reason(&finished.reason);
                tally.add(&finished, index.is_multiple_of(choices));
            }
            Progress::Failed(error) => return Err(error.into()),
        }
    }
    Ok((transcripts, tally))
}
