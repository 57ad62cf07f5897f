//! What the coordinator orders, checked field by field before anything is done.

use std::ops::Range;

use anyhow::{Context, Result, anyhow, bail};
use paceline_compute::device::{LogSpec, MemorySpec};
use paceline_control::{Link, Load, Peer, Take};
use paceline_core::planner::TailDrafter;
use paceline_gguf::KvType;
use paceline_model::{Overrides, RopeScaling, StageLayers};
use paceline_proto::{Epoch, NodeId, PageId, Slot};
use paceline_shard::Place;
use paceline_transport::{Expected, LinkKey, LinkSettings, MoveKey};

use crate::control::{node_from, secret_from};

/// Bounds of what the coordinator may ask for; far beyond any model, far below any overflow.
const MOST: u64 = 1 << 32;

/// An order to load whose every field is checked.
pub(super) struct Order {
    pub(super) place: Place,
    pub(super) layers: StageLayers,
    pub(super) memory: MemorySpec,
    pub(super) overrides: Overrides,
    /// What makes drafts at the tail, where it has to do with this stage.
    pub(super) drafter: Option<TailDrafter>,
    pub(super) expected: Expected,
}

/// What is known of a link's other end.
pub(super) struct LinkEnds {
    pub(super) node: NodeId,
    pub(super) key: LinkKey,
    pub(super) settings: LinkSettings,
}

impl LinkEnds {
    pub(super) fn read(epoch: Epoch, link: &Link) -> Result<Self> {
        let peer = link.peer.as_ref().context("the link has no other end")?;
        let activations = link.activations.parse().map_err(|error| anyhow!("the link's activations: {error}"))?;
        Ok(Self {
            node: node_from(&peer.node)?,
            key: LinkKey { epoch, link: link.number, secret: secret_from(&link.secret)? },
            settings: LinkSettings {
                frames: bounded("frames of a link", u64::from(link.frames))?.max(1),
                frame_bytes: bounded("bytes of a frame", link.frame_bytes)? as u64,
                activations,
            },
        })
    }
}

impl Order {
    pub(super) fn read(load: &Load) -> Result<Self> {
        let epoch = Epoch(load.epoch);
        let link = load.from.as_ref().context("the order to load names no link")?;
        let LinkEnds { node, key, settings } = LinkEnds::read(epoch, link)?;
        let (first, end) = (load.first_layer as usize, load.end_layer as usize);
        if first >= end || load.stage >= load.stages {
            bail!("the order to load is for layers {first}..{end} of stage {} of {}", load.stage, load.stages);
        }
        let (is_first, is_last) = (load.stage == 0, load.stage + 1 == load.stages);
        let place = Place { index: load.stage as usize, first: is_first, last: is_last, epoch };
        Ok(Self {
            place,
            layers: StageLayers { layers: first..end, first: is_first, last: is_last },
            memory: memory(load)?,
            overrides: overrides(load),
            drafter: drafter(load)?.and_then(|drafter| drafter.at(is_last)),
            expected: Expected { key, from: node, settings },
        })
    }
}

fn drafter(load: &Load) -> Result<Option<TailDrafter>> {
    let Some(draft) = &load.draft else { return Ok(load.mtp.then_some(TailDrafter::Mtp)) };
    let key_type = kind("a draft model's keys", &draft.key_type)?;
    let value_type = kind("a draft model's values", &draft.value_type)?;
    Ok(Some(match draft.reads_layers {
        true => TailDrafter::Dflash { key_type, value_type },
        false => TailDrafter::Model { key_type, value_type },
    }))
}

fn kind(what: &str, name: &str) -> Result<KvType> {
    name.parse().map_err(|error| anyhow!("the type of {what}: {error}"))
}

fn memory(load: &Load) -> Result<MemorySpec> {
    let memory = load.memory.as_ref().context("the order to load names no memory")?;
    Ok(MemorySpec {
        page_tokens: bounded("tokens of a page", memory.page_tokens)?,
        pages: bounded("pages", memory.pages)?,
        slots: bounded("slots", memory.slots)?,
        key_type: kind("keys", &memory.key_type)?,
        value_type: kind("values", &memory.value_type)?,
        rows: bounded("rows", memory.rows)?,
        wanted: bounded("wanted rows", memory.wanted)?,
        logs: LogSpec {
            sessions: bounded("sessions with a log", memory.log_sessions)?,
            tokens: bounded("tokens of a log", memory.log_tokens)?,
        },
    })
}

fn overrides(load: &Load) -> Overrides {
    let original_context = load.yarn_original_context.map(|context| context as _);
    let yarn = |factor| RopeScaling::Yarn { factor, original_context };
    Overrides { rope_base: load.rope_base, rope_scaling: load.yarn_factor.map(yarn) }
}

fn bounded(what: &str, count: u64) -> Result<usize> {
    if count > MOST {
        bail!("the coordinator asks for {count} {what}, the most is {MOST}");
    }
    Ok(count as usize)
}

/// An order to take over memories whose every field is checked.
pub(super) struct TakeOrder {
    /// Of the stages that give.
    pub(super) key: MoveKey,
    pub(super) sources: Vec<TakeSource>,
    pub(super) pages: Vec<PageId>,
    pub(super) slots: Vec<Slot>,
}

/// A stage that gives, and what it has.
pub(super) struct TakeSource {
    pub(super) node: NodeId,
    pub(super) peer: Peer,
    pub(super) layers: Range<u32>,
    pub(super) samplers: bool,
}

impl TakeOrder {
    pub(super) fn read(take: Take) -> Result<Self> {
        let key = MoveKey { epoch: Epoch(take.from_epoch), secret: secret_from(&take.secret)? };
        let source = |source: paceline_control::Source| {
            let peer = source.peer.context("a stage that gives memories has no name")?;
            let (first, end) = (source.first_layer, source.end_layer);
            if first > end {
                bail!("the order to take memories is for layers {first}..{end}");
            }
            Ok(TakeSource { node: node_from(&peer.node)?, peer, layers: first..end, samplers: source.samplers })
        };
        Ok(Self {
            key,
            sources: take.sources.into_iter().map(source).collect::<Result<_>>()?,
            pages: take.pages.into_iter().map(PageId).collect(),
            slots: take.slots.into_iter().map(Slot).collect(),
        })
    }
}
