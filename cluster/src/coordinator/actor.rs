//! The cluster actor: holds the membership, tells it what nodes say, and reaches every node through its outbox.
//!
//! What the membership decides is carried out in [`rows`](super::rows), what people ask for comes in through
//! [`scaling`](super::scaling).

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, ResponseActFuture, StreamHandler, WrapFuture,
};
use paceline_api::{ClusterCard, NodeCard};
use paceline_control::{Failed, Heartbeat, Hello, Leave, Taken, Tier, ToShard, Welcome, from_shard, to_shard};
use paceline_coordinator::actor::Control;
use paceline_coordinator::placement::Health;
use paceline_coordinator::{Engine, Still};
use paceline_core::membership::{Action, Event, LEASE, Membership};
use paceline_core::planner::DeviceSpec;
use paceline_model::Overrides;
use paceline_proto::{Activations, Epoch, NodeId};
use paceline_transport::Endpoint;
use paceline_transport::identity::{Identity, TokenId, Trust};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::WatchStream;
use tonic::Status;
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::making::Making;
use super::offer::{self, Offer};
use super::placing::Links;
use super::scaling::actor::Waiting;
use crate::cli::LinkChoice;
use crate::control::PROGRAM;
use crate::control::listener::Caller;
use crate::control::service::token_name;
use crate::state::Tokens;
use crate::state::keeper::Keeper;
use crate::state::store::Purpose;
use crate::text;

/// How often leases, deadlines and revoked tokens are looked at.
const TICK: Duration = Duration::from_millis(500);
/// Messages that may wait: a few for every node there can be.
const MAILBOX: usize = 4096;
/// Letters of a text that another process sends to be shown.
const TEXT: usize = 255;
/// Addresses of a node.
const ADDRESSES: usize = 16;
/// What a node hears that is let go.
pub(super) const ENDING: &str = "the coordinator is ending";

/// What the actor is made from.
pub(crate) struct Settings {
    pub(crate) membership: Membership,
    pub(crate) identity: Identity,
    pub(crate) endpoint: Endpoint,
    pub(crate) offer: Offer,
    pub(crate) links: Links,
    /// The cluster, for the status.
    pub(crate) card: watch::Sender<ClusterCard>,
    pub(crate) engine: Engine,
    pub(crate) control: Control,
    pub(crate) tokens: Tokens,
    /// Remembers epochs and rows.
    pub(crate) keeper: Keeper,
    /// What rows are made for.
    pub(crate) purpose: Purpose,
    /// Requests that may wait.
    pub(crate) queue: usize,
    /// Rows of a prompt in a step.
    pub(crate) prefill_rows: usize,
    /// How long a step may be overdue.
    pub(crate) step_deadline: Duration,
    pub(crate) activations: Activations,
    pub(crate) link: LinkChoice,
    pub(crate) overrides: Overrides,
    /// Where shards reach this host, if a person says so.
    pub(crate) advertise: Option<IpAddr>,
    /// Where requests are answered, for the summary.
    pub(crate) api: String,
}

/// A node that attends.
pub(super) struct Attendant {
    pub(super) hello: Hello,
    pub(super) outbox: mpsc::Sender<Result<ToShard, Status>>,
    /// The address of ours at which it reached us, and so reaches our data endpoint.
    pub(super) reached_at: SocketAddr,
    attendance: Uuid,
    token: Option<TokenId>,
}

/// The one actor that knows who belongs to the cluster.
pub(super) struct ClusterActor {
    pub(super) settings: Settings,
    begun: Instant,
    pub(super) attendants: HashMap<NodeId, Attendant>,
    /// The row in force or on its way there, and another one beside it.
    pub(super) makings: BTreeMap<Epoch, Making>,
    /// What is in use of the row in force, while it is still.
    pub(super) still: Still,
    actions: Vec<Action>,
    /// The summary is shown once.
    pub(super) shown: bool,
    /// Whoever waits for the end of a change, and how many were asked for.
    pub(super) waiting: HashMap<u64, Waiting>,
    pub(super) tickets: u64,
    /// Nothing is decided any more.
    pub(super) ending: bool,
}

