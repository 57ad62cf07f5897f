//! Memory that is never swapped out: what the system lets this process lock, and locking all of it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rustix::mm::{MlockAllFlags, mlockall};
use tracing::info;

use super::read;
use crate::text::bytes;

/// The bit of `CAP_IPC_LOCK`, for which no limit holds, in the sets of `/proc/self/status`.
const CAP_IPC_LOCK: u32 = 14;
/// How the limit is raised.
pub(crate) const HOW_TO_RAISE: &str = "`ulimit -l unlimited` in the shell that starts it (limits.conf(5) says who may), \
                                       LimitMEMLOCK=infinity in its unit, `--ulimit memlock=-1` for a container";

/// How much memory a process may lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locking {
    /// As much as it likes: there is no limit.
    Unlimited,
    /// As much as it likes: it is privileged.
    Privileged,
    /// So many bytes.
    Limited(u64),
}

/// How much this process may lock, on the host whose `/proc` lies below `root`. `None` where the system does not say.
pub(crate) fn locking(root: &Path) -> Option<Locking> {
    let limit = limit(&read(&root.join("proc/self/limits")).ok()?, "Max locked memory")?;
    if limit == u64::MAX {
        return Some(Locking::Unlimited);
    }
    // Privileges in a user namespace of its own do not count here.
    let everybody =
        read(&root.join("proc/self/uid_map")).is_ok_and(|map| map.split_whitespace().eq(["0", "0", "4294967295"]));
    let privileged = read(&root.join("proc/self/status")).is_ok_and(|status| has_capability(&status));
    Some(if everybody && privileged { Locking::Privileged } else { Locking::Limited(limit) })
}

/// A soft limit of `/proc/self/limits`; the largest number where there is none.
pub(crate) fn limit(limits: &str, name: &str) -> Option<u64> {
    match limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn has_capability(status: &str) -> bool {
    let sets = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    sets.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1)
}

/// Keeps all memory of this process from being swapped out, what it has and what it will have, each page from its first
/// use on. Models' files that are mapped are left out: they are read again when they are needed.
///
/// # Errors
/// A limit, whatever its size: what a process does not get of memory later on ends it.
pub(crate) fn lock_memory() -> Result<()> {
    if let Some(Locking::Limited(limit)) = locking(Path::new("/")) {
        let limit = bytes(limit);
        bail!(
            "--mlock: this process may lock only {limit} of memory (RLIMIT_MEMLOCK), and must be allowed any amount: \
             {HOW_TO_RAISE}"
        );
    }
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(all)
        .with_context(|| format!("--mlock: the system does not lock this process's memory; {HOW_TO_RAISE}"))?;
    info!("the memory of this process stays out of swap space");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const INITIAL: &str = "         0          0 4294967295\n";

    /// What a process may lock that has this limit and these capabilities.
    fn with(limit: &str, capabilities: &str, uid_map: &str) -> Option<Locking> {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("proc/self");
        std::fs::create_dir_all(&folder).expect("a folder");
        let limits =
            format!("Limit   Soft Limit   Hard Limit   Units\nMax locked memory   {limit}   unlimited   bytes\n");
        let files =
            [("limits", limits), ("status", format!("CapEff:\t{capabilities}\n")), ("uid_map", uid_map.to_owned())];
        for (name, text) in files {
            std::fs::write(folder.join(name), text).expect("writable");
        }
        locking(root.path())
    }

    #[test]
    fn a_limit_holds_for_everybody_without_the_privilege() {
        assert_eq!(with("unlimited", "0", INITIAL), Some(Locking::Unlimited));
        assert_eq!(with("65536", "0", INITIAL), Some(Locking::Limited(65_536)));
        assert_eq!(with("65536", "000001ffffffffff", INITIAL), Some(Locking::Privileged));
        assert_eq!(with("65536", "0000000000004000", INITIAL), Some(Locking::Privileged));
        assert_eq!(with("65536", "000001ffffffbfff", INITIAL), Some(Locking::Limited(65_536)));
        let namespace = "0 1000 1\n";
        assert_eq!(with("65536", "000001ffffffffff", namespace), Some(Locking::Limited(65_536)));
        assert_eq!(with("65536", "nonsense", INITIAL), Some(Locking::Limited(65_536)));
        assert_eq!(with("nonsense", "000001ffffffffff", INITIAL), None);
        assert_eq!(locking(Path::new("/nowhere")), None);
    }
}
