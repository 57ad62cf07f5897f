//! Recorded programs are consistent, complete and as the papers say; wrong files are refused.

mod check;
mod file;
mod hostile;

use paceline_compute::program::{Op, Program, RopeStyle};
use paceline_gguf::{Pooling, Value};

use self::check::check;
use self::file::{FEED_FORWARD, ModelFile, VOCABULARY, WIDTH};
use crate::{Error, Overrides, RopeScaling, StageLayers, record, record_encoder, record_with};

const ARCHITECTURES: [&str; 4] = ["llama", "qwen3", "qwen35", "qwen35moe"];

/// Records the whole model and checks it.
fn whole(file: &ModelFile, layers: usize) -> Program {
    let model = file.open();
    let program = record(&model, &StageLayers::of(0..layers, layers)).unwrap();
    check(&program, &model);
    program
}

fn names(program: &Program, layer: Option<usize>) -> Vec<&'static str> {
    program.ops.iter().filter(|recorded| recorded.layer == layer).map(|recorded| recorded.name).collect()
}

fn error(file: &ModelFile) -> String {
    record(&file.open(), &StageLayers::of(0..1, 4)).unwrap_err().to_string()
}

#[test]
fn every_architecture_is_recorded_whole() {
    for architecture in ARCHITECTURES {
        let program = whole(&ModelFile::new(architecture, 8, 0), 8);
        assert_eq!(names(&program, None), ["model.input_embed", "rope", "gathered", "result_norm", "result_output"]);
        let hybrid = architecture.starts_with("qwen35");
        assert_eq!((program.caches.len(), program.states.len()), if hybrid { (2, 6) } else { (8, 0) });
        let [stream, hidden, logits] = [program.stream, program.hidden, program.logits].map(Option::unwrap);
        assert_eq!(program.width(stream), WIDTH as usize);
        assert_eq!(program.width(hidden), WIDTH as usize);
        assert_eq!(program.width(logits), VOCABULARY as usize);
    }
}

#[test]
fn layers_are_named_as_in_the_reference_graph() {
    let program = whole(&ModelFile::new("qwen35moe", 4, 0), 4);
    let experts =
        ["attn_post_norm", "ffn_moe_logits", "ffn_swiglu", "ffn_moe_topk", "ffn_moe_out", "ffn_shexp", "l_out"];
    let delta_net =
        ["attn_norm", "linear_attn_qkv_mixed", "conv_output_silu", "attn_output", "final_output", "attn_residual"];
    let attention = ["attn_norm", "Qcur_full", "Qcur", "attn_gated", "attn_residual"];
    assert_eq!(names(&program, Some(2)), [delta_net.as_slice(), &experts].concat());
    assert_eq!(names(&program, Some(3)), [attention.as_slice(), &experts].concat());

    let program = whole(&ModelFile::new("qwen3", 1, 0), 1);
    let dense = ["ffn_norm", "ffn_gate", "ffn_swiglu", "l_out"];
    assert_eq!(names(&program, Some(0)), [attention.as_slice(), &dense].concat());
}

#[test]
fn encoders_end_with_rows_or_scores() {
    let model = ModelFile::bert(2).open();
    for (pooling, width) in [(None, WIDTH as usize), (Some(Pooling::First), WIDTH as usize), (Some(Pooling::Rank), 1)] {
        let (program, shape) = record_encoder(&model, pooling, &Overrides::default()).unwrap();
        check(&program, &model);
        assert_eq!((shape.bidirectional, program.caches.len(), program.logits), (true, 2, None));
        assert_eq!(program.width(program.hidden.unwrap()), width);
        let rotations = program.ops.iter().filter(|recorded| matches!(recorded.op, Op::RopeTable { .. }));
        assert_eq!(rotations.count(), 0, "positions are learned");
    }
    for architecture in ARCHITECTURES {
        let mut file = ModelFile::new(architecture, 4, 0);
        file.tensor("output.weight", &[WIDTH, VOCABULARY]);
        let (program, shape) = record_encoder(&file.open(), Some(Pooling::Last), &Overrides::default()).unwrap();
        check(&program, &file.open());
        assert_eq!((shape.bidirectional, program.logits), (false, None));
        assert!(program.weights.iter().all(|spec| spec.tensor != "output.weight"), "{architecture}: no head is loaded");
    }
}

#[test]
fn a_bert_with_tensors_that_are_not_known_is_refused() {
    let mut file = ModelFile::bert(1);
    file.tensor("blk.0.ffn_gate.weight", &[WIDTH, FEED_FORWARD]);
    let error = record_encoder(&file.open(), None, &Overrides::default()).unwrap_err();
    assert!(matches!(error, Error::UnusedTensor { architecture: "bert", .. }), "{error}");
}

