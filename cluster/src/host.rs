//! What this host has: cores and memory.
//!
//! [`groups`] are the control groups, which may allow this process less than there is; [`locking`] keeps its memory from
//! being swapped out.

pub(crate) mod groups;
pub(crate) mod locking;

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;

use groups::Groups;

/// The most that is read of a file in which the system says something.
const MOST_BYTES: u64 = 1 << 20;
/// No system numbers more cores than this.
const MOST_CORES: usize = 1 << 16;

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The numbers of the cores that this process may use, one of every physical core before their second threads; `None`
/// where the system does not say.
pub(crate) fn core_numbers() -> Option<Vec<usize>> {
    let mut cores = allowed_cores(&read(Path::new("/proc/self/status")).ok()?)?;
    cores.sort_by_key(|core| place_among_siblings(*core));
    Some(cores)
}

/// The numbers of the cores that a process may use, of its `/proc/self/status`.
pub(crate) fn allowed_cores(status: &str) -> Option<Vec<usize>> {
    numbers_in(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

/// 0 for the first thread of a physical core, 1 for the second.
fn place_among_siblings(core: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let siblings = read(Path::new(&path)).ok().and_then(|text| numbers_in(&text));
    siblings.and_then(|siblings| siblings.iter().position(|sibling| *sibling == core)).unwrap_or(0)
}

/// Numbers of cores or nodes as the kernel lists them: `0-3,8`.
pub(crate) fn numbers_in(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last = last.parse().ok().filter(|last| *last < MOST_CORES)?;
        numbers.extend(first.parse::<usize>().ok()?..=last);
        if numbers.len() > MOST_CORES {
            return None;
        }
    }
    Some(numbers)
}

/// The name of this host; `localhost` where the system does not say.
pub(crate) fn name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// The address at which others reach a socket that is bound to `address`: where that is every address, the one that
/// leads out of this host, or else loopback.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    // Nothing is sent: connecting a UDP socket only asks the system for the way.
    let outward = || {
        let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
        socket.connect(("192.0.2.1", 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    SocketAddr::new(outward().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), address.port())
}

/// Bytes of memory that this process occupies now.
pub(crate) fn resident_memory() -> Option<u64> {
    bytes_of(&read(Path::new("/proc/self/status")).ok()?, "VmRSS:")
}

/// Bytes of memory that this process may still take: what the system has available, or what its control groups
/// leave, whichever is less. `None` where the system does not say.
pub(crate) fn available_memory() -> Option<u64> {
    available_memory_of(Path::new("/"))
}

/// [`available_memory`] of the host whose `/proc` and `/sys` lie below `root`.
pub(crate) fn available_memory_of(root: &Path) -> Option<u64> {
    let system = read(&root.join("proc/meminfo")).ok().and_then(|text| bytes_of(&text, "MemAvailable:"));
    system.into_iter().chain(Groups::of(root).memory_left()).min()
}

/// The bytes that a line of `/proc/meminfo` or `/proc/self/status` tells in kibibytes; `name` with its colon.
pub(crate) fn bytes_of(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The text of a file in which the system says something: at most its first mebibyte, with a mark in the place of what
/// is not UTF-8.
///
/// # Errors
/// A file that is not there or cannot be read.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_what_the_system_says() {
        let meminfo = "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n";
        let available = |text: &str| bytes_of(text, "MemAvailable:");
        assert_eq!(available(meminfo), Some(2 << 20));
        assert_eq!(available("MemTotal: 1 kB"), None);
        assert_eq!(available("MemAvailable: many kB"), None);
        assert_eq!(available(&format!("MemAvailable: {} kB", u64::MAX)), None);
    }

    #[test]
    fn cores_are_read_from_what_the_system_says() {
        assert_eq!(numbers_in("\t0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(numbers_in("5"), Some(vec![5]));
        assert_eq!(numbers_in(""), None);
        assert_eq!(numbers_in("0-x"), None);
        assert_eq!(numbers_in("0-18446744073709551615"), None, "no list that fills the memory");
        assert_eq!(numbers_in(&["0-65535"; 1000].join(",")), None);
        assert!(core_numbers().is_none_or(|numbers| numbers.len() >= cores()));
    }
}
