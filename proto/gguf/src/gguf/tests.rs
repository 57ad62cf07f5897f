//! Whole files, good and hostile.

use std::{fs, sync::Arc};

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    Array, TensorType, Value,
    testing::{GgufWriter, PublishedShape},
};

#[test]
fn an_open_model_is_shared_between_threads() {
    fn assert_shared<T: Send + Sync + 'static>() {}
    assert_shared::<Arc<Gguf>>();
}

fn two_tensors() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "llama");
    writer.tensor("a", TensorType::F32, &[2, 1], vec![1, 2, 3, 4, 5, 6, 7, 8]);
    writer.tensor("b", TensorType::Q8_0, &[32, 2], (0..68).collect());
    writer
}

fn check_two_tensors(gguf: &Gguf) {
    assert_eq!(gguf.architecture().unwrap(), "llama");
    let names: Vec<&str> = gguf.tensors().map(|tensor| tensor.name).collect();
    assert_eq!(names, ["a", "b"]);
    let b = gguf.tensor("b").unwrap();
    assert_eq!((b.kind, b.shape, b.data[67]), (TensorType::Q8_0, Shape::from([32, 2]), 67));
    assert!(gguf.tensor("c").is_none());
    assert_eq!(gguf.tensor_bytes(), 76);
}

#[test]
fn a_file_and_memory_hold_the_same_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.gguf");
    two_tensors().write(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes, two_tensors().to_vec());

    let mapped = Gguf::open(&path).unwrap();
    check_two_tensors(&mapped);
    assert_eq!((mapped.name(), mapped.file_bytes()), ("two.gguf", bytes.len() as u64));
    assert!(mapped.tensors().all(|tensor| tensor.data.as_ptr().addr().is_multiple_of(32)));
    check_two_tensors(&Gguf::from_static(bytes.clone().leak(), "embedded").unwrap());
    check_two_tensors(&Gguf::from_vec(bytes, "received").unwrap());
}

#[test]
fn what_is_forgotten_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.gguf");
    two_tensors().write(&path).unwrap();
    for gguf in [Gguf::open(&path).unwrap(), Gguf::from_vec(two_tensors().to_vec(), "received").unwrap()] {
        let b = gguf.tensor("b").unwrap();
        gguf.read_ahead(b.data);
        gguf.forget(b.data);
        gguf.forget(&b.data[30..31]);
        gguf.forget(&b.data[..0]);
        check_two_tensors(&gguf);
        assert_eq!(b.data, (0..68).collect::<Vec<u8>>());
        // Bytes of something else are no part of the model.
        let other = [1; 5000];
        gguf.read_ahead(&other);
        gguf.forget(&other);
        assert_eq!(other, [1; 5000]);
    }
}

#[test]
fn a_model_and_its_draft_are_one_open_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("draft.gguf");
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "qwen3");
    writer.tensor("a", TensorType::F32, &[1], vec![9; 4]);
    writer.tensor("only", TensorType::F32, &[1], vec![7; 4]);
    writer.write(&path).unwrap();
    let alone = Gguf::from_vec(two_tensors().to_vec(), "m.gguf").unwrap();
    assert!(alone.draft().is_none() && alone.tensor("draft.a").is_none());

    let joint = alone.with_draft(Gguf::open(&path).unwrap());
    // All that is said of the model is said of it alone.
    check_two_tensors(&joint);
    assert_eq!(joint.files().len(), 1);
    assert_eq!(joint.draft().unwrap().architecture().unwrap(), "qwen3");
    assert_eq!(joint.tensor("draft.a").unwrap().data, [9; 4]);
    let only = joint.require_tensor("draft.only").unwrap();
    assert_eq!(only.data, [7; 4]);
    assert!(joint.tensor("only").is_none() && joint.tensor("draft.b").is_none());
    joint.read_ahead(only.data);
    joint.forget(only.data);
    assert_eq!(only.data, [7; 4]);
    let error = joint.require_tensor("draft.b").unwrap_err();
    assert_eq!(error.to_string(), "m.gguf: tensor \"draft.b\" is missing");
}

#[test]
fn version_2_has_the_same_layout() {
    check_two_tensors(&Gguf::from_vec(GgufWriter { version: 2, ..two_tensors() }.to_vec(), "old").unwrap());
}

#[test]
fn the_alignment_of_the_file_is_used() {
    for alignment in [1, 8, 64, 4096] {
        let mut writer = GgufWriter { alignment, ..two_tensors() };
        writer.metadata("general.alignment", alignment as u32);
        check_two_tensors(&Gguf::from_vec(writer.to_vec(), "aligned").unwrap());
    }
}

