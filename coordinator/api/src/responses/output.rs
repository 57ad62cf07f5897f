//! The parts of an answer as items of a response, and the events that tell of them. Whole responses and streams are made of the
//! same items.

use paceline_text::Part;
use serde_json::{Value, json};

use super::items::new_id;
use super::tools::{FREE_TEXT, OfferedTools};

/// What is being told.
#[derive(Debug)]
enum Open {
    Reasoning,
    Text,
    Call { call_id: String, name: String },
    Custom { call_id: String, name: String },
}

/// An item that grows.
#[derive(Debug)]
struct Growing {
    kind: Open,
    id: String,
    text: String,
    /// Of the tool that is called, if it came in one.
    namespace: Option<String>,
}

/// Puts the items of a response together.
#[derive(Debug)]
pub(super) struct Output {
    tools: OfferedTools,
    items: Vec<Value>,
    open: Option<Growing>,
}

impl Output {
    pub(super) fn new(tools: OfferedTools) -> Self {
        Self { tools, items: Vec::new(), open: None }
    }

    /// Takes the next part; gives the events that tell of it.
    pub(super) fn part(&mut self, part: Part) -> Vec<Value> {
        let mut events = Vec::new();
        match part {
            Part::Reasoning(text) => {
                if !matches!(self.open, Some(Growing { kind: Open::Reasoning, .. })) {
                    self.begin(Open::Reasoning, "rs", &mut events);
                }
                self.grow(&text, &mut events);
            }
            Part::Text(text) => {
                if !matches!(self.open, Some(Growing { kind: Open::Text, .. })) {
                    self.begin(Open::Text, "msg", &mut events);
                }
                self.grow(&text, &mut events);
            }
            Part::ToolCallBegin { id, name } if self.tools.is_custom(&name) => {
                self.begin(Open::Custom { call_id: id, name }, "ctc", &mut events);
            }
            Part::ToolCallBegin { id, name } => self.begin(Open::Call { call_id: id, name }, "fc", &mut events),
            Part::ToolCallArguments(json) => self.grow(&json, &mut events),
            Part::ToolCallEnd => self.close("completed", &mut events),
        }
        events
    }

    /// Closes the last item; gives the events that tell of it. `status` is `completed` or `incomplete`.
    pub(super) fn finish(&mut self, status: &str) -> Vec<Value> {
        let mut events = Vec::new();
        self.close(status, &mut events);
        events
    }

    /// The items so far, the last one as it is.
    pub(super) fn items(&self) -> &[Value] {
        &self.items
    }

    fn begin(&mut self, kind: Open, id_prefix: &str, events: &mut Vec<Value>) {
        self.close("completed", events);
        let namespace = match &kind {
            Open::Call { name, .. } | Open::Custom { name, .. } => self.tools.namespace_of(name).map(str::to_owned),
            Open::Reasoning | Open::Text => None,
        };
        let growing = Growing { kind, id: new_id(id_prefix), text: String::new(), namespace };
        let index = self.items.len();
        let item = growing.item("in_progress", false);
        events.push(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
        if let Some(part) = growing.content_part() {
            events.push(json!({
                "type": "response.content_part.added",
                "item_id": growing.id, "output_index": index, "content_index": 0, "part": part,
            }));
        }
        self.open = Some(growing);
    }

    fn grow(&mut self, text: &str, events: &mut Vec<Value>) {
        let index = self.items.len();
        let Some(growing) = &mut self.open else { return };
        growing.text += text;
        let id = &growing.id;
        events.extend(match &growing.kind {
            Open::Reasoning => Some(json!({
                "type": "response.reasoning_text.delta",
                "item_id": id, "output_index": index, "content_index": 0, "delta": text,
            })),
            Open::Text => Some(json!({
                "type": "response.output_text.delta",
                "item_id": id, "output_index": index, "content_index": 0, "delta": text, "logprobs": [],
            })),
            Open::Call { .. } => Some(json!({
                "type": "response.function_call_arguments.delta",
                "item_id": id, "output_index": index, "delta": text,
            })),
            // Free text comes inside of JSON: it is told when it is complete.
            Open::Custom { .. } => None,
        });
    }

    fn close(&mut self, status: &str, events: &mut Vec<Value>) {
        let Some(growing) = self.open.take() else { return };
        let (index, id) = (self.items.len(), &growing.id);
        events.extend(growing.done(index));
        if let Some(part) = growing.content_part() {
            events.push(json!({
                "type": "response.content_part.done",
                "item_id": id, "output_index": index, "content_index": 0, "part": part,
            }));
        }
        let item = growing.item(status, true);
        events.push(json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
        self.items.push(item);
    }
}

impl Growing {
    /// The item as it is; `whole` if with its content.
    fn item(&self, status: &str, whole: bool) -> Value {
        let id = &self.id;
        let content: Vec<Value> = self.content_part().filter(|_| whole).into_iter().collect();
        let mut item = match &self.kind {
            Open::Reasoning => {
                json!({ "id": id, "type": "reasoning", "summary": [], "content": content, "status": status })
            }
            Open::Text => {
                json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
            }
            Open::Call { call_id, name } => json!({
                "id": id, "type": "function_call", "status": status,
                "call_id": call_id, "name": name, "arguments": self.text,
            }),
            Open::Custom { call_id, name } => json!({
                "id": id, "type": "custom_tool_call", "status": status,
                "call_id": call_id, "name": name, "input": self.free_text(),
            }),
        };
        if let Some(namespace) = &self.namespace {
            item["namespace"] = namespace.as_str().into();
        }
        item
    }

    fn content_part(&self) -> Option<Value> {
        match self.kind {
            Open::Reasoning => Some(json!({ "type": "reasoning_text", "text": self.text })),
            Open::Text => Some(json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })),
            Open::Call { .. } | Open::Custom { .. } => None,
        }
    }

