//! The bytes that a stage reserves.

use std::{iter::Sum, ops::Add};

use paceline_gguf::{DflashShape, Layer, ModelShape};
use serde::{Deserialize, Serialize};

use super::{Logs, StagePlan, TailDrafter, Wishes, cut::Stage, footprint::Footprint};

/// What a device works with whatever the rows of a step: partial results of long contexts (8 MiB), some 160 KiB for each
/// of up to fifty threads, tables, padded rows.
pub(super) const SCRATCH_BYTES: u64 = 16 << 20;

/// Bytes by what they are for. Sums that are too large stop at the largest number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Layers and head, as stored in the model file.
    pub weights: u64,
    /// Pages of keys and values.
    pub key_value: u64,
    /// Slots of recurrent states, and the logs of tokens that are not certain.
    pub states: u64,
    /// Activations of a step, logits and frames in flight.
    pub buffers: u64,
    /// Kept for what a device needs in addition: what weights grow by when they are packed, and scratch space.
    pub reserve: u64,
    /// The table of embeddings, which is read where the model file is mapped. It is not reserved: the system keeps
    /// the rows in use in memory, and takes them back when it needs to.
    pub mapped: u64,
}

impl Memory {
    /// All that is reserved.
    pub fn total(&self) -> u64 {
        [self.key_value, self.states, self.buffers, self.reserve].into_iter().fold(self.weights, u64::saturating_add)
    }

    /// What a stage needs to fulfil the wishes.
    pub(super) fn of(shape: &ModelShape, stage: &Stage, wishes: &Wishes) -> Self {
        let layers = shape.layers[stage.layers.clone()].iter();
        let footprint = layers.map(|layer| Footprint::of(layer, shape, wishes)).sum();
        Self::of_footprint(shape, &footprint, (stage.first, stage.last), wishes)
    }

    /// The same where the layers are added up already. The first stage embeds tokens, the last makes logits.
    pub(super) fn of_footprint(
        shape: &ModelShape,
        footprint: &Footprint,
        (first, last): (bool, bool),
        wishes: &Wishes,
    ) -> Self {
        // An embedding that is the head too is reserved for that only. What belongs to no layer (frequencies of the
        // rotation) is small, and every stage keeps it.
        let mut held = footprint.weights + shape.other;
        if last {
            held = held + shape.head();
        }
        let page_bytes = footprint.key_value.saturating_mul(wishes.page_tokens as u64);
        let layers = Self {
            weights: held.bytes,
            key_value: page_bytes.saturating_mul(wishes.pages() as u64),
            states: footprint
                .states
                .saturating_mul(wishes.slots() as u64)
                .saturating_add(footprint.logs.saturating_mul(wishes.logs.rows() as u64)),
            buffers: footprint.buffers(shape, (first, last), wishes),
            reserve: held.packed.saturating_sub(held.bytes) + SCRATCH_BYTES,
            mapped: if first { shape.embedding.bytes } else { 0 },
        };
        if last { layers + Self::of_drafter(shape, first, wishes) } else { layers }
    }

    /// What a tail needs besides to make guesses: a program of its own, whose steps may have a row more for each that is
    /// wanted.
    pub(super) fn of_drafter(shape: &ModelShape, first: bool, wishes: &Wishes) -> Self {
        let rows = wishes.step_rows.saturating_add(wishes.step_wanted);
        let own = Wishes { step_rows: rows, drafter: None, ..wishes.clone() };
        let needed = match wishes.drafter {
            None => None,
            Some(TailDrafter::Mtp) => shape.mtp.first().map(|block| Self::of_mtp(shape, block, first, &own)),
            Some(TailDrafter::Model { key_type, value_type }) => {
                let own = Wishes { key_type, value_type, ..own };
                shape.draft.as_deref().map(|draft| Self::of_draft(draft, &own))
            }
            Some(TailDrafter::Dflash { key_type, value_type }) => {
                let own = Wishes { key_type, value_type, step_rows: wishes.step_rows, ..own };
                shape.dflash.as_ref().map(|draft| Self::of_dflash(shape, draft, first, &own))
            }
        };
        needed.unwrap_or_default()
    }

