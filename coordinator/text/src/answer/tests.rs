//! The same answer, cut in every way, is the same.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing::byte_tokenizer;
use crate::text_stream::TextStream;
use crate::tokenizer::Tokenizer;
use crate::vocabulary::TokenKind;

const XML: &str = "{{ tools }}<think></think><tool_call><function=f>";
const HERMES: &str = "{{ tools }}<tool_call>{\"name\": ...}";
const LLAMA: &str = "{{ tools }}{\"name\": ..., \"parameters\": ...}";

fn tokenizer(whole_tags: bool) -> Arc<Tokenizer> {
    let tags = [
        ("<think>", TokenKind::UserDefined),
        ("</think>", TokenKind::UserDefined),
        ("<tool_call>", TokenKind::UserDefined),
        ("</tool_call>", TokenKind::UserDefined),
        ("<|python_tag|>", TokenKind::Control),
    ];
    byte_tokenizer(if whole_tags { &tags } else { &[] })
}

fn tools() -> ToolTable {
    let parameters = json!({"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"},
    }});
    ToolTable::new(&[json!({"type": "function", "function": {"name": "weather", "parameters": parameters}})])
}

/// How an answer is read.
struct Reading<'t> {
    template: &'t str,
    whole_tags: bool,
    reasoning_open: bool,
    tools: bool,
}

const QWEN: Reading<'_> = Reading { template: XML, whole_tags: true, reasoning_open: true, tools: true };

impl Reading<'_> {
    fn parser(&self, tokenizer: &Tokenizer) -> AnswerParser {
        let format = AnswerFormat::detect(self.template, tokenizer);
        format.parser(self.reasoning_open, self.tools.then(tools), "call_".to_owned())
    }

    /// Reads `text` with its special tokens as the model gives them, byte by byte between them.
    fn by_tokens(&self, text: &str, stops: &[&str]) -> Answer {
        let tokenizer = tokenizer(self.whole_tags);
        let mut stream = TextStream::new(Arc::clone(&tokenizer), stops).unwrap();
        let mut parser = self.parser(&tokenizer);
        let mut answer = Answer::default();
        for token in tokenizer.encode(text, crate::Special::Parse, false) {
            let piece = stream.push(token);
            answer.extend(parser.push(&piece.text, &piece.marks));
        }
        let rest = stream.finish();
        answer.extend(parser.push(&rest.text, &rest.marks));
        answer.extend(parser.finish());
        answer
    }

    /// Reads `text` without tokens, cut at `cuts`.
    fn by_pieces(&self, text: &str, cuts: &[usize]) -> Answer {
        let mut parser = self.parser(&tokenizer(false));
        let mut answer = Answer::default();
        let mut done = 0;
        for &cut in cuts {
            answer.extend(parser.push(&text[done..cut], &[]));
            done = cut;
        }
        answer.extend(parser.push(&text[done..], &[]));
        answer.extend(parser.finish());
        answer
    }

    /// Reads `text` in all these ways, which must agree.
    fn read(&self, text: &str) -> Answer {
        let answer = self.by_tokens(text, &[]);
        let plain = Reading { whole_tags: false, ..*self };
        for cut in (0..text.len()).filter(|&cut| text.is_char_boundary(cut)) {
            assert_eq!(plain.by_pieces(text, &[cut]), answer, "{text:?} cut at {cut}");
        }
        let everywhere: Vec<usize> = (0..text.len()).filter(|&cut| text.is_char_boundary(cut)).collect();
        assert_eq!(plain.by_pieces(text, &everywhere), answer, "{text:?} cut everywhere");
        answer
    }
}

/// An answer as a line: reasoning, text, and calls as `name(arguments)`.
fn line(answer: &Answer) -> String {
    let calls: String = answer.calls.iter().map(|call| format!("|{}({})", call.name, call.arguments)).collect();
    format!("{}|{}{calls}", answer.reasoning, answer.text)
}