#[test]
fn stages_together_are_the_whole_program() {
    for architecture in ARCHITECTURES {
        let model = ModelFile::new(architecture, 8, 0).open();
        let whole = record(&model, &StageLayers::of(0..8, 8)).unwrap();
        let mut stages = Vec::new();
        for layers in [0..4, 4..5, 5..8] {
            let stage = StageLayers::of(layers.clone(), 8);
            let program = record(&model, &stage).unwrap();
            check(&program, &model);
            assert_eq!((program.embeds, program.logits.is_some()), (stage.first, stage.last));
            let recorded: Vec<_> = program.ops.iter().map(|recorded| (recorded.name, recorded.layer)).collect();
            // Every stage makes its own table of rotations.
            stages.extend(recorded.into_iter().filter(|recorded| *recorded != ("rope", None)));
        }
        let mut expected: Vec<_> = whole.ops.iter().map(|recorded| (recorded.name, recorded.layer)).collect();
        expected.retain(|recorded| *recorded != ("rope", None));
        assert_eq!(stages, expected, "{architecture}");
    }
}

#[test]
fn scratch_buffers_are_shared_by_all_layers() {
    for architecture in ARCHITECTURES {
        let short = whole(&ModelFile::new(architecture, 4, 0), 4);
        let long = whole(&ModelFile::new(architecture, 40, 0), 40);
        assert_eq!(short.buffers, long.buffers, "{architecture}");
    }
}

#[test]
fn blocks_for_prediction_are_left_out() {
    for architecture in ["qwen35", "qwen35moe"] {
        let file = ModelFile::new(architecture, 5, 1);
        let program = whole(&file, 4);
        assert!(program.weights.iter().all(|spec| !spec.tensor.starts_with("blk.4.")));
        let refused = record(&file.open(), &StageLayers { layers: 0..5, first: true, last: true });
        assert!(matches!(refused, Err(Error::Layers { count: 4, .. })), "{refused:?}");
    }
}

