//! A bounds-checked walk over the bytes of a header.

use crate::{Error, Result, header::MAX_HEADER_BYTES};

/// Reads little-endian values one after another; every read says what it wanted, for the error.
pub(crate) struct Cursor<'a> {
    file: &'a str,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8], file: &'a str) -> Cursor<'a> {
        Cursor { file, bytes, position: 0 }
    }

    pub(crate) fn file(&self) -> String {
        self.file.to_owned()
    }

    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// The next `length` bytes.
    pub(crate) fn take(&mut self, length: u64, what: &'static str) -> Result<&'a [u8]> {
        let remaining = self.bytes.len() - self.position;
        let length = match usize::try_from(length) {
            Ok(length) if length <= remaining => length,
            _ => return Err(self.truncated(length, what)),
        };
        let end = self.position + length;
        if end as u64 > MAX_HEADER_BYTES {
            let at = self.position as u64;
            return Err(Error::HeaderTooLarge { file: self.file(), what, at, limit: MAX_HEADER_BYTES });
        }
        let taken = &self.bytes[self.position..end];
        self.position = end;
        Ok(taken)
    }

    /// The error for a count of things that take at least `least_bytes` each, if the file is too short for them.
    ///
    /// Checked before anything is allocated for them.
    pub(crate) fn expect_room(&self, count: u64, least_bytes: u64, what: &'static str) -> Result<()> {
        let remaining = (self.bytes.len() - self.position) as u64;
        match count.checked_mul(least_bytes) {
            Some(needed) if needed <= remaining => Ok(()),
            needed => Err(self.truncated(needed.unwrap_or(u64::MAX), what)),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("as many bytes as were asked for"))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string: its length in bytes (u64), then UTF-8.
    pub(crate) fn string(&mut self, what: &'static str) -> Result<Box<str>> {
        let length = self.u64(what)?;
        self.text(length, what)
    }

    /// A string that names something and may therefore not be longer than `limit`.
    pub(crate) fn name(&mut self, limit: u64, what: &'static str) -> Result<Box<str>> {
        let at = self.position as u64;
        let length = self.u64(what)?;
        if length > limit {
            return Err(Error::NameTooLong { file: self.file(), what, at, length, limit });
        }
        self.text(length, what)
    }

    /// Copies before it checks: the bytes may be mapped, and a `str` must never change.
    fn text(&mut self, length: u64, what: &'static str) -> Result<Box<str>> {
        let at = self.position;
        let copied = self.take(length, what)?.to_vec();
        match String::from_utf8(copied) {
            Ok(text) => Ok(text.into_boxed_str()),
            Err(_) => Err(self.invalid_utf8(at, what)),
        }
    }

    pub(crate) fn invalid_utf8(&self, at: usize, what: &'static str) -> Error {
        Error::InvalidUtf8 { file: self.file(), what, at: at as u64 }
    }

    fn truncated(&self, needed: u64, what: &'static str) -> Error {
        let (at, length) = (self.position as u64, self.bytes.len() as u64);
        Error::Truncated { file: self.file(), what, at, needed, length }
    }
}
