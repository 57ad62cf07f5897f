//! The number formats that weights are stored in.

use std::fmt;

/// How the elements of a tensor are stored: blocks of `block_len` consecutive elements of a row in `block_bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the variants are the format's own names")]
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

struct Layout {
    /// The number that stands for the type in a file.
    id: u32,
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
}

const fn layout(id: u32, name: &'static str, block_len: usize, block_bytes: usize) -> Layout {
    Layout { id, name, block_len, block_bytes }
}

impl TensorType {
    /// Every type, in the order of declaration.
    pub const ALL: [TensorType; 16] = [
        TensorType::F32,
        TensorType::F16,
        TensorType::BF16,
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q8_0,
        TensorType::Q2K,
        TensorType::Q3K,
        TensorType::Q4K,
        TensorType::Q5K,
        TensorType::Q6K,
        TensorType::Iq4Nl,
        TensorType::Iq4Xs,
        TensorType::Mxfp4,
    ];

    const fn layout(self) -> Layout {
        match self {
            TensorType::F32 => layout(0, "F32", 1, 4),
            TensorType::F16 => layout(1, "F16", 1, 2),
            TensorType::BF16 => layout(30, "BF16", 1, 2),
            TensorType::Q4_0 => layout(2, "Q4_0", 32, 18),
            TensorType::Q4_1 => layout(3, "Q4_1", 32, 20),
            TensorType::Q5_0 => layout(6, "Q5_0", 32, 22),
            TensorType::Q5_1 => layout(7, "Q5_1", 32, 24),
            TensorType::Q8_0 => layout(8, "Q8_0", 32, 34),
            TensorType::Q2K => layout(10, "Q2_K", 256, 84),
            TensorType::Q3K => layout(11, "Q3_K", 256, 110),
            TensorType::Q4K => layout(12, "Q4_K", 256, 144),
            TensorType::Q5K => layout(13, "Q5_K", 256, 176),
            TensorType::Q6K => layout(14, "Q6_K", 256, 210),
            TensorType::Iq4Nl => layout(20, "IQ4_NL", 32, 18),
            TensorType::Iq4Xs => layout(23, "IQ4_XS", 256, 136),
            TensorType::Mxfp4 => layout(39, "MXFP4", 32, 17),
        }
    }

    /// The type that a file means by `id`, if we can read it.
    pub fn from_id(id: u32) -> Option<TensorType> {
        TensorType::ALL.into_iter().find(|kind| kind.id() == id)
    }

    /// The number that stands for this type in a file.
    pub const fn id(self) -> u32 {
        self.layout().id
    }

    /// The format's name of this type, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.layout().name
    }

    /// Elements per block; a row has a whole number of blocks.
    pub const fn block_len(self) -> usize {
        self.layout().block_len
    }

    /// Bytes per block.
    pub const fn block_bytes(self) -> usize {
        self.layout().block_bytes
    }

    /// Bytes per block where devices keep rows interleaved, which widens the scales of some types.
    pub const fn packed_block_bytes(self) -> usize {
        match self {
            TensorType::Q3K => 114,
            TensorType::Q4K => 148,
            TensorType::Q5K => 180,
            TensorType::Iq4Xs => 138,
            TensorType::Mxfp4 => 18,
            other => other.block_bytes(),
        }
    }

    /// Bytes of `elements` consecutive elements; a started block counts whole.
    ///
    /// # Panics
    /// If the answer does not fit in a `usize`, which no tensor of an opened file can cause.
    pub const fn bytes_for(self, elements: usize) -> usize {
        let blocks = elements.div_ceil(self.block_len());
        blocks.checked_mul(self.block_bytes()).expect("more bytes than can be addressed")
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name of a type that exists in the format but that we do not read.
pub(crate) fn unsupported_name(id: u32) -> &'static str {
    match id {
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_found_again() {
        for kind in TensorType::ALL {
            assert_eq!(TensorType::from_id(kind.id()), Some(kind));
            assert_eq!(unsupported_name(kind.id()), "unknown", "{kind} is supported");
        }
        for removed in [4, 5, 31, 32, 33, 36, 37, 38, u32::MAX] {
            assert_eq!(TensorType::from_id(removed), None);
            assert_eq!(unsupported_name(removed), "unknown");
        }
    }

    #[test]
    fn bytes_count_whole_blocks() {
        assert_eq!(TensorType::Q4K.bytes_for(512), 288);
        assert_eq!(TensorType::Q8_0.bytes_for(33), 68);
        assert_eq!(TensorType::F16.bytes_for(3), 6);
        assert_eq!(TensorType::Mxfp4.bytes_for(0), 0);
    }
}
