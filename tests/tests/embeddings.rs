//! Vectors of texts and scores of pairs, against sentence-transformers and transformers; and the same bits whatever is read
//! together.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_compute::cpu::CpuDevice;
use paceline_gguf::{Gguf, KvType, Pooling};
use paceline_model::Overrides;
use paceline_proto::EncodeText;
use paceline_shard::encoder::service::{EncoderThread, Refused};
use paceline_shard::{Encoder, EncoderSettings};
use paceline_tests::model_run::{Chunk, Layout, ModelRun, cpu};
use paceline_tests::{models, npy};
use paceline_text::{Special, Tokenizer};
use serde_json::Value;

/// A file of the reference's results.
fn golden(name: &str) -> PathBuf {
    models::data().join("golden/all-minilm-l6-v2").join(name)
}

fn read_json(path: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(path).expect("golden data")).expect("JSON")
}

fn tokens_of(told: &Value) -> Vec<u32> {
    let tokens = told["tokens"].as_array().expect("tokens");
    tokens.iter().map(|token| token.as_u64().expect("a token") as u32).collect()
}

fn settings(pooling: Option<Pooling>, rows: usize) -> EncoderSettings {
    let (context, key_value_type, overrides) = (512, KvType::F32, Overrides::default());
    EncoderSettings { pooling, context, rows, key_value_type, overrides }
}

fn load(model: &Arc<Gguf>, pooling: Option<Pooling>, rows: usize, threads: usize) -> Encoder {
    let device = CpuDevice::new(threads, None).expect("threads");
    Encoder::load(&device, model, &settings(pooling, rows), &mut |_| ()).expect("the encoder is loaded")
}

/// The cosine of the angle between two vectors.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn texts_have_the_tokens_and_vectors_of_the_reference() {
    let Some(model) = models::minilm("all-MiniLM-L6-v2.F32.gguf") else { return };
    let tokenizer = Tokenizer::from_gguf(&model).expect("a vocabulary");
    let told = read_json(&golden("texts.json"));
    for told in &told {
        let text = told["text"].as_str().expect("a text");
        assert_eq!(tokenizer.encode(text, Special::Parse, true), tokens_of(told), "{text:?}");
    }
    let texts: Vec<EncodeText> = told.iter().map(|told| EncodeText::single(tokens_of(told))).collect();
    let vectors = load(&model, None, 512, 2).encode(&texts).expect("vectors");
    let expected = npy::read_f32(&golden("vectors.npy"));
    assert_eq!(vectors.len(), expected.rows().len());
    for ((vector, expected), told) in vectors.iter().zip(expected.rows()).zip(&told) {
        let cosine = cosine(vector, expected);
        assert!(cosine > 0.999_999, "{}: {cosine}", told["text"]);
    }
}

#[test]
fn pairs_have_the_scores_of_the_reference() {
    let Some(model) = models::minilm("all-MiniLM-L6-v2-rank.F32.gguf") else { return };
    let told = read_json(&golden("pairs.json"));
    let pair = |told: &Value| {
        let tokens = tokens_of(told);
        // The second text begins behind the first separator.
        let second = tokens.iter().position(|token| *token == 102).expect("a separator") + 1;
        EncodeText { tokens, second: Some(second) }
    };
    let scores = load(&model, None, 512, 2).encode(&told.iter().map(pair).collect::<Vec<_>>()).expect("scores");
    let expected = npy::read_f32(&golden("scores.npy"));
    for ((score, expected), told) in scores.iter().zip(&expected.values).zip(&told) {
        assert_eq!(score.len(), 1);
        assert!((score[0] - expected).abs() < 2e-5, "{told}: {} is not {expected}", score[0]);
    }
}

