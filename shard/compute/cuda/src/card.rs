//! A card as a [`Driver`], by NVIDIA's driver.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use paceline_compute::device::Description;
use paceline_compute::{Error, Result};

use crate::cache::Cache;
use crate::driver::{Address, Driver, Kernel, Shape};
use crate::error::{CudaError, CudaResult};
use crate::kernels::FILES;
use crate::libraries::check_driver;
use crate::nvrtc::{Capability, Nvrtc, Output};

/// What is known of a card without using it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its number, from 0.
    pub index: usize,
    /// Such as `NVIDIA H200`.
    pub name: String,
    /// What it can do.
    pub capability: Capability,
    /// Bytes of its memory.
    pub memory_bytes: u64,
    /// Bytes a second between it and its memory, as its clock and width say.
    pub bytes_per_second: u64,
}

/// Looks for the compiler and keeps what it makes.
#[derive(Debug, Clone, Default)]
pub struct Kernels {
    /// Folders to look for NVRTC in before the system is asked.
    pub compiler_folders: Vec<PathBuf>,
    /// Where compiled kernels are kept.
    pub cache: Cache,
}

/// All cards, in the driver's order. No context is made on them.
///
/// # Errors
/// A driver that is missing, too old, or that does not answer.
pub fn cards() -> CudaResult<Vec<Card>> {
    start_driver()?;
    let count = result::device::get_count().map_err(|error| refused("count the cards", error))?;
    (0..count as usize).map(card).collect()
}

fn start_driver() -> CudaResult<()> {
    check_driver()?;
    result::init().map_err(|error| refused("start", error))
}

fn card(index: usize) -> CudaResult<Card> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH as WIDTH, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE as CLOCK,
    };
    let device = result::device::get(index as i32).map_err(|error| refused("find the card", error))?;
    let name = result::device::get_name(device).map_err(|error| refused("name the card", error))?;
    // SAFETY: the driver has given this device.
    let memory = unsafe { result::device::total_mem(device) };
    let memory_bytes = memory.map_err(|error| refused("say how much memory the card has", error))? as u64;
    let attribute = |attribute| {
        // SAFETY: the driver has given this device.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        value.map(|value| value as u64).map_err(|error| refused("describe the card", error))
    };
    let capability = Capability::new(attribute(MAJOR)? as u32, attribute(MINOR)? as u32);
    // Kilohertz, two transfers each, of so many bits. Some newer drivers answer with zeros.
    let bytes_per_second = attribute(CLOCK).unwrap_or(0) * 1000 * 2 * attribute(WIDTH).unwrap_or(0) / 8;
    Ok(Card { index, name, capability, memory_bytes, bytes_per_second })
}

/// A card that is in use: its context, its stream, and its kernels.
pub struct CardDriver {
    card: Card,
    device: sys::CUdevice,
    context: sys::CUcontext,
    compiler: Nvrtc,
    kernels: Kernels,
    /// Modules by file, and functions by name, each made ready when it is first asked for.
    functions: Mutex<HashMap<String, usize>>,
}

// SAFETY: handles of the driver may be used from any thread; what is mutable is behind a lock.
unsafe impl Send for CardDriver {}
// SAFETY: as above.
unsafe impl Sync for CardDriver {}

impl CardDriver {
    /// Takes a card into use.
    ///
    /// # Errors
    /// A driver or compiler that is missing, a card that does not exist or refuses.
    pub fn open(index: usize, kernels: Kernels) -> CudaResult<Arc<dyn Driver>> {
        let count = cards()?.len();
        if index >= count {
            return Err(CudaError::NoCard { index, count });
        }
        let card = card(index)?;
        let compiler = Nvrtc::open(&kernels.compiler_folders)?;
        let device = result::device::get(index as i32).map_err(|error| refused("find the card", error))?;
        // SAFETY: the driver has given this device; the context is released when the driver is dropped.
        let context = unsafe { result::primary_ctx::retain(device) };
        let context = context.map_err(|error| refused("make a context on the card", error))?;
        Ok(Arc::new(Self { card, device, context, compiler, kernels, functions: Mutex::default() }))
    }

    /// The card's context is the calling thread's from now on.
    fn enter(&self, operation: &str) -> Result<()> {
        // SAFETY: the context lives as long as this.
        self.check(operation, unsafe { result::ctx::set_current(self.context) })
    }

    fn check<T>(&self, operation: &str, result: std::result::Result<T, DriverError>) -> Result<T> {
        result.map_err(|error| self.error(operation, &error.to_string()))
    }

    fn error(&self, operation: &str, reason: &str) -> Error {
        let device = format!("cuda:{} ({})", self.card.index, self.card.name);
        Error::Device { device, operation: operation.to_owned(), reason: reason.to_owned() }
    }

    /// Compiles and loads every file, and finds a function in them.
    fn find(&self, name: &str, functions: &mut HashMap<String, usize>) -> Result<usize> {
        for file in &FILES {
            let defines = format!("__global__ void {name}(");
            let (_, format) = name.split_once('_').unwrap_or(("", name));
            let made = ["OF_BLOCKS", "OF_FLOATS"].map(|macro_name| format!("{macro_name}({format},"));
            if !file.text.contains(&defines) && !made.iter().any(|made| file.text.contains(made.as_str())) {
                continue;
            }
            let module = self.module(file, functions)?;
            let text = CString::new(name).map_err(|_| self.error("find a kernel", "its name has a zero"))?;
            // SAFETY: a module that was loaded and stays.
            let function = unsafe { result::module::get_function(module as sys::CUmodule, text) };
            return Ok(self.check(&format!("find {name}"), function)? as usize);
        }
        Err(self.error("find a kernel", &format!("there is no {name}")))
    }

