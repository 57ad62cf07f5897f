//! Every rule against the regular expression it stands for.

use std::collections::HashMap;
use std::sync::LazyLock;

use fancy_regex::Regex;
use proptest::prelude::*;

use super::*;

const CONTRACTIONS: &str = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

fn modern(letters: &str, digits: &str) -> String {
    format!(
        r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?[^\s{letters}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
}

/// The expression of each rule.
static PATTERNS: LazyLock<HashMap<&str, Regex>> = LazyLock::new(|| {
    let pattern = |name| match name {
        "qwen2" => modern(r"\p{L}", r"\p{N}"),
        "qwen35" => modern(r"\p{L}\p{M}", r"\p{N}"),
        "llama-bpe" => modern(r"\p{L}", r"\p{N}{1,3}"),
        "digits" => r"\p{N}|\P{N}+".to_owned(),
        _ => GPT2.to_owned(),
    };
    RULES.into_iter().chain(["digits"]).map(|name| (name, Regex::new(&pattern(name)).unwrap())).collect()
});

fn matches<'t>(pattern: &Regex, text: &'t str) -> Vec<&'t str> {
    pattern.find_iter(text).map(|found| found.unwrap().as_str()).collect()
}

fn expected<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
    let pattern = &PATTERNS[name];
    if name != "smollm" {
        return matches(pattern, text);
    }
    let mut words = Vec::new();
    for piece in matches(&PATTERNS["digits"], text) {
        words.extend(matches(pattern, piece));
    }
    words
}

fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
    let rule = PreTokenizer::from_name(name).unwrap();
    let mut words = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (word, tail) = rest.split_at(rule.first_word(rest));
        words.push(word);
        rest = tail;
    }
    words
}

const RULES: [&str; 5] = ["qwen2", "qwen35", "llama-bpe", "smollm", "gpt-2"];

/// Texts dense in what the rules distinguish.
fn tricky_text() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "a", "Z", "s", "re", "LL", "'", "'s", "'Ve", "'m", "\u{17f}", " ", "  ", "\t", "\n", "\r\n", "\u{a0}",
        "\u{85}", "\u{2028}", "\u{3000}", "0", "12", "345", "½", "Ⅷ", "٣", ".", "!?", "(", "_", "é", "e\u{301}",
        "\u{301}", "\u{94d}", "क", "你", "한", "\u{200d}", "👩", "\u{0}", "\u{7f}", "\u{1c}", "ª", "ʼ", "々",
        "\u{e000}",
    ]);
    prop::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn words_are_the_matches_of_the_expression(text in tricky_text()) {
        for name in RULES {
            prop_assert_eq!(words(name, &text), expected(name, &text), "{}", name);
        }
    }

    #[test]
    fn words_of_any_text_are_the_matches_of_the_expression(text in any::<String>()) {
        for name in RULES {
            prop_assert_eq!(words(name, &text), expected(name, &text), "{}", name);
        }
    }
}

#[test]
fn every_character_has_the_class_of_the_expressions() {
    let classes = [
        (Class::Letter, r"\p{L}"),
        (Class::Mark, r"\p{M}"),
        (Class::Number, r"\p{N}"),
        (Class::Newline, r"[\r\n]"),
        (Class::Space, r"[^\S\r\n]"),
        (Class::Other, r"[^\s\p{L}\p{M}\p{N}]"),
    ];
    let text: String = ('\0'..=char::MAX).collect();
    let mut characters = 0;
    for (expected, pattern) in classes {
        for found in Regex::new(pattern).unwrap().find_iter(&text) {
            let letter = found.unwrap().as_str().chars().next().unwrap();
            assert_eq!(class(letter), expected, "{letter:?}");
            characters += 1;
        }
    }
    assert_eq!(characters, text.chars().count());
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let message = PreTokenizer::from_name("qwen99").unwrap_err().to_string();
    assert!(message.contains("qwen99") && message.contains("qwen35") && message.contains("smollm"), "{message}");
}
