//! Hostile templates, and whose fault a failure is. What templates render is tested against Python in `tests/golden`.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing::byte_tokenizer;
use crate::vocabulary::TokenKind;

fn render(source: &str) -> Result<String> {
    let template = ChatTemplate::new(source, &byte_tokenizer(&[]))?;
    let messages = [json!({"role": "user", "content": "hello"})];
    template.render(&RenderRequest { messages: &messages, ..RenderRequest::default() })
}

#[test]
fn endless_work_is_cut_short() {
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(99999) %}{% for j in range(99) %}{{ messages | tojson }}{% endfor %}{% endfor %}",
        "{% set x = 'x' * 90000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(90) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(90) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x='a') %}{% for i in range(90) %}{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
        "{{ 'x' * 1000000000000 }}",
        "{{ messages | tojson(indent=1000000000000) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{% for i in range(100000) %}{% for c in messages[0].content * 9999999 %}{% endfor %}{% endfor %}",
    ] {
        let error = render(source).expect_err(source);
        assert!(matches!(error, Error::TemplateLimit(_) | Error::TemplateFailed(_)), "{source}: {error}");
        assert!(!error.is_client_error());
    }
}

#[test]
fn loops_and_recursion_without_end_exceed_a_limit() {
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(100000) %}{{ 'x' * 100000 }}{% endfor %}",
    ] {
        let error = render(source).expect_err(source);
        assert!(matches!(error, Error::TemplateLimit(_)), "{source}: {error}");
    }
}

#[test]
fn deep_values_do_not_overflow_the_stack() {
    let nested = |list: &str| {
        let start = "{% set n = namespace(x=[]) %}{% for i in range(100000) %}{% set n.x = ";
        [start, list, " %}{% endfor %}"].concat()
    };
    assert_eq!(render(&nested("[n.x]")).unwrap(), "");
    assert!(matches!(render(&nested("[[[[[[[[[[[[n.x]]]]]]]]]]]]")), Err(Error::TemplateLimit(_))));
    for print in ["{{ n.x }}", "{{ n.x | tojson }}"] {
        let error = render(&[nested("[n.x]").as_str(), print].concat()).unwrap_err();
        assert!(error.to_string().contains("nested too deep"), "{error}");
    }
    for print in ["{{ n }}", "{{ n | tojson }}", "{{ [n] }}"] {
        let error = render(&["{% set n = namespace() %}{% set n.x = n %}", print].concat()).unwrap_err();
        assert!(error.to_string().contains("nested too deep"), "{error}");
    }
}

#[test]
fn templates_that_do_not_compile_say_where() {
    for source in ["{% if %}", "{{ messages", "{% for x in y %}", "{% endfor %}", "{% unknown_tag %}"] {
        let error = render(source).expect_err(source);
        assert!(matches!(error, Error::TemplateSyntax(_)), "{source}: {error}");
        assert!(error.to_string().contains("chat template:1"), "{error}");
    }
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(matches!(render(&deep), Err(Error::TemplateSyntax(_))));
    assert!(matches!(render(&" ".repeat(MAX_TEMPLATE_BYTES + 1)), Err(Error::TemplateLimit(_))));
}

#[test]
fn what_the_template_raises_is_the_clients_fault() {
    let error = render("{% macro check() %}{{ raise_exception('no ' ~ messages[0].role) }}{% endmacro %}{{ check() }}");
    match error {
        Err(error @ Error::TemplateRaised(_)) => {
            assert!(error.is_client_error());
            assert_eq!(error.to_string(), "the chat template refuses the conversation: no user");
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(render("{{ messages[9].content.text }}"), Err(Error::TemplateFailed(_))));
}

#[test]
fn models_without_a_template_speak_chatml_or_nothing() {
    let chatml = byte_tokenizer(&[("<|im_start|>", TokenKind::Control), ("<|im_end|>", TokenKind::Control)]);
    let template = ChatTemplate::for_model(None, &chatml).unwrap();
    let messages = [json!({"role": "user", "content": "hello"})];
    let request = RenderRequest { messages: &messages, add_generation_prompt: true, ..RenderRequest::default() };
    let text = template.render(&request).unwrap();
    assert_eq!(text, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(template.stable_boundary(&request, &text).unwrap(), Some(text.len() - 22));

    let error = ChatTemplate::for_model(None, &byte_tokenizer(&[])).unwrap_err();
    assert!(matches!(error, Error::NoChatTemplate), "{error}");
    assert!(ChatTemplate::for_model(Some("x"), &byte_tokenizer(&[])).is_ok());
}

#[test]
fn a_template_that_rewrites_the_conversation_has_no_boundary() {
    let source = "{{ 'answering' if add_generation_prompt else 'done' }}";
    let template = ChatTemplate::new(source, &byte_tokenizer(&[])).unwrap();
    let request = RenderRequest { add_generation_prompt: true, ..RenderRequest::default() };
    let text = template.render(&request).unwrap();
    assert_eq!(template.stable_boundary(&request, &text).unwrap(), None);
}

#[test]
fn kwargs_do_not_replace_what_the_server_says() {
    let template = ChatTemplate::new("{{ add_generation_prompt }}{{ extra }}", &byte_tokenizer(&[])).unwrap();
    let kwargs = json!({"add_generation_prompt": true, "extra": 1});
    let request = RenderRequest { kwargs: kwargs.as_object(), ..RenderRequest::default() };
    assert_eq!(template.render(&request).unwrap(), "False1");
}

proptest! {
    #[test]
    fn any_source_and_any_message_end_in_a_result(
        source in "(\\{\\{|\\}\\}|\\{%|%\\}|-|for|in|if|messages|\\[|\\]|'|\\.|content| |x|endfor|\\||tojson){0,20}",
        content in any::<String>(),
    ) {
        if let Ok(template) = ChatTemplate::new(&source, &byte_tokenizer(&[])) {
            let messages = [json!({"role": "user", "content": content})];
            let _ = template.render(&RenderRequest { messages: &messages, ..RenderRequest::default() });
        }
    }

    #[test]
    fn content_is_never_taken_for_template_code(content in any::<String>()) {
        let template = ChatTemplate::new("{{ messages[0].content }}", &byte_tokenizer(&[])).unwrap();
        let messages = [json!({"role": "user", "content": content})];
        let text = template.render(&RenderRequest { messages: &messages, ..RenderRequest::default() }).unwrap();
        prop_assert_eq!(text, content);
    }
}
