//! Followers against what their grammars say.

use serde_json::{Value, json};

use super::*;

/// Token `b` is byte `b`; then come a word, a special token, and two that end a text.
fn speller() -> Speller {
    let bytes: Vec<[u8; 1]> = (0..=255_u8).map(|byte| [byte]).collect();
    let more =
        [Spelling::Text(b"true"), Spelling::Special("<call>"), Spelling::Special("<end>"), Spelling::Special("<eos>")];
    Speller::new(bytes.iter().map(|byte| Spelling::Text(byte)).chain(more), &[258, 259]).unwrap()
}

const WORD: u32 = 256;
const CALL: u32 = 257;
const ENDS: [u32; 2] = [258, 259];

/// Whether all of `text` is possible, and whether it may end there.
fn reads(grammar: &Grammar, text: &str) -> (bool, bool) {
    let mut follower = speller().follow(grammar).unwrap();
    for byte in text.bytes() {
        if !follower.allowed().unwrap().has(byte.into()) {
            return (false, false);
        }
        follower.take(byte.into()).unwrap();
    }
    let allowed = follower.allowed().unwrap();
    assert_eq!(allowed.has(ENDS[0]), allowed.has(ENDS[1]));
    (true, allowed.has(ENDS[0]))
}

const WHOLE: (bool, bool) = (true, true);
const BEGUN: (bool, bool) = (true, false);
const WRONG: (bool, bool) = (false, false);

#[test]
fn texts_follow_their_grammars() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let schema = Grammar::json_schema(&schema).unwrap();
    let choice = Grammar::choice(&["yes", "no \"way\"\n", "nö"]).unwrap();
    let regex = Grammar::regex("[a-c]+[0-9]?").unwrap();
    let lark = Grammar::lark("start: \"x\" %json {\"type\": \"boolean\"} \"y\"").unwrap();
    for (grammar, text, wanted) in [
        (&schema, "{\"a\": 5}", WHOLE),
        (&schema, "{ \"a\":\n 5", BEGUN),
        (&schema, "{\"a\": \"", WRONG),
        (&schema, "{\"b", WRONG),
        (&schema, "{}", WRONG),
        (&choice, "yes", WHOLE),
        (&choice, "no \"way\"\n", WHOLE),
        (&choice, "nö", WHOLE),
        (&choice, "no", BEGUN),
        (&choice, "maybe", WRONG),
        (&regex, "abc", WHOLE),
        (&regex, "abc1", WHOLE),
        (&regex, "", BEGUN),
        (&regex, "abc12", WRONG),
        (&lark, "xtruey", WHOLE),
        (&lark, "xnully", WRONG),
        (&Grammar::json_object(), "{\"any\": [1, {}]}", WHOLE),
        (&Grammar::json_object(), "[", WRONG),
    ] {
        assert_eq!(reads(grammar, text), wanted, "{text:?} {grammar:?}");
    }
}

#[test]
fn tokens_may_be_forgotten() {
    let speller = speller();
    let grammar = Grammar::choice(&["true!", "truth"]).unwrap();
    let mut follower = speller.follow(&grammar).unwrap();
    assert!(follower.allowed().unwrap().has(WORD));
    follower.take(WORD).unwrap();
    assert!(!follower.allowed().unwrap().has(u32::from(b't')));
    follower.take(u32::from(b'!')).unwrap();
    let allowed = follower.allowed().unwrap();
    assert!(allowed.has(ENDS[0]) && !allowed.has(u32::from(b'x')));
    follower.take(ENDS[1]).unwrap();
    assert!(follower.take(u32::from(b'x')).is_err());
    follower.forget(3).unwrap();
    for byte in b"trut" {
        follower.take(u32::from(*byte)).unwrap();
    }
    assert!(follower.allowed().unwrap().has(u32::from(b'h')));
    assert!(follower.take(u32::from(b'!')).is_err());
}

#[test]
fn special_tokens_are_no_text() {
    let speller = speller();
    let grammar = Grammar::lark("start: TEXT (<call> \"f\")*\nTEXT: /(?s:.*)/").unwrap();
    let mut follower = speller.follow(&grammar).unwrap();
    for byte in b"<call>" {
        follower.take(u32::from(*byte)).unwrap();
    }
    let allowed = follower.allowed().unwrap();
    assert!(allowed.has(CALL) && allowed.has(ENDS[0]) && allowed.has(u32::from(b'z')));
    follower.take(CALL).unwrap();
    let allowed = follower.allowed().unwrap();
    assert!(allowed.has(u32::from(b'f')) && !allowed.has(u32::from(b'g')) && !allowed.has(ENDS[0]));
}

#[test]
fn values_are_restricted_to_what_may_follow() {
    let speller = speller();
    let mut follower = speller.follow(&Grammar::choice(&["a", "ab", "ba"]).unwrap()).unwrap();
    let left = |follower: &mut Follower| {
        // More values than tokens, as of a model with padding.
        let mut values: Vec<f32> = (0..300_u16).map(f32::from).collect();
        let allowed = follower.allowed().unwrap();
        allowed.restrict(&mut values, -1.0);
        let kept: Vec<u32> = (0..300).filter(|token| values[*token as usize] >= 0.0).collect();
        assert!(kept.iter().all(|token| values[*token as usize] == *token as f32 && allowed.has(*token)));
        kept
    };
    assert_eq!(left(&mut follower), [97, 98]);
    follower.take(97).unwrap();
    assert_eq!(left(&mut follower), [98, 258, 259]);
    follower.take(98).unwrap();
    assert_eq!(left(&mut follower), ENDS);
}

#[test]
fn what_no_text_can_follow_is_refused_with_the_reason() {
    let schema = |schema: Value| Grammar::json_schema(&schema).unwrap();
    for (grammar, says) in [
        (schema(json!({"type": "integer", "minimum": 5, "maximum": 3})), "minimum"),
        (schema(json!({"type": "flower"})), "flower"),
        (schema(json!({"$ref": "#/nowhere"})), "nowhere"),
        (schema(json!(false)), ""),
        (Grammar::regex("[a-").unwrap(), ""),
        (Grammar::lark("start: other").unwrap(), "other"),
        (Grammar::lark("").unwrap(), ""),
        (Grammar::lark("start: <nothing>").unwrap(), "nothing"),
        (Grammar::from_text("{".to_owned()).unwrap(), ""),
    ] {
        let error = speller().follow(&grammar).expect_err(grammar.text()).to_string();
        assert!(error.contains(says) && !error.is_empty(), "{error:?} does not say {says:?}");
    }
    assert!(Grammar::choice::<&str>(&[]).is_err());
    assert!(matches!(Grammar::lark(&"x".repeat(MAX_GRAMMAR_BYTES)), Err(Error::TooLong { .. })));
}
