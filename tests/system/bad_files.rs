//! Bad model files, bad flags and bad configuration: one clear complaint, no panic, nothing loaded.

use std::path::{Path, PathBuf};

use crate::program::{complaint, root};

fn embedded() -> Vec<u8> {
    std::fs::read(root().join("cluster/models/tiny-hybrid-mtp-q8_0.gguf")).expect("the embedded model")
}

/// Writes a spoiled copy of the embedded model.
fn spoiled(folder: &Path, name: &str, spoil: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = embedded();
    spoil(&mut bytes);
    let path = folder.join(name);
    std::fs::write(&path, bytes).expect("writable");
    path
}

/// Replaces the first occurrence of a text by another of the same length.
fn replace(bytes: &mut [u8], from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let place = bytes.windows(from.len()).position(|window| window == from.as_bytes()).expect("it occurs");
    bytes[place..place + to.len()].copy_from_slice(to.as_bytes());
}

#[test]
fn every_bad_file_is_told_what_is_wrong() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let cases: Vec<(PathBuf, &str)> = vec![
        (folder.join("missing.gguf"), "missing.gguf"),
        (folder.to_owned(), "not a regular file"),
        (spoiled(folder, "empty.gguf", Vec::clear), "0 bytes"),
        (spoiled(folder, "magic.gguf", |bytes| bytes[..4].copy_from_slice(b"GGML")), "GGML"),
        (spoiled(folder, "version.gguf", |bytes| bytes[4] = 9), "9"),
        (spoiled(folder, "header.gguf", |bytes| bytes.truncate(1000)), "header.gguf"),
        (spoiled(folder, "data.gguf", |bytes| bytes.truncate(1 << 20)), "data.gguf"),
        (spoiled(folder, "tensors.gguf", |bytes| bytes[8..16].fill(0x7f)), "tensors"),
        (spoiled(folder, "metadata.gguf", |bytes| bytes[16..24].fill(0x7f)), "metadata"),
        (spoiled(folder, "architecture.gguf", |bytes| replace(bytes, "qwen35", "qwen99")), "qwen99"),
        (
            spoiled(folder, "tensor.gguf", |bytes| replace(bytes, "blk.0.attn_gate.weight", "blk.0.attn_gave.weight")),
            "blk.0.attn_ga",
        ),
        (
            spoiled(folder, "key.gguf", |bytes| {
                replace(bytes, "qwen35.embedding_length", "qwen35.embedding_strength".split_at(23).0);
            }),
            "embedding_length",
        ),
    ];
    for (path, word) in cases {
        let text = complaint(&["run", path.to_str().expect("UTF-8"), "-p", "Hello"]);
        assert!(text.contains(word), "{}: {text:?} does not name {word}", path.display());
        assert!(text.contains(path.file_name().and_then(|name| name.to_str()).expect("a name")), "{text}");
    }
}

#[test]
fn every_bad_flag_is_told_what_is_wrong() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["serve", "--shards", "3"], &["3", "2 blocks"]),
        (&["serve", "--shards", "0"], &["0"]),
        (&["serve", "--ctx", "1000000"], &["1000000", "32768"]),
        (&["serve", "--ctx", "0"], &["0"]),
        (&["serve", "--sessions", "0"], &["0"]),
        (&["serve", "--sessions", "100000000"], &["4294967295", "fewer sessions"]),
        (&["serve", "--threads", "0"], &["0"]),
        (&["serve", "--kv-type", "q9_9"], &["q9_9"]),
        (&["serve", "--port", "99999"], &["99999"]),
        (&["serve", "--host", "0.0.0.0"], &["0.0.0.0", "--api-key"]),
        (&["serve", "--prefill-chunk", "0"], &["0"]),
        (&["serve", "--prefill-chunk", "100000"], &["100000", "8192"]),
        (&["serve", "--pin", "--threads", "4000"], &["--pin", "4000"]),
        (&["serve", "--isa", "mmx"], &["mmx"]),
        (&["serve", "--chat-template", "/nowhere/template.jinja"], &["/nowhere/template.jinja"]),
        (&["serve", "--config", "/nowhere/paceline.toml"], &["/nowhere/paceline.toml"]),
        (&["run", "-p", "Hello", "--temperature", "-2"], &["-2"]),
        (&["run", "-p", "Hello", "--temperature=-2"], &["temperature", "-2"]),
        (&["run", "-p", "", "--raw"], &["no tokens"]),
        (&["run"], &["--prompt"]),
        (&["plan", "--memory", "0"], &["0"]),
        (&["plan", "--memory", "0.001"], &["needed", "available"]),
        (&["bench", "--repeat", "0"], &["--repeat"]),
        (&["fly"], &["fly"]),
    ];
    for (arguments, words) in cases {
        let text = complaint(arguments);
        for word in *words {
            assert!(text.contains(word), "{arguments:?}: {text:?} does not name {word}");
        }
    }
}

#[test]
fn a_port_in_use_is_told_before_anything_is_loaded() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let text = complaint(&["serve", "--port", &port]);
    assert!(text.contains(&port), "{text}");
}

#[test]
fn a_bad_configuration_names_its_file_and_key() {
    let folder = tempfile::tempdir().expect("a folder");
    for (text, word) in [("port = {}", "port"), ("sails = 3", "sails"), ("port = [", "paceline.toml")] {
        let path = folder.path().join("paceline.toml");
        std::fs::write(&path, text).expect("writable");
        let complaint = complaint(&["serve", "--config", path.to_str().expect("UTF-8")]);
        assert!(complaint.contains(word), "{text}: {complaint}");
    }
}
