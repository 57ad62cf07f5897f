//! Memories on their way from a stage to one that takes layers of it over.
//!
//! The taker says what it wants in a [`MemoryRequest`]. The answer is a [`MemoryHead`] and then bytes as the device
//! stores them: for each wanted layer, in order, every wanted page of an attention layer, or every wanted slot of a
//! recurrent one and then what its log holds of uncertain tokens, session by session.

use std::ops::Range;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{Error, PageId, Result, SamplingSettings, SessionId, Slot, StepId};

/// What is wanted of a stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRequest {
    /// Layers of the model; none if only samplers are wanted.
    pub layers: Range<u32>,
    /// Pages, ascending.
    pub pages: Vec<PageId>,
    /// State slots, ascending.
    pub slots: Vec<Slot>,
    /// The samplers of all open sessions, which only the tail has.
    pub samplers: bool,
}

/// What goes before the bytes: all that a stage knows besides its memories.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryHead {
    /// How the device stores memories. Bytes in another form are of no use.
    pub form: String,
    /// How many bytes follow.
    pub bytes: u64,
    /// The step that is due next.
    pub next: StepId,
    /// Every open session, ascending.
    pub sessions: Vec<OpenSession>,
    /// Their samplers, if they are wanted.
    pub samplers: Vec<SessionSampler>,
}

/// Where an open session's memory lies: the same on every stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    /// Whose.
    pub session: SessionId,
    /// Its state slot.
    pub slot: Slot,
    /// Its pages, in the order of its tokens.
    pub pages: Vec<PageId>,
    /// How many of its tokens are certain: its state is the one behind them.
    pub certain: u32,
    /// How many uncertain tokens follow them, whose inputs are in the logs of recurrent layers; see
    /// [`Verify`](crate::Verify).
    pub uncertain: u32,
}

/// The sampler of an open session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSampler {
    /// Whose.
    pub session: SessionId,
    /// Or why its settings cannot be used.
    pub sampler: std::result::Result<SamplerMemory, String>,
}

/// All that a sampler knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplerMemory {
    /// Its settings.
    pub settings: SamplingSettings,
    /// Tokens from this position on were generated, if that is known.
    pub generated_from: Option<u32>,
    /// Positions and their tokens, ascending; none if nothing is penalised.
    pub tokens: Vec<(u32, u32)>,
}

impl MemoryRequest {
    /// The request as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Error::Memories`]; bytes from outside never panic.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let request: Self = decode(bytes)?;
        if !is_ascending(&request.pages) || !is_ascending(&request.slots) {
            return Err(Error::Memories { reason: "pages or slots are not in order".to_owned() });
        }
        Ok(request)
    }
}

impl MemoryHead {
    /// The head as bytes.
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Reads a head.
    ///
    /// # Errors
    /// [`Error::Memories`]; bytes from outside never panic.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        decode(bytes)
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("requests and heads hold nothing that cannot be written")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(|error| unreadable(&error))?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(Error::Memories { reason: format!("{} bytes are left over", rest.len()) })
    }
}

fn unreadable(error: &postcard::Error) -> Error {
    Error::Memories { reason: error.to_string() }
}

fn is_ascending<T: Ord>(ids: &[T]) -> bool {
    ids.is_sorted_by(|before, after| before < after)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn head(pages: Vec<u32>, tokens: Vec<(u32, u32)>, broken: bool) -> MemoryHead {
        let session = SessionId(Uuid::from_u128(7));
        let memory = SamplerMemory { settings: SamplingSettings::default(), generated_from: Some(3), tokens };
        let sampler = if broken { Err("no such temperature".to_owned()) } else { Ok(memory) };
        MemoryHead {
            form: "cpu".to_owned(),
            bytes: 12,
            next: StepId(9),
            sessions: vec![OpenSession {
                session,
                slot: Slot(1),
                pages: pages.into_iter().map(PageId).collect(),
                certain: 7,
                uncertain: 2,
            }],
            samplers: vec![SessionSampler { session, sampler }],
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(pages: Vec<u32>, tokens: Vec<(u32, u32)>, broken: bool) {
            let head = head(pages, tokens, broken);
            prop_assert_eq!(MemoryHead::decode(&head.encode()), Ok(head));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let _ = MemoryHead::decode(&bytes);
            let _ = MemoryRequest::decode(&bytes);
        }

        #[test]
        fn what_is_cut_or_longer_is_refused(cut in 1usize..20, more: u8) {
            let mut bytes = head(vec![1, 2], vec![(4, 5)], false).encode();
            prop_assert!(MemoryHead::decode(&bytes[..bytes.len() - cut]).is_err());
            bytes.push(more);
            prop_assert!(MemoryHead::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_request_names_everything_once_and_in_order() {
        let request = |pages: &[u32], slots: &[u32]| MemoryRequest {
            layers: 2..4,
            pages: pages.iter().copied().map(PageId).collect(),
            slots: slots.iter().copied().map(Slot).collect(),
            samplers: true,
        };
        let sound = request(&[0, 3, 7], &[2]);
        assert_eq!(MemoryRequest::decode(&sound.encode()), Ok(sound));
        for wrong in [request(&[3, 3], &[]), request(&[4, 3], &[]), request(&[], &[1, 0])] {
            assert!(matches!(MemoryRequest::decode(&wrong.encode()), Err(Error::Memories { .. })), "{wrong:?}");
        }
    }
}