    fn module(&self, file: &crate::kernels::File, functions: &mut HashMap<String, usize>) -> Result<usize> {
        if let Some(module) = functions.get(file.name) {
            return Ok(*module);
        }
        let Kernels { cache, .. } = &self.kernels;
        let code = cache.compiled(&self.compiler, file, self.card.capability, Output::Code);
        // A card that is newer than the compiler translates what the compiler makes for the newest it knows.
        let code = code.or_else(|error| {
            tracing::warn!(%error, "the card's own code cannot be made");
            let newest = Capability::TESTED.into_iter().filter(|known| *known <= self.card.capability).max();
            let newest = newest.ok_or(error)?;
            let mut text = cache.compiled(&self.compiler, file, newest, Output::Ptx)?;
            text.push(0);
            Ok(text)
        });
        let code =
            code.map_err(|error: CudaError| self.error(&format!("compile {}", file.name), &error.to_string()))?;
        self.enter("load kernels")?;
        // SAFETY: code as the compiler made it; text ends with a zero.
        let module = unsafe { result::module::load_data(code.as_ptr().cast::<c_void>()) };
        let module = self.check(&format!("load {}", file.name), module)? as usize;
        functions.insert(file.name.to_owned(), module);
        Ok(module)
    }

    /// All work is on the context's own stream, so that it is in order.
    fn stream() -> sys::CUstream {
        std::ptr::null_mut()
    }
}

impl Driver for CardDriver {
    fn describe(&self) -> Description {
        let Card { index, name, capability, .. } = &self.card;
        let detail = format!("{name}, compute capability {capability}, NVRTC {}", self.compiler.version());
        Description { name: format!("cuda:{index}"), detail }
    }

    fn free_bytes(&self) -> Result<u64> {
        self.enter("say how much memory is free")?;
        let (free, _) = self.check("say how much memory is free", result::mem_get_info())?;
        Ok(free as u64)
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        self.enter("reserve memory")?;
        // SAFETY: nobody reads the memory before it is written.
        match unsafe { result::malloc_sync(bytes) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                Err(Error::OutOfMemory { what: "a card's memory", bytes: bytes as u64 })
            }
            result => self.check("reserve memory", result),
        }
    }

    unsafe fn free(&self, address: Address) {
        let freed = self.enter("free memory").and_then(|()| {
            // SAFETY: the caller's promise.
            self.check("free memory", unsafe { result::free_sync(address) })
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "memory is lost");
        }
    }

    unsafe fn fill(&self, to: Address, byte: u8, bytes: usize) -> Result<()> {
        self.enter("set memory")?;
        // SAFETY: the caller's promise.
        self.check("set memory", unsafe { result::memset_d8_async(to, byte, bytes, Self::stream()) })
    }

    unsafe fn copy(&self, from: Address, to: Address, bytes: usize) -> Result<()> {
        self.enter("copy memory")?;
        // SAFETY: the caller's promise.
        self.check("copy memory", unsafe { result::memcpy_dtod_async(to, from, bytes, Self::stream()) })
    }

    unsafe fn upload(&self, from: &[u8], to: Address) -> Result<()> {
        self.enter("copy to the card")?;
        // From memory that may be moved the driver copies to a place of its own before it returns.
        // SAFETY: the caller's promise.
        self.check("copy to the card", unsafe { result::memcpy_htod_async(to, from, Self::stream()) })
    }

    unsafe fn download(&self, from: Address, into: &mut [u8]) -> Result<()> {
        self.enter("copy from the card")?;
        // SAFETY: the caller's promise; the copy is over when the stream is.
        let copied = unsafe { result::memcpy_dtoh_async(into, from, Self::stream()) };
        self.check("copy from the card", copied)?;
        self.synchronize()
    }

    fn kernel(&self, name: &str) -> Result<Kernel> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(name) {
            return Ok(Kernel(*function as u64));
        }
        let function = self.find(name, &mut functions)?;
        functions.insert(name.to_owned(), function);
        Ok(Kernel(function as u64))
    }

    unsafe fn launch(&self, kernel: Kernel, shape: Shape, arguments: &[u64]) -> Result<()> {
        self.enter("launch a kernel")?;
        let mut words = arguments.to_vec();
        let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|word| std::ptr::from_mut(word).cast()).collect();
        let Shape { grid: [x, y, z], block, shared_bytes } = shape;
        let function = kernel.0 as usize as sys::CUfunction;
        // SAFETY: the function is one of this card's; the rest is the caller's promise.
        let launched = unsafe {
            result::launch_kernel(function, (x, y, z), (block, 1, 1), shared_bytes, Self::stream(), &mut pointers)
        };
        self.check("launch a kernel", launched)
    }

    fn synchronize(&self) -> Result<()> {
        self.enter("finish its work")?;
        // SAFETY: the context's own stream.
        self.check("finish its work", unsafe { result::stream::synchronize(Self::stream()) })
    }
}

impl Drop for CardDriver {
    fn drop(&mut self) {
        // SAFETY: retained once, when this was made.
        if let Err(error) = unsafe { result::primary_ctx::release(self.device) } {
            tracing::warn!(%error, "the card's context stays");
        }
    }
}

fn refused(operation: &'static str, error: DriverError) -> CudaError {
    CudaError::Driver { operation, reason: error.to_string() }
}
