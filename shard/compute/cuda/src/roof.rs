//! How fast a GPU is, measured in a moment: what a planner reckons with.

use std::sync::Arc;
use std::time::Instant;

use paceline_compute::Result;
use zerocopy::IntoBytes;

use crate::driver::{Driver, Shape};
use crate::layout::push_u64;
use crate::memory::Memory;

/// How much is copied and multiplied to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Bytes of memory that are read or written: more than caches hold.
    pub bytes: usize,
    /// Rows that are multiplied, with a matrix of so many rows and columns: multiples of 32.
    pub rows: usize,
    /// See `rows`.
    pub columns: usize,
    /// The best of so many counts.
    pub repeat: usize,
}

impl Default for Sample {
    fn default() -> Self {
        Self { bytes: 256 << 20, rows: 64, columns: 4096, repeat: 5 }
    }
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Roof {
    /// Bytes per second between the GPU and its memory.
    pub read: f64,
    /// Multiply-adds per second of the kernel that multiplies weights of `q8_0` with many rows.
    pub products: f64,
}

impl Roof {
    /// Measures a GPU that nobody else uses now.
    ///
    /// # Errors
    /// Memory that cannot be had; a device that fails.
    pub fn measure(driver: &Arc<dyn Driver>, sample: &Sample) -> Result<Self> {
        Ok(Self { read: read(driver, sample)?, products: products(driver, sample)? })
    }
}

/// A copy reads and writes every byte.
fn read(driver: &Arc<dyn Driver>, sample: &Sample) -> Result<f64> {
    let half = sample.bytes / 2;
    let memory = Memory::reserve(driver, "a measurement", 2 * half)?;
    memory.fill(0..2 * half, 0)?;
    let seconds = best(driver, sample.repeat, || memory.copy(0, half, half))?;
    Ok(2.0 * half as f64 / seconds)
}

#[expect(unsafe_code, reason = "launches a kernel")]
fn products(driver: &Arc<dyn Driver>, sample: &Sample) -> Result<f64> {
    let Sample { rows, columns, repeat, .. } = *sample;
    assert!(columns.is_multiple_of(32), "whole blocks");
    let weight = Memory::reserve(driver, "a measurement", columns * columns / 32 * 34)?;
    let input = Memory::reserve(driver, "a measurement", rows * columns / 32 * 48)?;
    let output = Memory::reserve(driver, "a measurement", rows * columns * size_of::<f32>())?;
    for memory in [&weight, &input, &output] {
        memory.fill(0..memory.bytes(), 0)?;
    }
    // The head of a step that has nothing but rows.
    let mut head = [0; 64];
    head[..4].copy_from_slice(&(rows as u32).to_le_bytes());
    let step = Memory::holding(driver, "a measurement", &head)?;
    let kernel = driver.kernel("linear_q8_0")?;
    let mut product = Vec::new();
    push_u64(&mut product, weight.address());
    push_u64(&mut product, output.address());
    product.extend([0, columns as u32, 0, 0]);
    let table = Memory::holding(driver, "a measurement", product.as_bytes())?;
    let arguments = [step.address(), 0, table.address(), 1, input.address(), columns as u64];
    let grid = [columns.div_ceil(4) as u32, rows.div_ceil(8) as u32, 1];
    let shape = Shape { grid, block: 128, shared_bytes: 0 };
    // SAFETY: the arguments are those of the kernel, and the memories as large as they say.
    let seconds = best(driver, repeat, || unsafe { driver.launch(kernel, shape, &arguments) })?;
    Ok((rows * columns * columns) as f64 / seconds)
}

/// Seconds of the fastest of some runs.
fn best(driver: &Arc<dyn Driver>, repeat: usize, run: impl Fn() -> Result<()>) -> Result<f64> {
    run()?;
    driver.synchronize()?;
    let mut best = f64::INFINITY;
    for _ in 0..repeat {
        let begun = Instant::now();
        run()?;
        driver.synchronize()?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Ok(best.max(1e-9))
}
