//! Memories handed from the nodes of one row to those of another: what each is told.

use paceline_control::{Give, Source, Take};
use paceline_coordinator::Still;
use paceline_core::membership::{self, Taker};
use paceline_proto::Epoch;
use uuid::Uuid;

use super::actor::Attendant;
use super::making::{Attendants, node_peer};
use crate::cli::LinkChoice;

/// One move, and the secret with which nodes of one row ask those of the other.
pub(super) struct Hands {
    from: Epoch,
    to: Epoch,
    secret: [u8; 16],
    pages: Vec<u32>,
    slots: Vec<u32>,
}

impl Hands {
    /// Of what is in use.
    pub(super) fn new(from: Epoch, to: Epoch, still: Still) -> Self {
        let pages = still.pages.into_iter().map(|page| page.0).collect();
        let slots = still.slots.into_iter().map(|slot| slot.0).collect();
        Self { from, to, secret: Uuid::new_v4().into_bytes(), pages, slots }
    }

    /// What every node of the old row is told.
    pub(super) fn give(&self) -> Give {
        Give { epoch: self.from.0, secret: self.secret.to_vec() }
    }

    /// What a node of the new row is told; nothing if it, or one that it would ask, is gone: then the row is over.
    pub(super) fn take(&self, taker: &Taker, attendants: &Attendants, choice: LinkChoice) -> Option<Take> {
        let to = attendants.get(&taker.node)?;
        let sources = taker.sources.iter().map(|source| self::source(source, to, attendants, choice));
        Some(Take {
            epoch: self.to.0,
            from_epoch: self.from.0,
            secret: self.secret.to_vec(),
            sources: sources.collect::<Option<_>>()?,
            pages: self.pages.clone(),
            slots: self.slots.clone(),
        })
    }
}

fn source(source: &membership::Source, to: &Attendant, attendants: &Attendants, choice: LinkChoice) -> Option<Source> {
    Some(Source {
        peer: Some(node_peer(source.node, attendants.get(&source.node)?, to, choice)),
        first_layer: source.layers.start as u32,
        end_layer: source.layers.end as u32,
        samplers: source.samplers,
    })
}
