//! Trained models answer as the reference implementations do: the hybrid that the program embeds, and a real small
//! language model, if it has been fetched.

use paceline_compute::program::Op;
use paceline_tests::golden::{Golden, distance, greedy, rms};
use paceline_tests::model_run::{Chunk, Layout, ModelRun, cpu};
use paceline_tests::models::{data, model, smollm2};
use serde_json::Value;

/// The embedded model's weights are rounded to 8 bits, the golden data come from the unrounded ones. That moves logits
/// and hidden rows by less than this share of their rms.
const ROUNDING: f32 = 0.03;

/// Tokens are the same up to the first whose lead is smaller than this, where the reference itself was not sure.
const SURE: f32 = 0.15;
/// Later ones, given the reference's own tokens before them, where the lead is larger than this.
const CERTAIN: f32 = 0.5;

fn tiny_hybrid(layout: Layout) -> ModelRun {
    ModelRun::new(&cpu(), &model("tiny-hybrid-mtp-q8_0"), layout)
}

fn close(what: &str, found: &[f32], expected: &[f32]) {
    let distance = distance(found, expected);
    let share = distance.rms / rms(expected);
    println!("{what}: {:.2}%", 100.0 * share);
    assert!(share < ROUNDING, "{what}: {distance:?}, {share} of the rms");
}

/// Follows the reference's greedy tokens after `prompt` and compares the choices at each.
fn same_choices(run: &mut ModelRun, what: &str, prompt: &[u32], tokens: &[u32], leads: &[f32]) {
    let unsure = leads.iter().position(|lead| *lead < SURE).unwrap_or(leads.len());
    let mut logits = run.next(1, prompt, 512);
    let mut compared = 0;
    for (index, (token, lead)) in tokens.iter().zip(leads).enumerate() {
        if index < unsure || *lead > CERTAIN {
            assert_eq!(greedy(&logits), *token, "{what}: token {index}, whose lead is {lead}");
            compared += 1;
        }
        logits = run.next(1, &[*token], 1);
    }
    println!("{what}: {compared} of {} tokens compared", tokens.len());
    assert!(2 * compared > tokens.len(), "{what}: most leads are large");
    run.end(1);
}

#[test]
fn the_embedded_model_answers_as_in_the_reference() {
    let golden = Golden::named("tiny-hybrid");
    let mut run = tiny_hybrid(Layout { context: 2048, sessions: 1, rows: 512, ..Layout::default() });
    for prompt in ["short", "medium", "long"] {
        let ids = golden.tokens(&format!("{prompt}_ids"));
        let logits = run.next(1, &ids, 512);
        close(prompt, &logits, &golden.f32(&format!("{prompt}_logits_last")).values);
        run.end(1);

        let tokens = golden.tokens(&format!("{prompt}_greedy64"));
        let leads = golden.f32(&format!("{prompt}_greedy64_margin")).values;
        same_choices(&mut run, prompt, &ids, &tokens, &leads);
    }
}

#[test]
fn the_embedded_model_layer_by_layer() {
    let golden = Golden::named("tiny-hybrid");
    let ids = golden.tokens("short_ids");
    let expected = golden.f32("short_hidden");
    let expected: Vec<&[f32]> = expected.values.chunks_exact(expected.values.len() / expected.shape[0]).collect();
    let mut run = tiny_hybrid(Layout { splits: vec![0..4, 4..8], ..Layout::default() });
    let mut compared = 0;
    run.observe(&[Chunk::text(1, &ids)], |program, recorded, read| {
        let layer = match (recorded.name, recorded.layer, &recorded.op) {
            (_, _, Op::Embed { .. }) => 0,
            ("l_out", Some(layer), _) => layer + 1,
            _ => return,
        };
        close(&format!("after {layer} layers"), &read(program.stream.unwrap()), expected[layer]);
        compared += 1;
    });
    assert_eq!(compared, 9);
    close("final norm", &run.hidden(ids.len()).concat(), &golden.f32("short_final_norm").values);
}

#[test]
fn smollm2_continues_as_in_the_reference() {
    let Some(model) = smollm2() else { return };
    let golden = std::fs::read_to_string(data().join("golden/smollm2-q4_k_m.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&golden).unwrap();
    let layout = Layout { context: 512, sessions: 1, rows: 512, ..Layout::default() };
    let mut run = ModelRun::new(&cpu(), &model, layout);
    for case in cases {
        let [prompt, tokens]: [Vec<u32>; 2] =
            ["prompt", "tokens"].map(|key| serde_json::from_value(case[key].clone()).unwrap());
        let leads: Vec<f32> = serde_json::from_value(case["gaps"].clone()).unwrap();
        same_choices(&mut run, "SmolLM2", &prompt, &tokens, &leads);
    }
}
