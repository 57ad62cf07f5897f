//! What a stage remembers of each open session: its state slot and its page table.

use std::collections::HashMap;

use paceline_compute::device::MemoryOperation;
use paceline_proto::{Operation, SessionId};

use crate::{Error, Result};

/// Where a session's memory lies on this stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionMemory {
    /// Its state slot.
    pub(crate) slot: usize,
    /// Its pages, in the order of its tokens.
    pub(crate) pages: Vec<u32>,
}

/// All open sessions of a stage.
#[derive(Debug, Default)]
pub(crate) struct SessionTable {
    sessions: HashMap<SessionId, SessionMemory>,
}

impl SessionTable {
    /// Applies an operation of a step, and returns what the device has to do for it.
    pub(crate) fn apply(&mut self, operation: &Operation) -> Result<Option<MemoryOperation>> {
        match operation {
            Operation::Open { session, slot, .. } => self.open(*session, slot.0 as usize).map(Some),
            Operation::Grant { session, pages } => {
                let memory = self.sessions.get_mut(session).ok_or(Error::UnknownSession { session: *session })?;
                memory.pages.extend(pages.iter().map(|page| page.0));
                Ok(None)
            }
            Operation::Close { session } => {
                self.sessions.remove(session).ok_or(Error::UnknownSession { session: *session })?;
                Ok(None)
            }
            Operation::CopyPage { from, to } => Ok(Some(MemoryOperation::CopyPage { from: from.0, to: to.0 })),
            Operation::CopyState { from, to } => {
                Ok(Some(MemoryOperation::CopyState { from: from.0 as usize, to: to.0 as usize }))
            }
        }
    }

    /// Where the session's memory lies.
    pub(crate) fn get(&self, session: SessionId) -> Result<&SessionMemory> {
        self.sessions.get(&session).ok_or(Error::UnknownSession { session })
    }

    fn open(&mut self, session: SessionId, slot: usize) -> Result<MemoryOperation> {
        let memory = SessionMemory { slot, pages: Vec::new() };
        match self.sessions.insert(session, memory) {
            Some(_) => Err(Error::OpenTwice { session }),
            None => Ok(MemoryOperation::ClearState { slot }),
        }
    }
}

#[cfg(test)]
mod tests {
    use paceline_proto::{PageId, SamplingSettings, Slot};
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_session_is_opened_once_and_collects_its_pages() {
        let (mut table, session) = (SessionTable::default(), SessionId(Uuid::from_u128(1)));
        let open = Operation::Open { session, slot: Slot(3), sampling: Box::new(SamplingSettings::default()) };
        let grant = |pages: &[u32]| Operation::Grant { session, pages: pages.iter().copied().map(PageId).collect() };
        assert!(matches!(table.apply(&grant(&[1])), Err(Error::UnknownSession { .. })));
        assert_eq!(table.apply(&open).expect("new"), Some(MemoryOperation::ClearState { slot: 3 }));
        table.apply(&grant(&[4])).expect("open");
        table.apply(&grant(&[2, 9])).expect("open");
        assert_eq!(table.get(session).expect("open"), &SessionMemory { slot: 3, pages: vec![4, 2, 9] });
        assert!(matches!(table.apply(&open), Err(Error::OpenTwice { .. })));
        table.apply(&Operation::Close { session }).expect("open");
        assert!(table.apply(&Operation::Close { session }).is_err());
    }
}
