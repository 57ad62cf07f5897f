//! A stage's memories on their way to a stage that takes layers of it over.
//!
//! [`give`] writes what a [`MemoryRequest`] asks for; [`Taking`] reads it into a new stage, from one stage after the
//! other. Both lock a stage for one page or slot at a time, so whoever is slow holds nobody up; and neither has more
//! than that in memory.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::ops::Range;

use paceline_compute::device::MemoryPart;
use paceline_compute::program::LayerMemory;
use paceline_proto::{MemoryHead, MemoryRequest, OpenSession, PageId, SessionSampler, Slot, StepId};

use super::{SharedStage, Stage};
use crate::{Error, Result};

/// The most bytes of a head: samplers that penalise remember every token of their sessions.
const HEAD_LIMIT: u32 = 64 << 20;

/// Writes what is wanted of a stage: the length of the head in four bytes, the head, and the bytes of its memories.
///
/// # Errors
/// Layers, pages or slots that the stage does not have; a step that was run meanwhile; a writer that fails.
pub fn give(stage: &SharedStage, request: &MemoryRequest, to: &mut dyn Write) -> Result<()> {
    let (head, layers) = stage.with(|stage| stage.head(request))?;
    let next = head.next;
    let head = head.encode();
    let length = u32::try_from(head.len()).ok().filter(|length| *length <= HEAD_LIMIT);
    let length = length.ok_or(Error::Head { bytes: head.len() as u64, limit: HEAD_LIMIT })?;
    to.write_all(&length.to_le_bytes()).map_err(Error::Moving)?;
    to.write_all(&head).map_err(Error::Moving)?;
    let mut bytes = Vec::new();
    for part in parts(&layers, request) {
        stage.with(|stage| stage.read_at(next, part, &mut bytes))?;
        to.write_all(&bytes).map_err(Error::Moving)?;
    }
    Ok(())
}

/// A new stage on its way to the memories of older ones.
pub struct Taking {
    stage: SharedStage,
    pages: Vec<PageId>,
    slots: Vec<Slot>,
    /// Layers whose memories are here.
    taken: BTreeSet<usize>,
    /// What the first source said; the others must agree.
    agreed: Option<(StepId, Vec<OpenSession>)>,
    samplers: Option<Vec<SessionSampler>>,
}

impl Taking {
    /// Begins, for a stage that has run nothing yet. All sessions' pages and slots must be among those named.
    ///
    /// # Errors
    /// A stage that has run a step or failed; pages and slots that it does not have.
    pub fn new(stage: SharedStage, mut pages: Vec<PageId>, mut slots: Vec<Slot>) -> Result<Self> {
        pages.sort_unstable();
        pages.dedup();
        slots.sort_unstable();
        slots.dedup();
        stage.with(|stage| {
            let new = stage.next == StepId(0) && stage.open.is_empty() && !stage.failed;
            if new { stage.check_places(&pages, &slots) } else { Err(Error::NotNew) }
        })?;
        Ok(Self { stage, pages, slots, taken: BTreeSet::new(), agreed: None, samplers: None })
    }

    /// What to ask a stage for that has these layers, and the samplers if it is the tail.
    pub fn request(&self, layers: Range<u32>, samplers: bool) -> MemoryRequest {
        MemoryRequest { layers, pages: self.pages.clone(), slots: self.slots.clone(), samplers }
    }

    /// Reads an answer to the end, and returns how many bytes of memories it brought.
    ///
    /// # Errors
    /// An answer that does not fit this stage, the request, or what other stages have answered; a reader that fails.
    pub fn read(&mut self, request: &MemoryRequest, from: &mut dyn Read) -> Result<u64> {
        let head = read_head(from)?;
        let layers = self.stage.with(|stage| {
            let layers = stage.memories_of(request)?;
            stage.check_head(&head, &layers, request)?;
            Ok(layers)
        })?;
        self.agree(head.next, head.sessions)?;
        let mut bytes = Vec::new();
        for part in parts(&layers, request) {
            let length = self.stage.with(|stage| Ok(stage.loaded.part_bytes(part)?))?;
            bytes.resize(length, 0);
            from.read_exact(&mut bytes).map_err(Error::Moving)?;
            self.stage.with(|stage| Ok(stage.loaded.write_part(part, &bytes)?))?;
        }
        // More than was announced is as wrong as less.
        if from.read(&mut [0]).map_err(Error::Moving)? != 0 {
            return Err(Error::Memories { what: "more bytes than were announced".to_owned() });
        }
        self.taken.extend(request.layers.clone().map(|layer| layer as usize));
        if request.samplers {
            self.samplers = Some(head.samplers);
        }
        Ok(head.bytes)
    }

    /// Makes the stage go on where the others have stopped.
    ///
    /// # Errors
    /// Layers, or at the tail samplers, that nobody gave; sessions whose memory was not brought.
    pub fn finish(self) -> Result<()> {
        let own = self.stage.with(|stage| Ok(stage.loaded.program().memories()))?;
        if let Some((layer, _)) = own.iter().find(|(layer, _)| !self.taken.contains(layer)) {
            return Err(Error::Memories { what: format!("nothing for layer {layer}") });
        }
        let Some((next, sessions)) = self.agreed else {
            return Err(Error::Memories { what: "no answer of any stage".to_owned() });
        };
        for OpenSession { session, slot, pages } in &sessions {
            let brought = pages.iter().all(|page| self.pages.binary_search(page).is_ok());
            if !brought || self.slots.binary_search(slot).is_err() {
                let what = format!("session {session}, but not all of its pages and its state slot");
                return Err(Error::Memories { what });
            }
        }
        self.stage.with(|stage| stage.adopt(next, &sessions, self.samplers))
    }

