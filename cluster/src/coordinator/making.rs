//! A row on its way into force: what every node is told, and what the coordinator itself needs of the row.
//!
//! Link 0 leads from the coordinator to the head, link `i` from stage `i - 1` to stage `i`, and the last from the tail
//! back to the coordinator. Each has a secret of its own, made here.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use paceline_control::{
    Cancel, Connect, Draft, Link, Linked, Load, Loaded, Memory, Peer, Progress, Tier, ToShard, to_shard,
};
use paceline_coordinator::placement::{MemoryBytes, StageMemory};
use paceline_coordinator::{LinkCard, Placed, Shards, StageCard};
use paceline_core::Limits;
use paceline_core::disk::ORDERS;
use paceline_core::planner::{LinkSpeed, Placement, StagePlan, TailDrafter};
use paceline_model::RopeScaling;
use paceline_proto::{Activations, EntryKey, Epoch, NodeId, SessionId, TierAnswer, TierOrder};
use paceline_transport::{Expected, LinkKey, LinkReceiver, LinkReport, LinkSender, LinkSettings, Pending};
use tokio::sync::mpsc;
use tonic::Status;
use tracing::warn;
use uuid::Uuid;

use super::actor::{Attendant, Settings};
use super::placing::Links;
use crate::cli::LinkChoice;
use crate::state::store::{Purpose, RowRecord};
use crate::{disk, layout, link, row, text};

/// Bytes of a frame besides its activations: tokens, settings of new sessions, page lists.
const DESCRIPTION_BYTES: u64 = 16 << 20;
/// The coordinator's own links are made within this time, or the membership gives the row up.
const OWN_LINKS: Duration = Duration::from_secs(25);

/// Nodes that are named to one that may lack something.
const MOST_SOURCES: usize = 32;
/// Progress of loading is told so often.
const TELL_EVERY: Duration = Duration::from_secs(2);

pub(super) type Attendants = HashMap<NodeId, Attendant>;

/// See the module's text.
pub(super) struct Making {
    pub(super) epoch: Epoch,
    /// The row in force that it takes over from.
    beside: Option<Epoch>,
    placement: Placement,
    limits: Limits,
    row: Vec<NodeId>,
    secrets: Vec<[u8; 16]>,
    frame_bytes: u64,
    /// The tail's link, until it is waited for.
    pending: Option<Pending>,
    own: Option<OwnLinks>,
    cards: Vec<StageCard>,
    /// Where the answers of disk tiers go, and where they come out until the row is placed.
    tiers: (mpsc::Sender<StageAnswer>, Option<mpsc::Receiver<StageAnswer>>),
    /// When people were last told how far loading is.
    told: Instant,
}

/// What the disk tier of a stage, counted from the head, answers.
type StageAnswer = (usize, TierAnswer);

/// The two links that end at the coordinator.
pub(super) struct OwnLinks {
    head: LinkSender,
    report: LinkReport,
    tail: LinkReceiver,
}

impl Making {
    pub(super) fn new(
        settings: &Settings,
        epoch: Epoch,
        placement: Placement,
        row: Vec<NodeId>,
        beside: Option<Epoch>,
        attendants: &Attendants,
    ) -> Self {
        let disk = disk_root(settings, &placement, &row, attendants);
        let limits = Limits {
            disk,
            queue: settings.queue,
            step_deadline: Some(settings.step_deadline),
            ..layout::limits(&placement, Some(settings.prefill_rows))
        };
        let secrets = (0..=row.len()).map(|_| Uuid::new_v4().into_bytes()).collect();
        let activations = placement.step_rows as u64 * settings.offer.width as u64 * 4;
        let cards = placement.stages.iter().enumerate();
        let cards = cards.map(|(index, stage)| card(index, stage, row[index], attendants)).collect();
        let frame_bytes = DESCRIPTION_BYTES + activations;
        let (answers, tiers) = mpsc::channel(ORDERS * row.len());
        let mut making = Self {
            epoch,
            beside,
            placement,
            limits,
            row,
            secrets,
            frame_bytes,
            pending: None,
            own: None,
            cards,
            tiers: (answers, Some(tiers)),
            told: Instant::now(),
        };
        let (last, tail) = (making.row.len(), making.row[making.row.len() - 1]);
        let expected = Expected { key: making.key(last), from: tail, settings: making.settings(Activations::F32) };
        making.pending = Some(settings.endpoint.expect(expected));
        making
    }

    pub(super) fn cards(&self) -> &[StageCard] {
        &self.cards
    }

    /// The row as it is kept for a coordinator that comes after this one.
    pub(super) fn record(&self, purpose: Purpose) -> RowRecord {
        RowRecord { epoch: self.epoch, purpose, nodes: self.row.clone(), placement: self.placement.clone() }
    }

