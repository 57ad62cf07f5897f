//! Chat templates against Python's Jinja, set up as transformers does.

use std::time::{Duration, UNIX_EPOCH};

use paceline_text::{ChatTemplate, Error, RenderRequest};
use serde_json::Value;

use crate::vocabularies::{lines, read, sentence_piece, smollm2, tiny_hybrid};

fn template(name: &str) -> ChatTemplate {
    let source = read(&format!("{name}.jinja"));
    let tokenizer = if name == "tiny-hybrid" { tiny_hybrid() } else { smollm2("smollm") };
    ChatTemplate::new(&source, &tokenizer).unwrap()
}

fn request(case: &Value) -> RenderRequest<'_> {
    RenderRequest {
        messages: case["messages"].as_array().unwrap(),
        tools: case["tools"].as_array().map(Vec::as_slice),
        add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
        kwargs: case["kwargs"].as_object(),
        now: None,
    }
}

#[test]
fn conversations_render_as_in_python() {
    let cases = lines("chat.jsonl");
    assert!(cases.len() >= 60);
    for case in cases {
        let template = template(case["template"].as_str().unwrap());
        match (template.render(&request(&case)), case.get("raises")) {
            (Ok(text), None) => assert_eq!(text, case["text"].as_str().unwrap(), "{case}"),
            (Err(Error::TemplateRaised(message)), Some(expected)) => assert_eq!(&message, expected),
            // What Python's users must put in order themselves is put in order here.
            (Ok(text), Some(expected)) if expected == "A system message must be the first message." => {
                let messages = case["messages"].as_array().unwrap();
                assert!(messages.iter().all(|message| text.contains(message["content"].as_str().unwrap())), "{case}");
            }
            (result, _) => panic!("{result:?} for {case}"),
        }
    }
}

#[test]
fn python_habits_of_templates() {
    let mut cases = lines("jinja.jsonl").into_iter();
    let variables = cases.next().unwrap();
    let tokenizer = sentence_piece();
    let mut differences = Vec::new();
    for case in cases {
        let source = case["template"].as_str().unwrap();
        let result = ChatTemplate::new(source, &tokenizer).and_then(|template| {
            template.render(&RenderRequest {
                messages: variables["messages"].as_array().unwrap(),
                tools: None,
                add_generation_prompt: true,
                kwargs: variables["kwargs"].as_object(),
                // 2026-03-05 14:07:09
                now: Some(UNIX_EPOCH + Duration::from_secs(1_772_719_629)),
            })
        });
        let as_in_python = match &result {
            Ok(text) => case["text"] == **text,
            Err(Error::TemplateRaised(message)) => case["raises"] == **message,
            Err(Error::TemplateFailed(_)) => case["fails"].is_string(),
            Err(_) => false,
        };
        if !as_in_python {
            differences.push(format!("{source}\n  here:   {result:?}\n  python: {case}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn the_boundary_is_where_the_conversation_ends() {
    for case in lines("chat.jsonl") {
        let template = template(case["template"].as_str().unwrap());
        let request = request(&case);
        let Ok(text) = template.render(&request) else { continue };
        let boundary = template.stable_boundary(&request, &text).unwrap().unwrap();
        let prompt = &text[boundary..];
        assert_eq!(prompt.starts_with("<|im_start|>assistant\n"), request.add_generation_prompt, "{case}");
        assert_eq!(prompt.is_empty(), !request.add_generation_prompt);
    }
}