fn check(reading: &Reading<'_>, text: &str, wanted: &str) {
    assert_eq!(line(&reading.read(text)), wanted, "{text:?}");
}

#[test]
fn reasoning_is_told_from_text() {
    check(&QWEN, "I think.\n</think>\n\nHello\n", "I think.|Hello\n");
    check(&QWEN, "never closed\n", "never closed|");
    check(&QWEN, "</think>\n\nHello", "|Hello");
    check(&QWEN, "", "|");
    let closed = Reading { reasoning_open: false, ..QWEN };
    check(&closed, "<think>\nHm.\n</think>\n\nYes", "Hm.|Yes");
    check(&closed, "\n<think>Hm.</think>Yes", "Hm.|Yes");
    check(&closed, "  Yes", "|  Yes");
    check(&closed, "Use <think> and </think> like <this>", "|Use <think> and </think> like <this>");
    check(&QWEN, "a</think>b</think>c", "a|b</think>c");
    let without_tools = Reading { tools: false, ..QWEN };
    check(&without_tools, "a</think>\n\n<tool_call>\n", "a|<tool_call>\n");
}

#[test]
fn text_that_only_looks_like_a_tag_ends_nothing_where_there_is_a_token() {
    let tokenizer = tokenizer(true);
    let mut parser = QWEN.parser(&tokenizer);
    let mut answer = Answer::default();
    answer.extend(parser.push("the tag </think> ends", &[]));
    answer.extend(parser.finish());
    assert_eq!(line(&answer), "the tag </think> ends|");
}