#[test]
fn a_text_has_the_same_bits_whatever_is_read_with_it() {
    let Some(model) = models::minilm("all-MiniLM-L6-v2.F32.gguf") else { return };
    let texts: Vec<EncodeText> =
        read_json(&golden("texts.json")).iter().map(|told| EncodeText::single(tokens_of(told))).collect();
    let together = load(&model, None, 512, 2).encode(&texts).expect("vectors");
    let mut alone = load(&model, None, 512, 1);
    for (text, vector) in texts.iter().zip(&together) {
        assert_eq!(alone.encode(std::slice::from_ref(text)).expect("a vector"), std::slice::from_ref(vector));
    }
    let backwards: Vec<EncodeText> = texts.iter().rev().cloned().collect();
    let backwards = load(&model, None, 2048, 3).encode(&backwards).expect("vectors");
    assert!(backwards.iter().rev().eq(&together));
}

/// A decoder's last row is what its head would have seen, however the text is cut into steps.
#[test]
fn a_model_that_writes_texts_can_be_read_at_its_last_row() {
    for name in ["mini-llama-f32", "mini-f32"] {
        let model = models::model(name);
        let tokens: Vec<u32> = (0..150).map(|index| index * 7 % 300).collect();
        let layout = Layout { rows: 150, ..Layout::default() };
        let mut run = ModelRun::new(&cpu(), &model, layout);
        run.step(&[Chunk::text(1, &tokens)]);
        let expected = run.hidden(150).pop().expect("a row");
        let others = [5, 64, 1].map(|length| EncodeText::single((0..length).collect()));
        let text = EncodeText::single(tokens);
        for rows in [7, 64, 200] {
            let texts = [&others[..], std::slice::from_ref(&text), &others].concat();
            let vectors = load(&model, Some(Pooling::Last), rows, 2).encode(&texts).expect("vectors");
            assert_eq!(vectors[3], expected, "{name}: steps of {rows} tokens");
            assert_eq!(vectors[..3], vectors[4..], "{name}");
        }
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    let model = models::model("mini-llama-f32");
    let mut encoder = load(&model, Some(Pooling::Mean), 64, 1);
    let vocabulary = encoder.shape().vocabulary as u32;
    for (text, problem) in [
        (EncodeText::default(), "a text has no tokens"),
        (EncodeText::single(vec![1; 513]), "513 tokens in a text, but 512 were reserved"),
        (EncodeText::single(vec![vocabulary]), "token 320 does not exist; the vocabulary has 320 tokens"),
        (EncodeText { tokens: vec![1, 2], second: Some(1) }, "the model cannot tell them apart"),
    ] {
        let error = encoder.encode(&[EncodeText::single(vec![1]), text]).expect_err("refused").to_string();
        assert!(error.contains(problem), "{error}");
    }
    assert!(encoder.encode(&[]).expect("nothing is asked").is_empty());
}

#[test]
fn requests_take_turns_and_a_full_queue_refuses() {
    let model = models::model("mini-llama-f32");
    let texts: Vec<EncodeText> = (1..40).map(|length| EncodeText::single((0..length).collect())).collect();
    let mut alone = load(&model, Some(Pooling::Mean), 64, 1);
    let expected = alone.encode(&texts).expect("vectors");
    let thread = EncoderThread::start(load(&model, Some(Pooling::Mean), 64, 1), 4).expect("a thread");
    let (mut asked, mut refused) = (Vec::new(), 0);
    for first in 0..200 {
        let first = first % 30;
        match thread.ask(texts[first..first + 9].to_vec()) {
            Ok(answer) => asked.push((first, answer)),
            Err(error) => {
                assert!(matches!(error, Refused::Full { waiting: 1.. }), "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "the queue has a bound");
    let spoilt = loop {
        // One bad text spoils its own request, and nobody else's.
        if let Ok(answer) = thread.ask(vec![EncodeText::single(vec![1]), EncodeText::default()]) {
            break answer;
        }
        std::thread::yield_now();
    };
    for (first, answer) in asked {
        assert_eq!(answer.blocking_recv().expect("an answer").expect("vectors"), expected[first..first + 9]);
    }
    assert_eq!(spoilt.blocking_recv().expect("an answer").expect_err("refused"), "a text has no tokens");
    let ended = thread.ended.clone();
    assert_eq!((thread.open(), *ended.borrow()), ((0, 0), false));
    drop(thread);
    while !*ended.borrow() {
        std::thread::yield_now();
    }
}
