//! Where the bytes of a file are: mapped from the disk, or in memory already.
#![expect(unsafe_code, reason = "mapping a file is unsafe because others may change it")]

use std::{borrow::Cow, fs, fs::File, io, ops::Range, path::Path};

use memmap2::{Advice, Mmap, UncheckedAdvice};

use crate::{Error, Result};

/// The bytes of one file.
///
/// A mapped file is not copied; its pages are read when first touched. Nobody may shorten or rewrite it meanwhile:
/// touching a page beyond a shortened file's end kills the process (SIGBUS), and rewritten weights are silently other
/// weights. Replace a model by writing a new file and renaming it over the old one, which leaves the map intact.
pub(crate) enum FileBytes {
    Mapped(Mmap),
    Memory(Cow<'static, [u8]>),
}

impl FileBytes {
    /// Maps the file at `path`, which must be a regular file (a pipe or a device could block forever).
    pub(crate) fn map(path: &Path) -> Result<FileBytes> {
        let io_error = |source: io::Error| Error::Io { file: path.display().to_string(), source };
        let found = fs::metadata(path).map_err(io_error)?;
        if !found.is_file() {
            return Err(Error::NotAFile { file: path.display().to_string() });
        }
        let file = File::open(path).map_err(io_error)?;
        // SAFETY: the map is read-only and private to this value, which outlives every slice lent from it. That no
        // other process changes the file is the documented duty of whoever runs the program; all that parsing relies
        // on for its own memory accesses is copied out of the map before it is checked.
        let map = unsafe { Mmap::map(&file) }.map_err(io_error)?;
        // In a program that locks all of its memory, the file's pages would stay beside what is made of them. Where
        // this is refused they do; nothing else changes.
        let _ = map.unlock();
        Ok(FileBytes::Mapped(map))
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            FileBytes::Mapped(map) => map,
            FileBytes::Memory(bytes) => bytes,
        }
    }

    /// Where `part`, a slice lent from these bytes, lies in them; `None` for any other slice.
    pub(crate) fn position(&self, part: &[u8]) -> Option<Range<usize>> {
        let (own, part) = (self.as_slice().as_ptr_range(), part.as_ptr_range());
        let inside = own.start <= part.start && part.end <= own.end;
        inside.then(|| part.start.addr() - own.start.addr()..part.end.addr() - own.start.addr())
    }

    /// Lets the system read a part from the disk while the program does something else.
    pub(crate) fn read_ahead(&self, part: Range<usize>) {
        if let FileBytes::Mapped(map) = self {
            // Without it, the part is read when it is touched.
            let _ = map.advise_range(Advice::WillNeed, part.start, part.len());
        }
    }

    /// Takes a part out of the program's memory, until it is touched again.
    pub(crate) fn forget(&self, part: Range<usize>) {
        if let FileBytes::Mapped(map) = self {
            // SAFETY: the map is of a file and read-only, so that its pages hold nothing but the file's bytes, which
            // are read again when they are touched.
            let advised = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, part.start, part.len()) };
            // Without it, the pages count as the program's until the system wants them back.
            let _ = advised;
        }
    }
}