    /// What each node is told to load.
    pub(super) fn loads(&self, settings: &Settings, attendants: &Attendants) -> Vec<(NodeId, Load)> {
        let load = |(index, stage): (usize, &StagePlan)| {
            let node = self.row[index];
            let attendant = attendants.get(&node)?;
            let before = index.checked_sub(1).map(|before| self.row[before]);
            let from = self.link(settings, index, before, attendant, attendants)?;
            Some((node, self.load(settings, index, stage, attendant, from, attendants)))
        };
        self.placement.stages.iter().enumerate().filter_map(load).collect()
    }

    fn load(
        &self,
        settings: &Settings,
        index: usize,
        stage: &StagePlan,
        to: &Attendant,
        from: Link,
        attendants: &Attendants,
    ) -> Load {
        let overrides = &settings.overrides;
        let RopeOverrides { yarn_factor, yarn_original_context } = rope(overrides.rope_scaling.as_ref());
        let sources = self.sources(settings, index, to, attendants);
        Load {
            epoch: self.epoch.0,
            stage: index as u32,
            stages: self.row.len() as u32,
            first_layer: stage.layers.start as u32,
            end_layer: stage.layers.end as u32,
            memory: Some(self.memory()),
            rope_base: overrides.rope_base,
            yarn_factor,
            yarn_original_context,
            model: Some(settings.offer.model.told(sources.clone())),
            from: Some(from),
            beside: self.beside.map(|beside| beside.0),
            mtp: stage.last && self.placement.drafter == Some(TailDrafter::Mtp),
            draft: self.draft(settings, sources),
        }
    }

    /// The model that drafts at the last stage, if one does.
    fn draft(&self, settings: &Settings, sources: Vec<Peer>) -> Option<Draft> {
        let (key_type, value_type, reads_layers) = match self.placement.drafter? {
            TailDrafter::Model { key_type, value_type } => (key_type, value_type, false),
            TailDrafter::Dflash { key_type, value_type } => (key_type, value_type, true),
            TailDrafter::Mtp => return None,
        };
        Some(Draft {
            model: Some(settings.offer.draft.as_ref()?.told(sources)),
            key_type: key_type.to_string(),
            value_type: value_type.to_string(),
            reads_layers,
        })
    }

    /// Who may have pieces of the model, or of what was kept of prompts: the coordinator has the whole model, the
    /// neighbours what they have themselves, and nodes without a stage what they had when they had one.
    fn sources(&self, settings: &Settings, index: usize, to: &Attendant, attendants: &Attendants) -> Vec<Peer> {
        let own = self.row[index];
        let idle = attendants.keys().filter(|node| !self.row.contains(node));
        let others = self.row.iter().chain(idle).filter(|node| **node != own).take(MOST_SOURCES);
        let other = |node: &NodeId| Some(node_peer(*node, attendants.get(node)?, to, settings.link));
        std::iter::once(own_peer(settings, to)).chain(others.filter_map(other)).collect()
    }

    fn memory(&self) -> Memory {
        let Placement { page_tokens, pages, slots, key_type, value_type, step_rows, step_wanted, logs, .. } =
            &self.placement;
        Memory {
            page_tokens: *page_tokens as u64,
            pages: *pages as u64,
            slots: *slots as u64,
            key_type: key_type.to_string(),
            value_type: value_type.to_string(),
            rows: *step_rows as u64,
            wanted: *step_wanted as u64,
            log_sessions: logs.sessions as u64,
            log_tokens: logs.tokens as u64,
        }
    }

    /// Whom each node is told to connect to.
    pub(super) fn connects(&self, settings: &Settings, attendants: &Attendants) -> Vec<(NodeId, Connect)> {
        let connect = |index: usize| {
            let node = self.row[index];
            let next = self.row.get(index + 1).copied();
            let to = self.link(settings, index + 1, next, attendants.get(&node)?, attendants)?;
            Some((node, Connect { epoch: self.epoch.0, to: Some(to) }))
        };
        (0..self.row.len()).filter_map(connect).collect()
    }

    /// A link as the node `seen_by` sees it, whose other end is another node or the coordinator.
    fn link(
        &self,
        settings: &Settings,
        number: usize,
        other: Option<NodeId>,
        seen_by: &Attendant,
        attendants: &Attendants,
    ) -> Option<Link> {
        let peer = match other {
            Some(node) => node_peer(node, attendants.get(&node)?, seen_by, settings.link),
            None => own_peer(settings, seen_by),
        };
        Some(Link {
            peer: Some(peer),
            number: number as u32,
            secret: self.secrets[number].to_vec(),
            frames: self.limits.credits as u32,
            frame_bytes: self.frame_bytes,
            activations: self.activations(settings, number).to_string(),
            carrier: link::carrier_name(settings.link).to_owned(),
        })
    }