/// The actor, as the control plane's service sees it.
#[derive(Clone)]
pub(crate) struct ClusterHandle(pub(super) Addr<ClusterActor>);

/// Starts the actor; to be called inside a running actix system.
pub(crate) fn start(settings: Settings) -> ClusterHandle {
    ClusterHandle(ClusterActor::new(settings).start())
}

impl ClusterHandle {
    /// Lets a node attend, or says why not.
    pub(crate) async fn joined(&self, joined: Joined) -> Result<(), Status> {
        self.0.send(joined).await.unwrap_or_else(|_| Err(Status::unavailable(ENDING)))
    }

    /// Hands on what a node says; false when nobody listens any more.
    pub(crate) async fn said(&self, said: Said) -> bool {
        self.0.send(said).await.is_ok()
    }

    /// Whether the actor still answers.
    pub(crate) async fn is_alive(&self) -> bool {
        self.0.send(IsAlive).await.is_ok()
    }

    /// Ends every session that still runs, closes the row, and lets every node go; they join again when the coordinator
    /// returns.
    pub(crate) async fn end(&self) {
        if self.0.send(End).await.is_err() {
            debug!("the cluster actor is gone already");
        }
    }
}

/// A node wants to attend; answered with why not.
#[derive(Message)]
#[rtype(result = "Result<(), Status>")]
pub(crate) struct Joined {
    pub(crate) node: NodeId,
    pub(crate) token: Option<TokenId>,
    pub(crate) attendance: Uuid,
    pub(crate) hello: Hello,
    pub(crate) caller: Caller,
    pub(crate) outbox: mpsc::Sender<Result<ToShard, Status>>,
}

/// A node says something, or is gone.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Said {
    pub(crate) node: NodeId,
    pub(crate) attendance: Uuid,
    pub(crate) what: Result<from_shard::Message, String>,
}

impl ClusterActor {
    fn new(settings: Settings) -> Self {
        Self {
            settings,
            begun: Instant::now(),
            attendants: HashMap::new(),
            makings: BTreeMap::new(),
            still: Still::default(),
            actions: Vec::new(),
            shown: false,
            waiting: HashMap::new(),
            tickets: 0,
            ending: false,
        }
    }

    pub(super) fn on(&mut self, event: Event, context: &mut Context<Self>) {
        if self.ending {
            return;
        }
        let mut actions = std::mem::take(&mut self.actions);
        self.settings.membership.on(event, self.begun.elapsed(), &mut actions);
        for action in actions.drain(..) {
            self.perform(action, context);
        }
        self.actions = actions;
        self.show_cluster();
    }

    fn show_cluster(&self) {
        let membership = &self.settings.membership;
        let node =
            |(node, one): (&NodeId, &Attendant)| offer::node_card(*node, &one.hello, membership.is_drained(*node));
        let mut nodes: Vec<NodeCard> = self.attendants.iter().filter_map(node).collect();
        nodes.sort_by(|one, other| one.node.cmp(&other.node));
        let card = ClusterCard { nodes, moving: membership.view().moving };
        self.settings.card.send_if_modified(|shown| {
            let changed = *shown != card;
            *shown = card;
            changed
        });
    }

    /// Says something to a node; one whose outbox is full or closed is gone.
    pub(super) fn tell(&mut self, node: NodeId, message: to_shard::Message, context: &mut Context<Self>) {
        let Some(attendant) = self.attendants.get(&node) else { return };
        if attendant.outbox.try_send(Ok(ToShard { message: Some(message) })).is_err() {
            let attendance = attendant.attendance;
            // Told as a message of its own: this may be in the middle of another event's actions.
            context.notify(Said { node, attendance, what: Err("it does not take messages any more".to_owned()) });
        }
    }