#[test]
fn a_missing_or_misshapen_tensor_is_named() {
    let gguf = Gguf::from_vec(two_tensors().to_vec(), "m.gguf").unwrap();
    assert_eq!(gguf.require_tensor("c").unwrap_err().to_string(), "m.gguf: tensor \"c\" is missing");
    assert_eq!(
        gguf.require_shaped("b", Shape::from([32, 3])).unwrap_err().to_string(),
        "m.gguf: tensor \"b\" has shape [32, 2], [32, 3] is needed"
    );
    assert_eq!(gguf.require_shaped("b", Shape::from([32, 2])).unwrap().name, "b");
}

#[test]
fn a_model_larger_than_memory_opens_without_being_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("27b.gguf");
    PublishedShape::B27.writer().write(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert!(gguf.file_bytes() > 15 << 30);
    assert_eq!(gguf.tensors().len(), 851);
}

#[test]
fn what_is_not_a_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| Gguf::open(path).unwrap_err().to_string();
    assert!(message(folder.path()).ends_with("is not a regular file"));
    let path = folder.path().join("model.gguf");
    assert!(matches!(Gguf::open(&path), Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound));
    fs::write(&path, "").unwrap();
    assert!(message(&path).ends_with("model.gguf: not a GGUF file: 0 bytes long, starts with \"\""));
}

#[test]
fn files_and_places_lead_to_the_bytes_of_a_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let first = write_parts(folder.path(), &three_parts());
    let gguf = Gguf::open(&first).unwrap();
    let files: Vec<ModelFile<'_>> = gguf.files().collect();
    assert_eq!((files.len(), files[0].path), (3, first.as_path()));
    for tensor in gguf.tensors() {
        let (file, range) = gguf.tensor_place(tensor.name).unwrap();
        let bytes = fs::read(files[file].path).unwrap();
        assert_eq!(&bytes[range.start as usize..range.end as usize], tensor.data);
        assert!(range.start >= files[file].header_bytes && files[file].bytes == bytes.len() as u64);
    }
    // The part without tensors ends with its header.
    assert_eq!(files[1].header_bytes, files[1].bytes);
    assert_eq!(gguf.tensor_place("d"), None);

    let memory = Gguf::from_vec(two_tensors().to_vec(), "received").unwrap();
    let header_bytes = (two_tensors().header().len() as u64).next_multiple_of(32);
    let only = ModelFile { path: Path::new("received"), bytes: memory.file_bytes(), header_bytes };
    assert_eq!(memory.files().collect::<Vec<_>>(), [only]);
    assert_eq!(memory.tensor_place("a"), Some((0, header_bytes..header_bytes + 8)));
}

/// Writes `parts` as `m-0000i-of-0000n.gguf` and returns the path of the first.
fn write_parts(folder: &Path, parts: &[GgufWriter]) -> PathBuf {
    let path = |number: usize| folder.join(format!("m-{number:05}-of-{:05}.gguf", parts.len()));
    for (index, part) in parts.iter().enumerate() {
        part.write(&path(index + 1)).unwrap();
    }
    path(1)
}

/// Three parts with one, none and two tensors.
fn three_parts() -> Vec<GgufWriter> {
    let mut parts = vec![GgufWriter::new(); 3];
    for (index, part) in parts.iter_mut().enumerate() {
        part.metadata("split.no", Value::U16(index as u16)).metadata("split.count", Value::U16(3));
        part.metadata("split.tensors.count", Value::I32(3));
    }
    parts[0].metadata("general.architecture", "llama").tensor("a", TensorType::F32, &[1], vec![1; 4]);
    parts[2].tensor("b", TensorType::F32, &[1], vec![2; 4]).tensor("c", TensorType::F32, &[2], vec![3; 8]);
    parts
}

#[test]
fn all_parts_of_a_split_model_are_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = Gguf::open(&write_parts(folder.path(), &three_parts())).unwrap();
    assert_eq!(gguf.name(), "m-00001-of-00003.gguf");
    let values: Vec<u8> = gguf.tensors().map(|tensor| tensor.data[0]).collect();
    assert_eq!(values, [1, 2, 3]);
    assert_eq!(gguf.tensor("c").unwrap().data, [3; 8]);
    let lengths: u64 = three_parts().iter().map(|part| part.to_vec().len() as u64).sum();
    assert_eq!((gguf.file_bytes(), gguf.tensor_bytes()), (lengths, 16));
}

