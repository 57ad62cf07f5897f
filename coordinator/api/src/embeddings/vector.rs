//! Vectors as clients read them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use utoipa::ToSchema;

use super::Encoding;

/// A vector: numbers, or their bytes in base64.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Vector {
    /// As numbers.
    Numbers(Vec<f32>),
    /// As bytes of 32-bit floats, lowest first, in base64.
    Bytes(String),
}

impl Vector {
    pub(super) fn new(values: Vec<f32>, encoding: Encoding) -> Self {
        match encoding {
            Encoding::Float => Self::Numbers(values),
            Encoding::Base64 => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Self::Bytes(STANDARD.encode(bytes))
            }
        }
    }
}

/// The first values of a vector, scaled to length 1. One without a direction stays as it is.
pub(super) fn normalized(mut values: Vec<f32>, dimensions: usize) -> Vec<f32> {
    values.truncate(dimensions);
    let length = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_have_length_one_whatever_is_cut_off() {
        assert_eq!(normalized(vec![3.0, 4.0], 2), [0.6, 0.8]);
        assert_eq!(normalized(vec![3.0, 4.0, 5.0], 2), [0.6, 0.8]);
        assert_eq!(normalized(vec![0.0, 0.0], 2), [0.0, 0.0]);
    }

    #[test]
    fn bytes_are_those_of_floats_lowest_first() {
        let Vector::Bytes(text) = Vector::new(vec![1.0, -2.5], Encoding::Base64) else { panic!("bytes") };
        assert_eq!(STANDARD.decode(text).unwrap(), [0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0]);
    }
}
