//! What a stage remembers of each open session: its state slot and its page table.

use std::collections::{HashMap, HashSet};

use paceline_compute::device::{ChunkLog, MemoryOperation, MemorySpec};
use paceline_proto::{OpenSession, Operation, PageId, Reused, SessionId, Slot, StepId};

use crate::{Error, Result};

/// Where a session's memory lies on this stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionMemory {
    /// Its state slot.
    pub(crate) slot: usize,
    /// Its pages, in the order of its tokens.
    pub(crate) pages: Vec<u32>,
    /// The last step that had a chunk of it.
    pub(crate) ran_in: Option<StepId>,
    /// The last step that samples a token for it.
    pub(crate) sampled_in: Option<StepId>,
    /// How many of its tokens are certain: its state is the one behind them.
    pub(crate) certain: usize,
    /// How many tokens that may yet be rejected follow in its log.
    pub(crate) uncertain: usize,
    /// Which of the logs it has, once it needed one.
    log: Option<usize>,
}

impl SessionMemory {
    /// How a chunk of `rows` rows from `start` on, of which the last `drafts` are uncertain, uses the session's log.
    /// `start` is checked.
    pub(crate) fn log_of(&self, start: usize, drafts: usize) -> ChunkLog {
        ChunkLog { place: self.log.unwrap_or_default(), before: start - self.certain, uncertain: drafts }
    }

    /// Which of the logs it has.
    pub(crate) fn log_place(&self) -> Option<usize> {
        self.log
    }
}

/// All open sessions of a stage: no more than there are slots, with no more pages each than there are.
#[derive(Debug)]
pub(crate) struct SessionTable {
    sessions: HashMap<SessionId, SessionMemory>,
    memory: MemorySpec,
}

impl SessionTable {
    /// A table without sessions, of a stage that has reserved this.
    pub(crate) fn new(memory: MemorySpec) -> Self {
        Self { sessions: HashMap::new(), memory }
    }

    /// Applies an operation of a step, and returns what the device has to do for it.
    pub(crate) fn apply(&mut self, operation: &Operation) -> Result<Option<MemoryOperation>> {
        match operation {
            Operation::Open { session, slot, reused, .. } => {
                self.check(*session, reused)?;
                self.open(*session, slot.0 as usize, reused.tokens as usize).map(Some)
            }
            Operation::Grant { session, pages } => {
                self.grant(*session, pages)?;
                Ok(None)
            }
            Operation::Close { session } => {
                self.sessions.remove(session).ok_or(Error::UnknownSession { session: *session })?;
                Ok(None)
            }
            // It concerns memories alone.
            Operation::Install { .. } => Ok(None),
            Operation::CopyPage { from, to } => Ok(Some(MemoryOperation::CopyPage { from: from.0, to: to.0 })),
            Operation::CopyState { from, to } => {
                self.check_certain(from.0 as usize)?;
                Ok(Some(MemoryOperation::CopyState { from: from.0 as usize, to: to.0 as usize }))
            }
        }
    }

