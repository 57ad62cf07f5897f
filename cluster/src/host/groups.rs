//! Control groups: how much memory and processor time they leave to this process, its own and all that these are part of.

use std::path::{Path, PathBuf};

use super::read;

/// Limits from here on are how the kernel writes that there is none.
const UNLIMITED: u64 = 1 << 60;

/// The control groups of this process.
pub(crate) struct Groups {
    /// Where the tree of groups is mounted.
    tree: PathBuf,
    /// `/proc/self/cgroup`.
    own: String,
}

/// Which of the kernel's two interfaces a group has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A limit of processor time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quota {
    /// The time of so many cores.
    pub(crate) cores: f64,
    /// Periods so far.
    pub(crate) periods: u64,
    /// Those of them in which threads were stopped because the time was used up.
    pub(crate) throttled: u64,
}

/// What control groups are called that limit memory: their limit, what is used of it, and how much of that the kernel
/// gives back when it is needed (files that nobody has read lately).
struct MemoryFiles {
    limit: &'static str,
    used: &'static str,
    reclaimable: &'static str,
}

const MEMORY_1: MemoryFiles =
    MemoryFiles { limit: "memory.limit_in_bytes", used: "memory.usage_in_bytes", reclaimable: "total_inactive_file" };
const MEMORY_2: MemoryFiles = MemoryFiles { limit: "memory.max", used: "memory.current", reclaimable: "inactive_file" };

impl Groups {
    /// Those of this process on the host whose `/proc` and `/sys` lie below `root`.
    pub(crate) fn of(root: &Path) -> Self {
        Self { tree: root.join("sys/fs/cgroup"), own: read(&root.join("proc/self/cgroup")).unwrap_or_default() }
    }

    /// What the tightest of them leaves of memory, in bytes. `None` if none has a limit.
    pub(crate) fn memory_left(&self) -> Option<u64> {
        self.folders("memory").filter_map(|(version, folder)| version.memory().left(&folder)).min()
    }

    /// The tightest limit of memory, in bytes.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        let limits =
            self.folders("memory").filter_map(|(version, folder)| number(&folder.join(version.memory().limit)));
        limits.filter(|limit| *limit < UNLIMITED).min()
    }

    /// The tightest limit of processor time.
    pub(crate) fn quota(&self) -> Option<Quota> {
        let quotas = self.folders("cpu").filter_map(|(version, folder)| version.quota(&folder));
        quotas.min_by(|one, other| one.cores.total_cmp(&other.cores))
    }

    /// The folders of the groups that a controller may limit, from the inmost outwards. In a container the group's path
    /// may name folders that only the host sees; what the container sees in their place is the root of the tree.
    fn folders<'a>(&'a self, controller: &'a str) -> impl Iterator<Item = (Version, PathBuf)> + 'a {
        let groups = self.own.lines().filter_map(move |line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            let (version, root) = match controllers {
                "" => (Version::Two, self.tree.clone()),
                _ if controllers.split(',').any(|name| name == controller) => {
                    (Version::One, self.tree.join(controller))
                }
                _ => return None,
            };
            Some((version, root.join(path.trim_start_matches('/')), root))
        });
        groups.flat_map(|(version, own, root)| {
            let folders = own.ancestors().take_while(|folder| folder.starts_with(&root));
            folders.map(|folder| (version, folder.to_owned())).collect::<Vec<_>>()
        })
    }
}

impl Version {
    fn memory(self) -> &'static MemoryFiles {
        match self {
            Self::One => &MEMORY_1,
            Self::Two => &MEMORY_2,
        }
    }

    /// What the group of this folder allows of processor time, if that is limited.
    fn quota(self, folder: &Path) -> Option<Quota> {
        // What is not limited is written as no number, or a negative one.
        let (time, period) = match self {
            Self::One => (number(&folder.join("cpu.cfs_quota_us"))?, number(&folder.join("cpu.cfs_period_us"))?),
            Self::Two => {
                let text = read(&folder.join("cpu.max")).ok()?;
                let (time, period) = text.trim().split_once(' ')?;
                (time.parse().ok()?, period.parse().ok()?)
            }
        };
        let statistics = read(&folder.join("cpu.stat")).unwrap_or_default();
        let count = |name: &str| statistic(&statistics, name).unwrap_or(0);
        let (periods, throttled) = (count("nr_periods"), count("nr_throttled"));
        (period > 0).then(|| Quota { cores: time as f64 / period as f64, periods, throttled })
    }
}

