//! The CPU as a device: panels of quantized weights, vector kernels, and threads that walk a program together.

pub mod linear;
pub mod math;
pub mod simd;
