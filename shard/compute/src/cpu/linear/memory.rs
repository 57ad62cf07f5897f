//! Memory for packed weights: zeroed, and in huge pages where the system has them.
//!
//! Weights lie one behind the other in large regions. Alone, each would begin and end with up to a huge page of small
//! ones, and most matrices of small models would have nothing else.

#![expect(unsafe_code, reason = "memory straight from the system")]

use std::ptr::NonNull;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{Error, Result};

/// Of every weight: a cache line.
const ALIGNMENT: usize = 64;
/// Huge pages are as large as this on the hosts we know.
const HUGE_PAGE: usize = 2 << 20;
/// What weights share; larger ones have a region of their own. What is never written takes no memory.
const REGION_BYTES: usize = 64 << 20;

/// Bytes in memory of its own, all zero at first; pages that are never written take no space.
#[derive(Debug)]
pub(super) struct PanelMemory {
    start: NonNull<u8>,
    bytes: usize,
    /// Keeps the memory, of which these bytes are part.
    _region: Option<Arc<Region>>,
}

// SAFETY: the memory is owned and reached only through `&self` and `&mut self`, like a `Vec<u8>`.
unsafe impl Send for PanelMemory {}
// SAFETY: as above.
unsafe impl Sync for PanelMemory {}

impl PanelMemory {
    pub(super) fn zeroed(bytes: usize) -> Result<Self> {
        if bytes == 0 {
            return Ok(Self { start: NonNull::<Aligned>::dangling().cast(), bytes, _region: None });
        }
        let out_of_memory = Error::OutOfMemory { what: "packed weights", bytes: bytes as u64 };
        let (region, offset) = place(bytes).ok_or(out_of_memory)?;
        // SAFETY: the region has `bytes` from the offset on.
        let start = unsafe { region.start.add(offset) };
        Ok(Self { start, bytes, _region: Some(region) })
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

/// A cache line, for its alignment.
#[repr(align(64))]
struct Aligned;

/// The region that the next weights go to, while any weight is in it, and how much of it is taken.
static CURRENT: Mutex<(Weak<Region>, usize)> = Mutex::new((Weak::new(), 0));

/// Finds a place for so many bytes that nobody has had before: a region and where in it. `None` if the system has no
/// memory.
fn place(bytes: usize) -> Option<(Arc<Region>, usize)> {
    let bytes = bytes.checked_next_multiple_of(ALIGNMENT)?;
    if bytes > REGION_BYTES {
        return Some((Arc::new(Region::map(bytes)?), 0));
    }
    let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
    let (region, taken) = &mut *current;
    if let Some(region) = region.upgrade().filter(|region| bytes <= region.bytes - *taken) {
        let offset = *taken;
        *taken += bytes;
        return Some((region, offset));
    }
    let new = Arc::new(Region::map(REGION_BYTES)?);
    *current = (Arc::downgrade(&new), bytes);
    Some((new, 0))
}

/// Zeroed memory from the system, which gets it back on drop.
#[derive(Debug)]
struct Region {
    /// Aligned to a huge page.
    start: NonNull<u8>,
    bytes: usize,
    /// What is given back.
    _mapped: Mapping,
}

// SAFETY: it only keeps memory; who reaches into it owns a part of it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn map(bytes: usize) -> Option<Self> {
        let mapped = Mapping::new(bytes.checked_add(HUGE_PAGE)?)?;
        let skipped = mapped.start.align_offset(HUGE_PAGE);
        // SAFETY: less than a huge page, of which there is one more than needed.
        let start = unsafe { mapped.start.add(skipped) };
        #[cfg(target_os = "linux")]
        // SAFETY: advice about the mapping just made. Where there are no huge pages it fails, and the
        // memory is as good without.
        unsafe {
            libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
        }
        Some(Self { start, bytes, _mapped: mapped })
    }
}

/// Memory just as the system gave it.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

#[cfg(unix)]
impl Mapping {
    fn new(bytes: usize) -> Option<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, wherever the system likes, touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start.cast()).map(|start| Self { start, bytes })
    }
}

#[cfg(unix)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(not(unix))]
impl Mapping {
    fn layout(bytes: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(bytes, ALIGNMENT).expect("sizes of weights are far from the limit")
    }

    fn new(bytes: usize) -> Option<Self> {
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(Self::layout(bytes)) })?;
        Some(Self { start, bytes })
    }
}

#[cfg(not(unix))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: allocated with the same layout, and nothing refers to it any more.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), Self::layout(self.bytes)) };
    }
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

#[cfg(test)]
mod tests {
    use super::{HUGE_PAGE, PanelMemory, REGION_BYTES};

    #[test]
    fn places_are_zeroed_aligned_and_apart() {
        let sizes = [1, 64, 65, HUGE_PAGE, 0, REGION_BYTES, REGION_BYTES - 1, REGION_BYTES + 1, 100];
        let mut all: Vec<_> = sizes.iter().map(|&bytes| PanelMemory::zeroed(bytes).unwrap()).collect();
        for (index, memory) in all.iter_mut().enumerate() {
            assert_eq!(memory.as_slice().as_ptr().addr() % 64, 0);
            assert!(memory.as_slice().iter().all(|&byte| byte == 0));
            memory.as_mut_slice().fill(index as u8 + 1);
        }
        // The others outlive those that leave, and newcomers get nothing used.
        let mut left: Vec<_> = all.into_iter().enumerate().filter(|(index, _)| index % 2 == 0).collect();
        left.push((99, PanelMemory::zeroed(1000).unwrap()));
        assert!(left.last().unwrap().1.as_slice().iter().all(|&byte| byte == 0));
        left.pop();
        for (index, memory) in left {
            assert!(memory.as_slice().iter().all(|&byte| byte == index as u8 + 1));
        }
    }
}
