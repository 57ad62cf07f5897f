//! Which packing each quantized type has.

#![expect(unsafe_code, reason = "promises that packed blocks are plain bytes")]

use paceline_gguf::TensorType;

use super::codes::{Codes, EightBits, FiveBits, FourBits, Lookup, Mxfp4, Nonlinear, SixBits, ThreeBits, TwoBits};
use super::memory::Plain;
use super::scales::{Affine, Halved, HalvedAffine, Nested, NestedAffine, PowerOfTwo, Scales, Single};
use crate::blocks::Block;

/// The packing of a quantized type.
pub(super) trait Format: 'static {
    /// Of its codes.
    type Codes: Codes;
    /// Of its scales.
    type Scales: Scales;
    /// How much greater the bytes of the dot product are than the integers they stand for.
    const OFFSET: i32;
}

/// 32 columns of sixteen rows.
#[repr(C)]
pub(super) struct Part<F: Format> {
    pub(super) factors: <F::Scales as Scales>::Factors,
    pub(super) codes: <F::Codes as Codes>::Data,
}

// SAFETY: two plain values.
unsafe impl<F: Format> Plain for Part<F> {}

/// One block of sixteen rows.
#[repr(C)]
pub(super) struct PackedBlock<F: Format> {
    pub(super) head: <F::Scales as Scales>::Head,
    pub(super) parts: <F::Scales as Scales>::Parts<Part<F>>,
}

// SAFETY: two plain values.
unsafe impl<F: Format> Plain for PackedBlock<F> {}

impl<F: Format> PackedBlock<F> {
    /// Stores one row's block into memory that was zero.
    pub(super) fn store(&mut self, lane: usize, block: &Block) {
        F::Scales::store_head(&mut self.head, lane, block);
        let (codes, _) = block.codes.as_chunks();
        for (index, part) in self.parts.as_mut().iter_mut().enumerate() {
            F::Scales::store_factors(&mut part.factors, lane, block, index);
            F::Codes::store(&mut part.codes, lane, &codes[index]);
        }
    }
}

/// Something to do with the format of a type.
pub(super) trait WithFormat {
    type Output;

    fn call<F: Format>(self) -> Self::Output;
}

macro_rules! formats {
    ($($kind:ident: $codes:ty, $scales:ty, $offset:expr;)*) => {
        mod kinds {
            $(
                pub(in super::super) struct $kind;
            )*
        }
        $(
            impl Format for kinds::$kind {
                type Codes = $codes;
                type Scales = $scales;
                const OFFSET: i32 = $offset;
            }
        )*

        /// Calls `action` with the format of `kind`.
        ///
        /// # Panics
        /// If `kind` is a float type.
        pub(super) fn with_format<A: WithFormat>(kind: TensorType, action: A) -> A::Output {
            match kind {
                $(TensorType::$kind => action.call::<kinds::$kind>(),)*
                TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
                    panic!("{kind} is not quantized")
                }
            }
        }
    };
}

formats! {
    Q4_0: FourBits, Single, 8;
    Q4_1: FourBits, Affine, 0;
    Q5_0: FiveBits, Single, 16;
    Q5_1: FiveBits, Affine, 0;
    Q8_0: EightBits, Single, 128;
    Q2K: TwoBits, HalvedAffine, 0;
    Q3K: ThreeBits, Halved, 4;
    Q4K: FourBits, NestedAffine, 0;
    Q5K: FiveBits, NestedAffine, 0;
    Q6K: SixBits, Halved, 32;
    Iq4Nl: Lookup<Nonlinear>, Single, Nonlinear::OFFSET;
    Iq4Xs: Lookup<Nonlinear>, Nested, Nonlinear::OFFSET;
    Mxfp4: Lookup<Mxfp4>, PowerOfTwo, Mxfp4::OFFSET;
}
