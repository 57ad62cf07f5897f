//! Keeps threads on cores of their own, so that the memory they touched first stays near.

#![expect(unsafe_code, reason = "asks the system for a core")]

use std::cell::Cell;

use tracing::info;

thread_local! {
    /// The core that this thread was pinned to.
    static CORE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Pins the calling thread to a core. Where the system refuses, the thread runs wherever there is room.
pub(super) fn pin(core: usize) {
    if CORE.replace(Some(core)) == Some(core) {
        return;
    }
    if !set_affinity(core) {
        info!(core, error = %std::io::Error::last_os_error(), "a thread cannot be pinned");
    }
}

#[cfg(target_os = "linux")]
fn set_affinity(core: usize) -> bool {
    if core >= libc::CPU_SETSIZE as usize {
        return false;
    }
    // SAFETY: a set of cores is plain bits, of which none set is a value.
    let mut cores: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the core is one that the set has a bit for.
    unsafe { libc::CPU_SET(core, &mut cores) };
    // SAFETY: thread 0 is the calling one, and the set lives until the call returns.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cores) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn set_affinity(_: usize) -> bool {
    false
}