impl MemoryFiles {
    /// What the group of this folder leaves, if it has a limit.
    fn left(&self, folder: &Path) -> Option<u64> {
        let statistics = read(&folder.join("memory.stat")).unwrap_or_default();
        let reclaimable = statistic(&statistics, self.reclaimable).unwrap_or(0);
        let used = number(&folder.join(self.used))?.saturating_sub(reclaimable);
        Some(number(&folder.join(self.limit))?.saturating_sub(used))
    }
}

/// The number that is all of a file.
fn number(path: &Path) -> Option<u64> {
    read(path).ok()?.trim().parse().ok()
}

/// The number behind a name in lines of both.
fn statistic(lines: &str, name: &str) -> Option<u64> {
    lines.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn groups_in(tree: &Path, own: &str) -> Groups {
        Groups { tree: tree.to_owned(), own: own.to_owned() }
    }

    /// A group in a tree, and what is in its files.
    fn group(tree: &Path, path: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(tree.join(path)).expect("a folder");
        for (name, text) in files {
            fs::write(tree.join(path).join(name), text).expect("writable");
        }
    }

    #[test]
    fn the_tightest_group_counts_and_files_that_may_go_do_not() {
        let tree = tempfile::tempdir().expect("a folder");
        let left = |groups: &str| groups_in(tree.path(), groups).memory_left();
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
        let left = |groups: &str| groups_in(tree.path(), groups).memory_left();
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

    #[test]
    fn the_tightest_quota_counts_with_what_it_stopped() {
        let tree = tempfile::tempdir().expect("a folder");
        let quota = |groups: &str| groups_in(tree.path(), groups).quota();
        let own = "0::/a.slice/b.service\n";
        assert_eq!(quota(own), None);
        group(tree.path(), "a.slice/b.service", &[("cpu.max", "max 100000\n")]);
        assert_eq!(quota(own), None, "no group has a limit");
        let statistics = ("cpu.stat", "usage_usec 9\nnr_periods 40\nnr_throttled 3\n");
        group(tree.path(), "a.slice", &[("cpu.max", "250000 100000\n"), statistics]);
        assert_eq!(quota(own), Some(Quota { cores: 2.5, periods: 40, throttled: 3 }));
        group(tree.path(), "a.slice/b.service", &[("cpu.max", "50000 100000\n")]);
        assert_eq!(quota(own), Some(Quota { cores: 0.5, periods: 0, throttled: 0 }));
        group(tree.path(), "a.slice/b.service", &[("cpu.max", "50000 0\n")]);
        assert_eq!(quota(own).map(|quota| quota.cores), Some(2.5), "a period of nothing is none");
        // Version 1.
        group(tree.path(), "cpu/docker", &[("cpu.cfs_quota_us", "-1\n"), ("cpu.cfs_period_us", "100000\n")]);
        assert_eq!(quota("3:cpu,cpuacct:/docker\n"), None);
        group(tree.path(), "cpu/docker", &[("cpu.cfs_quota_us", "150000\n")]);
        assert_eq!(quota("3:cpu,cpuacct:/docker\n").map(|quota| quota.cores), Some(1.5));
    }

    #[test]
    fn a_limit_as_large_as_can_be_is_none() {
        let tree = tempfile::tempdir().expect("a folder");
        let limit = |groups: &str| groups_in(tree.path(), groups).memory_limit();
        group(tree.path(), "memory/docker", &[("memory.limit_in_bytes", "9223372036854771712\n")]);
        assert_eq!(limit("4:memory:/docker\n"), None);
        group(tree.path(), "memory", &[("memory.limit_in_bytes", "4096\n")]);
        assert_eq!(limit("4:memory:/docker\n"), Some(4096));
        group(tree.path(), "pod", &[("memory.max", "max\n")]);
        assert_eq!(limit("0::/pod\n"), None);
        group(tree.path(), "pod", &[("memory.max", "8192\n")]);
        assert_eq!(limit("0::/pod\n"), Some(8192));
    }
}
