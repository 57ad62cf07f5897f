//! Encodes weights as the reference's converter does, for the types where that takes a few lines.

use paceline_gguf::TensorType;

/// Values per block.
const BLOCK: usize = 32;

/// The bytes of `values` in a type.
///
/// # Panics
/// For types other than F32, F16, BF16, Q8_0 and MXFP4.
pub(super) fn encode(values: &[f32], kind: TensorType) -> Vec<u8> {
    match kind {
        TensorType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        TensorType::F16 => values.iter().flat_map(|value| half(*value).to_le_bytes()).collect(),
        TensorType::BF16 => values.iter().flat_map(|value| brain(*value).to_le_bytes()).collect(),
        TensorType::Q8_0 => values.chunks_exact(BLOCK).flat_map(block).collect(),
        TensorType::Mxfp4 => values.chunks_exact(BLOCK).flat_map(micro_block).collect(),
        other => panic!("random models are not made in {other}"),
    }
}

/// The nearest half precision number, ties to even; weights are far from its largest.
fn half(value: f32) -> u16 {
    const SMALLEST_NORMAL: f32 = 6.103_515_6e-5;
    let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
    let magnitude = value.abs();
    assert!(magnitude < 65504.0, "{value} is no weight");
    if magnitude < SMALLEST_NORMAL {
        return sign | (magnitude * 16_777_216.0).round_ties_even() as u16;
    }
    let bits = magnitude.to_bits() - (112 << 23);
    sign | ((bits + 0xfff + ((bits >> 13) & 1)) >> 13) as u16
}

/// The nearest upper half of a single precision number, ties to even.
fn brain(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

/// A Q8_0 block: the scale in half precision, then 32 steps of it.
fn block(values: &[f32]) -> Vec<u8> {
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let mut bytes = half(scale).to_le_bytes().to_vec();
    bytes.extend(values.iter().map(|value| (value * inverse).round() as i8 as u8));
    bytes
}

/// An MXFP4 block: an exponent, then 32 numbers of one sign, two exponent and one mantissa bit, whose first and second
/// halves lie in the lower and upper four bits.
fn micro_block(values: &[f32]) -> Vec<u8> {
    const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
    const BIAS: i32 = 127;
    let largest = values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let exponent = if largest > 0.0 { largest.log2().floor() as i32 - 2 } else { -BIAS };
    let half_scale = 2.0_f32.powi(exponent - 1);
    let code = |value: f32| -> u8 {
        let error = |code: u8| (f32::from(DOUBLED[usize::from(code)]) * half_scale - value).abs();
        (1..16).fold(0, |best, code| if error(code) < error(best) { code } else { best })
    };
    let (lower, upper) = values.split_at(BLOCK / 2);
    let mut bytes = vec![(exponent + BIAS) as u8];
    bytes.extend(lower.iter().zip(upper).map(|(lower, upper)| code(*lower) | code(*upper) << 4));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_the_nearest_half() {
        let cases = [(0.0, 0x0000), (1.0, 0x3c00), (-2.5, 0xc100), (6.103_515_6e-5, 0x0400), (5.960_464_5e-8, 0x0001)];
        for (value, bits) in cases {
            assert_eq!(half(value), bits, "{value}");
        }
        assert_eq!(half(1.0 + 1.0 / 2048.0), 0x3c00, "ties go to the even one");
        assert_eq!(half(1.0 + 3.0 / 2048.0), 0x3c02, "ties go to the even one");
        assert_eq!((brain(1.0), brain(1.003_906_3), brain(1.011_718_8)), (0x3f80, 0x3f80, 0x3f82));
    }

    #[test]
    fn blocks_hold_their_largest_value() {
        let mut values = [0.0; BLOCK];
        values[3] = -1.27;
        let bytes = encode(&values, TensorType::Q8_0);
        assert_eq!((bytes.len(), bytes[2 + 3] as i8, bytes[2]), (34, -127, 0));
        values[3] = -6.0;
        values[19] = 1.0;
        // The exponent makes 6 the largest number; 1 lies in the upper half of the byte.
        assert_eq!(encode(&values, TensorType::Mxfp4)[..5], [127, 0, 0, 0, 0x2f]);
    }
}