    /// A DFlash model: it has its own pages, and the target's embeddings and head. What it reads with the layers is
    /// counted with these.
    fn of_dflash(shape: &ModelShape, draft: &DflashShape, first: bool, wishes: &Wishes) -> Self {
        let layers = draft.layers.iter().map(|layer| Footprint::of_layer(layer, draft.embedding_length, false, wishes));
        let footprint: Footprint = layers.sum();
        let own = Wishes { logs: Logs::default(), ..wishes.clone() };
        // What it reads as it comes and normed, here and where it was made.
        let inputs = (wishes.step_rows as u64).saturating_mul(4 * shape.hidden_row_bytes());
        let held = footprint.weights + draft.norms;
        Self {
            weights: held.bytes,
            key_value: footprint.key_value.saturating_mul((wishes.page_tokens * wishes.pages()) as u64),
            states: 0,
            buffers: footprint.buffers(shape, (true, true), &own).saturating_add(inputs),
            reserve: held.packed.saturating_sub(held.bytes) + SCRATCH_BYTES,
            mapped: if first { 0 } else { shape.embedding.bytes },
        }
    }

    /// A whole model, with pages and slots of the same numbers.
    fn of_draft(draft: &ModelShape, own: &Wishes) -> Self {
        let footprint = draft.layers.iter().map(|layer| Footprint::of(layer, draft, own)).sum();
        Self::of_footprint(draft, &footprint, (true, true), own)
    }

    /// A block for multi-token prediction, which has its own pages, the tail's head, and a hidden row for each slot.
    fn of_mtp(shape: &ModelShape, block: &Layer, first: bool, wishes: &Wishes) -> Self {
        let hidden_row = shape.hidden_row_bytes();
        let footprint = Footprint::of(block, shape, wishes);
        let rows = wishes.step_rows;
        let own = Wishes { logs: Logs::default(), ..wishes.clone() };
        // The embedding, two norms and both side by side; and what it reads, here and where it was made.
        let inputs = (rows as u64).saturating_mul(7 * hidden_row);
        let pending = (own.slots() as u64).saturating_mul(hidden_row);
        Self {
            weights: block.weights.bytes,
            key_value: footprint.key_value.saturating_mul((own.page_tokens * own.pages()) as u64),
            states: 0,
            buffers: footprint.buffers(shape, (true, true), &own).saturating_add(inputs).saturating_add(pending),
            reserve: block.weights.packed.saturating_sub(block.weights.bytes) + SCRATCH_BYTES,
            mapped: if first { 0 } else { shape.embedding.bytes },
        }
    }
}

impl Add for Memory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            weights: self.weights.saturating_add(other.weights),
            key_value: self.key_value.saturating_add(other.key_value),
            states: self.states.saturating_add(other.states),
            buffers: self.buffers.saturating_add(other.buffers),
            reserve: self.reserve.saturating_add(other.reserve),
            mapped: self.mapped.saturating_add(other.mapped),
        }
    }
}

impl Sum for Memory {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

/// Bytes of weights that two stages of a model have in common, as a device packs them: it holds them once for both.
pub fn shared_weights(shape: &ModelShape, one: &StagePlan, other: &StagePlan) -> u64 {
    let layers = one.layers.start.max(other.layers.start)..one.layers.end.min(other.layers.end);
    let mut shared = shape.other;
    if !layers.is_empty() {
        shared = shared + shape.weights(layers);
    }
    if one.last && other.last {
        shared = shared + shape.head();
    }
    shared.packed
}

/// Bytes of weights that the stage reads for one token.
///
/// Of experts only those in use, of the embedding one row.
pub(super) fn read_per_token(shape: &ModelShape, stage: &Stage) -> u64 {
    let layers: u64 = shape.layers[stage.layers.clone()].iter().map(|layer| layer.active().bytes).sum();
    let row = if stage.first { shape.embedding.bytes / shape.vocabulary.max(1) as u64 } else { 0 };
    let head = if stage.last { shape.head().bytes } else { 0 };
    layers + row + head
}