    /// The event that repeats all that was told piece by piece.
    fn done(&self, index: usize) -> Vec<Value> {
        let (id, text) = (&self.id, &self.text);
        match &self.kind {
            Open::Reasoning => vec![json!({
                "type": "response.reasoning_text.done",
                "item_id": id, "output_index": index, "content_index": 0, "text": text,
            })],
            Open::Text => vec![json!({
                "type": "response.output_text.done",
                "item_id": id, "output_index": index, "content_index": 0, "text": text, "logprobs": [],
            })],
            Open::Call { name, .. } => vec![json!({
                "type": "response.function_call_arguments.done",
                "item_id": id, "output_index": index, "name": name, "arguments": text,
            })],
            Open::Custom { .. } => {
                let text = self.free_text();
                let event = |kind: &str, field: &str| json!({ "type": kind, "item_id": id, "output_index": index, field: text });
                vec![
                    event("response.custom_tool_call_input.delta", "delta"),
                    event("response.custom_tool_call_input.done", "input"),
                ]
            }
        }
    }

    /// What stands in the arguments; all of them if they are something else.
    fn free_text(&self) -> String {
        let arguments: Option<Value> = serde_json::from_str(&self.text).ok();
        let text = arguments.as_ref().and_then(|arguments| arguments[FREE_TEXT].as_str());
        text.unwrap_or(&self.text).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types of events, and what they say of texts.
    fn types(events: &[Value]) -> Vec<&str> {
        events.iter().map(|event| event["type"].as_str().unwrap()).collect()
    }

    #[test]
    fn items_begin_grow_and_end_one_after_the_other() {
        let f = json!({ "type": "function", "name": "f" });
        let namespace = json!({ "type": "namespace", "name": "n", "tools": [f] });
        let tools = OfferedTools::new(&[json!({ "type": "custom", "name": "patch" }), namespace]).unwrap();
        let mut output = Output::new(tools);
        let mut events = Vec::new();
        for part in [
            Part::Reasoning("hm".to_owned()),
            Part::Text("a".to_owned()),
            Part::Text("b".to_owned()),
            Part::ToolCallBegin { id: "1".to_owned(), name: "f".to_owned() },
            Part::ToolCallArguments("{}".to_owned()),
            Part::ToolCallEnd,
            Part::ToolCallBegin { id: "2".to_owned(), name: "patch".to_owned() },
            Part::ToolCallArguments("{\"input\": \"x\\ny\"}".to_owned()),
            Part::ToolCallEnd,
        ] {
            events.extend(output.part(part));
        }
        assert!(output.finish("completed").is_empty());
        let expected = [
            "response.output_item.added",
            "response.content_part.added",
            "response.reasoning_text.delta",
            "response.reasoning_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
            "response.output_item.done",
        ];
        assert_eq!(types(&events), expected);
        let items = output.items();
        assert_eq!(items[0]["content"][0]["text"], "hm");
        assert_eq!(items[1]["content"][0]["text"], "ab");
        assert_eq!((&items[2]["call_id"], &items[2]["arguments"]), (&json!("1"), &json!("{}")));
        assert_eq!((&items[2]["namespace"], items[3].get("namespace")), (&json!("n"), None));
        assert_eq!(items[3]["input"], "x\ny");
        let done: Vec<&Value> = events.iter().filter(|event| event["type"] == "response.output_item.done").collect();
        assert!(done.iter().zip(items).all(|(event, item)| event["item"] == *item));
    }

    #[test]
    fn an_answer_that_is_cut_off_is_incomplete() {
        let mut output = Output::new(OfferedTools::default());
        output.part(Part::Text("a".to_owned()));
        assert_eq!(types(&output.finish("incomplete")).len(), 3);
        assert_eq!(output.items()[0]["status"], "incomplete");
    }
}
