//! What this machine can do at best: the best of many short samples, taken beside everything else that is measured.
//! Where the median is far below it, others use the machine, and no fraction of a roof says much.

use std::fmt;

use anyhow::Result;
use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::roof::Roof;
use paceline_compute::cpu::simd::Isa;
use paceline_cuda::roof::{Roof as CudaRoof, Sample};
use serde::Serialize;

use super::samples::Spread;
use crate::devices::Gpu;

/// Memory that is read again and again, more than caches hold.
const BYTES: usize = 256 << 20;
/// Memory that is read for one sample: about what an operation reads, so that both are disturbed alike.
const PIECE: usize = 8 << 20;

/// Takes samples of both roofs.
pub(super) struct Roofs {
    of: Of,
    read: Vec<f64>,
    dot: Vec<f64>,
    dot_of_one: Vec<f64>,
}

/// What they are roofs of.
enum Of {
    /// All threads together, and one alone.
    Cores { all: Roof, one: Roof },
    /// A GPU, which has no threads that would be worth a sample.
    Gpu(Gpu),
}

/// The roofs of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Measured {
    /// Bytes per second that all threads together read.
    pub(super) read: Ceiling,
    /// Multiplications of bytes per second of all threads together.
    pub(super) dot: Ceiling,
    /// The same of one thread alone.
    pub(super) dot_of_one: Ceiling,
}

/// What was reached at best, and how often it was.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Ceiling {
    pub(super) best: f64,
    #[serde(flatten)]
    spread: Spread,
}

impl Roofs {
    /// Of a device and of one thread alone.
    pub(super) fn new(device: &CpuDevice, isa: Option<Isa>) -> Result<Self> {
        let (all, one) = (Roof::new(device, BYTES)?, Roof::new(&CpuDevice::new(1, isa)?, 0)?);
        Ok(Self::of(Of::Cores { all, one }))
    }

    /// Of a GPU.
    pub(super) fn of_gpu(gpu: &Gpu) -> Self {
        Self::of(Of::Gpu(gpu.clone()))
    }

    fn of(of: Of) -> Self {
        Self { of, read: Vec::new(), dot: Vec::new(), dot_of_one: Vec::new() }
    }

    /// Reads all of the memory once, piece by piece, and takes as many samples of the others.
    pub(super) fn sample(&mut self) -> Result<()> {
        match &self.of {
            Of::Cores { all, one } => {
                for start in (0..BYTES).step_by(PIECE) {
                    self.read.push(all.read(start..start + PIECE)?);
                    self.dot.push(all.dot()?);
                    self.dot_of_one.push(one.dot()?);
                }
            }
            Of::Gpu(gpu) => {
                let CudaRoof { read, products } = CudaRoof::measure(gpu.driver(), &Sample::default())?;
                self.read.push(read);
                self.dot.push(products);
                self.dot_of_one.push(products);
            }
        }
        Ok(())
    }

    /// # Panics
    /// If there is no sample.
    pub(super) fn measured(self) -> Measured {
        Measured { read: Ceiling::of(self.read), dot: Ceiling::of(self.dot), dot_of_one: Ceiling::of(self.dot_of_one) }
    }
}

impl Ceiling {
    fn of(samples: Vec<f64>) -> Self {
        Self { best: samples.iter().copied().fold(0.0, f64::max), spread: Spread::of(samples) }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { read, dot, dot_of_one } = self;
        write!(formatter, "read {read} GB/s, int8 dot {dot} GMAC/s (one thread {dot_of_one})")
    }
}

impl fmt::Display for Ceiling {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.1} (median {:.1})", self.best / 1e9, self.spread.median / 1e9)
    }
}
