//! Memory for packed weights: zeroed, page-aligned, and in huge pages where the system has them.

#![expect(unsafe_code, reason = "memory straight from the system")]

use std::ptr::NonNull;
use std::slice;

use crate::{Error, Result};

/// Bytes in memory of its own, all zero at first; pages that are never written take no space.
#[derive(Debug)]
pub(super) struct PanelMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is owned and reached only through `&self` and `&mut self`, like a `Vec<u8>`.
unsafe impl Send for PanelMemory {}
// SAFETY: as above.
unsafe impl Sync for PanelMemory {}

impl PanelMemory {
    pub(super) fn zeroed(bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { start: NonNull::<Aligned>::dangling().cast(), bytes });
        }
        let out_of_memory = Error::OutOfMemory { what: "packed weights", bytes: bytes as u64 };
        let start = allocate(bytes).ok_or(out_of_memory)?;
        Ok(Self { start, bytes })
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: the memory is ours, initialized, and `bytes` long.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the memory is ours alone, initialized, and `bytes` long.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl Drop for PanelMemory {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated with the same size, and nothing refers to it any more.
            unsafe { free(self.start, self.bytes) };
        }
    }
}

/// A cache line, for its alignment.
#[repr(align(64))]
struct Aligned;

#[cfg(unix)]
fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, wherever the system likes, touches no memory of ours.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: advice about the mapping just made. Where there are no huge pages it fails, and the
    // memory is as good without.
    unsafe {
        libc::madvise(start, bytes, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start.cast())
}

/// # Safety
/// `start` must come from [`allocate`] with the same size, and not be used any more.
#[cfg(unix)]
unsafe fn free(start: NonNull<u8>, bytes: usize) {
    // SAFETY: the caller gives up the whole mapping.
    unsafe { libc::munmap(start.as_ptr().cast(), bytes) };
}

#[cfg(not(unix))]
fn layout(bytes: usize) -> std::alloc::Layout {
    std::alloc::Layout::from_size_align(bytes, 64).expect("sizes of weights are far from the limit")
}

#[cfg(not(unix))]
fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    // SAFETY: the size is not zero.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout(bytes)) })
}

/// # Safety
/// `start` must come from [`allocate`] with the same size, and not be used any more.
#[cfg(not(unix))]
unsafe fn free(start: NonNull<u8>, bytes: usize) {
    // SAFETY: as the caller promises.
    unsafe { std::alloc::dealloc(start.as_ptr(), layout(bytes)) };
}

/// Types that any bytes are a value of.
///
/// # Safety
/// Every bit pattern must be valid, and the alignment at most 64.
pub(super) unsafe trait Plain: Sized + 'static {}

// SAFETY: every bit pattern is an integer or a float.
unsafe impl Plain for u8 {}
// SAFETY: as above.
unsafe impl Plain for i8 {}
// SAFETY: as above.
unsafe impl Plain for f32 {}
// SAFETY: as above; both are sixteen bits.
unsafe impl Plain for half::f16 {}
// SAFETY: as above.
unsafe impl Plain for half::bf16 {}
// SAFETY: an array of such values.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Sees bytes as values.
///
/// # Panics
/// If the bytes are not a whole number of aligned values.
pub(super) fn cast<T: Plain>(bytes: &[u8]) -> &[T] {
    check_cast::<T>(bytes);
    // SAFETY: any bytes are values of `T`, and number and alignment are right.
    unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// Sees bytes as values that can be written.
///
/// # Panics
/// If the bytes are not a whole number of aligned values.
pub(super) fn cast_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    check_cast::<T>(bytes);
    let count = bytes.len() / size_of::<T>();
    // SAFETY: any bytes are values of `T`, and number and alignment are right.
    unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) }
}

fn check_cast<T>(bytes: &[u8]) {
    assert_eq!(bytes.len() % size_of::<T>(), 0, "a whole number of values");
    assert!(bytes.as_ptr().cast::<T>().is_aligned(), "values are aligned");
}
