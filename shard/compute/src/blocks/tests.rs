//! Equality with the reference implementation (`gguf.quants.dequantize` of the `gguf` package).

use paceline_gguf::TensorType;

use super::dequantize_row;

/// For each type but `F32`, in the order of `TensorType::ALL`: 1024 random values as stored, then
/// the same as `f32`.
const DEQUANTIZED: &[u8] = include_bytes!("../../tests/data/dequantized.bin");
const VALUES: usize = 1024;

#[test]
fn values_equal_the_reference() {
    let mut rest = DEQUANTIZED;
    for kind in TensorType::ALL.into_iter().filter(|&kind| kind != TensorType::F32) {
        let (stored, behind) = rest.split_at(kind.bytes_for(VALUES));
        let (expected, behind) = behind.split_at(TensorType::F32.bytes_for(VALUES));
        rest = behind;

        let (mut values, mut reference) = ([0.0; VALUES], [0.0; VALUES]);
        dequantize_row(kind, stored, &mut values);
        dequantize_row(TensorType::F32, expected, &mut reference);
        assert_eq!(values, reference, "{kind}");
    }
    assert!(rest.is_empty());
}

#[test]
#[should_panic(expected = "whole Q4_K blocks")]
fn started_blocks_are_refused() {
    dequantize_row(TensorType::Q4K, &[0; 144], &mut [0.0; 32]);
}
