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

/// Bytes of memory that this process may still take: what the system has available, or what its control groups
/// leave, whichever is less. `None` where the system does not say.
pub(crate) fn available_memory() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_in(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    system.into_iter().chain(left_in_groups(Path::new("/sys/fs/cgroup"), &groups)).min()
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// What control groups are called that limit memory: their limit, what is used of it, and how much of that the kernel
/// gives back when it is needed (files that nobody has read lately).
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    reclaimable: &'static str,
}

const VERSION_1: GroupFiles =
    GroupFiles { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", reclaimable: "total_inactive_file" };
const VERSION_2: GroupFiles = GroupFiles { limit: "memory.max", used: "memory.current", reclaimable: "inactive_file" };

/// What the tightest of a process's control groups leaves, in bytes: its own, and all that this one is part of. `groups`
/// is `/proc/self/cgroup`. In a container that may name folders which only the host sees; what the container sees in
/// their place is the root of the tree.
fn left_in_groups(tree: &Path, groups: &str) -> Option<u64> {
    let left = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (root, files) = match controllers {
            "" => (tree.to_owned(), VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => (tree.join("memory"), VERSION_1),
            _ => return None,
        };
        let own = root.join(path.trim_start_matches('/'));
        own.ancestors().take_while(|folder| folder.starts_with(&root)).filter_map(|folder| files.left(folder)).min()
    });
    left.min()
}

impl GroupFiles {
    /// What the group of this folder leaves, if it has a limit.
    fn left(&self, folder: &Path) -> Option<u64> {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let statistics = read("memory.stat").unwrap_or_default();
        let reclaimable = statistics.lines().find_map(|line| line.strip_prefix(self.reclaimable)?.trim().parse().ok());
        let used = number(self.used)?.saturating_sub(reclaimable.unwrap_or(0));
        Some(number(self.limit)?.saturating_sub(used))
    }
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

    /// A group in a tree, and what is in its files.
    fn group(tree: &Path, path: &str, files: &[(&str, &str)]) {
        std::fs::create_dir_all(tree.join(path)).expect("a folder");
        for (name, text) in files {
            std::fs::write(tree.join(path).join(name), text).expect("writable");
        }
    }

    #[test]
    fn the_tightest_group_counts_and_files_that_may_go_do_not() {
        let tree = tempfile::tempdir().expect("a folder");
        let left = |groups: &str| left_in_groups(tree.path(), groups);
        let own = "0::/system.slice/paceline.service\n";
        assert_eq!(left(own), None);
        group(tree.path(), "system.slice", &[("memory.max", "max\n"), ("memory.current", "10\n")]);
        assert_eq!(left(own), None, "no group has a limit");
        group(tree.path(), "system.slice/paceline.service", &[("memory.max", "30\n"), ("memory.current", "10\n")]);
        assert_eq!(left(own), Some(20));
        let statistics = ("memory.stat", "anon 6\ninactive_file 4\nactive_file 1\n");
        group(tree.path(), "system.slice/paceline.service", &[statistics]);
        assert_eq!(left(own), Some(24));
        group(tree.path(), "system.slice", &[("memory.max", "25\n")]);
        assert_eq!(left(own), Some(15), "the group around it is tighter");
        group(tree.path(), "system.slice", &[("memory.current", "40\n")]);
        assert_eq!(left(own), Some(0));
        assert_eq!(left("0::/another\n"), None);
    }

    #[test]
    fn groups_of_version_1_and_containers_count_too() {
        let tree = tempfile::tempdir().expect("a folder");
        let left = |groups: &str| left_in_groups(tree.path(), groups);
        let limit = [("memory.limit_in_bytes", "100\n"), ("memory.usage_in_bytes", "70\n")];
        group(tree.path(), "memory/docker", &limit);
        assert_eq!(left("5:cpu:/docker\n4:memory:/docker\n0::/\n"), Some(30));
        assert_eq!(left("5:cpu,memory:/docker/inner\n"), Some(30));
        assert_eq!(left("5:cpu:/docker\n"), None);
        // The folder is the host's; inside, the root is the container's own.
        group(tree.path(), "", &[("memory.max", "8\n"), ("memory.current", "3\n")]);
        assert_eq!(left("0::/../../kubepods/pod1/container\n"), Some(5));
        assert_eq!(left("nonsense\n::\n"), Some(5), "a line without a path is the root");
        assert_eq!(left("nonsense\n"), None);
    }
}
