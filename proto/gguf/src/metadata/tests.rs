//! Reading values of every type.

use super::*;
use crate::{Gguf, testing::GgufWriter};

fn model(entries: &[(&str, Value)]) -> Gguf {
    let mut writer = GgufWriter::new();
    for (key, value) in entries {
        writer.metadata(*key, value.clone());
    }
    Gguf::from_vec(writer.to_vec(), "m").unwrap()
}

#[test]
fn integers_convert_where_nothing_is_lost() {
    let cases = [
        (Value::U8(7), Some(7)),
        (Value::I8(7), Some(7)),
        (Value::U16(7), Some(7)),
        (Value::I16(7), Some(7)),
        (Value::U32(u32::MAX), Some(u32::MAX)),
        (Value::I32(7), Some(7)),
        (Value::U64(7), Some(7)),
        (Value::I64(7), Some(7)),
        (Value::I8(-1), None),
        (Value::I32(-1), None),
        (Value::U64(1 << 32), None),
        (Value::F32(7.0), None),
        (Value::Bool(true), None),
        ("7".into(), None),
    ];
    for (value, expected) in cases {
        let gguf = model(&[("k", value.clone())]);
        assert_eq!(gguf.metadata().get_u32("k").ok().flatten(), expected, "{value:?}");
    }
    let gguf = model(&[("k", Value::U64(u64::MAX))]);
    assert_eq!(gguf.metadata().get_u64("k").unwrap(), Some(u64::MAX));
}

#[test]
fn floats_convert_where_nothing_is_lost() {
    let cases = [
        (Value::F32(0.1), Some(0.1)),
        (Value::F64(0.5), Some(0.5)),
        (Value::F64(f64::INFINITY), Some(f32::INFINITY)),
        (Value::F64(0.1), None),
        (Value::F64(1e300), None),
        (Value::U32(1 << 24), Some(16_777_216.0)),
        (Value::U32((1 << 24) + 1), None),
        (Value::I64(i64::MIN), Some(-9.223_372e18)),
        (Value::U64(u64::MAX), None),
        (Value::Bool(true), None),
    ];
    for (value, expected) in cases {
        let gguf = model(&[("k", value.clone())]);
        assert_eq!(gguf.metadata().get_f32("k").ok().flatten(), expected, "{value:?}");
    }
    let gguf = model(&[("k", Value::F64(f64::NAN))]);
    assert!(gguf.metadata().get_f32("k").unwrap().unwrap().is_nan());
}

#[test]
fn wrong_types_are_errors_and_missing_keys_are_not() {
    let gguf = model(&[("flag", true.into()), ("text", "x".into()), ("list", (&[1_i32, -2][..]).into())]);
    let metadata = gguf.metadata();
    assert_eq!(metadata.get_bool("flag").unwrap(), Some(true));
    assert_eq!(metadata.get_str("text").unwrap(), Some("x"));
    assert_eq!(metadata.i32s("list").unwrap(), Some(vec![1, -2]));
    assert_eq!(metadata.get_bool("none").unwrap(), None);
    assert_eq!(metadata.strings("none").unwrap(), None);
    let message = |error: Error| error.to_string();
    assert_eq!(message(metadata.require_u32("none").unwrap_err()), "m: key \"none\" is missing");
    assert_eq!(message(metadata.get_bool("text").unwrap_err()), "m: key \"text\" is a string, a bool is needed");
    assert_eq!(message(metadata.get_str("flag").unwrap_err()), "m: key \"flag\" is the bool true, a string is needed");
    assert_eq!(
        message(metadata.u32s("list").unwrap_err()),
        "m: key \"list\" is an array of 2, an array of integers of 32 bits without sign is needed"
    );
    assert!(matches!(metadata.strings("list"), Err(Error::WrongValue { .. })));
    assert!(matches!(metadata.f32s("list"), Err(Error::WrongValue { .. })));
    assert!(matches!(metadata.bools("flag"), Err(Error::WrongValue { .. })));
    assert!(matches!(metadata.u32s("text"), Err(Error::WrongValue { .. })));
}

#[test]
fn one_number_per_layer_is_written_in_two_ways() {
    let gguf = model(&[("one", 3_u32.into()), ("each", (&[1_u32, 2][..]).into())]);
    let metadata = gguf.metadata();
    assert_eq!(metadata.u32_per_layer("one", 3).unwrap(), Some(vec![3; 3]));
    assert_eq!(metadata.u32_per_layer("each", 2).unwrap(), Some(vec![1, 2]));
    assert_eq!(metadata.u32_per_layer("none", 2).unwrap(), None);
    let error = metadata.u32_per_layer("each", 3).unwrap_err().to_string();
    assert_eq!(error, "m: key \"each\" has 2 elements, 3 are needed");
}

#[test]
fn strings_are_found_by_index() {
    let words = ["", "a", "", "größe", "日本", ""];
    let gguf = model(&[("tokens", (&words[..]).into())]);
    let strings = gguf.metadata().strings("tokens").unwrap().unwrap();
    assert_eq!(strings.iter().collect::<Vec<_>>(), words);
    assert_eq!((strings.len(), strings.get(4), strings.get(6)), (6, Some("日本"), None));
}
