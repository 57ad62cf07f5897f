//! Models to plan for: published ones and random ones.

use std::sync::atomic::{AtomicU32, Ordering};

use paceline_gguf::testing::{GgufWriter, PublishedShape};
use paceline_gguf::{Architecture, Experts, Gguf, Layer, LayerKind, ModelShape, TensorType, Weights};
use proptest::prelude::*;

/// The shape of a published model, read from a file that is all holes.
pub(super) fn published(shape: PublishedShape) -> ModelShape {
    read(&shape.writer())
}

/// The same with all its matrices in one type.
pub(super) fn published_as(shape: PublishedShape, kind: TensorType) -> ModelShape {
    let mut writer = shape.writer();
    for tensor in writer.tensors.iter_mut().filter(|tensor| tensor.type_id != TensorType::F32.id()) {
        tensor.type_id = kind.id();
        tensor.bytes = kind.bytes_for(tensor.dims.iter().product::<u64>() as usize) as u64;
    }
    read(&writer)
}

fn read(writer: &GgufWriter) -> ModelShape {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("paceline-planner-{}-{number}.gguf", std::process::id()));
    writer.write(&path).unwrap();
    let read = Gguf::open(&path).and_then(|gguf| ModelShape::read(&gguf));
    std::fs::remove_file(&path).unwrap();
    read.unwrap()
}

/// Some weights; the bytes are what matters.
fn weights(bytes: u64) -> Weights {
    Weights { tensors: 1, parameters: bytes * 2, bytes, packed: bytes + bytes / 30 }
}

fn layer() -> impl Strategy<Value = Layer> {
    let attention = (1usize..4, prop_oneof![Just(32usize), Just(64)]).prop_map(|(key_value_heads, dim)| {
        LayerKind::Attention { query_heads: key_value_heads, key_value_heads, key_dim: dim, value_dim: dim }
    });
    let recurrent = (1usize..50, 1usize..4, 1usize..8).prop_map(|(conv_channels, value_heads, state_size)| {
        LayerKind::Recurrent { conv_channels, conv_kernel: 4, key_heads: 1, value_heads, state_size }
    });
    let experts = prop::option::of((1usize..9, 1usize..9, 0u64..5000));
    (prop_oneof![attention, recurrent], 1u64..5000, experts).prop_map(|(kind, dense, experts)| {
        let experts = experts.map(|(one, other, each)| {
            let (used, count) = (one.min(other), one.max(other));
            Experts { count, used, weights: weights(each * count as u64) }
        });
        let all = dense + experts.map_or(0, |experts| experts.weights.bytes);
        Layer { kind, weights: weights(all), experts, tap: Weights::default() }
    })
}

prop_compose! {
    /// A model of a few layers in any order.
    pub(super) fn any_shape()(
        layers in prop::collection::vec(layer(), 1..12),
        embedding_length in 1usize..100,
        vocabulary in 1usize..1000,
        embedding in 0u64..20_000,
        output in prop::option::of(0u64..20_000),
        other in 0u64..100,
    ) -> ModelShape {
        ModelShape {
            architecture: Architecture::Qwen35Moe,
            name: None,
            size_label: None,
            embedding_length,
            vocabulary,
            context_length: 1 << 16,
            layers,
            mtp: Vec::new(),
            embedding: weights(embedding),
            output: output.map(weights),
            output_norm: weights(10),
            other: weights(other),
            dflash: None,
            draft: None,
        }
    }
}

/// A model with attention in every layer and heads of eight values, which only unquantized types can store.
pub(super) fn narrow() -> ModelShape {
    let kind = LayerKind::Attention { query_heads: 1, key_value_heads: 1, key_dim: 8, value_dim: 8 };
    let layer = Layer { kind, weights: weights(1000), experts: None, tap: Weights::default() };
    ModelShape {
        architecture: Architecture::Llama,
        name: Some("narrow\u{1b}[31m".to_owned()),
        size_label: None,
        embedding_length: 8,
        vocabulary: 16,
        context_length: 1024,
        layers: vec![layer; 4],
        mtp: Vec::new(),
        embedding: weights(1600),
        output: None,
        output_norm: weights(10),
        other: Weights::default(),
        dflash: None,
        draft: None,
    }
}