    fn agree(&mut self, next: StepId, sessions: Vec<OpenSession>) -> Result<()> {
        match &self.agreed {
            None => self.agreed = Some((next, sessions)),
            Some(agreed) if *agreed == (next, sessions) => {}
            Some(_) => {
                let what = "another step or other sessions than the stages before".to_owned();
                return Err(Error::Memories { what });
            }
        }
        Ok(())
    }
}

fn read_head(from: &mut dyn Read) -> Result<MemoryHead> {
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(Error::Moving)?;
    let length = u32::from_le_bytes(length);
    if length > HEAD_LIMIT {
        return Err(Error::Head { bytes: length.into(), limit: HEAD_LIMIT });
    }
    // What is announced is allocated only as it comes.
    let mut head = Vec::new();
    from.take(length.into()).read_to_end(&mut head).map_err(Error::Moving)?;
    MemoryHead::decode(&head).map_err(Error::Wire)
}

/// The parts that a request asks for, in the order in which they travel.
fn parts<'a>(layers: &'a [LayerMemory], request: &'a MemoryRequest) -> impl Iterator<Item = MemoryPart> + 'a {
    let part = |memory: LayerMemory, index: usize| match memory {
        LayerMemory::Cache(cache) => request.pages.get(index).map(|page| MemoryPart::Page { cache, page: page.0 }),
        LayerMemory::State(state) => {
            request.slots.get(index).map(|slot| MemoryPart::Slot { state, slot: slot.0 as usize })
        }
    };
    layers.iter().flat_map(move |memory| (0..).map_while(move |index| part(*memory, index)))
}

impl Stage {
    /// What goes before the bytes that a request asks for, and which memories they are of.
    fn head(&self, request: &MemoryRequest) -> Result<(MemoryHead, Vec<LayerMemory>)> {
        if self.failed {
            return Err(Error::Stopped);
        }
        if request.samplers && !self.place.last {
            return Err(Error::NotTail);
        }
        let layers = self.memories_of(request)?;
        let head = MemoryHead {
            form: self.loaded.memory_form(),
            bytes: self.bytes_of(&layers, request)?,
            next: self.next,
            sessions: self.sessions.list(),
            samplers: if request.samplers { self.tail.memories() } else { Vec::new() },
        };
        Ok((head, layers))
    }

    /// The memories of the layers that a request names, in their order.
    fn memories_of(&self, request: &MemoryRequest) -> Result<Vec<LayerMemory>> {
        self.check_places(&request.pages, &request.slots)?;
        let memories = self.loaded.program().memories();
        let mut wanted = Vec::new();
        for layer in request.layers.clone().map(|layer| layer as usize) {
            let known = wanted.len();
            wanted.extend(memories.iter().filter(|(own, _)| *own == layer).map(|(_, memory)| *memory));
            if wanted.len() == known {
                return Err(Error::UnknownLayer { layer });
            }
        }
        Ok(wanted)
    }

    fn check_places(&self, pages: &[PageId], slots: &[Slot]) -> Result<()> {
        let memory = self.loaded.memory();
        let page = pages.last().map_or(0, |page| page.0 as usize + 1);
        let slot = slots.last().map_or(0, |slot| slot.0 as usize + 1);
        for (what, found, limit) in [("pages", page, memory.pages), ("state slots", slot, memory.slots)] {
            if found > limit {
                return Err(Error::OverLimit { what, found, limit });
            }
        }
        Ok(())
    }

    fn bytes_of(&self, layers: &[LayerMemory], request: &MemoryRequest) -> Result<u64> {
        parts(layers, request).map(|part| Ok(self.loaded.part_bytes(part)? as u64)).sum()
    }

    /// Are these the bytes that this stage would have given?
    fn check_head(&self, head: &MemoryHead, layers: &[LayerMemory], request: &MemoryRequest) -> Result<()> {
        let form = self.loaded.memory_form();
        if head.form != form {
            return Err(Error::Memories { what: format!("memories of the form {}, not {form}", head.form) });
        }
        let expected = self.bytes_of(layers, request)?;
        if head.bytes != expected {
            return Err(Error::Memories { what: format!("{} bytes instead of {expected}", head.bytes) });
        }
        Ok(())
    }

    /// Reads a part of the memories of a stage that must not have run on.
    fn read_at(&mut self, next: StepId, part: MemoryPart, into: &mut Vec<u8>) -> Result<()> {
        if self.next != next {
            return Err(Error::RunsOn { step: self.next });
        }
        into.resize(self.loaded.part_bytes(part)?, 0);
        Ok(self.loaded.read_part(part, into)?)
    }

    /// Takes over sessions whose memory is here. A result that was sampled before is known to the coordinator, so no
    /// chunk asks for it any more. After an error the stage runs nothing.
    fn adopt(&mut self, next: StepId, sessions: &[OpenSession], samplers: Option<Vec<SessionSampler>>) -> Result<()> {
        self.failed = true;
        if self.place.last {
            let open = sessions.iter().map(|session| session.session);
            let samplers = samplers.unwrap_or_default();
            if !open.eq(samplers.iter().map(|sampler| sampler.session)) {
                return Err(Error::Memories { what: "not one sampler for each session".to_owned() });
            }
            self.tail.restore(samplers)?;
        }
        for OpenSession { session, slot, pages } in sessions {
            self.sessions.adopt(*session, slot.0 as usize, pages)?;
            self.open.open(*session);
        }
        self.next = next;
        self.failed = false;
        Ok(())
    }
}