#[test]
fn calls_of_the_xml_syntax() {
    let call = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    check(
        &QWEN,
        &format!("Hm.\n</think>\n\nLet me look.\n\n{call}"),
        r#"Hm.|Let me look.|weather({"city":"Paris","days":3})"#,
    );
    check(&QWEN, &format!("Hm.\n{call}\nmore</think>said"), r#"Hm.more|said|weather({"city":"Paris","days":3})"#);
    check(
        &QWEN,
        &format!("</think>{call}\n{call}\n"),
        r#"||weather({"city":"Paris","days":3})|weather({"city":"Paris","days":3})"#,
    );
    for (inside, arguments) in [
        ("<function=weather></function>", "{}"),
        ("<function=weather>\n</function>", "{}"),
        ("<function=weather>", "{}"),
        ("<function=\"weather\">\n</function>", "{}"),
        ("<function=weather><parameter=city>a</parameter></function>", r#"{"city":"a"}"#),
        ("<function=weather><parameter=city></parameter></function>", r#"{"city":""}"#),
        ("<function=weather><parameter=city>\n</parameter></function>", r#"{"city":""}"#),
        ("<function=weather><parameter=city>\n\n\n</parameter></function>", r#"{"city":"\n"}"#),
        ("<function=weather><parameter=city>\n a \"b\"\té\n\n</parameter></function>", r#"{"city":" a \"b\"\té\n"}"#),
        ("<function=weather><parameter=city>1</parameter><parameter=city>2</parameter></function>", r#"{"city":"1"}"#),
        ("<function=weather><parameter=days>\"3\"</parameter></function>", r#"{"days":"\"3\""}"#),
        ("<function=weather><parameter=deep>\n{\"a\": [1]}\n</parameter></function>", r#"{"deep":{"a": [1]}}"#),
        ("<function=weather><parameter=new>x</parameter></function>", r#"{"new":"x"}"#),
        (
            "<function=weather>\n<parameter=city>\n<a></parameter> and </function> </b>\n</parameter>\n</function>",
            r#"{"city":"<a></parameter> and </function> </b>"}"#,
        ),
        ("<function=weather>\n<parameter=city>\nend tag forgotten\n</function>", r#"{"city":"end tag forgotten"}"#),
        ("<function=weather>\n<parameter=city>\n</think>\n</parameter>\n</function>", r#"{"city":"</think>"}"#),
        ("<function=weather>\nwhatever\n<parameter=city>\n1\n</parameter>\n", r#"{"city":"1"}"#),
        (" {\"name\": \"weather\", \"arguments\": {\"city\": \"a\"}} ", r#"{"city": "a"}"#),
    ] {
        let text = format!("</think><tool_call>{inside}</tool_call>");
        check(&QWEN, &text, &format!("||weather({arguments})"));
    }
}

#[test]
fn calls_without_their_first_tag() {
    let forgotten = "</think>I look.\n<function=weather>\n<parameter=city>\na\n</parameter>\n</function>\n</tool_call>";
    check(&QWEN, forgotten, r#"|I look.|weather({"city":"a"})"#);
    check(&QWEN, "</think>Write <function=other> here", "|Write <function=other> here");
}

#[test]
fn what_only_begins_like_a_call_is_prose() {
    for text in [
        "<tool_call>",
        "a <tool_call> b",
        "<tool_call>\n\n",
        "<tool_call><function",
        "<tool_call><function=>x",
        "<tool_call>{}",
        "<",
        "<tool",
        "<tool_call><tool_call>",
    ] {
        check(&QWEN, &format!("</think>{text}"), &format!("|{text}"));
    }
    check(&QWEN, "I use <tool_call><function=f> for it</think>yes", "I use <tool_call><function=f> for it|yes");
    check(&QWEN, "I open <tool_call></think>yes", "I open <tool_call>|yes");
    check(&QWEN, "</think><tool_call><function=other></function></tool_call>", "||other({})");
}

#[test]
fn a_call_that_is_cut_short_has_incomplete_arguments() {
    check(&QWEN, "</think><tool_call>\n<function=weather>\n<parameter=city>\nPar", r#"||weather({"city":"Par)"#);
    check(&QWEN, "</think><tool_call>\n<function=weather>\n<parameter=days>\n3", r#"||weather({"days":)"#);
    check(
        &QWEN,
        "</think><tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>",
        r#"||weather({"days":3})"#,
    );
    check(&QWEN, "</think><tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"b", r#"||f({"a": "b)"#);
}

#[test]
fn calls_of_the_hermes_syntax() {
    let hermes = Reading { template: HERMES, whole_tags: true, reasoning_open: false, tools: true };
    for (object, call) in [
        (
            r#"{"name": "weather", "arguments": {"city": "a}", "days": [1, {}]}}"#,
            r#"weather({"city": "a}", "days": [1, {}]})"#,
        ),
        (r#"{"arguments": {"city": "a"}, "name": "weather"}"#, r#"weather({"city": "a"})"#),
        (r#"{"id": 7, "name": "f", "arguments": "{\"a\": 1}"}"#, r#"f({"a": 1})"#),
        (r#"{"name": "f", "parameters": null, "more": true}"#, "f({})"),
        (r#"{"name": "f"}"#, "f({})"),
        ("{\"name\": \"f\", \"arguments\": {\"a\": \"line\nbreak\"}}", r#"f({"a": "line\nbreak"})"#),
        (r#"{"name": "f", "arguments": {"a": "</tool_call>\""}}"#, r#"f({"a": "</tool_call>\""})"#),
        (r#"{"name": "f", "arguments": {}, "arguments": {"b": 1}}"#, "f({})"),
    ] {
        check(&hermes, &format!("Well.\n<tool_call>\n{object}\n</tool_call>"), &format!("|Well.|{call}"));
        check(&hermes, &format!("<tool_call>{object}"), &format!("||{call}"));
    }
    check(&hermes, "<tool_call>[1]</tool_call>", "|<tool_call>[1]</tool_call>");
    check(&hermes, "<tool_call>{\"nom\": 1}</tool_call>", "|<tool_call>{\"nom\": 1}</tool_call>");
}

#[test]
fn calls_of_the_llama_syntax() {
    let llama = Reading { template: LLAMA, whole_tags: false, reasoning_open: false, tools: true };
    check(&llama, r#"{"name": "weather", "parameters": {"city": "a"}}"#, r#"||weather({"city": "a"})"#);
    check(
        &llama,
        r#"{"type": "function", "name": "weather", "parameters": {}}; {"name": "weather", "parameters": {}}"#,
        "||weather({})|weather({})",
    );
    check(&llama, r#"{"name": "other", "parameters": {}}"#, r#"|{"name": "other", "parameters": {}}"#);
    check(&llama, r#"{"answer": 5}"#, r#"|{"answer": 5}"#);
    check(&llama, r#"Say {"name": "weather"}"#, r#"|Say {"name": "weather"}"#);
    let tagged = Reading { whole_tags: true, ..llama };
    let answer = tagged.by_tokens(r#"<|python_tag|>{"name": "weather", "parameters": {}}"#, &[]);
    assert_eq!(line(&answer), "||weather({})");
}

#[test]
fn calls_are_numbered() {
    let answer = QWEN.read("</think><tool_call><function=weather></function></tool_call><tool_call><function=weather></function></tool_call>");
    let ids: Vec<&str> = answer.calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(ids, ["call_0", "call_1"]);
}

#[test]
fn nothing_comes_after_the_only_call() {
    let call = "<tool_call><function=weather></function></tool_call>";
    let mut parser = QWEN.parser(&tokenizer(false)).with_one_call();
    let mut answer = Answer::default();
    answer.extend(parser.push(&format!("</think>a{call}b{call}"), &[]));
    answer.extend(parser.end("c", &[]));
    assert_eq!(line(&answer), "|a|weather({})");
}

#[test]
fn stop_strings_that_begin_within_tags_leave_tags_whole() {
    let answer = QWEN.by_tokens("Hm.</think>\n\nYes", &[">\n\nNo", "es"]);
    assert_eq!(line(&answer), "Hm.|Y");
}

#[test]
fn tokens_of_reasoning_are_counted() {
    let tokenizer = tokenizer(true);
    let mut parser = QWEN.parser(&tokenizer);
    for text in ["a", "b"] {
        parser.push(text, &[]);
    }
    let close = tokenizer.token_id("</think>").unwrap();
    parser.push("</think>", &[crate::Mark { token: close, start: 0, length: 8 }]);
    parser.push("c", &[]);
    assert_eq!(parser.reasoning_tokens(), 3);
    assert!(!parser.has_calls());
}

/// Texts made of what matters.
fn scraps() -> impl Strategy<Value = String> {
    let scrap = prop::sample::select(vec![
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        "<function=",
        "weather>",
        "</function>",
        "<parameter=",
        "city>",
        "days>",
        "</parameter>",
        "\n",
        " ",
        "é",
        "5",
        "{",
        "}",
        "\"name\"",
        "\"arguments\"",
        ":",
        "\"weather\"",
        ",",
        "\"",
        "<",
        ">",
        ";",
    ]);
    prop::collection::vec(scrap, 0..24).prop_map(|scraps| scraps.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn cuts_do_not_matter(
        text in scraps(),
        template in prop::sample::select(vec![XML, HERMES, LLAMA]),
        reasoning_open in any::<bool>(),
        cuts in prop::collection::vec(0.0_f64..1.0, 0..6),
    ) {
        let reading = Reading { template, whole_tags: false, reasoning_open, tools: true };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * text.len() as f64) as usize).collect();
        cuts.retain(|&cut| text.is_char_boundary(cut));
        cuts.sort_unstable();
        prop_assert_eq!(reading.by_pieces(&text, &cuts), reading.by_pieces(&text, &[]));
        prop_assert_eq!(reading.by_tokens(&text, &[]), reading.by_pieces(&text, &[]));
    }

    #[test]
    fn nothing_is_lost_without_tools(text in scraps()) {
        let reading = Reading { template: "", whole_tags: false, reasoning_open: false, tools: false };
        prop_assert_eq!(reading.by_pieces(&text, &[]).text, text);
    }
}
