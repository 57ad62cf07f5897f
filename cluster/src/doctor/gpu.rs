//! Checks of NVIDIA's cards and of the libraries that they need.

use paceline_cuda::card::{Card, cards};
use paceline_cuda::libraries::{COMPILER, DRIVER, LINKS, PRODUCTS, Wanted};
use paceline_cuda::nvrtc::Nvrtc;

use super::Host;
use super::finding::{Entry, Finding, counted};
use crate::devices::compiler_folders;

/// NVIDIA's number among makers of hardware.
const MAKER: &str = "0x10de";
/// What displays and accelerators are among kinds of hardware: the first byte of a device's class.
const DISPLAY: &str = "0x03";

/// What the system says of GPUs.
pub(super) struct Gpus {
    /// The cards, or why the driver cannot be asked.
    pub(super) cards: Result<Vec<Card>, String>,
    /// The compiler's version, or why there is none.
    pub(super) compiler: Result<String, String>,
    /// Libraries that are not needed yet, and whether they are found.
    pub(super) others: Vec<(Wanted, bool)>,
}

/// Asks for cards and libraries. No card is taken into use.
pub(super) fn ask() -> Gpus {
    let compiler = Nvrtc::open(&compiler_folders());
    Gpus {
        cards: cards().map_err(|error| error.to_string()),
        compiler: compiler.map(|compiler| compiler.version()).map_err(|error| error.to_string()),
        others: [PRODUCTS, LINKS].into_iter().map(|wanted| (wanted, wanted.open().is_ok())).collect(),
    }
}

/// All findings about GPUs; without cards of NVIDIA only one.
pub(super) fn findings(host: &Host) -> Vec<Entry> {
    let entry = |area: &str, finding: Finding| Entry { area: area.to_owned(), finding };
    let Some(cards) = cards_of(host) else { return vec![entry("GPU", without_cards(&host.gpus))] };
    let mut found = vec![entry("GPU", cards), entry("NVRTC", compiler(&host.gpus))];
    found.extend(host.gpus.others.iter().map(|(wanted, there)| {
        let finding = match there {
            true => Finding::good(format!("{} is found", wanted.files[0])),
            false => Finding::note(format!("{} is not found ({})", wanted.files[0], wanted.purpose), wanted.advice),
        };
        entry(name_of(wanted), finding)
    }));
    found
}

/// A host without cards, and what of their libraries it has.
fn without_cards(gpus: &Gpus) -> Finding {
    let driver = if gpus.cards.is_ok() { "there" } else { "missing" };
    let compiler = gpus.compiler.as_deref().unwrap_or("missing");
    let others = gpus
        .others
        .iter()
        .map(|(wanted, there)| format!(", {} {}", name_of(wanted), if *there { "there" } else { "missing" }));
    Finding::good(format!(
        "no card of NVIDIA is seen, so models run on this host's cores (driver {driver}, NVRTC {compiler}{})",
        others.collect::<String>()
    ))
}

/// A library's name, such as `nccl`.
fn name_of(wanted: &Wanted) -> &'static str {
    wanted.files[0].split(".so").next().unwrap_or_default().trim_start_matches("lib")
}

/// Cards that the driver knows, or that are there without it; nothing where there are none.
fn cards_of(host: &Host) -> Option<Finding> {
    let seen = seen(host);
    match (&host.gpus.cards, seen) {
        (Ok(cards), _) if !cards.is_empty() => {
            Some(Finding::good(cards.iter().map(told).collect::<Vec<_>>().join("; ")))
        }
        (Ok(_), 0) => None,
        (Ok(_), _) => Some(Finding::note(
            "NVIDIA's driver is there and sees no card",
            "in a container: start it with the host's GPUs (`--gpus all`)",
        )),
        (Err(_), 0) => None,
        (Err(reason), _) => {
            let found = format!("{} of NVIDIA cannot be used: {reason}", counted(seen, "card"));
            Some(Finding::warning(found, DRIVER.advice))
        }
    }
}

/// A card, with what a planner must know of it.
fn told(card: &Card) -> String {
    let Card { index, name, capability, memory_bytes, bytes_per_second } = card;
    let gibibytes = *memory_bytes as f64 / f64::from(1 << 30);
    let speed = match bytes_per_second {
        0 => String::new(),
        bytes => format!(", {:.0} GB/s", *bytes as f64 / 1e9),
    };
    format!("cuda:{index} is an {name}, compute capability {capability}, {gibibytes:.0} GiB{speed}")
}

fn compiler(gpus: &Gpus) -> Finding {
    match &gpus.compiler {
        Ok(version) => Finding::good(format!("version {version} compiles the kernels")),
        Err(reason) => Finding::warning(format!("kernels cannot be compiled: {reason}"), COMPILER.advice),
    }
}

/// Cards of NVIDIA that the kernel lists, with or without their driver.
fn seen(host: &Host) -> usize {
    let Ok(devices) = std::fs::read_dir(host.path("sys/bus/pci/devices")) else { return 0 };
    let says = |folder: &std::path::Path, file: &str, start: &str| {
        crate::host::read(&folder.join(file)).is_ok_and(|text| text.starts_with(start))
    };
    let cards = devices.flatten().map(|device| device.path());
    cards.filter(|device| says(device, "vendor", MAKER) && says(device, "class", DISPLAY)).count()
}
