//! Quantized blocks, kernels and device memory behind one [`Device`] trait.
//!
//! Read [`program::Program`] first: what a stage computes, as data. [`device::Device`] loads and runs it;
//! [`cpu::CpuDevice`] is the device that every machine has. This crate must never know of sessions, steps'
//! ids, schedulers or sockets, nor which architecture recorded a program.

pub mod blocks;
pub mod checks;
pub mod cpu;
pub mod device;
mod error;
pub mod program;
pub mod rotary;
pub mod shapes;
pub mod shelf;
pub mod tensors;

pub use device::{Device, LoadedStage};
pub use error::{Error, Result};
