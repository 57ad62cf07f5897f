//! What a lower tier takes out of a stage's memories between two steps, and what a step puts in again.

use paceline_compute::device::MemoryPart;
use paceline_compute::program::LayerMemory;
use paceline_proto::{PageId, Slot, Ticket};

use super::{SharedStage, Stage};
use crate::tiers::StageStaging;
use crate::{Error, Result};

/// Bytes that are copied while the stage is held: no step waits longer than that takes.
const PIECE: usize = 1 << 20;

/// What a lower tier must know of a stage; it never changes.
#[derive(Debug, Clone)]
pub(crate) struct Outline {
    pub(crate) form: String,
    pub(crate) page_tokens: usize,
    pub(crate) layers: Vec<OutlineLayer>,
}

/// A layer that remembers something.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutlineLayer {
    pub(crate) layer: u32,
    memory: LayerMemory,
    /// Of a page, or of a state slot.
    pub(crate) bytes: usize,
}

impl Outline {
    /// Layers of which an entry keeps pages.
    pub(crate) fn paged(&self) -> impl Iterator<Item = &OutlineLayer> {
        self.layers.iter().filter(|layer| !layer.is_recurrent())
    }

    /// Layers of which an entry keeps a state.
    pub(crate) fn recurrent(&self) -> impl Iterator<Item = &OutlineLayer> {
        self.layers.iter().filter(|layer| layer.is_recurrent())
    }
}

impl OutlineLayer {
    pub(crate) fn is_recurrent(&self) -> bool {
        matches!(self.memory, LayerMemory::State(_))
    }

    /// Where the bytes of an entry's layer belong, in their order.
    fn parts(&self, pages: &[PageId], slot: Option<Slot>) -> Vec<MemoryPart> {
        match self.memory {
            LayerMemory::Cache(cache) => pages.iter().map(|page| MemoryPart::Page { cache, page: page.0 }).collect(),
            LayerMemory::State(state) => {
                slot.iter().map(|slot| MemoryPart::Slot { state, slot: slot.0 as usize }).collect()
            }
        }
    }

    /// Copies what the stage remembers there, of these pages or of this slot.
    pub(crate) fn copy_out(&self, stage: &SharedStage, pages: &[PageId], slot: Option<Slot>) -> Result<Vec<u8>> {
        let parts = self.parts(pages, slot);
        let at_once = (PIECE / self.bytes.max(1)).max(1);
        let mut bytes = Vec::new();
        for parts in parts.chunks(at_once) {
            let from = bytes.len();
            bytes.resize(from + parts.len() * self.bytes, 0);
            stage
                .with(|stage| stage.each_part(parts, self.bytes, bytes[from..].chunks_exact_mut(self.bytes.max(1))))?;
        }
        Ok(bytes)
    }
}

/// What a ticket's entries have in memory, ready to be installed.
#[derive(Debug)]
pub(crate) struct Staged {
    /// How many pages.
    pub(crate) pages: usize,
    pub(crate) state: bool,
    pub(crate) layers: Vec<StagedLayer>,
}

/// Bytes of a layer: of pages from this one on, counted in the ticket's, or of the state.
#[derive(Debug)]
pub(crate) struct StagedLayer {
    pub(crate) layer: OutlineLayer,
    pub(crate) first_page: usize,
    pub(crate) bytes: Vec<u8>,
}

impl Stage {
    /// What a lower tier must know of this stage, which from now on finds there what it is to install.
    pub(crate) fn attach(&mut self, staging: StageStaging) -> Result<Outline> {
        let layer = |(layer, memory): (usize, LayerMemory)| {
            let part = match memory {
                LayerMemory::Cache(cache) => MemoryPart::Page { cache, page: 0 },
                LayerMemory::State(state) => MemoryPart::Slot { state, slot: 0 },
            };
            let layer = u32::try_from(layer).map_err(|_| Error::UnknownLayer { layer })?;
            Ok(OutlineLayer { layer, memory, bytes: self.loaded.part_bytes(part)? })
        };
        let layers = self.loaded.program().memories().into_iter().map(layer).collect::<Result<_>>()?;
        self.staging = Some(staging);
        Ok(Outline { form: self.loaded.memory_form(), page_tokens: self.loaded.memory().page_tokens, layers })
    }

    fn each_part<'a>(
        &mut self,
        parts: &[MemoryPart],
        bytes: usize,
        into: impl Iterator<Item = &'a mut [u8]>,
    ) -> Result<()> {
        // What a step has left half done is no prefix of anything.
        if self.failed {
            return Err(Error::Stopped);
        }
        for (part, into) in parts.iter().zip(into) {
            debug_assert_eq!(into.len(), bytes, "a part of another size");
            self.loaded.read_part(*part, into)?;
        }
        Ok(())
    }

    /// Puts what was staged into these pages and this slot.
    pub(super) fn install(&mut self, ticket: Ticket, pages: &[PageId], slot: Option<Slot>) -> Result<()> {
        let staged = self.staging.as_ref().and_then(|staging| staging.take(ticket));
        let staged = staged.ok_or(Error::NotStaged { ticket: ticket.0 })?;
        if staged.pages != pages.len() || staged.state != slot.is_some() {
            return Err(Error::OtherPlaces { ticket: ticket.0, staged: staged.pages, given: pages.len() });
        }
        for StagedLayer { layer, first_page, bytes } in staged.layers {
            let parts = layer.parts(&pages[first_page..], slot);
            for (part, bytes) in parts.into_iter().zip(bytes.chunks_exact(layer.bytes.max(1))) {
                self.loaded.write_part(part, bytes)?;
            }
        }
        Ok(())
    }
}