    /// How activations travel over a link; the last one carries results, which have none.
    fn activations(&self, settings: &Settings, number: usize) -> Activations {
        if number == self.row.len() { Activations::F32 } else { settings.activations }
    }

    fn key(&self, number: usize) -> LinkKey {
        LinkKey { epoch: self.epoch, link: number as u32, secret: self.secrets[number] }
    }

    fn settings(&self, activations: Activations) -> LinkSettings {
        LinkSettings { frames: self.limits.credits, frame_bytes: self.frame_bytes, activations }
    }

    /// Connects to the head and waits for the tail.
    pub(super) fn own_links(
        &mut self,
        settings: &Settings,
        attendants: &Attendants,
    ) -> impl Future<Output = Result<OwnLinks>> + use<> {
        let (endpoint, key) = (settings.endpoint.clone(), self.key(0));
        let (link_settings, pending) = (self.settings(settings.activations), self.pending.take());
        let head = self.row[0];
        let routes = attendants.get(&head).map(|attendant| {
            let same = attendant.hello.boot == link::boot();
            let unix = link::unix_of(&attendant.hello.unix, same, settings.link);
            link::routes(&attendant.hello.data, unix.as_deref(), settings.link)
        });
        async move {
            let routes = routes.context("the head is gone")??;
            let (head, report) = link::connect(&endpoint, head, &routes, key, link_settings).await?;
            let pending = pending.context("the tail is waited for twice")?;
            let tail = pending.wait(OWN_LINKS).await.context("the tail did not connect")?;
            Ok(OwnLinks { head, report, tail })
        }
    }

    pub(super) fn set_own_links(&mut self, links: OwnLinks) {
        self.own = Some(links);
    }

    /// What a node says that it has loaded.
    pub(super) fn loaded(&mut self, node: NodeId, loaded: &Loaded) {
        if let Some(card) = self.card_of(node, loaded.epoch) {
            let Loaded { weights, pages, states, buffers, .. } = *loaded;
            card.memory.actual = MemoryBytes { weights, key_value: pages, states, buffers, reserve: 0 };
        }
    }

    /// What people are told of a stage that loads, now and then.
    pub(super) fn progressed(&mut self, node: NodeId, progress: &Progress) -> Option<String> {
        let stage = self.row.iter().position(|one| *one == node).filter(|_| progress.epoch == self.epoch.0)?;
        if self.told.elapsed() < TELL_EVERY {
            return None;
        }
        self.told = Instant::now();
        Some(match progress {
            Progress { loaded: loaded @ 1.., .. } => format!("stage {stage} has loaded {}\n", text::bytes(*loaded)),
            Progress { fetch_total: total @ 1.., fetched, .. } => {
                format!("stage {stage} has fetched {} of {}\n", text::bytes(*fetched), text::bytes(*total))
            }
            _ => format!("stage {stage} looks for the model on its host\n"),
        })
    }

    /// What a node says of its link to the next.
    pub(super) fn linked(&mut self, node: NodeId, linked: &Linked, links: &Links) {
        let index = self.row.iter().position(|one| *one == node);
        if let Some(next) = index.and_then(|index| self.row.get(index + 1)) {
            let round_trip = Duration::from_micros(linked.round_trip_micros);
            let speed = LinkSpeed { round_trip, bytes_per_second: linked.bytes_per_second };
            links.measured(node, *next, speed);
        }
        if let Some(card) = self.card_of(node, linked.epoch) {
            card.link = Some(LinkCard {
                carrier: linked.carrier.clone(),
                round_trip_micros: Some(linked.round_trip_micros),
                bytes_per_second: Some(linked.bytes_per_second.max(0.0) as u64),
            });
        }
    }

    /// What the disk tier of a node's stage answers.
    pub(super) fn tier_answered(&self, node: NodeId, answer: &[u8]) {
        let Some(stage) = self.row.iter().position(|one| *one == node) else { return };
        match TierAnswer::decode(answer) {
            // There is room for as many answers as there are orders; nobody listens to a row that is over.
            Ok(answer) => drop(self.tiers.0.try_send((stage, answer))),
            Err(error) => warn!(%node, %error, "a disk tier's answer cannot be read"),
        }
    }

    fn card_of(&mut self, node: NodeId, epoch: u32) -> Option<&mut StageCard> {
        if epoch != self.epoch.0 {
            return None;
        }
        let index = self.row.iter().position(|one| *one == node)?;
        self.cards.get_mut(index)
    }