    /// Who joined with a token that was revoked meanwhile must leave.
    fn check_tokens(&mut self, context: &mut Context<Self>) {
        let live = self.settings.tokens.live();
        let revoked = |one: &Attendant| one.token.as_ref().is_some_and(|token| !live.contains(token));
        let out: Vec<NodeId> = self.attendants.iter().filter(|(_, one)| revoked(one)).map(|(node, _)| *node).collect();
        for node in out {
            let reason = "its token was revoked".to_owned();
            warn!(%node, reason, "a node must leave");
            self.tell(node, to_shard::Message::Leave(Leave { reason: reason.clone(), wanted: false }), context);
            self.attendants.remove(&node);
            self.on(Event::Left { node, reason }, context);
        }
    }

    fn heard(&mut self, node: NodeId, message: from_shard::Message, context: &mut Context<Self>) {
        let event = match message {
            from_shard::Message::Hello(_) => Event::Heard { node },
            from_shard::Message::Heartbeat(Heartbeat { epoch, steps, .. }) => {
                Event::Ran { node, epoch: Epoch(epoch), steps }
            }
            from_shard::Message::Leaving(_) => {
                info!(%node, "a node wants to leave");
                Event::Leaving { node }
            }
            from_shard::Message::Taken(Taken { epoch, fetched, copied, micros }) => {
                info!(%node, epoch, fetched, copied, micros, "a node has the memories of its stage");
                Event::Taken { node, epoch: Epoch(epoch), fetched, copied }
            }
            from_shard::Message::Progress(progress) => {
                let epoch = Epoch(progress.epoch);
                let making = self.makings.get_mut(&epoch);
                if let Some(told) = making.and_then(|making| making.progressed(node, &progress)) {
                    say(&told);
                }
                Event::Progressed { node, epoch }
            }
            from_shard::Message::Tier(Tier { epoch, message }) => {
                if let Some(making) = self.makings.get(&Epoch(epoch)) {
                    making.tier_answered(node, &message);
                }
                Event::Heard { node }
            }
            from_shard::Message::Released(released) => Event::Released { node, epoch: Epoch(released.epoch) },
            from_shard::Message::Failed(Failed { epoch, reason, neighbour: true }) => {
                let (epoch, reason) = (Epoch(epoch), clean(&reason));
                self.on(Event::Released { node, epoch }, context);
                Event::Broken { epoch, reason }
            }
            from_shard::Message::Failed(Failed { epoch, reason, .. }) => {
                Event::Failed { node, epoch: Epoch(epoch), reason: clean(&reason) }
            }
            from_shard::Message::Loaded(loaded) => {
                if let Some(making) = self.makings.get_mut(&Epoch(loaded.epoch)) {
                    making.loaded(node, &loaded);
                }
                Event::Loaded { node, epoch: Epoch(loaded.epoch) }
            }
            from_shard::Message::Linked(linked) => {
                if let Some(making) = self.makings.get_mut(&Epoch(linked.epoch)) {
                    making.linked(node, &linked, &self.settings.links);
                }
                Event::Linked { node, epoch: Epoch(linked.epoch) }
            }
        };
        self.on(event, context);
    }
}

impl Actor for ClusterActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(MAILBOX);
        context.run_interval(TICK, |actor, context| {
            actor.check_tokens(context);
            actor.on(Event::Tick, context);
        });
        context.add_stream(WatchStream::new(self.settings.control.health()));
    }
}

impl StreamHandler<Health> for ClusterActor {
    fn handle(&mut self, health: Health, context: &mut Self::Context) {
        if let Health::Broken { epoch, reason, hangs } = health {
            self.on(if hangs { Event::Hangs { epoch, reason } } else { Event::Broken { epoch, reason } }, context);
        }
    }

    fn finished(&mut self, _: &mut Self::Context) {}
}

impl Handler<Joined> for ClusterActor {
    type Result = Result<(), Status>;

