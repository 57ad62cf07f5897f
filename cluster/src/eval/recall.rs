//! Facts hidden in a text, and whether a model finds them again, word for word.

use anyhow::Result;
use paceline_evaluation::ModelRun;
use paceline_evaluation::perplexity::ROWS;
use paceline_text::{RenderRequest, Special};
use serde_json::{Map, json};

use super::Reading;
use crate::row;

/// Whose codes are hidden.
const NAMES: [&str; 8] = ["Ruth", "Abel", "George", "Agnes", "David", "Frank", "Tamar", "Simon"];
/// Tokens in which an answer must give the code.
const ANSWER: usize = 32;
/// The most bytes of a line of the text that is put between facts.
const LINE: usize = 240;

/// A text with facts, and a question for each of them.
pub(super) struct Document {
    /// What all prompts begin with.
    shared: Vec<u32>,
    /// How the prompts go on, and what the answer must contain.
    questions: Vec<(Vec<u32>, String)>,
}

impl Document {
    /// About `length` tokens of the text's lines with facts spread among them.
    pub(super) fn compose(reading: &Reading, length: usize) -> Result<Self> {
        let codes: Vec<String> = (0..NAMES.len()).map(|name| code(length, name)).collect();
        let lines = lines(reading, length);
        let prompts = NAMES.iter().map(|name| prompt(reading, &lines, &codes, name)).collect::<Result<Vec<_>>>()?;
        let shortest = prompts.iter().map(Vec::len).min().unwrap_or(0);
        let differs = |at: &usize| prompts.iter().any(|prompt| prompt[*at] != prompts[0][*at]);
        // A prompt's last token is run for each question, as its logits are wanted.
        let shared = (0..shortest).find(differs).unwrap_or(shortest).min(shortest.saturating_sub(1));
        let questions = prompts.iter().zip(codes).map(|(prompt, code)| (prompt[shared..].to_vec(), code)).collect();
        Ok(Self { shared: prompts[0][..shared].to_vec(), questions })
    }

    /// Tokens that a session needs for it.
    pub(super) fn context(&self) -> usize {
        let longest = self.questions.iter().map(|(question, _)| question.len()).max().unwrap_or(0);
        self.shared.len() + longest + ANSWER
    }

    /// How many questions there are.
    pub(super) fn asked(&self) -> usize {
        self.questions.len()
    }

    /// Asks all questions, each of a copy of the session that has read what they share; how many answers are right.
    pub(super) fn ask(&self, reading: &Reading, run: &mut ModelRun) -> Result<usize> {
        run.next(0, &self.shared, ROWS)?;
        let mut right = 0;
        for (question, code) in &self.questions {
            run.fork(0, 1)?;
            right += usize::from(answer(reading, run, question)?.contains(code.as_str()));
            run.end(1)?;
        }
        run.end(0)?;
        Ok(right)
    }
}

/// What the model answers, greedily.
fn answer(reading: &Reading, run: &mut ModelRun, question: &[u32]) -> Result<String> {
    let mut tokens = Vec::new();
    let mut logits = run.next(1, question, ROWS)?.unwrap_or_default();
    while tokens.len() < ANSWER {
        let best = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
        let token = (0..logits.len()).fold(0, best) as u32;
        if reading.tokenizer.is_end_of_generation(token) {
            break;
        }
        tokens.push(token);
        logits = run.next(1, &[token], 1)?.unwrap_or_default();
    }
    Ok(reading.tokenizer.decode(&tokens)?)
}

/// Four digits that no model can guess, others for every length and name.
fn code(length: usize, name: usize) -> String {
    let mixed = (length as u64 * 31 + name as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    (1000 + mixed % 9000).to_string()
}

/// Lines of the text, without numbers of verses, of so many tokens together.
fn lines(reading: &Reading, length: usize) -> Vec<String> {
    let usable =
        reading.text.lines().map(|line| line.trim_start_matches(|letter: char| letter.is_ascii_digit()).trim());
    let usable: Vec<&str> = usable.filter(|line| !line.is_empty() && line.len() <= LINE).collect();
    let mut lines = Vec::new();
    let mut tokens = 0;
    for line in usable.iter().cycle().take_while(|_| !usable.is_empty()) {
        tokens += reading.tokenizer.encode(line, Special::Plain, false).len() + 1;
        if tokens > length {
            break;
        }
        lines.push((*line).to_owned());
    }
    lines
}

/// A prompt that asks for one name's code.
fn prompt(reading: &Reading, lines: &[String], codes: &[String], asked: &str) -> Result<Vec<u32>> {
    let mut text = "Remember these lines.\n".to_owned();
    let facts: Vec<String> =
        NAMES.iter().zip(codes).map(|(name, code)| format!("The code for {name} is {code}.")).collect();
    for (index, fact) in facts.iter().enumerate() {
        let part = index * lines.len() / facts.len()..(index + 1) * lines.len() / facts.len();
        for line in std::iter::once(fact).chain(&lines[part]) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text.push_str(&format!("What is the code for {asked}?"));
    let tokenizer = &reading.tokenizer;
    let Some(template) = row::chat_template(&reading.model, None, tokenizer)? else {
        let text = format!("{text}\nThe code for {asked} is");
        return Ok(tokenizer.encode(&text, Special::Plain, tokenizer.adds_bos()));
    };
    let plain = Map::from_iter([("enable_thinking".to_owned(), json!(false))]);
    let messages = [json!({"role": "user", "content": text})];
    let request = RenderRequest {
        messages: &messages,
        add_generation_prompt: true,
        kwargs: Some(&plain),
        ..RenderRequest::default()
    };
    Ok(tokenizer.encode(&template.render(&request)?, Special::Parse, false))
}
