//! Memory of a device: allocations that free themselves, and the arena of a stage.

use std::ops::Range;
use std::sync::Arc;

use paceline_compute::{Error, Result};

use crate::driver::{Address, Driver};

/// What sections of an arena are aligned to, and the space between two of them that nobody may write to.
const ALIGNMENT: usize = 256;
/// What that space is filled with.
const GUARD: u8 = 0xa5;

/// Some memory of a device.
pub struct Memory {
    driver: Arc<dyn Driver>,
    address: Address,
    bytes: usize,
}

impl Memory {
    /// Reserves memory for `what`.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn reserve(driver: &Arc<dyn Driver>, what: &'static str, bytes: usize) -> Result<Self> {
        // More than half of what can be addressed is a sum that has overflowed.
        if bytes > usize::MAX / 2 {
            return Err(Error::OutOfMemory { what, bytes: bytes as u64 });
        }
        let address = driver.allocate(bytes.max(1)).map_err(|error| match error {
            Error::OutOfMemory { bytes, .. } => Error::OutOfMemory { what, bytes },
            error => error,
        })?;
        Ok(Self { driver: Arc::clone(driver), address, bytes })
    }

    /// Reserves memory and fills it.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn holding(driver: &Arc<dyn Driver>, what: &'static str, content: &[u8]) -> Result<Self> {
        let memory = Self::reserve(driver, what, content.len())?;
        memory.write(0, content)?;
        Ok(memory)
    }

    /// Where it begins.
    pub fn address(&self) -> Address {
        self.address
    }

    /// How much it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies bytes to it.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If they do not fit, as all others here.
    pub fn write(&self, at: usize, content: &[u8]) -> Result<()> {
        let to = self.place(at, content.len());
        // SAFETY: the place lies in this allocation.
        unsafe { self.driver.upload(content, to) }
    }

    /// Copies bytes from it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<()> {
        let from = self.place(at, into.len());
        // SAFETY: the place lies in this allocation.
        unsafe { self.driver.download(from, into) }
    }

    /// Sets bytes of it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn fill(&self, at: Range<usize>, byte: u8) -> Result<()> {
        let to = self.place(at.start, at.len());
        // SAFETY: the place lies in this allocation.
        unsafe { self.driver.fill(to, byte, at.len()) }
    }

    /// Copies bytes within it, to a place that does not overlap them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn copy(&self, from: usize, to: usize, bytes: usize) -> Result<()> {
        if from == to {
            return Ok(());
        }
        assert!(from.abs_diff(to) >= bytes, "a copy onto itself");
        let (from, to) = (self.place(from, bytes), self.place(to, bytes));
        // SAFETY: both places lie in this allocation.
        unsafe { self.driver.copy(from, to, bytes) }
    }

    fn place(&self, at: usize, bytes: usize) -> Address {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "inside of the memory");
        self.address + at as u64
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the allocation is this one's, which is gone now.
        unsafe { self.driver.free(self.address) }
    }
}

/// A part of an arena.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Section {
    /// Where it begins in the arena.
    pub at: usize,
    /// How much it is.
    pub bytes: usize,
}

/// The sections of an arena that is not reserved yet.
#[derive(Debug, Default)]
pub struct Layout {
    end: usize,
    sections: Vec<Section>,
}

impl Layout {
    /// Adds a section.
    pub fn section(&mut self, bytes: usize) -> Section {
        let section = Section { at: self.end, bytes };
        self.sections.push(section);
        let end = section.at.saturating_add(bytes).saturating_add(ALIGNMENT);
        self.end = end.checked_next_multiple_of(ALIGNMENT).unwrap_or(usize::MAX);
        section
    }
}

/// All memory of a stage but its weights, reserved at once.
pub struct Arena {
    /// The memory; zero but for the space between sections.
    pub memory: Memory,
    sections: Vec<Section>,
}

impl Arena {
    /// Reserves all sections.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn reserve(driver: &Arc<dyn Driver>, layout: Layout) -> Result<Self> {
        let memory = Memory::reserve(driver, "pages, states and buffers", layout.end)?;
        memory.fill(0..layout.end, GUARD)?;
        for section in &layout.sections {
            memory.fill(section.at..section.at + section.bytes, 0)?;
        }
        Ok(Self { memory, sections: layout.sections })
    }

    /// Where a section begins on the device.
    pub fn address(&self, section: Section) -> Address {
        self.memory.address() + section.at as u64
    }

    /// Whether nothing wrote between sections.
    ///
    /// # Errors
    /// If the device fails.
    pub fn is_whole(&self) -> Result<bool> {
        let mut end = self.memory.bytes();
        for section in self.sections.iter().rev() {
            let behind = section.at + section.bytes;
            let mut space = vec![0; end - behind];
            self.memory.read(behind, &mut space)?;
            if space.iter().any(|byte| *byte != GUARD) {
                return Ok(false);
            }
            end = section.at;
        }
        Ok(true)
    }
}
