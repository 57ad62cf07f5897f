//! Memory that the threads of a pool read and write together.

#![expect(unsafe_code, reason = "maps memory and hands out disjoint parts of it to several threads")]

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;

use half::{bf16, f16};
use tracing::info;

use super::linear::{QuantizedBlock, RowPair};
use crate::{Error, Result};

/// From this size on the kernel is asked for huge pages, which are 2 MiB on the hosts we know.
const HUGE_FROM_BYTES: usize = 4 << 20;

/// Where the system says whether it has huge pages for those who ask.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Tells the log if the system refuses huge pages: memory as large as weights is then read more slowly.
pub(crate) fn tell_of_huge_pages() {
    if std::fs::read_to_string(HUGE_PAGES).is_ok_and(|text| text.contains("[never]")) {
        info!("{HUGE_PAGES} is never, so that weights lie in small pages, which are slower to read; set it to madvise");
    }
}

/// Numbers, and bundles of them without padding, for which any bits are a value.
pub(crate) trait Plain: Copy + Send + Sync + 'static {}

impl Plain for u8 {}
impl Plain for f32 {}
impl Plain for f16 {}
impl Plain for bf16 {}
impl Plain for [u32; 2] {}
impl Plain for RowPair {}
impl Plain for QuantizedBlock {}

/// A zeroed array of fixed length, aligned to a page, of which threads borrow parts.
///
/// The borrow checker does not see which thread has which part; [`Shared::part`] and
/// [`Shared::part_mut`] are therefore unsafe and every caller says why its parts are its own. The rules
/// that make this easy: between two barriers every value has at most one writing thread and then no
/// reader; operations split rows, heads or columns between threads by their index; and the
/// buffers of one operation are distinct (checked when a program is loaded).
pub(crate) struct Shared<T: Plain> {
    pointer: NonNull<T>,
    length: usize,
    owner: PhantomData<T>,
}

// SAFETY: the memory is owned by this value and holds plain numbers.
unsafe impl<T: Plain> Send for Shared<T> {}
// SAFETY: through `&Shared` values are only reachable by the unsafe methods, whose callers avoid races.
unsafe impl<T: Plain> Sync for Shared<T> {}

impl<T: Plain> Shared<T> {
    /// Maps `length` zeros; `what` names them in the error.
    pub(crate) fn zeroed(what: &'static str, length: usize) -> Result<Self> {
        let refused = |bytes: usize| Error::OutOfMemory { what, bytes: bytes as u64 };
        let bytes = length.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize);
        let bytes = bytes.ok_or_else(|| refused(usize::MAX))?.max(1);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no other memory.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(refused(bytes));
        }
        if bytes >= HUGE_FROM_BYTES {
            // SAFETY: advice on our own mapping; where it is refused, small pages serve as well.
            unsafe { libc::madvise(mapped, bytes, libc::MADV_HUGEPAGE) };
        }
        let pointer = NonNull::new(mapped.cast()).ok_or_else(|| refused(bytes))?;
        Ok(Self { pointer, length, owner: PhantomData })
    }

    /// Bytes they occupy.
    pub(crate) fn bytes(&self) -> u64 {
        (self.length * size_of::<T>()) as u64
    }

    /// All values, when no other thread can have any.
    pub(crate) fn all_mut(&mut self) -> &mut [T] {
        // SAFETY: `&mut self` excludes every other borrow, and the mapping holds `length` values.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr(), self.length) }
    }

    /// The bytes of a part, when no other thread can have any.
    pub(crate) fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let part = &mut self.all_mut()[range];
        // SAFETY: plain numbers have no padding, and whatever is written to their bytes is a number again.
        unsafe { std::slice::from_raw_parts_mut(part.as_mut_ptr().cast(), size_of_val(part)) }
    }

    /// Where the values are; what is done with the pointer is up to its user.
    pub(crate) fn pointer(&self) -> *mut T {
        self.pointer.as_ptr()
    }

    /// Where a part is; what is done with the pointer is up to its user.
    pub(crate) fn part_pointer(&self, range: Range<usize>) -> *mut T {
        assert!(range.start <= range.end && range.end <= self.length, "part outside of memory");
        // SAFETY: in bounds by the assertion.
        unsafe { self.pointer.as_ptr().add(range.start) }
    }

    /// A part that this thread reads.
    ///
    /// # Safety
    /// No thread writes to the part while the borrow lasts.
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &[T] {
        assert!(range.start <= range.end && range.end <= self.length, "part outside of memory");
        // SAFETY: in bounds by the assertion, unwritten by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer.as_ptr().add(range.start), range.len()) }
    }

    /// A part that this thread writes.
    ///
    /// # Safety
    /// No other borrow of the part exists while this one lasts, in any thread.
    #[expect(clippy::mut_from_ref, reason = "threads borrow disjoint parts")]
    pub(crate) unsafe fn part_mut(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.length, "part outside of memory");
        // SAFETY: in bounds by the assertion, unshared by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.as_ptr().add(range.start), range.len()) }
    }
}

impl<T: Plain> Drop for Shared<T> {
    fn drop(&mut self) {
        let bytes = (self.length * size_of::<T>()).max(1);
        // SAFETY: exactly the mapping that `zeroed` made; no borrow outlives this value.
        unsafe { libc::munmap(self.pointer.as_ptr().cast(), bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_aligned_and_keeps_what_is_written() {
        let mut memory = Shared::<f32>::zeroed("test", 3_000_000).unwrap();
        assert_eq!(memory.pointer.as_ptr() as usize % 4096, 0);
        assert!(memory.all_mut().iter().all(|value| *value == 0.0));
        memory.all_mut()[2_999_999] = 7.0;
        // SAFETY: one thread, no other borrow.
        assert_eq!(unsafe { memory.part(2_999_998..3_000_000) }, [0.0, 7.0]);
        assert_eq!(memory.bytes(), 12_000_000);
    }

    #[test]
    fn too_much_is_an_error() {
        for length in [usize::MAX, usize::MAX / 4, 1 << 60] {
            let error = Shared::<f32>::zeroed("pages", length).err().unwrap();
            assert!(matches!(error, Error::OutOfMemory { what: "pages", .. }));
        }
    }

    #[test]
    #[should_panic(expected = "part outside of memory")]
    fn a_part_must_lie_inside() {
        let memory = Shared::<u8>::zeroed("test", 10).unwrap();
        // SAFETY: one thread, no other borrow.
        let _ = unsafe { memory.part(5..11) };
    }
}
