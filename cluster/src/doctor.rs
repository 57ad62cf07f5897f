//! `paceline doctor`: what of this host keeps it from serving models well, and what to do about it.
//!
//! [`asking`] asks the system what no file says, and [`gpu`] NVIDIA's driver; everything else reads files below a folder and judges, so that tests
//! have hosts of their own. A file that is missing or makes no sense is a finding too, never an error.

mod asking;
mod container;
mod finding;
mod gpu;
mod memory;
mod network;
mod processor;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::{Result, bail};
use paceline_compute::cpu::simd::Isa;

use crate::bench::tell;
use crate::cli::DoctorArgs;
use crate::host;
use asking::{Port, Reached};
use finding::{Checked, Entry, Report, Unknown};
use gpu::Gpus;

/// A host as far as it is looked at.
struct Host {
    /// Its `/proc`, `/sys`, `/etc` and `/run` lie in this folder.
    root: PathBuf,
    /// The fastest kernels that its processor can run.
    isa: Isa,
    /// Whether there are vector kernels for its kind of processor.
    has_vector_kernels: bool,
    /// Ports that Paceline wants.
    ports: Vec<Port>,
    /// Addresses that were tried.
    reached: Vec<Reached>,
    /// What the system says of GPUs.
    gpus: Gpus,
}

/// Looks at one thing.
type Check = fn(&Host) -> Checked;

/// What is looked at, in the order in which it is told.
const CHECKS: [(&str, Check); 18] = [
    ("instructions", processor::instructions),
    ("cores", processor::cores),
    ("CPU quota", processor::quota),
    ("other load", processor::load),
    ("stolen time", processor::stolen),
    ("clock", processor::governor),
    ("idle states", processor::idle_states),
    ("memory", memory::free),
    ("memory limit", memory::limit),
    ("swap", memory::swap),
    ("huge pages", memory::huge_pages),
    ("locked memory", memory::locked),
    ("NUMA", memory::nodes),
    ("open files", container::open_files),
    ("container", container::container),
    ("control groups", container::groups),
    ("Docker", container::docker),
    ("UDP buffers", network::buffers),
];

/// Looks at this host and prints what it finds.
///
/// # Errors
/// Findings with which nothing can be served here, after all are printed.
pub(crate) fn doctor(arguments: &DoctorArgs) -> Result<()> {
    let host = Host {
        root: PathBuf::from("/"),
        isa: Isa::detect(),
        has_vector_kernels: cfg!(target_arch = "x86_64"),
        ports: asking::ports(arguments.port),
        reached: arguments.reach.iter().map(|address| asking::reach(address)).collect(),
        gpus: gpu::ask(),
    };
    let report = examine(&host);
    tell(&report, arguments.json)?;
    let reasons = report.reasons_not_to_serve();
    if !reasons.is_empty() {
        bail!("this host cannot serve as it is: {}", reasons.join("; "));
    }
    Ok(())
}

/// All findings about a host.
fn examine(host: &Host) -> Report {
    let of_files = CHECKS.into_iter().filter_map(|(area, check)| {
        let finding = check(host).unwrap_or_else(|unknown| Some(unknown.into()))?;
        Some(Entry { area: area.to_owned(), finding })
    });
    let of_system = host.ports.iter().map(network::port).chain(host.reached.iter().map(network::reached));
    Report::new(of_files.chain(gpu::findings(host)).chain(of_system).collect())
}

impl Host {
    /// The file of a path below the root.
    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn has(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The text of a file, if it can be read.
    fn text(&self, path: &str) -> Option<String> {
        host::read(&self.path(path)).ok()
    }

    /// What a file says, if it can be read and `understand` makes sense of it.
    fn read<T>(&self, path: &str, understand: impl FnOnce(&str) -> Option<T>) -> Result<T, Unknown> {
        let text = host::read(&self.path(path)).map_err(|error| Unknown::unreadable(path, &error))?;
        understand(&text).ok_or_else(|| Unknown::senseless(path))
    }

    /// The numbers of the cores that this process may use.
    fn allowed_cores(&self) -> Result<Vec<usize>, Unknown> {
        self.read("proc/self/status", host::allowed_cores)
    }

    /// Whether it is a virtual machine. `None` where the processor does not say.
    fn is_virtual(&self) -> Option<bool> {
        let text = self.text("proc/cpuinfo")?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags")?.trim_start().strip_prefix(':'))?;
        Some(flags.split_whitespace().any(|flag| flag == "hypervisor"))
    }
}
