//! Which of NVIDIA's libraries the system finds. Looking for them touches no card.

use std::ffi::OsStr;
use std::path::PathBuf;

use libloading::Library;

use crate::error::{CudaError, CudaResult};

/// A library that is found at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Names of its file, the first that is there counts.
    pub files: &'static [&'static str],
    /// What it is needed for.
    pub purpose: &'static str,
    /// What to install.
    pub advice: &'static str,
}

/// The driver itself.
pub const DRIVER: Wanted = Wanted {
    files: &["libcuda.so", "libcuda.so.1"],
    purpose: "the NVIDIA driver",
    advice: "install NVIDIA's driver, or start the container with its GPUs",
};

/// The compiler of kernels.
pub const COMPILER: Wanted = Wanted {
    files: &["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"],
    purpose: "compiles the kernels for the card at hand",
    advice: "install libnvrtc of CUDA 12 (cuda-nvrtc-12-9; pip install nvidia-cuda-nvrtc-cu12), and let LD_LIBRARY_PATH \
             name its folder",
};

/// Matrix products of long prompts.
pub const PRODUCTS: Wanted = Wanted {
    files: &["libcublasLt.so.12", "libcublasLt.so.13", "libcublasLt.so"],
    purpose: "matrix products of long prompts; nothing uses it yet",
    advice: "install libcublas of CUDA 12 when it is needed",
};

/// Links between cards.
pub const LINKS: Wanted = Wanted {
    files: &["libnccl.so.2", "libnccl.so"],
    purpose: "links between cards; nothing uses it yet",
    advice: "install libnccl2 when it is needed",
};

impl Wanted {
    /// Opens the library.
    ///
    /// # Errors
    /// [`CudaError::MissingLibrary`].
    pub fn open(&self) -> CudaResult<Library> {
        self.open_beside(&[])
    }

    /// Opens the library from one of the folders, or else where the system finds it.
    ///
    /// # Errors
    /// [`CudaError::MissingLibrary`].
    pub fn open_beside(&self, folders: &[PathBuf]) -> CudaResult<Library> {
        let beside = folders.iter().flat_map(|folder| self.files.iter().map(move |file| folder.join(file)));
        let mut beside = beside.filter(|path| path.exists()).filter_map(|path| load(path.as_os_str()));
        let found = beside.next().or_else(|| self.files.iter().find_map(|file| load(OsStr::new(file))));
        found.ok_or(CudaError::MissingLibrary { library: self.files[0], purpose: self.purpose, advice: self.advice })
    }
}

fn load(file: &OsStr) -> Option<Library> {
    // SAFETY: NVIDIA's libraries do nothing when they are loaded but make themselves ready.
    unsafe { Library::new(file).ok() }
}

/// Functions of the driver that are called by name, and so must be there.
const DRIVER_FUNCTIONS: [&str; 22] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuGetErrorString",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuStreamSynchronize",
    "cuLaunchKernel",
];

/// Checks that the driver's library is there and whole, so that calling it cannot fail for want of a function.
///
/// # Errors
/// A library that is missing, or that lacks a function.
pub fn check_driver() -> CudaResult<()> {
    let library = DRIVER.open()?;
    for function in DRIVER_FUNCTIONS {
        // SAFETY: the function is looked up and not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(function) };
        if found.is_err() {
            let (library, advice) = (DRIVER.files[1].to_owned(), DRIVER.advice);
            return Err(CudaError::OldLibrary { library, function, advice });
        }
    }
    Ok(())
}
