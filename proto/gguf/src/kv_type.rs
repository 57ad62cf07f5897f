//! The number formats that keys and values are cached in.

use std::{fmt, str::FromStr};

use crate::{Error, Result, TensorType};

/// How cached keys or values are stored; chosen separately for the two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the format's own names")]
pub enum KvType {
    F32,
    #[default]
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Iq4Nl,
}

impl KvType {
    /// Every type, in the order of declaration.
    pub const ALL: [KvType; 7] =
        [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8_0, KvType::Q4_0, KvType::Q4_1, KvType::Iq4Nl];

    /// The same format as the type of a weight.
    pub const fn tensor_type(self) -> TensorType {
        match self {
            KvType::F32 => TensorType::F32,
            KvType::F16 => TensorType::F16,
            KvType::BF16 => TensorType::BF16,
            KvType::Q8_0 => TensorType::Q8_0,
            KvType::Q4_0 => TensorType::Q4_0,
            KvType::Q4_1 => TensorType::Q4_1,
            KvType::Iq4Nl => TensorType::Iq4Nl,
        }
    }

    /// The name used on the command line, such as `q8_0`.
    pub const fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::BF16 => "bf16",
            KvType::Q8_0 => "q8_0",
            KvType::Q4_0 => "q4_0",
            KvType::Q4_1 => "q4_1",
            KvType::Iq4Nl => "iq4_nl",
        }
    }

    /// Values per block; the key or value of one head is a whole number of blocks.
    pub const fn block_len(self) -> usize {
        self.tensor_type().block_len()
    }

    /// Bytes of `elements` consecutive values; a started block counts whole. A Q8_0 block is 34 bytes for 32 values.
    pub const fn bytes_for(self, elements: usize) -> usize {
        self.tensor_type().bytes_for(elements)
    }

    /// Whether values lose precision by blocks (and are rotated first).
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for KvType {
    type Err = Error;

    fn from_str(given: &str) -> Result<KvType> {
        KvType::ALL.into_iter().find(|kind| kind.name() == given).ok_or_else(|| Error::UnknownKvType {
            given: given.to_owned(),
            known: KvType::ALL.map(KvType::name).join(", "),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in KvType::ALL {
            assert_eq!(kind.name().parse::<KvType>().unwrap(), kind);
            assert_eq!(kind.name(), kind.tensor_type().name().to_lowercase());
        }
        let error = "q5_0".parse::<KvType>().unwrap_err().to_string();
        assert_eq!(error, "\"q5_0\" is not a key or value type; known are f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl");
    }

    #[test]
    fn one_head_of_256_values() {
        let bytes = KvType::ALL.map(|kind| kind.bytes_for(256));
        assert_eq!(bytes, [1024, 512, 512, 272, 144, 160, 144]);
    }
}
