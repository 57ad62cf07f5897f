//! The CUDA kernels on the CPU: what tests run where there is no GPU.
//!
//! [`EmulatedDriver`] is a [`Driver`] like that of a card. The same sources are compiled as C++ (`cpp/cuda_on_cpu.h` has
//! what CUDA adds to the language), and every thread of a block is a fiber. It is for tests alone: exact and slow.

#![expect(unsafe_code, reason = "calls kernels, which trust their arguments")]

use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use paceline_compute::device::Description;
use paceline_compute::{Error, Result};
use paceline_cuda::driver::{Address, Driver, Kernel, Shape};

unsafe extern "C" {
    fn paceline_emulation_find(name: *const c_char, arguments: *mut c_uint) -> c_int;
    fn paceline_emulation_launch(
        kernel: c_int,
        grid: *const c_uint,
        block: *const c_uint,
        shared_bytes: c_uint,
        arguments: *mut *mut c_void,
        backwards: c_int,
    ) -> c_int;
}

/// In which order threads and blocks run, which must not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The first first.
    Forwards,
    /// The last first.
    Backwards,
}

/// A GPU made of this thread.
pub struct EmulatedDriver {
    order: Order,
    allocations: Mutex<HashMap<Address, Layout>>,
    memory: u64,
    launches: AtomicUsize,
}

impl EmulatedDriver {
    /// A device with as much memory as anyone asks for.
    pub fn new(order: Order) -> Self {
        Self { order, allocations: Mutex::default(), memory: u64::MAX, launches: AtomicUsize::new(0) }
    }

    /// The same device with so many bytes of memory.
    #[must_use]
    pub fn with_memory(self, bytes: u64) -> Self {
        Self { memory: bytes, ..self }
    }

    /// Bytes that are allocated now.
    pub fn used_bytes(&self) -> u64 {
        let allocations = self.allocations.lock().unwrap_or_else(PoisonError::into_inner);
        allocations.values().map(|layout| layout.size() as u64).sum()
    }

    /// Kernels that were launched so far.
    pub fn launches(&self) -> usize {
        self.launches.load(Ordering::Relaxed)
    }

    fn error(operation: &str, reason: &str) -> Error {
        Error::Device { device: "emulated".to_owned(), operation: operation.to_owned(), reason: reason.to_owned() }
    }
}

impl Driver for EmulatedDriver {
    fn describe(&self) -> Description {
        Description { name: "emulated".to_owned(), detail: "CUDA kernels on one thread".to_owned() }
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(self.memory.saturating_sub(self.used_bytes()))
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let refused = || Error::OutOfMemory { what: "a device's memory", bytes: bytes as u64 };
        if bytes as u64 > self.free_bytes()? {
            return Err(refused());
        }
        let layout = Layout::from_size_align(bytes.max(1), 256).map_err(|_| refused())?;
        // SAFETY: the layout has at least one byte.
        let pointer = unsafe { alloc(layout) };
        if pointer.is_null() {
            return Err(refused());
        }
        let address = pointer.expose_provenance() as Address;
        // Garbage, as on a device.
        // SAFETY: the allocation has these bytes.
        unsafe { pointer.write_bytes(0xff, bytes) };
        self.allocations.lock().unwrap_or_else(PoisonError::into_inner).insert(address, layout);
        Ok(address)
    }

    unsafe fn free(&self, address: Address) {
        let found = self.allocations.lock().unwrap_or_else(PoisonError::into_inner).remove(&address);
        let layout = found.expect("memory is freed once");
        // SAFETY: it was allocated with this layout, and the caller uses it no more.
        unsafe { dealloc(pointer(address), layout) };
    }

    unsafe fn fill(&self, to: Address, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { pointer(to).write_bytes(byte, bytes) };
        Ok(())
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise; places that overlap are copied as if they did not.
        unsafe { pointer(from).copy_to(pointer(to), bytes) };
        Ok(())
    }

    unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { pointer(to).copy_from(from.as_ptr(), from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: Address, into: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { pointer(from).copy_to(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn kernel(&self, name: &str) -> Result<Kernel> {
        let text = CString::new(name).map_err(|_| Self::error("find a kernel", "its name has a zero"))?;
        let mut arguments = 0;
        // SAFETY: a string that ends, and a place for a number.
        let index = unsafe { paceline_emulation_find(text.as_ptr(), &raw mut arguments) };
        let index = u32::try_from(index).map_err(|_| Self::error("find a kernel", &format!("there is no {name}")))?;
        Ok(Kernel(u64::from(index) << 32 | u64::from(arguments)))
    }

    unsafe fn launch(&self, kernel: Kernel, shape: Shape, arguments: &[u64]) -> Result<()> {
        let Shape { grid, block, shared_bytes } = shape;
        let (index, count) = ((kernel.0 >> 32) as c_int, kernel.0 as u32 as usize);
        assert_eq!(arguments.len(), count, "arguments of a kernel");
        self.launches.fetch_add(1, Ordering::Relaxed);
        let mut words = arguments.to_vec();
        let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let block = [block, 1, 1];
        let backwards = c_int::from(self.order == Order::Backwards);
        // SAFETY: the kernel has as many arguments, each in the low bytes of its word; the rest is the caller's promise.
        let result = unsafe {
            paceline_emulation_launch(
                index,
                grid.as_ptr(),
                block.as_ptr(),
                shared_bytes,
                pointers.as_mut_ptr(),
                backwards,
            )
        };
        match result {
            0 => Ok(()),
            1 => Err(Self::error("launch a kernel", "it has too many threads or too much shared memory")),
            _ => Err(Self::error("run a kernel", "its threads wait for one another for ever")),
        }
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }
}

/// Memory that was allocated.
fn pointer(address: Address) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
