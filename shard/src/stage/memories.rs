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
use paceline_proto::{MemoryHead, MemoryRequest, OpenSession, PageId, SessionId, SessionSampler, Slot, StepId};

use super::{SharedStage, Stage};
use crate::{Error, Result};

/// The most bytes of a head: samplers that penalise remember every token of their sessions.
const HEAD_LIMIT: u32 = 64 << 20;

/// Writes what is wanted of a stage: the length of the head in four bytes, the head, and the bytes of its memories.
///
/// # Errors
/// Layers, pages or slots that the stage does not have; a step that was run meanwhile; a writer that fails.
pub fn give(stage: &SharedStage, request: &MemoryRequest, to: &mut dyn Write) -> Result<()> {
    let (head, layers, logs) = stage.with(|stage| stage.head(request))?;
    let next = head.next;
    let head = head.encode();
    let length = u32::try_from(head.len()).ok().filter(|length| *length <= HEAD_LIMIT);
    let length = length.ok_or(Error::Head { bytes: head.len() as u64, limit: HEAD_LIMIT })?;
    to.write_all(&length.to_le_bytes()).map_err(Error::Moving)?;
    to.write_all(&head).map_err(Error::Moving)?;
    let mut bytes = Vec::new();
    for part in parts(&layers, request, &logs) {
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
        let (layers, logs) = self.stage.with(|stage| {
            let (layers, logs) = (stage.memories_of(request)?, stage.new_logs(&head.sessions)?);
            stage.check_head(&head, &layers, request, &logs)?;
            Ok((layers, logs))
        })?;
        self.agree(head.next, head.sessions)?;
        let mut bytes = Vec::new();
        for part in parts(&layers, request, &logs) {
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
        for OpenSession { session, slot, pages, .. } in &sessions {
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

/// The uncertain tokens of a session: which of a stage's logs holds them.
struct Log {
    session: SessionId,
    place: usize,
    positions: Range<usize>,
}

/// The parts that a request asks for, in the order in which they travel.
fn parts(layers: &[LayerMemory], request: &MemoryRequest, logs: &[Log]) -> Vec<MemoryPart> {
    let mut parts = Vec::new();
    for memory in layers {
        match *memory {
            LayerMemory::Cache(cache) => {
                parts.extend(request.pages.iter().map(|page| MemoryPart::Page { cache, page: page.0 }));
            }
            LayerMemory::State(state) => {
                parts.extend(request.slots.iter().map(|slot| MemoryPart::Slot { state, slot: slot.0 as usize }));
                for Log { place, positions, .. } in logs {
                    let logged = |position| MemoryPart::Logged { state, place: *place, position };
                    parts.extend(positions.clone().map(logged));
                }
            }
        }
    }
    parts
}

/// The log of a session that has uncertain tokens.
fn log(open: &OpenSession, place: usize) -> Option<Log> {
    let (first, tokens) = (open.certain as usize, open.uncertain as usize);
    (tokens > 0).then(|| Log { session: open.session, place, positions: first..first.saturating_add(tokens) })
}

impl Stage {
    /// What goes before the bytes that a request asks for, and which memories they are of.
    fn head(&self, request: &MemoryRequest) -> Result<(MemoryHead, Vec<LayerMemory>, Vec<Log>)> {
        if self.failed {
            return Err(Error::Stopped);
        }
        if request.samplers && !self.place.last {
            return Err(Error::NotTail);
        }
        let (layers, sessions) = (self.memories_of(request)?, self.sessions.list());
        let place = |session| self.sessions.get(session).ok()?.log_place();
        let logs = sessions.iter().filter_map(|open| log(open, place(open.session)?)).collect::<Vec<_>>();
        let head = MemoryHead {
            form: self.loaded.memory_form(),
            bytes: self.bytes_of(&layers, request, &logs)?,
            next: self.next,
            sessions,
            samplers: if request.samplers { self.tail.memories() } else { Vec::new() },
        };
        Ok((head, layers, logs))
    }

    /// The logs that sessions of another stage get here: one after another.
    fn new_logs(&self, sessions: &[OpenSession]) -> Result<Vec<Log>> {
        let uncertain = sessions.iter().filter(|open| open.uncertain > 0);
        let logs: Vec<Log> = uncertain.enumerate().filter_map(|(place, open)| log(open, place)).collect();
        let (spec, longest) = (self.loaded.memory().logs, logs.iter().map(|log| log.positions.len()).max());
        for (what, found, limit) in [
            ("sessions with uncertain tokens", logs.len(), spec.sessions),
            ("uncertain tokens of a session", longest.unwrap_or_default(), spec.tokens),
        ] {
            if found > limit {
                return Err(Error::OverLimit { what, found, limit });
            }
        }
        Ok(logs)
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

    fn bytes_of(&self, layers: &[LayerMemory], request: &MemoryRequest, logs: &[Log]) -> Result<u64> {
        parts(layers, request, logs).into_iter().map(|part| Ok(self.loaded.part_bytes(part)? as u64)).sum()
    }

    /// Are these the bytes that this stage would have given?
    fn check_head(
        &self,
        head: &MemoryHead,
        layers: &[LayerMemory],
        request: &MemoryRequest,
        logs: &[Log],
    ) -> Result<()> {
        let form = self.loaded.memory_form();
        if head.form != form {
            return Err(Error::Memories { what: format!("memories of the form {}, not {form}", head.form) });
        }
        let expected = self.bytes_of(layers, request, logs)?;
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
        let logs = self.new_logs(sessions)?;
        for open in sessions {
            let log = logs.iter().find(|log| log.session == open.session);
            self.sessions.adopt(open, log.map(|log| log.place))?;
            self.open.open(open.session);
        }
        self.next = next;
        self.failed = false;
        Ok(())
    }
}
