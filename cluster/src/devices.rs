//! What computes: this host's cores, or a GPU. A GPU and its libraries are looked for only when the command line asks for
//! one, so that a host without them runs the same program.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use paceline_cuda::CudaDevice;
use paceline_cuda::cache::Cache;
use paceline_cuda::card::{CardDriver, Kernels};
use paceline_cuda::driver::Driver;
use tracing::info;

/// What a flag asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// This host's cores; no GPU is touched.
    #[default]
    Cpu,
    /// A card of NVIDIA, by its number.
    Cuda(usize),
    /// The first card, if it and its libraries are there, else the cores.
    Auto,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("there is no device {text}: say cpu, cuda, cuda:N for card N, or auto");
        match text {
            "cpu" | "none" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            "auto" => Ok(Self::Auto),
            _ => {
                let number = text.strip_prefix("cuda:").ok_or_else(unknown)?;
                number.parse().map(Self::Cuda).map_err(|_| unknown())
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => formatter.write_str("cpu"),
            Self::Cuda(card) => write!(formatter, "cuda:{card}"),
            Self::Auto => formatter.write_str("auto"),
        }
    }
}

impl DeviceChoice {
    /// Takes the GPU into use that is asked for, if one is.
    ///
    /// # Errors
    /// A GPU that is asked for by name and cannot be used: what is missing, and what to install.
    pub(crate) fn gpu(self) -> Result<Option<Gpu>> {
        match self {
            Self::Cpu => Ok(None),
            Self::Cuda(card) => Ok(Some(Gpu::open(card).with_context(|| format!("--device {self} cannot be used"))?)),
            Self::Auto => {
                Ok(Gpu::open(0).inspect_err(|error| info!("no GPU is used, but this host's cores: {error:#}")).ok())
            }
        }
    }
}

/// A GPU in use.
#[derive(Clone)]
pub(crate) struct Gpu {
    /// As stages see it.
    pub(crate) device: Arc<CudaDevice>,
    /// Bytes of its memory that were free when it was taken into use.
    pub(crate) free_bytes: u64,
}

impl Gpu {
    fn open(card: usize) -> Result<Self> {
        let cache = Cache::new(cache_folder().map(|folder| folder.join("kernels")));
        let driver = CardDriver::open(card, Kernels { compiler_folders: compiler_folders(), cache })?;
        let free_bytes = driver.free_bytes()?;
        Ok(Self { device: Arc::new(CudaDevice::new(driver)), free_bytes })
    }

    /// Its driver.
    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        self.device.driver()
    }
}

/// Where NVRTC may lie beside where the system looks: next to this program, and in a toolkit.
pub(crate) fn compiler_folders() -> Vec<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(|folder| folder.join("../lib"));
    let toolkit = std::env::var_os("CUDA_HOME").map_or_else(|| PathBuf::from("/usr/local/cuda"), PathBuf::from);
    beside.into_iter().chain([toolkit.join("lib64")]).collect()
}

/// The folder for what can be made again; none where there is no home folder.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(cache.join("paceline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named() {
        for (text, choice) in [
            ("cpu", DeviceChoice::Cpu),
            ("none", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::Cuda(0)),
            ("cuda:3", DeviceChoice::Cuda(3)),
            ("auto", DeviceChoice::Auto),
        ] {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for text in ["gpu", "cuda:", "cuda:x", "cuda:-1", ""] {
            let error = text.parse::<DeviceChoice>().expect_err("no device");
            assert!(error.contains("cuda:N"), "{error}");
        }
    }

    #[test]
    fn the_cpu_needs_nothing() {
        assert!(DeviceChoice::Cpu.gpu().is_ok_and(|gpu| gpu.is_none()));
    }
}
