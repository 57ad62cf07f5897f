//! How fast a GPU is, measured in a moment: what a planner reckons with.

use std::sync::Arc;
use std::time::Instant;

use paceline_compute::Result;

use crate::driver::{Driver, Shape};
use crate::memory::Memory;

/// Bytes that are copied: more than caches hold.
const COPIED_BYTES: usize = 256 << 20;
/// Columns and outputs of the weights that are multiplied, and rows that they are multiplied with.
const COLUMNS: usize = 4096;
const OUTPUTS: usize = 4096;
const ROWS: usize = 64;
/// The best of so many counts.
const REPEAT: usize = 5;

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
    pub fn measure(driver: &Arc<dyn Driver>) -> Result<Self> {
        Ok(Self { read: read(driver)?, products: products(driver)? })
    }
}

/// A copy reads and writes every byte.
fn read(driver: &Arc<dyn Driver>) -> Result<f64> {
    let memory = Memory::reserve(driver, "a measurement", COPIED_BYTES)?;
    memory.fill(0..COPIED_BYTES, 0)?;
    let half = COPIED_BYTES / 2;
    let seconds = best(driver, || memory.copy(0, half, half))?;
    Ok(COPIED_BYTES as f64 / seconds)
}

#[expect(unsafe_code, reason = "launches a kernel")]
fn products(driver: &Arc<dyn Driver>) -> Result<f64> {
    let weight = Memory::reserve(driver, "a measurement", OUTPUTS * COLUMNS / 32 * 34)?;
    let input = Memory::reserve(driver, "a measurement", ROWS * COLUMNS / 32 * 48)?;
    let output = Memory::reserve(driver, "a measurement", ROWS * OUTPUTS * size_of::<f32>())?;
    for memory in [&weight, &input, &output] {
        memory.fill(0..memory.bytes(), 0)?;
    }
    // The head of a step that has nothing but rows.
    let mut head = [0; 64];
    head[..4].copy_from_slice(&(ROWS as u32).to_le_bytes());
    let step = Memory::holding(driver, "a measurement", &head)?;
    let kernel = driver.kernel("linear_q8_0")?;
    let addresses = [&weight, &input, &output].map(Memory::address);
    let sizes = [COLUMNS as u64, OUTPUTS as u64, 0];
    let arguments = [&[step.address(), 0], &addresses[..], &sizes].concat();
    let shape = Shape { grid: [OUTPUTS as u32 / 4, ROWS as u32 / 8, 1], block: 128, shared_bytes: 0 };
    // SAFETY: the arguments are those of the kernel, and the memories as large as they say.
    let seconds = best(driver, || unsafe { driver.launch(kernel, shape, &arguments) })?;
    Ok((ROWS * COLUMNS * OUTPUTS) as f64 / seconds)
}

/// Seconds of the fastest of some runs.
fn best(driver: &Arc<dyn Driver>, run: impl Fn() -> Result<()>) -> Result<f64> {
    run()?;
    driver.synchronize()?;
    let mut best = f64::INFINITY;
    for _ in 0..REPEAT {
        let begun = Instant::now();
        run()?;
        driver.synchronize()?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Ok(best.max(1e-9))
}
