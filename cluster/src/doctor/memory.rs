//! Checks of memory: how much there is, and whether it is fast and stays where it is.

use super::Host;
use super::finding::{Checked, Finding, Unknown, counted};
use crate::host::groups::Groups;
use crate::host::locking::{HOW_TO_RAISE, Locking, locking};
use crate::host::{available_memory_of, bytes_of, numbers_in};
use crate::layout::MARGIN;
use crate::text::bytes;

/// With less than this, only toys fit.
const LITTLE: u64 = 1 << 30;
/// So much swap is in use on hosts that have never lacked memory.
const HARDLY_ANY: u64 = 64 << 20;

/// What is free.
pub(super) fn free(host: &Host) -> Checked {
    let total = total(host)?;
    let total = total.min(Groups::of(&host.root).memory_limit().unwrap_or(total));
    let available = available_memory_of(&host.root).ok_or_else(|| Unknown::senseless("proc/meminfo"))?;
    let found = format!("{} of {} are free", bytes(available), bytes(total));
    let advice =
        "`ps aux --sort=-rss | head` shows who has the rest; `paceline plan MODEL.gguf` says whether a model fits";
    Ok(Some(if available < MARGIN {
        Finding::prevents(format!("{found}, and the program alone may need {}", bytes(MARGIN)), advice)
    } else if available < LITTLE {
        Finding::warning(found, advice)
    } else if available < total / 2 {
        Finding::note(found, advice)
    } else {
        Finding::good(found)
    }))
}

/// Whether control groups allow less than there is.
pub(super) fn limit(host: &Host) -> Checked {
    let total = total(host)?;
    let limit = Groups::of(&host.root).memory_limit().filter(|limit| *limit < total);
    Ok(limit.map(|limit| {
        let found = format!("control groups allow {} of the host's {}", bytes(limit), bytes(total));
        let advice = "if a model does not fit, raise it: `docker run --memory`, limits.memory of Kubernetes, MemoryMax= of the \
                      unit";
        Finding::note(found, advice)
    }))
}

/// Whether memory has been moved to a disk.
pub(super) fn swap(host: &Host) -> Checked {
    let (total, free) = host.read("proc/meminfo", |text| {
        let total = bytes_of(text, "SwapTotal:")?;
        Some((total, if total == 0 { 0 } else { bytes_of(text, "SwapFree:")? }))
    })?;
    if total == 0 {
        return Ok(Some(Finding::good("there is no swap space")));
    }
    let used = total.saturating_sub(free);
    let found = format!("{} of {} of swap space are in use", bytes(used), bytes(total));
    if used <= HARDLY_ANY {
        return Ok(Some(Finding::good(found)));
    }
    let advice = "free memory, or start with `--mlock`, so that nothing of Paceline goes there; `vmstat 1` (si, so) shows \
                  whether it still happens";
    Ok(Some(Finding::warning(found, advice)))
}

/// Whether weights may lie in huge pages.
pub(super) fn huge_pages(host: &Host) -> Checked {
    const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    let chosen = host.read(ENABLED, |text| {
        let chosen = text.split_once('[')?.1.split_once(']')?.0;
        ["always", "madvise", "never"].into_iter().find(|name| *name == chosen)
    })?;
    Ok(Some(match chosen {
        "never" => Finding::warning(
            "never: weights lie in small pages, which are slower to read",
            format!("`echo madvise | sudo tee /{ENABLED}`"),
        ),
        _ => Finding::good(format!("{chosen}: weights lie in huge pages")),
    }))
}

/// Whether `--mlock` would be granted.
pub(super) fn locked(host: &Host) -> Checked {
    let locking = host.read("proc/self/limits", |_| locking(&host.root))?;
    Ok(Some(match locking {
        Locking::Unlimited => Finding::good("any amount may be locked: `--mlock` is granted"),
        Locking::Privileged => Finding::good("this user's limits do not hold: `--mlock` is granted"),
        Locking::Limited(limit) => {
            let found = format!("only {} may be locked: `--mlock` is refused", bytes(limit));
            Finding::note(found, format!("if it is wanted, raise the limit: {HOW_TO_RAISE}"))
        }
    }))
}

/// Whether some memory is further from some cores.
pub(super) fn nodes(host: &Host) -> Checked {
    let nodes = host.read("sys/devices/system/node/online", numbers_in)?;
    let allowed = host.allowed_cores()?;
    // A node of which nothing is known counts.
    let is_ours = |node: &usize| {
        let cores = host.text(&format!("sys/devices/system/node/node{node}/cpulist"));
        cores.is_none_or(|text| numbers_in(&text).unwrap_or_default().iter().any(|core| allowed.contains(core)))
    };
    let ours: Vec<usize> = nodes.iter().copied().filter(is_ours).collect();
    let [first, _, ..] = ours[..] else {
        return Ok(Some(Finding::good("the cores that may be used lie in one node")));
    };
    let advice = format!(
        "run a shard on each, with cores and memory of its own: `numactl --cpunodebind={first} --membind={first} paceline shard`"
    );
    let found =
        format!("the cores lie in {}, and each reads the others' memory more slowly", counted(ours.len(), "node"));
    Ok(Some(Finding::note(found, advice)))
}

/// All memory of the host.
fn total(host: &Host) -> Result<u64, Unknown> {
    host.read("proc/meminfo", |text| bytes_of(text, "MemTotal:"))
}
