//! Headers, good and hostile.

use super::*;
use crate::{
    Array, MAX_ARRAY_DEPTH, Value,
    testing::{GgufWriter, TensorEntry},
};

/// A good file with one entry and one tensor of 64 bytes, which every case spoils in one way.
fn good() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.metadata("key", "text").tensor("a", TensorType::F32, &[8, 2], vec![0; 64]);
    writer
}

fn message(bytes: &[u8]) -> String {
    match Header::read(bytes, "m") {
        Ok(_) => "no error".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Where the parts of the good file begin.
const VERSION_AT: usize = 4;
const TENSOR_COUNT_AT: usize = 8;
const METADATA_COUNT_AT: usize = 16;
const KEY_LENGTH_AT: usize = 24;
const VALUE_TYPE_AT: usize = 35;
const TEXT_LENGTH_AT: usize = 39;
const TEXT_AT: usize = 47;
const TENSOR_NAME_LENGTH_AT: usize = 51;
const TENSOR_NAME_AT: usize = 59;
const DIMENSION_COUNT_AT: usize = 60;
const ROW_LENGTH_AT: usize = 64;
const ROWS_AT: usize = 72;
const TYPE_AT: usize = 80;
const OFFSET_AT: usize = 84;
const HEADER_END: usize = 92;
const FILE_END: usize = 96 + 64;

#[test]
fn the_good_file_is_good() {
    let bytes = good().to_vec();
    let tensors = Header::read(&bytes, "m").unwrap().tensors;
    assert_eq!(tensors[0].data, 96..FILE_END);
    assert_eq!((bytes.len(), good().header().len()), (FILE_END, HEADER_END));
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = good().to_vec();
    for length in 0..FILE_END {
        let error = Header::read(&bytes[..length], "m").err().expect("the file is cut");
        match error {
            Error::NotGguf { length: found, .. } => assert!(length < 4 && found == length as u64),
            Error::Truncated { at, needed, length: found, .. } => {
                assert!(length < HEADER_END && found == length as u64 && at + needed > found);
            }
            Error::TensorOutOfBounds { length: found, .. } => assert!(length >= HEADER_END && found == length as u64),
            other => panic!("cut at {length}: {other}"),
        }
    }
}

/// The good file with some bytes replaced.
fn patched(at: usize, replacement: &[u8]) -> Vec<u8> {
    let mut bytes = good().to_vec();
    bytes[at..at + replacement.len()].copy_from_slice(replacement);
    bytes
}

#[test]
fn spoiled_bytes_are_refused() {
    let u32s = |at: usize, value: u32| patched(at, &value.to_le_bytes());
    let u64s = |at: usize, value: u64| patched(at, &value.to_le_bytes());
    let cases = [
        (patched(0, b"PK\x03\x04"), r#"m: not a GGUF file: 160 bytes long, starts with "PK\x03\x04\x03\x00\x00\x00"#),
        (u32s(VERSION_AT, 1), "m: GGUF version 1; versions 2 and 3 can be read"),
        (u32s(VERSION_AT, 4), "m: GGUF version 4; versions 2 and 3 can be read"),
        (patched(VERSION_AT, &3_u32.to_be_bytes()), "m: a big-endian GGUF file of version 3"),
        (u64s(TENSOR_COUNT_AT, 1 << 60), "m: declares 1152921504606846976 tensors, the limit is 262144"),
        (u64s(TENSOR_COUNT_AT, MAX_TENSORS), "m: ends inside the list of tensors at byte 51: 8388608 bytes needed"),
        (u64s(METADATA_COUNT_AT, u64::MAX), "m: declares 18446744073709551615 metadata entries, the limit is 65536"),
        (u64s(METADATA_COUNT_AT, 2), "m: the tensor name at byte 66 is 562949953421312 bytes long"),
        (u64s(KEY_LENGTH_AT, 1 << 62), "m: the metadata key at byte 24 is 4611686018427387904 bytes long"),
        (
            u64s(KEY_LENGTH_AT, 60_000),
            "m: ends inside the metadata key at byte 32: 60000 bytes needed, the file has 160",
        ),
        (u32s(VALUE_TYPE_AT, 13), "m: key \"key\" has a value of unknown type 13"),
        (u64s(TEXT_LENGTH_AT, 1 << 62), "m: ends inside the metadata value at byte 47: 4611686018427387904 bytes"),
        (u64s(TEXT_LENGTH_AT, u64::MAX), "m: ends inside the metadata value at byte 47: 18446744073709551615 bytes"),
        (patched(TEXT_AT, b"t\xff"), "m: the metadata value at byte 47 is not valid UTF-8"),
        (u64s(TENSOR_NAME_LENGTH_AT, 1 << 62), "m: the tensor name at byte 51 is 4611686018427387904 bytes long"),
        (patched(TENSOR_NAME_AT, b"\x80"), "m: the tensor name at byte 59 is not valid UTF-8"),
        (u32s(DIMENSION_COUNT_AT, 0), "m: tensor \"a\" has 0 dimensions"),
        (u32s(DIMENSION_COUNT_AT, 5), "m: tensor \"a\" has 5 dimensions"),
        (u32s(DIMENSION_COUNT_AT, u32::MAX), "m: tensor \"a\" has 4294967295 dimensions"),
        (u64s(ROW_LENGTH_AT, 0), "m: dimension 0 of tensor \"a\" is zero"),
        (u64s(ROWS_AT, 0), "m: dimension 1 of tensor \"a\" is zero"),
        (u64s(ROWS_AT, 1 << 61), "m: tensor \"a\" with dimensions [8, 2305843009213693952, 1, 1] has more elements"),
        (u64s(ROWS_AT, 1 << 59), "m: tensor \"a\" with dimensions [8, 576460752303423488, 1, 1] has more elements"),
        (u64s(ROWS_AT, 1 << 58), "m: tensor \"a\" needs 9223372036854775808 bytes at offset 0"),
        (u64s(ROWS_AT, 3), "m: tensor \"a\" needs 96 bytes at offset 0 of the data, the file has 160"),
        (u32s(TYPE_AT, 8), "m: a row of tensor \"a\" has 8 elements, Q8_0 needs a multiple of 32"),
        (u32s(TYPE_AT, 12), "m: a row of tensor \"a\" has 8 elements, Q4_K needs a multiple of 256"),
        (u32s(TYPE_AT, 16), "m: tensor \"a\" is of type IQ2_XXS (id 16), which is not supported"),
        (u32s(TYPE_AT, 27), "m: tensor \"a\" is of type I64 (id 27), which is not supported"),
        (u32s(TYPE_AT, 40), "m: tensor \"a\" is of type NVFP4 (id 40), which is not supported"),
        (u32s(TYPE_AT, u32::MAX), "m: tensor \"a\" is of type unknown (id 4294967295), which is not supported"),
        (u64s(OFFSET_AT, 4), "m: tensor \"a\" is at offset 4, which is not a multiple of the alignment 32"),
        (u64s(OFFSET_AT, 32), "m: tensor \"a\" needs 64 bytes at offset 32 of the data, the file has 160"),
        (u64s(OFFSET_AT, u64::MAX - 31), "m: tensor \"a\" needs 64 bytes at offset 18446744073709551584"),
    ];
    for (bytes, expected) in cases {
        let found = message(&bytes);
        assert!(found.starts_with(expected), "expected {expected}\n   found {found}");
    }
}

#[test]
fn files_well_formed_but_wrong_are_refused() {
    let aligned = |alignment: Value| good().metadata("general.alignment", alignment).to_vec();
    let with_tensor = |name: &str, offset: u64| {
        let (name, dims, data) = (name.to_owned(), vec![8], Vec::new());
        good().push(TensorEntry { name, dims, type_id: 0, offset: Some(offset), bytes: 64, data }).to_vec()
    };
    let nested = |depth: u32| {
        let inner = Array::U8([].into());
        let array = (1..depth).fold(inner, |inner, _| Array::Arrays(vec![inner]));
        good().metadata("nested", array).to_vec()
    };
    let cases = [
        (good().metadata("key", 1_u32).to_vec(), "m: key \"key\" appears twice"),
        (aligned(Value::U32(0)), "m: general.alignment is 0, it must be a power of two of at most 2097152"),
        (aligned(Value::U32(48)), "m: general.alignment is 48, it must be a power of two"),
        (aligned(Value::U64(1 << 63)), "m: general.alignment is 9223372036854775808, it must be"),
        (
            aligned(Value::I32(-32)),
            "m: key \"general.alignment\" is the integer -32, an integer without sign is needed",
        ),
        (aligned("32".into()), "m: key \"general.alignment\" is a string"),
        (aligned(Value::U32(1 << 20)), "m: tensor \"a\" needs 64 bytes at offset 0 of the data, the file has"),
        (with_tensor("b", 32), "m: tensors \"a\" and \"b\" overlap by 32 bytes"),
        (with_tensor("b", 0), "m: tensors \"a\" and \"b\" overlap by 32 bytes"),
        (nested(MAX_ARRAY_DEPTH + 1), "m: key \"nested\" has arrays nested deeper than 4"),
        (nested(1000), "m: key \"nested\" has arrays nested deeper than 4"),
    ];
    for (bytes, expected) in cases {
        let found = message(&bytes);
        assert!(found.starts_with(expected), "expected {expected}\n   found {found}");
    }
    assert_eq!(message(&nested(MAX_ARRAY_DEPTH)), "no error");
    assert_eq!(message(&with_tensor("b", 64)), "no error");
}

/// A file whose only entry is an array with this element type, length and content.
fn with_array(type_id: u32, count: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = GgufWriter { metadata_count: Some(1), ..GgufWriter::new() }.header();
    bytes.extend(1_u64.to_le_bytes());
    bytes.extend(b"k");
    bytes.extend(9_u32.to_le_bytes());
    bytes.extend(type_id.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(content);
    bytes
}

#[test]
fn arrays_that_promise_too_much_are_refused() {
    for type_id in 0..=12 {
        for count in [1 << 63, u64::MAX, 1 << 61, 1 << 40, 1000] {
            let found = message(&with_array(type_id, count, &[0; 100]));
            assert!(found.starts_with("m: ends inside the "), "type {type_id}, {count}: {found}");
        }
    }
    let string = |length: u64, text: &[u8]| [&length.to_le_bytes(), text].concat();
    let cut_character = [string(1, b"\xc3"), string(1, b"\xa9")].concat();
    let cases = [
        (with_array(13, 1, &[0; 9]), "m: key \"k\" has a value of unknown type 13"),
        (with_array(7, 3, &[0, 1, 2]), "m: the bool at byte 51 is 2, only 0 and 1 are bools"),
        (
            with_array(8, 1, &string(1 << 62, b"")),
            "m: ends inside the array of strings at byte 57: 4611686018427387904",
        ),
        (with_array(8, 1, &string(1, b"\xff")), "m: the array of strings at byte 49 is not valid UTF-8"),
        // Each half is no character, though both together are one.
        (with_array(8, 2, &cut_character), "m: the array of strings at byte 49 is not valid UTF-8"),
        (with_array(9, 2, &[0; 23]), "m: ends inside the array of arrays at byte 49: 24 bytes needed"),
    ];
    for (bytes, expected) in cases {
        let found = message(&bytes);
        assert!(found.starts_with(expected), "expected {expected}\n   found {found}");
    }
}

#[test]
fn a_sparse_header_is_not_read_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sparse.gguf");
    std::fs::write(&path, with_array(0, 1 << 35, &[])).unwrap();
    std::fs::File::options().append(true).open(&path).unwrap().set_len(1 << 36).unwrap();
    let error = crate::Gguf::open(&path).unwrap_err().to_string();
    let expected = "the array of numbers at byte 49 would make the header longer than the limit of 268435456 bytes";
    assert!(error.ends_with(expected), "{error}");
}

#[test]
fn names_that_could_write_to_a_terminal_are_escaped() {
    let bytes = patched(TENSOR_NAME_AT, b"\x1b");
    let spoiled = [&bytes[..TYPE_AT], &16_u32.to_le_bytes(), &bytes[TYPE_AT + 4..]].concat();
    assert!(message(&spoiled).starts_with(r#"m: tensor "\u{1b}" is of type IQ2_XXS"#));
}
