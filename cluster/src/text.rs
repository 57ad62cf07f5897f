//! What the program says to people.

use std::fmt::Write;

use paceline_api::{Card, ListedModel};
use paceline_coordinator::{EmbedderCard, LinkCard, ModelCard, StageCard};

/// The summary when the service is ready: stages, memory, address, and a request to try.
pub(crate) fn ready(model: &ModelCard, stages: &[StageCard], url: &str) -> String {
    let (parameters, size) = (count(model.parameters), bytes(model.file_bytes));
    let mut text = format!("\n{} · {} · {parameters} parameters · {size}\n", model.id, model.architecture);
    text += &table(stages);
    let _ = writeln!(text, "  context of a session: {} tokens", model.context);
    let _ = writeln!(text, "\nlistening on {url}   open it in a browser, or try:");
    let body = r#"{"messages":[{"role":"user","content":"Hello!"}]}"#;
    let _ = writeln!(text, "  curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'");
    text
}

/// The same of a model that makes vectors or scores.
pub(crate) fn ready_to_read(model: &EmbedderCard, memory: u64, url: &str) -> String {
    let (parameters, size) = (count(model.parameters), bytes(model.file_bytes));
    let mut text = format!("\n{} · {} · {parameters} parameters · {size}\n", model.id, model.architecture);
    let (path, body) = match model.ranks {
        true => ("rerank", r#"{"query":"What is the capital of France?","documents":["Paris is.","Rome is not."]}"#),
        false => ("embeddings", r#"{"input":"Hello!"}"#),
    };
    let _ = match model.ranks {
        true => writeln!(text, "  scores of pairs of texts, {} tokens at most", model.context),
        false => writeln!(
            text,
            "  vectors of {} values ({} pooling) of texts of at most {} tokens",
            model.dimensions, model.pooling, model.context
        ),
    };
    let _ = writeln!(text, "  memory: {}", bytes(memory));
    let _ = writeln!(text, "\nlistening on {url}   try:");
    let _ = writeln!(text, "  curl {url}/v1/{path} -H 'content-type: application/json' -d '{body}'");
    text
}

/// The summary of a service of several models.
pub(crate) fn ready_with_many(models: &[ListedModel], url: &str) -> String {
    let mut text = "\n".to_owned();
    for model in models {
        let (kind, memory) = match &model.card {
            Card::Texts(card) => {
                (format!("{} texts, sessions of {} tokens", card.architecture, card.context), model.memory_bytes)
            }
            Card::Vectors(card) if card.ranks => (format!("{} scores", card.architecture), model.memory_bytes),
            Card::Vectors(card) => {
                (format!("{} vectors of {}", card.architecture, card.dimensions), model.memory_bytes)
            }
        };
        let aliases = model.card.aliases().iter().map(|alias| format!(", {alias}")).collect::<String>();
        let _ = writeln!(text, "  {}{aliases} · {kind} · {}", model.card.id(), bytes(memory));
    }
    let _ =
        writeln!(text, "\nlistening on {url}   models are loaded when they are asked for; {url}/v1/models lists them");
    text
}

/// The stages: where they are, what they hold, and what carries activations on.
pub(crate) fn table(stages: &[StageCard]) -> String {
    let mut text =
        "  stage  layers     device                    weights    KV cache   states     buffers\n".to_owned();
    for stage in stages {
        let StageCard { index, device, layers, memory, link, .. } = stage;
        let (layers, memory) = (format!("{}..{}", layers.start, layers.end), memory.actual);
        let _ = write!(
            text,
            "  {index:<5}  {layers:<9}  {device:<24}  {:<9}  {:<9}  {:<9}  {:<9}",
            bytes(memory.weights),
            bytes(memory.key_value),
            bytes(memory.states),
            bytes(memory.buffers)
        );
        if let Some(LinkCard { carrier, round_trip_micros: Some(micros), .. }) = link {
            let _ = write!(text, "  {} → {carrier} ({micros} µs)", stage.host);
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Bytes for people: `149.6 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| count >= 1 << shift);
    unit.map_or_else(
        || format!("{count} B"),
        |(name, shift)| format!("{:.1} {name}", count as f64 / f64::from(1 << shift)),
    )
}

/// Texts come from other hosts: none may steer the terminal.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { '?' } else { character }).collect()
}

/// Large counts for people: `5.8 M`.
fn count(number: u64) -> String {
    let units = [("B", 1e9), ("M", 1e6), ("k", 1e3)];
    let unit = units.into_iter().find(|(_, size)| number as f64 >= *size);
    unit.map_or_else(|| number.to_string(), |(name, size)| format!("{:.1} {name}", number as f64 / size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(156_893_184), "149.6 MiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
        assert_eq!(count(5_800_000), "5.8 M");
        assert_eq!(count(12), "12");
    }
}
