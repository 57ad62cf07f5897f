//! NVIDIA GPUs as devices.
//!
//! Read [`driver::Driver`] first: the little that a stage needs of a GPU. [`CudaDevice`] loads stages on any driver: on
//! a card ([`card`]), or, in tests, on the emulation beside this crate, which runs the same kernels on the CPU. Kernels
//! are in `kernels/*.cu`; [`nvrtc`] compiles them. This crate must never know what the whole of paceline's compute
//! crate does not know either: sessions, steps' ids, schedulers, sockets, architectures.

#![expect(unsafe_code, reason = "memory and kernels of a device")]

pub mod budget;
pub mod cache;
pub mod card;
mod device;
pub mod driver;
mod error;
mod inputs;
pub mod kernels;
mod launch;
mod layout;
pub mod libraries;
pub mod memory;
pub mod nvrtc;
mod prepare;
pub mod roof;
mod stage;
mod weights;

pub use device::CudaDevice;
pub use error::{CudaError, CudaResult};
