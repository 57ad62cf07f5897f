//! Which instruction sets the host has, found once and passed down as a value.

use std::fmt;

use super::{Kernel, Scalar, Simd};

#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};

/// An instruction set that kernels can run on; all give the same results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain code, on every host.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 (F, BW, DQ, VL) with VNNI.
    Avx512,
}

impl Isa {
    /// Every instruction set, slowest first.
    pub const ALL: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512];

    /// The fastest instruction set of the host.
    pub fn detect() -> Isa {
        let fastest_first = Self::ALL.into_iter().rev();
        let mut available = fastest_first.filter(|isa| isa.is_available());
        available.next().unwrap_or(Isa::Scalar)
    }

    /// Reads a name as [`Display`](fmt::Display) writes it; `None` for any other.
    pub fn parse(name: &str) -> Option<Isa> {
        Self::ALL.into_iter().find(|isa| isa.name() == name)
    }

    /// The name: `scalar`, `avx2` or `avx512`.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// Whether the host can run it.
    #[cfg(target_arch = "x86_64")]
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            Isa::Avx2 => Avx2::new().is_some(),
            Isa::Avx512 => Avx512::new().is_some(),
        }
    }

    /// Whether the host can run it.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn is_available(self) -> bool {
        self == Isa::Scalar
    }

    /// Runs a kernel.
    ///
    /// # Panics
    /// Where the host lacks the instruction set.
    #[cfg(target_arch = "x86_64")]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Isa::Scalar => Scalar::new().vectorize(kernel),
            Isa::Avx2 => Avx2::new().expect("the host has AVX2").vectorize(kernel),
            Isa::Avx512 => Avx512::new().expect("the host has AVX-512").vectorize(kernel),
        }
    }

    /// Runs a kernel.
    ///
    /// # Panics
    /// Where the host lacks the instruction set.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        assert!(self.is_available(), "the host has no {self}");
        Scalar::new().vectorize(kernel)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