#[test]
fn a_head_of_its_own_replaces_the_tied_one() {
    let mut file = ModelFile::new("llama", 1, 0);
    let head = |program: &Program| match &program.ops.last().unwrap().op {
        Op::Linear { products, .. } => program.weights[products[0].weight.0 as usize].tensor.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(head(&whole(&file, 1)), "token_embd.weight");
    file.tensor("output.weight", &[WIDTH, VOCABULARY]);
    assert_eq!(head(&whole(&file, 1)), "output.weight");
}

#[test]
fn fused_matrices_are_taken_apart() {
    let mut file = ModelFile::new("qwen35moe", 4, 0);
    file.without(&["attn_q.weight", "attn_k.weight", "attn_v.weight"]);
    file.without(&["ffn_gate_exps.weight", "ffn_up_exps.weight"]);
    file.tensor("blk.3.attn_qkv.weight", &[WIDTH, 128 + 32 + 32]);
    for layer in 0..4 {
        file.tensor(format!("blk.{layer}.ffn_gate_up_exps.weight"), &[WIDTH, 2 * FEED_FORWARD, 6]);
    }
    let program = whole(&file, 4);
    let rows = |ending: &str| -> Vec<_> {
        program
            .weights
            .iter()
            .filter(|spec| spec.tensor.ends_with(ending))
            .filter_map(|spec| spec.rows.clone())
            .collect()
    };
    assert_eq!(rows("blk.3.attn_qkv.weight"), [0..128, 128..160, 160..192]);
    assert_eq!(rows("blk.0.ffn_gate_up_exps.weight"), [0..48, 48..96]);
}

#[test]
fn biases_of_queries_keys_and_values_are_added() {
    let mut file = ModelFile::new("llama", 1, 0);
    file.tensor("blk.0.attn_q.bias", &[64]).tensor("blk.0.attn_v.bias", &[32]);
    let program = whole(&file, 1);
    let biased = ["attn_norm", "Qcur_full", "attn_q", "attn_v", "Qcur"];
    assert_eq!(names(&program, Some(0))[..5], biased);
}

#[test]
fn llama_can_have_experts_and_divided_frequencies() {
    let mut file = ModelFile::new("llama", 2, 0);
    file.without(&["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"]);
    file.experts(0).experts(1).expert_settings();
    file.tensor("rope_freqs.weight", &[8]);
    let program = whole(&file, 2);
    assert_eq!(names(&program, Some(1))[5..], ["ffn_norm", "ffn_moe_logits", "ffn_moe_topk", "l_out"]);
    let Op::RopeTable { rope, .. } = &program.ops[1].op else { panic!("{:?}", program.ops[1]) };
    assert!(rope.divisors.is_some());
    assert_eq!(rope.style, RopeStyle::Adjacent);
}

#[test]
fn positions_are_stretched_as_the_file_or_the_overrides_say() {
    let rope = |file: &ModelFile, overrides: &Overrides| {
        let program = record_with(&file.open(), &StageLayers::of(0..4, 4), overrides).unwrap();
        program.ops.iter().find_map(|recorded| match &recorded.op {
            Op::RopeTable { rope, .. } => Some(rope.clone()),
            _ => None,
        })
    };
    let mut file = ModelFile::new("qwen35", 4, 0);
    let plain = rope(&file, &Overrides::default()).unwrap();
    assert_eq!((plain.base, plain.factor, plain.yarn, plain.sections), (10_000.0, 1.0, None, Some([2, 1, 1, 0])));

    file.set("rope.scaling.factor", Some(4.0_f32.into())).set("rope.scaling.type", Some("yarn".into()));
    file.set("rope.scaling.original_context_length", Some(1024.into()));
    file.set("rope.scaling.yarn_beta_fast", Some(16.0_f32.into()));
    let stretched = rope(&file, &Overrides::default()).unwrap();
    let yarn = stretched.yarn.unwrap();
    assert_eq!((stretched.factor, yarn.original_context, yarn.beta_fast, yarn.beta_slow), (4.0, 1024, 16.0, 1.0));

    let plain = Overrides { rope_base: Some(5e5), rope_scaling: Some(RopeScaling::None) };
    let plain = rope(&file, &plain).unwrap();
    assert_eq!((plain.base, plain.factor, plain.yarn), (5e5, 1.0, None));
    let linear = Overrides { rope_base: None, rope_scaling: Some(RopeScaling::Linear { factor: 2.0 }) };
    assert_eq!(rope(&file, &linear).unwrap().factor, 2.0);
    file.set("rope.scaling.original_context_length", None);
    let yarn = RopeScaling::Yarn { factor: 2.0, original_context: None };
    let yarn = rope(&file, &Overrides { rope_base: None, rope_scaling: Some(yarn) }).unwrap().yarn.unwrap();
    assert_eq!(yarn.original_context, 4096, "the trained context, without a better word");
}

#[test]
fn sensible_parts_of_a_model_are_accepted_and_others_refused() {
    let model = ModelFile::new("llama", 4, 0).open();
    let part = |layers, first, last| record(&model, &StageLayers { layers, first, last });
    for (layers, first, last) in [(0..0, true, false), (4..4, false, true), (0..4, false, false), (1..3, false, false)]
    {
        check(&part(layers, first, last).unwrap(), &model);
    }
    #[expect(clippy::reversed_empty_ranges, reason = "a range that is none must be refused")]
    let refused =
        [(3..5, false, false), (3..2, false, false), (1..2, true, false), (0..3, true, true), (9..9, false, false)];
    for (layers, first, last) in refused {
        assert!(matches!(part(layers, first, last), Err(Error::Layers { count: 4, .. })));
    }
}

#[test]
fn wrong_settings_are_refused_with_the_key_and_the_value() {
    let cases: [(&str, &str, Value, &str); 6] = [
        ("llama", "attention.layer_norm_rms_epsilon", 0.0_f32.into(), "0; it must be a positive number"),
        ("llama", "rope.dimension_count", 18.into(), "18; an even number of a head's 16 values can rotate"),
        ("llama", "feed_forward_length", 0.into(), "0; 1 to 1048576 are possible"),
        ("llama", "rope.scaling.factor", (-2.0_f32).into(), "-2; it must be a positive number"),
        (
            "qwen35",
            "rope.dimension_sections",
            [3_i32, 1, 1, 0].as_slice().into(),
            "[3, 1, 1, 0]; four numbers that add up to 4 are needed",
        ),
        ("qwen35", "rope.freq_base", f32::NAN.into(), "NaN; it must be finite"),
    ];
    for (architecture, name, value, expected) in cases {
        let mut file = ModelFile::new(architecture, 4, 0);
        file.set(name, Some(value));
        assert_eq!(error(&file), format!("{architecture}.{name} is {expected}"));
    }
    let mut file = ModelFile::new("llama", 4, 0);
    file.set("rope.scaling.factor", Some(2.0_f32.into())).set("rope.scaling.type", Some("longrope".into()));
    assert_eq!(error(&file), "llama.rope.scaling.type is \"longrope\"; none, linear and yarn are known");
}

#[test]
fn tensors_that_are_missing_or_not_understood_are_named() {
    let mut file = ModelFile::new("qwen3", 4, 0);
    file.without(&["blk.0.attn_q_norm.weight"]);
    assert_eq!(error(&file), "test: tensor \"blk.0.attn_q_norm.weight\" is missing");

    let mut file = ModelFile::new("llama", 4, 0);
    file.tensor("blk.0.ffn_down.scale", &[1]);
    let expected = "architecture llama does not use tensor \"blk.0.ffn_down.scale\"; the file needs a newer version";
    assert_eq!(error(&file), expected);
}

#[test]
fn overrides_must_be_positive_numbers() {
    let model = ModelFile::new("llama", 1, 0).open();
    for base in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let overrides = Overrides { rope_base: Some(base), rope_scaling: None };
        assert!(record_with(&model, &StageLayers::of(0..1, 1), &overrides).is_err(), "{base}");
        let scaling = Some(RopeScaling::Yarn { factor: base, original_context: None });
        let overrides = Overrides { rope_base: None, rope_scaling: scaling };
        assert!(record_with(&model, &StageLayers::of(0..1, 1), &overrides).is_err(), "{base}");
    }
}
