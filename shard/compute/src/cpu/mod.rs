//! The CPU as a device: panels of quantized weights, vector kernels, and threads that walk a program together.
//!
//! Read [`CpuDevice`] first, then `stage.rs`, which loads a program and runs it, then `ops/mod.rs`.

pub mod linear;
pub mod math;
pub mod roof;
pub mod simd;

mod buffers;
mod device;
mod ops;
mod pages;
mod pool;
mod shared;
mod stage;
mod states;
#[cfg(test)]
mod tests;
mod weights;

pub use device::CpuDevice;