    /// The placement as the coordinator actor takes it, once.
    pub(super) fn place(&mut self, attendants: &Attendants) -> Option<Placed> {
        let outbox = |node| attendants.get(node).map(|attendant| attendant.outbox.clone());
        let outboxes = self.row.iter().filter_map(outbox).collect();
        let OwnLinks { head, report, tail } = self.own.take()?;
        tracing::info!(carrier = %report.carrier, round_trip = ?report.round_trip, "linked to the head");
        // Every stage may say once that it failed, beside the results of all credits.
        let replies = tail.into_replies(self.limits.credits + self.row.len());
        Some(Placed {
            epoch: self.epoch,
            limits: self.limits.clone(),
            head: Box::new(head),
            replies,
            shards: Box::new(RemoteShards { epoch: self.epoch, outboxes }),
            tiers: self.tiers.1.take()?,
            stages: self.cards.clone(),
        })
    }
}

/// The shards of other processes, as the coordinator controls them: cancels overtake the frames under way.
struct RemoteShards {
    epoch: Epoch,
    outboxes: Vec<mpsc::Sender<Result<ToShard, Status>>>,
}

impl Shards for RemoteShards {
    fn cancel(&self, session: SessionId) {
        let cancel = Cancel { session: session.0.as_bytes().to_vec() };
        for outbox in &self.outboxes {
            let message = ToShard { message: Some(to_shard::Message::Cancel(cancel.clone())) };
            if outbox.try_send(Ok(message)).is_err() {
                // The chunk is then computed in vain; nobody waits for its result.
                warn!(%session, "a shard could not be told of a cancel");
            }
        }
    }

    fn order(&self, stage: usize, order: TierOrder) -> bool {
        let tier = Tier { epoch: self.epoch.0, message: order.encode() };
        let message = ToShard { message: Some(to_shard::Message::Tier(tier)) };
        self.outboxes.get(stage).is_some_and(|outbox| outbox.try_send(Ok(message)).is_ok())
    }
}

/// The root of what a row keeps on disks: nothing unless all its nodes have some.
fn disk_root(settings: &Settings, placement: &Placement, row: &[NodeId], attendants: &Attendants) -> Option<EntryKey> {
    let hello = |node: &NodeId| attendants.get(node).map(|attendant| &attendant.hello);
    let all = row.iter().all(|node| hello(node).is_some_and(|hello| hello.disk > 0));
    let device = |node: &NodeId| Some(hello(node)?.device.as_ref()?.name.clone());
    let devices: Vec<String> = row.iter().filter_map(device).collect();
    let model = settings.offer.model.hash;
    all.then(|| disk::root(&model, placement, &settings.overrides, settings.activations, &devices))
}

struct RopeOverrides {
    yarn_factor: Option<f32>,
    yarn_original_context: Option<u32>,
}

fn rope(scaling: Option<&RopeScaling>) -> RopeOverrides {
    match scaling {
        Some(RopeScaling::Yarn { factor, original_context }) => {
            RopeOverrides { yarn_factor: Some(*factor), yarn_original_context: *original_context }
        }
        _ => RopeOverrides { yarn_factor: None, yarn_original_context: None },
    }
}

/// The coordinator's data endpoint, at the address at which the node reached it.
fn own_peer(settings: &Settings, seen_by: &Attendant) -> Peer {
    let port = settings.endpoint.udp_address().port();
    let addresses = settings.advertise.into_iter().chain([seen_by.reached_at.ip()]);
    let data = addresses.map(|address| SocketAddr::new(address, port).to_string()).collect();
    let same = seen_by.hello.boot == link::boot();
    let unix = settings.endpoint.unix_path().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    Peer {
        node: settings.identity.node().0.as_bytes().to_vec(),
        data,
        unix: link::unix_of(&unix, same, settings.link).unwrap_or_default(),
    }
}

pub(super) fn node_peer(node: NodeId, attendant: &Attendant, seen_by: &Attendant, choice: LinkChoice) -> Peer {
    let same = attendant.hello.boot == seen_by.hello.boot;
    Peer {
        node: node.0.as_bytes().to_vec(),
        data: attendant.hello.data.clone(),
        unix: link::unix_of(&attendant.hello.unix, same, choice).unwrap_or_default(),
    }
}

fn card(index: usize, stage: &StagePlan, node: NodeId, attendants: &Attendants) -> StageCard {
    let hello = attendants.get(&node).map(|attendant| &attendant.hello);
    let device = hello.and_then(|hello| hello.device.as_ref());
    StageCard {
        index,
        node: node.to_string(),
        host: hello.map(|hello| hello.host.clone()).unwrap_or_default(),
        device: device.map(|device| format!("{} ({})", device.name, device.detail)).unwrap_or_default(),
        layers: stage.layers.clone(),
        memory: StageMemory { planned: row::planned_bytes(stage), actual: MemoryBytes::default() },
        link: None,
    }
}
