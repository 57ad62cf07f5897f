//! What this host has: cores and memory.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The numbers of the cores that this process may use, one of every physical core before their second threads; `None`
/// where the system does not say.
pub(crate) fn core_numbers() -> Option<Vec<usize>> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let mut cores = numbers_in(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)?;
    cores.sort_by_key(|core| place_among_siblings(*core));
    Some(cores)
}

/// 0 for the first thread of a physical core, 1 for the second.
fn place_among_siblings(core: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let siblings = std::fs::read_to_string(path).ok().and_then(|text| numbers_in(&text));
    siblings.and_then(|siblings| siblings.iter().position(|sibling| *sibling == core)).unwrap_or(0)
}

/// Numbers as the kernel lists them: `0-3,8`.
fn numbers_in(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        numbers.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
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
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.trim().trim_end_matches("kB").trim();
    kibibytes.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of memory that this process may still take: what the system has available, or what its control group
/// leaves, whichever is less. `None` where the system does not say.
pub(crate) fn available_memory() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    let group = left_in_group(Path::new("/sys/fs/cgroup"));
    system.into_iter().chain(group).min()
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// What the limit of the control group (version 2) leaves, in bytes.
fn left_in_group(folder: &Path) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_what_the_system_says() {
        let meminfo = "MemTotal:  100 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(available_in(meminfo), Some(2 << 20));
        assert_eq!(available_in("MemTotal: 1 kB"), None);
        assert_eq!(available_in("MemAvailable: many kB"), None);
    }

    #[test]
    fn cores_are_read_from_what_the_system_says() {
        assert_eq!(numbers_in("\t0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(numbers_in("5"), Some(vec![5]));
        assert_eq!(numbers_in(""), None);
        assert_eq!(numbers_in("0-x"), None);
        assert!(core_numbers().is_none_or(|numbers| numbers.len() >= cores()));
    }

    #[test]
    fn a_group_without_a_limit_says_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(left_in_group(folder.path()), None);
        std::fs::write(folder.path().join("memory.max"), "max\n").expect("writable");
        std::fs::write(folder.path().join("memory.current"), "10\n").expect("writable");
        assert_eq!(left_in_group(folder.path()), None);
        std::fs::write(folder.path().join("memory.max"), "30\n").expect("writable");
        assert_eq!(left_in_group(folder.path()), Some(20));
    }
}