    /// Is the session open?
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.sessions.contains_key(&session)
    }

    /// Where the session's memory lies.
    pub(crate) fn get(&self, session: SessionId) -> Result<&SessionMemory> {
        self.sessions.get(&session).ok_or(Error::UnknownSession { session })
    }

    /// The same, to note what is known of it.
    pub(crate) fn get_mut(&mut self, session: SessionId) -> Result<&mut SessionMemory> {
        self.sessions.get_mut(&session).ok_or(Error::UnknownSession { session })
    }

    /// How many tokens a session's pages hold; positions are counted in 32 bits.
    pub(crate) fn room_of(&self, memory: &SessionMemory) -> usize {
        memory.pages.len().saturating_mul(self.memory.page_tokens).min(u32::MAX as usize)
    }

    /// All open sessions, ascending.
    pub(crate) fn list(&self) -> Vec<OpenSession> {
        let open = |(session, memory): (&SessionId, &SessionMemory)| OpenSession {
            session: *session,
            slot: Slot(u32::try_from(memory.slot).expect("slots are numbered in 32 bits")),
            pages: memory.pages.iter().copied().map(PageId).collect(),
            certain: u32::try_from(memory.certain).expect("tokens are counted in 32 bits"),
            uncertain: u32::try_from(memory.uncertain).expect("tokens are counted in 32 bits"),
        };
        let mut sessions: Vec<OpenSession> = self.sessions.iter().map(open).collect();
        sessions.sort_unstable_by_key(|session| session.session);
        sessions
    }

    /// Takes over a session that was open elsewhere, with its memory as it is.
    pub(crate) fn adopt(&mut self, open: &OpenSession, log: Option<usize>) -> Result<()> {
        self.open(open.session, open.slot.0 as usize, open.certain as usize)?;
        self.grant(open.session, &open.pages)?;
        let memory = self.get_mut(open.session)?;
        (memory.uncertain, memory.log) = (open.uncertain as usize, log);
        Ok(())
    }

    /// Gives the session a log, if it has none.
    pub(crate) fn reserve_log(&mut self, session: SessionId) -> Result<()> {
        if self.get(session)?.log.is_some() {
            return Ok(());
        }
        let taken: HashSet<usize> = self.sessions.values().filter_map(|memory| memory.log).collect();
        let limit = self.memory.logs.sessions;
        let free = (0..limit).find(|place| !taken.contains(place));
        let what = "sessions with uncertain tokens";
        self.get_mut(session)?.log = Some(free.ok_or(Error::OverLimit { what, found: limit + 1, limit })?);
        Ok(())
    }

    /// A state whose log holds tokens is not the one that a snapshot would be taken for.
    fn check_certain(&self, slot: usize) -> Result<()> {
        let uncertain = |(_, memory): &(&SessionId, &SessionMemory)| memory.slot == slot && memory.uncertain > 0;
        match self.sessions.iter().find(uncertain) {
            None => Ok(()),
            Some((&session, memory)) => Err(Error::Uncertain { session, slot, tokens: memory.uncertain }),
        }
    }

    /// What is told of tokens that are not run must be possible here, and no more than they are.
    fn check(&self, session: SessionId, reused: &Reused) -> Result<()> {
        let (tokens, told) = (reused.tokens as usize, reused.last.len());
        let limit = self.memory.pages.saturating_mul(self.memory.page_tokens);
        if tokens > limit {
            return Err(Error::OverLimit { what: "reused tokens of a session", found: tokens, limit });
        }
        if told > tokens {
            return Err(Error::Reused { session, tokens, told });
        }
        Ok(())
    }

    fn open(&mut self, session: SessionId, slot: usize, certain: usize) -> Result<MemoryOperation> {
        if self.has(session) {
            return Err(Error::OpenTwice { session });
        }
        if slot >= self.memory.slots {
            return Err(Error::OverLimit {
                what: "state slots",
                found: slot.saturating_add(1),
                limit: self.memory.slots,
            });
        }
        if let Some((&owner, _)) = self.sessions.iter().find(|(_, other)| other.slot == slot) {
            return Err(Error::SlotTaken { slot, owner, session });
        }
        let memory =
            SessionMemory { slot, pages: Vec::new(), ran_in: None, sampled_in: None, certain, uncertain: 0, log: None };
        self.sessions.insert(session, memory);
        Ok(MemoryOperation::ClearState { slot })
    }

    fn grant(&mut self, session: SessionId, granted: &[PageId]) -> Result<()> {
        let count = self.memory.pages;
        if let Some(page) = granted.iter().find(|page| page.0 as usize >= count) {
            return Err(Error::UnknownPage { session, page: page.0, pages: count });
        }
        let pages = &mut self.get_mut(session)?.pages;
        let found = pages.len().saturating_add(granted.len());
        if found > count {
            return Err(Error::OverLimit { what: "pages of a session", found, limit: count });
        }
        pages.extend(granted.iter().map(|page| page.0));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use paceline_compute::device::LogSpec;
    use paceline_gguf::KvType;
    use paceline_proto::{Reused, SamplingSettings, Slot};
    use uuid::Uuid;

    use super::*;

    const MEMORY: MemorySpec = MemorySpec {
        page_tokens: 16,
        pages: 10,
        slots: 4,
        key_type: KvType::F16,
        value_type: KvType::F16,
        rows: 8,
        wanted: 1,
        logs: LogSpec { sessions: 2, tokens: 4 },
    };

    fn session(number: u128) -> SessionId {
        SessionId(Uuid::from_u128(number))
    }

    fn open(number: u128, slot: u32) -> Operation {
        let sampling = Box::new(SamplingSettings::default());
        Operation::Open {
            session: session(number),
            slot: Slot(slot),
            sampling,
            generated_from: 0,
            reused: Reused::default(),
        }
    }

    fn grant(number: u128, pages: &[u32]) -> Operation {
        Operation::Grant { session: session(number), pages: pages.iter().copied().map(PageId).collect() }
    }

    #[test]
    fn a_session_is_opened_once_and_collects_its_pages() {
        let mut table = SessionTable::new(MEMORY);
        assert!(matches!(table.apply(&grant(1, &[1])), Err(Error::UnknownSession { .. })));
        assert_eq!(table.apply(&open(1, 3)).expect("new"), Some(MemoryOperation::ClearState { slot: 3 }));
        table.apply(&grant(1, &[4])).expect("open");
        table.apply(&grant(1, &[2, 9])).expect("open");
        let memory = table.get(session(1)).expect("open");
        assert_eq!((memory.slot, memory.pages.as_slice()), (3, &[4, 2, 9][..]));
        assert!(matches!(table.apply(&open(1, 2)), Err(Error::OpenTwice { .. })));
        table.apply(&Operation::Close { session: session(1) }).expect("open");
        assert!(table.apply(&Operation::Close { session: session(1) }).is_err());
    }

    #[test]
    fn reused_tokens_have_room_and_are_at_least_those_that_are_told() {
        let mut table = SessionTable::new(MEMORY);
        let open = |number, tokens, told: usize| {
            let (session, sampling) = (session(number), Box::new(SamplingSettings::default()));
            let reused = Reused { tokens, last: vec![7; told] };
            Operation::Open { session, slot: Slot(number as u32), sampling, generated_from: 0, reused }
        };
        for tokens in [161, u32::MAX] {
            assert!(matches!(table.apply(&open(1, tokens, 0)), Err(Error::OverLimit { limit: 160, .. })));
        }
        let told = table.apply(&open(1, 3, 4)).expect_err("4 of 3");
        assert!(matches!(told, Error::Reused { tokens: 3, told: 4, .. }), "{told}");
        assert!(!table.has(session(1)));
        table.apply(&open(1, 160, 160)).expect("all of them");
        table.apply(&open(2, 3, 0)).expect("none of them");
    }

    #[test]
    fn a_slot_is_one_sessions_and_must_exist() {
        let mut table = SessionTable::new(MEMORY);
        table.apply(&open(1, 3)).expect("free");
        let taken = table.apply(&open(2, 3)).expect_err("it is the first session's");
        assert!(matches!(taken, Error::SlotTaken { slot: 3, owner, .. } if owner == session(1)), "{taken}");
        for slot in [4, u32::MAX] {
            assert!(matches!(table.apply(&open(2, slot)), Err(Error::OverLimit { limit: 4, .. })));
        }
        assert!(!table.has(session(2)));
        table.apply(&Operation::Close { session: session(1) }).expect("open");
        table.apply(&open(2, 3)).expect("free again");
    }

    #[test]
    fn pages_must_exist_and_cannot_be_more_than_there_are() {
        let mut table = SessionTable::new(MEMORY);
        table.apply(&open(1, 0)).expect("free");
        for page in [10, u32::MAX] {
            let unknown = table.apply(&grant(1, &[0, page])).expect_err("there are 10");
            assert!(matches!(unknown, Error::UnknownPage { pages: 10, .. }), "{unknown}");
        }
        table.apply(&grant(1, &[1; 6])).expect("6 of 10");
        let many = table.apply(&grant(1, &[2; 5])).expect_err("11 of 10");
        assert!(matches!(many, Error::OverLimit { found: 11, limit: 10, .. }), "{many}");
        assert_eq!(table.get(session(1)).expect("open").pages, [1; 6]);
    }
}
