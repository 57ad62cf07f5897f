//! What this machine can do at best, measured beside everything else that is measured: a busy neighbour then slows
//! both, and the fraction stays honest.

use std::fmt;

use anyhow::Result;
use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::roof::Roof;
use paceline_compute::cpu::simd::Isa;
use serde::Serialize;

use super::samples::Spread;

/// Memory that is read again and again, more than caches hold.
const BYTES: usize = 256 << 20;
/// Memory that is read for one sample: about what an operation reads, so that both are disturbed alike.
const PIECE: usize = 8 << 20;

/// Takes samples of both roofs.
pub(super) struct Roofs {
    all: Roof,
    one: Roof,
    read: Vec<f64>,
    dot: Vec<f64>,
    dot_of_one: Vec<f64>,
}

/// The roofs of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Measured {
    /// Bytes per second that all threads together read.
    pub(super) read: Spread,
    /// Multiplications of bytes per second of all threads together.
    pub(super) dot: Spread,
    /// The same of one thread alone.
    pub(super) dot_of_one: Spread,
}

impl Roofs {
    /// Of a device and of one thread alone.
    pub(super) fn new(device: &CpuDevice, isa: Option<Isa>) -> Result<Self> {
        let (all, one) = (Roof::new(device, BYTES)?, Roof::new(&CpuDevice::new(1, isa)?, 0)?);
        Ok(Self { all, one, read: Vec::new(), dot: Vec::new(), dot_of_one: Vec::new() })
    }

    /// Reads all of the memory once, piece by piece, and takes as many samples of the others.
    pub(super) fn sample(&mut self) -> Result<()> {
        for start in (0..BYTES).step_by(PIECE) {
            self.read.push(self.all.read(start..start + PIECE)?);
            self.dot.push(self.all.dot()?);
            self.dot_of_one.push(self.one.dot()?);
        }
        Ok(())
    }

    /// # Panics
    /// If there is no sample.
    pub(super) fn measured(self) -> Measured {
        Measured { read: Spread::of(self.read), dot: Spread::of(self.dot), dot_of_one: Spread::of(self.dot_of_one) }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let billions = |spread: Spread| spread.map(|rate| rate / 1e9);
        let (read, dot, one) = (billions(self.read), billions(self.dot), billions(self.dot_of_one));
        write!(formatter, "read {read:.1} GB/s, int8 dot {dot:.0} GMAC/s (one thread {one:.0})")
    }
}