    fn handle(&mut self, joined: Joined, context: &mut Self::Context) -> Self::Result {
        let Joined { node, token, attendance, hello, caller, outbox } = joined;
        if self.ending {
            return Err(Status::unavailable(ENDING));
        }
        if token.as_ref().is_some_and(|token| !self.settings.tokens.is_live(token)) {
            return Err(Status::failed_precondition("the token that this node joined with was revoked"));
        }
        let device = device(&hello).map_err(Status::failed_precondition)?;
        let (name, memory) = (device.name.clone(), text::bytes(device.memory_bytes));
        info!(%node, host = hello.host, device = name, memory, token = token_name(token.as_ref()), "a node joins");
        let standby = hello.standby;
        let attendant = Attendant { hello, outbox, reached_at: caller.local, attendance, token };
        if let Some(old) = self.attendants.insert(node, attendant) {
            let leave = Leave { reason: "the node joined again".to_owned(), wanted: false };
            // The old connection may be dead already.
            drop(old.outbox.try_send(Ok(ToShard { message: Some(to_shard::Message::Leave(leave)) })));
        }
        let (heartbeat_millis, lease_millis) = ((LEASE / 5).as_millis() as u32, LEASE.as_millis() as u32);
        self.tell(node, to_shard::Message::Welcome(Welcome { heartbeat_millis, lease_millis }), context);
        self.on(Event::Joined { node, device: Box::new(device), standby }, context);
        let view = self.settings.membership.view();
        if view.epoch.is_none() {
            say(&format!("{} of {} shards are here\n", view.nodes, view.wanted));
        }
        Ok(())
    }
}

impl Handler<Said> for ClusterActor {
    type Result = ();

    fn handle(&mut self, Said { node, attendance, what }: Said, context: &mut Self::Context) {
        let current = self.attendants.get(&node).is_some_and(|one| one.attendance == attendance);
        if !current {
            return;
        }
        match what {
            Ok(message) => self.heard(node, message, context),
            Err(reason) => {
                info!(%node, reason, "a node is gone");
                self.attendants.remove(&node);
                self.on(Event::Left { node, reason }, context);
            }
        }
    }
}

/// Asks for nothing but an answer.
#[derive(Message)]
#[rtype(result = "()")]
struct IsAlive;

impl Handler<IsAlive> for ClusterActor {
    type Result = ();

    fn handle(&mut self, IsAlive: IsAlive, _: &mut Context<Self>) {}
}

/// The coordinator ends.
#[derive(Message)]
#[rtype(result = "()")]
struct End;

impl Handler<End> for ClusterActor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, End: End, _: &mut Context<Self>) -> Self::Result {
        // The row is closed, not over: the coordinator that comes after this one takes it up again.
        self.ending = true;
        let control = self.settings.control.clone();
        let stopped = async move { control.stop().await }.into_actor(self);
        Box::pin(stopped.map(|(), actor, _| {
            for (_, attendant) in actor.attendants.drain() {
                // Ends its stream; one that takes no message sees the connection end.
                drop(attendant.outbox.try_send(Err(Status::unavailable(ENDING))));
            }
        }))
    }
}

/// What the planner is told of a node, or why it cannot take part.
fn device(hello: &Hello) -> Result<DeviceSpec, String> {
    let ours = (PROGRAM, u32::from(paceline_proto::frame::VERSION));
    let theirs = (hello.program.as_str(), hello.protocol);
    if theirs != ours {
        return Err(format!(
            "the shard has version {} (frames {}), the coordinator {} (frames {}): run the same release on every host",
            clean(theirs.0),
            theirs.1,
            ours.0,
            ours.1
        ));
    }
    let device = hello.device.as_ref().ok_or("the hello names no device")?;
    let texts = [&hello.host, &hello.boot, &hello.unix, &device.name, &device.detail].into_iter().chain(&hello.data);
    if hello.data.len() > ADDRESSES || texts.into_iter().any(|text| *text != clean(text)) {
        return Err("the hello has names that no host has: too long, too many, or not printable".to_owned());
    }
    offer::device_spec(hello, device)
}

/// A text of another process as people may see it.
pub(super) fn clean(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(TEXT).collect()
}

/// Says something to people.
pub(super) fn say(text: &str) {
    if std::io::stderr().write_all(text.as_bytes()).is_err() {
        info!("{text}");
    }
}
