//! `paceline run`: one answer on the terminal.

use std::io::Write;

use anyhow::{Context, Result, bail};
use paceline_coordinator::{Engine, FinishReason, Finished, Generate, Generation, TokenUpdate, Update};
use paceline_proto::SamplingSettings;
use paceline_text::{RenderRequest, Special};
use serde_json::{Value, json};

use crate::cli::RunArgs;
use crate::{layout, model, row};

/// Loads the model, prints its answer to the prompt, and ends.
pub(crate) fn run(arguments: RunArgs) -> Result<()> {
    let gguf = model::open_with_draft(&arguments.model, &arguments.layout.draft)?;
    let mut plan = layout::plan(&gguf, &arguments.model, &arguments.layout, Some(&arguments.compute))?;
    plan.template = layout::template(arguments.chat_template.as_deref())?;
    plan.progress = !arguments.json;
    let loaded = row::load(plan)?;
    row::system()?.block_on(async move {
        let running = loaded.start()?;
        let answered = answer(&running.engine, &arguments).await;
        running.stop().await;
        answered
    })
}

async fn answer(engine: &Engine, arguments: &RunArgs) -> Result<()> {
    let prompt = encode(engine, arguments)?;
    let request = Generate {
        prompt,
        boundaries: Vec::new(),
        max_tokens: arguments.max_tokens,
        stop: arguments.stop.clone(),
        sampling: sampling(arguments),
        ignore_end: arguments.ignore_eos,
        show_special: false,
    };
    let generation = engine.generate(request).await?;
    if arguments.json { print_json(generation).await } else { print_text(generation).await }
}

fn encode(engine: &Engine, arguments: &RunArgs) -> Result<Vec<u32>> {
    let tokenizer = engine.tokenizer();
    if arguments.raw {
        return Ok(tokenizer.encode(&arguments.prompt, Special::Parse, true));
    }
    let template = engine.template().context("the model has no chat template; use --raw or --chat-template")?;
    let system = arguments.system.as_ref().map(|text| json!({"role": "system", "content": text}));
    let user = json!({"role": "user", "content": arguments.prompt});
    let messages: Vec<Value> = system.into_iter().chain([user]).collect();
    let request = RenderRequest { messages: &messages, add_generation_prompt: true, ..RenderRequest::default() };
    Ok(tokenizer.encode(&template.render(&request)?, Special::Parse, false))
}

fn sampling(arguments: &RunArgs) -> SamplingSettings {
    SamplingSettings {
        temperature: arguments.temperature,
        top_k: arguments.top_k,
        top_p: arguments.top_p,
        min_p: arguments.min_p,
        seed: arguments.seed,
        logprobs: arguments.logprobs,
        ..SamplingSettings::default()
    }
}

/// Prints the answer as it comes.
async fn print_text(mut generation: Generation) -> Result<()> {
    let mut output = std::io::stdout();
    while let Some(update) = generation.updates.recv().await {
        match update {
            Update::Token(token) => {
                output.write_all(token.text.as_bytes())?;
                output.flush()?;
            }
            Update::Finished(finished) => {
                output.write_all(finished.text.as_bytes())?;
                output.write_all(b"\n")?;
                return Ok(());
            }
            Update::Failed(error) => return Err(error.into()),
        }
    }
    bail!("the answer ended without an end")
}

/// Prints the whole answer as one JSON object.
async fn print_json(mut generation: Generation) -> Result<()> {
    let mut tokens = Vec::new();
    while let Some(update) = generation.updates.recv().await {
        match update {
            Update::Token(token) => tokens.push(token),
            Update::Finished(finished) => {
                serde_json::to_writer(std::io::stdout(), &as_json(&tokens, &finished))?;
                return Ok(writeln!(std::io::stdout())?);
            }
            Update::Failed(error) => return Err(error.into()),
        }
    }
    bail!("the answer ended without an end")
}

fn as_json(tokens: &[TokenUpdate], finished: &Finished) -> Value {
    let pieces = tokens.iter().map(|token| token.text.as_str()).chain([finished.text.as_str()]);
    let reason = match finished.reason {
        FinishReason::Length => "length",
        FinishReason::EndToken | FinishReason::StopString(_) => "stop",
    };
    let milliseconds = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let mut answer = json!({
        "text": pieces.collect::<String>(),
        "tokens": tokens.iter().map(|token| token.token).collect::<Vec<_>>(),
        "prompt_tokens": finished.usage.prompt_tokens,
        "completion_tokens": finished.usage.completion_tokens,
        "finish_reason": reason,
        "timings": {
            "queued_ms": milliseconds(finished.timings.queued),
            "prefill_ms": milliseconds(finished.timings.prefill),
            "decode_ms": milliseconds(finished.timings.decode),
        },
    });
    let logprobs: Option<Vec<Value>> = tokens.iter().map(logprobs_of).collect();
    if let Some(logprobs) = logprobs
        && !logprobs.is_empty()
    {
        answer["logprobs"] = logprobs.into();
    }
    answer
}

fn logprobs_of(token: &TokenUpdate) -> Option<Value> {
    let logprobs = token.logprobs.as_ref()?;
    let top = logprobs.top.iter().map(|one| json!({"token": one.token, "logprob": one.logprob}));
    Some(json!({"token": token.token, "logprob": logprobs.chosen, "top": top.collect::<Vec<_>>()}))
}