#[test]
fn split_models_with_faults_are_refused() {
    type Change = fn(&mut Vec<GgufWriter>);
    let cases: [(&str, Change, &str); 6] = [
        ("wrong number", |parts| parts.swap(1, 2), "says it is part 3 of 3, by its name it is part 2 of 3"),
        (
            "wrong count",
            |parts| parts[1].entries[1].1 = Value::U16(4),
            "says it is part 2 of 4, by its name it is part 2 of 3",
        ),
        ("not a part", |parts| parts[1].entries.clear(), "says it is part 1 of 1, by its name it is part 2 of 3"),
        ("tensor twice", |parts| parts[2].tensors[0].name = "a".into(), "tensor \"a\" appears twice"),
        (
            "missing tensor",
            |parts| {
                parts[2].tensors.pop();
            },
            "all parts together have 2 tensors, split.tensors.count says 3",
        ),
        (
            "tensor count of a wrong type",
            |parts| parts[0].entries[2].1 = "three".into(),
            "key \"split.tensors.count\" is a string, an integer without sign is needed",
        ),
    ];
    for (case, change, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let mut parts = three_parts();
        change(&mut parts);
        let message = Gguf::open(&write_parts(folder.path(), &parts)).expect_err(case).to_string();
        assert!(message.ends_with(expected), "{case}: {message}");
    }
}

#[test]
fn split_models_are_opened_by_their_first_part() {
    let folder = tempfile::tempdir().unwrap();
    let first = write_parts(folder.path(), &three_parts());
    let second = folder.path().join("m-00002-of-00003.gguf");
    let message = |path: &Path| Gguf::open(path).unwrap_err().to_string();
    assert!(
        message(&second).ends_with("part 2 of 3 of a split model; open the first part, the others are found from it")
    );
    fs::remove_file(&second).unwrap();
    assert!(message(&first).ends_with("m-00002-of-00003.gguf: part 2 of 3 is missing"));
    let renamed = folder.path().join("renamed.gguf");
    fs::rename(&first, &renamed).unwrap();
    assert!(message(&renamed).contains("must be named NAME-00001-of-00003.gguf"));
    let bytes = fs::read(&renamed).unwrap();
    let error = Gguf::from_vec(bytes, "memory").unwrap_err();
    assert_eq!(error.to_string(), "memory: the model has 3 parts, but it was given as one piece of memory");
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(|text| Value::String(text.into())),
        array().prop_map(Value::Array),
    ]
}

fn array() -> impl Strategy<Value = Array> {
    let flat = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(|values| Array::U8(values.into())),
        vec(any::<i8>(), 0..9).prop_map(|values| Array::I8(values.into())),
        vec(any::<u16>(), 0..9).prop_map(|values| Array::U16(values.into())),
        vec(any::<i16>(), 0..9).prop_map(|values| Array::I16(values.into())),
        vec(any::<u32>(), 0..9).prop_map(|values| Array::U32(values.into())),
        vec(any::<i32>(), 0..9).prop_map(|values| Array::I32(values.into())),
        vec(any::<u64>(), 0..9).prop_map(|values| Array::U64(values.into())),
        vec(any::<i64>(), 0..9).prop_map(|values| Array::I64(values.into())),
        vec(any::<f32>(), 0..9).prop_map(|values| Array::F32(values.into())),
        vec(any::<f64>(), 0..9).prop_map(|values| Array::F64(values.into())),
        vec(any::<bool>(), 0..9).prop_map(|values| Array::Bools(values.into())),
        vec(any::<String>(), 0..9).prop_map(|values| Array::Strings(values.into_iter().collect())),
    ];
    flat.prop_recursive(3, 32, 4, |inner| vec(inner, 0..4).prop_map(Array::Arrays))
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        entries in proptest::collection::btree_map("[a-z.]{1,20}", value(), 0..20),
        tensors in proptest::collection::btree_map("[a-zé.]{1,20}", (0..16_usize, 1..5_u64, 1..4_u64), 0..20),
    ) {
        let mut writer = GgufWriter::new();
        for (key, value) in &entries {
            writer.metadata(key, value.clone());
        }
        for (name, &(kind, blocks, rows)) in &tensors {
            let kind = TensorType::ALL[kind];
            let dims = [blocks * kind.block_len() as u64, rows];
            let bytes = kind.bytes_for((dims[0] * rows) as usize);
            writer.tensor(name, kind, &dims, (0..bytes).map(|byte| (byte * 7) as u8).collect());
        }
        let gguf = Gguf::from_vec(writer.to_vec(), "written").unwrap();
        let read: Vec<(&str, &Value)> = gguf.metadata().iter().collect();
        let written: Vec<(&str, &Value)> = entries.iter().map(|(key, value)| (key.as_str(), value)).collect();
        prop_assert_eq!(read, written);
        prop_assert_eq!(gguf.tensors().len(), tensors.len());
        for entry in &writer.tensors {
            let tensor = gguf.tensor(&entry.name).unwrap();
            prop_assert_eq!(tensor.kind.id(), entry.type_id);
            prop_assert_eq!(tensor.shape, Shape::from([entry.dims[0] as usize, entry.dims[1] as usize]));
            prop_assert_eq!(tensor.data, &entry.data);
        }
    }
}
