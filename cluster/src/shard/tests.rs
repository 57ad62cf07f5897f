//! Two nodes that obey a coordinator by hand: rows that are made, moved, given up and made again.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_compute::cpu::CpuDevice;
use paceline_control::{
    Connect, Failed, FromShard, Give, Link, Load, Loaded, Memory, Model, Peer, Source, Take, Taken, from_shard,
};
use paceline_gguf::{Gguf, ModelShape};
use paceline_proto::{
    Activations, Chunk, ChunkInput, Epoch, Frame, NodeId, Operation, Outcome, PageId, Payload, Reply, Reused,
    SamplingSettings, SessionId, Slot, Step, StepId, Wanted,
};
use paceline_transport::identity::{Authority, Identity, NodeKey, Role};
use paceline_transport::{Endpoint, Expected, FrameSender, LinkKey, LinkSender, LinkSettings, Route, Target};
use paceline_weights::{Cache, HashCache, Manifest, PieceReader};
use tempfile::TempDir;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::fetch::Weights;
use super::workshop::{Outbox, Workshop};
use crate::pieces::Pieces;
use crate::{model, row};

const DEADLINE: Duration = Duration::from_secs(60);
const PAGES: u32 = 12;
const SECRET: [u8; 16] = [42; 16];
const SETTINGS: LinkSettings = LinkSettings { frames: 4, frame_bytes: 64 << 20, activations: Activations::F32 };

async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.unwrap_or_else(|_| panic!("{what} does not come"))
}

/// Runs a test where actors can live.
fn on_system(test: impl Future<Output = ()>) {
    row::system().expect("a system").block_on(test);
}

/// A node as its coordinator sees it.
struct Node {
    workshop: Workshop,
    endpoint: Endpoint,
    outbox: Outbox,
    told: mpsc::Receiver<FromShard>,
}

/// A coordinator and its nodes.
struct Cluster {
    endpoint: Endpoint,
    nodes: Vec<Node>,
    manifest: Vec<u8>,
    layers: usize,
    /// Where layers may be cut.
    middle: usize,
    /// Who gives layers.
    sources: Vec<Peer>,
    _folder: TempDir,
}

/// The coordinator's ends of a row.
struct Row {
    epoch: Epoch,
    head: LinkSender,
    replies: mpsc::Receiver<Reply>,
    loaded: Vec<Loaded>,
}

async fn endpoint(authority: &Authority, folder: &TempDir) -> Endpoint {
    let (node, key) = (NodeId(Uuid::new_v4()), NodeKey::generate().expect("a key"));
    let certificate = authority.issue(node, None, Role::Shard, &key.public_key_der()).expect("a certificate");
    let identity = Identity::new(node, key, certificate, authority.certificate().clone()).expect("an identity");
    let path = folder.path().join(node.0.simple().to_string());
    Endpoint::bind(identity, SocketAddr::from(([127, 0, 0, 1], 0)), Some(&path)).await.expect("an endpoint")
}

fn peer(endpoint: &Endpoint) -> Peer {
    Peer {
        node: endpoint.node().0.as_bytes().to_vec(),
        data: vec![endpoint.udp_address().to_string()],
        unix: String::new(),
    }
}

/// Every link of every epoch has a secret of its own.
fn key(epoch: Epoch, link: u32) -> LinkKey {
    LinkKey { epoch, link, secret: std::array::from_fn(|at| if at == 0 { link as u8 } else { epoch.0 as u8 }) }
}

fn link(epoch: Epoch, number: u32, other: &Endpoint) -> Link {
    Link {
        peer: Some(peer(other)),
        number,
        secret: key(epoch, number).secret.to_vec(),
        frames: SETTINGS.frames as u32,
        frame_bytes: SETTINGS.frame_bytes,
        activations: "f32".to_owned(),
        carrier: "auto".to_owned(),
    }
}

impl Cluster {
    /// Nodes that have the model.
    async fn new() -> Self {
        Self::with(false).await
    }

    /// Nodes that have the model, or fetch layers of it from the coordinator.
    async fn with(always_fetch: bool) -> Self {
        let (authority, folder) = (Authority::create().expect("an authority"), tempfile::tempdir().expect("a folder"));
        let (bytes, name) = model::embedded();
        let shape = ModelShape::read(&Gguf::from_static(bytes, name).expect("a model")).expect("its shape");
        let mut nodes = Vec::new();
        for index in 0..2 {
            let endpoint = endpoint(&authority, &folder).await;
            let own = folder.path().join(format!("cache{index}"));
            let weights = Weights {
                own: None,
                always_fetch,
                hashes: HashCache::open(&own.join("hashes")).expect("a folder"),
                cache: Cache::open(&own.join("models"), None).expect("a folder"),
                pieces: Arc::new(Pieces::of_models(PieceReader::new())),
                endpoint: endpoint.clone(),
                opened: Mutex::default(),
            };
            let device = CpuDevice::new(1, None).expect("a thread");
            let (outbox, told) = mpsc::channel(64);
            nodes.push(Node {
                workshop: Workshop::new(Arc::new(device), weights, endpoint.clone(), None),
                endpoint,
                outbox,
                told,
            });
        }
        let blocks = shape.blocks();
        let manifest = Manifest::of_bytes(name, bytes).expect("a manifest");
        let (endpoint, pieces) = (endpoint(&authority, &folder).await, PieceReader::new());
        pieces.add_bytes(&manifest, bytes);
        endpoint.serve_pieces(Arc::new(Pieces::of_models(pieces)));
        Self {
            sources: vec![peer(&endpoint)],
            endpoint,
            nodes,
            manifest: manifest.encode(),
            layers: shape.layers.len(),
            middle: blocks[blocks.len() / 2].start,
            _folder: folder,
        }
    }

    fn load(&self, epoch: u32, stage: usize, row: &[(usize, Range<usize>)], beside: Option<u32>) -> Load {
        let before = stage.checked_sub(1).map_or(&self.endpoint, |before| &self.nodes[row[before].0].endpoint);
        let layers = &row[stage].1;
        Load {
            epoch,
            stage: stage as u32,
            stages: row.len() as u32,
            first_layer: layers.start as u32,
            end_layer: layers.end as u32,
            memory: Some(Memory {
                page_tokens: 16,
                pages: PAGES.into(),
                slots: 2,
                key_type: "f16".to_owned(),
                value_type: "q8_0".to_owned(),
                rows: 32,
                wanted: 2,
                ..Memory::default()
            }),
            model: Some(Model { manifest: self.manifest.clone(), path: String::new(), sources: self.sources.clone() }),
            from: Some(link(Epoch(epoch), stage as u32, before)),
            beside,
            ..Load::default()
        }
    }

    /// Makes a row of nodes and their layers.
    async fn row(&mut self, epoch: u32, row: &[(usize, Range<usize>)], beside: Option<u32>) -> Row {
        let (last, tail) = (row.len() as u32, row[row.len() - 1].0);
        let epoch_id = Epoch(epoch);
        let from = self.nodes[tail].endpoint.node();
        let pending = self.endpoint.expect(Expected { key: key(epoch_id, last), from, settings: SETTINGS });
        let mut loaded = Vec::new();
        for (stage, (node, _)) in row.iter().enumerate() {
            let load = self.load(epoch, stage, row, beside);
            let Node { workshop, outbox, .. } = &self.nodes[*node];
            workshop.load(load, outbox.clone()).await;
        }
        for (node, _) in row {
            loaded.push(self.nodes[*node].loaded().await);
        }
        for (stage, (node, _)) in row.iter().enumerate() {
            let next = row.get(stage + 1).map_or(&self.endpoint, |(next, _)| &self.nodes[*next].endpoint);
            let to = Some(link(epoch_id, stage as u32 + 1, next));
            self.nodes[*node].workshop.connect(Connect { epoch, to });
        }
        let first = &self.nodes[row[0].0].endpoint;
        let target = Target { node: first.node(), route: Route::Quic(first.udp_address()) };
        let (head, _) = self.endpoint.connect(&target, key(epoch_id, 0), SETTINGS).await.expect("the head expects it");
        let replies = pending.wait(DEADLINE).await.expect("the tail connects").into_replies(4);
        for (node, _) in row {
            let linked = |message| matches!(message, from_shard::Message::Linked(_)).then_some(());
            self.nodes[*node].hears("linked", linked).await;
        }
        Row { epoch: epoch_id, head, replies, loaded }
    }

    /// What a node is told to take; it has all pages and slots of `layers`.
    fn take(&self, epoch: u32, from_epoch: u32, sources: &[(usize, Range<usize>, bool)]) -> Take {
        let source = |(node, layers, samplers): &(usize, Range<usize>, bool)| Source {
            peer: Some(peer(&self.nodes[*node].endpoint)),
            first_layer: layers.start as u32,
            end_layer: layers.end as u32,
            samplers: *samplers,
        };
        Take {
            epoch,
            from_epoch,
            secret: SECRET.to_vec(),
            sources: sources.iter().map(source).collect(),
            pages: (0..PAGES).collect(),
            slots: vec![0, 1],
        }
    }

    fn order(&self, node: usize, take: Take) {
        let Node { workshop, outbox, .. } = &self.nodes[node];
        workshop.take(take, outbox);
    }

    fn give(&self, node: usize, epoch: u32) {
        let Node { workshop, outbox, .. } = &self.nodes[node];
        workshop.give(&Give { epoch, secret: SECRET.to_vec() }, outbox);
    }

    async fn release(&mut self, node: usize, epoch: u32) {
        let Node { workshop, outbox, .. } = &self.nodes[node];
        within("the end of a stage", workshop.release(Epoch(epoch), outbox)).await;
        // Its neighbours may have been gone before.
        let told = &mut self.nodes[node].told;
        while !matches!(
            within("the release", told.recv()).await.expect("the workshop lives").message,
            Some(from_shard::Message::Released(released)) if released.epoch == epoch
        ) {}
    }
}

impl Node {
    /// Waits for a message and passes over others, but no failure.
    async fn hears<T>(&mut self, what: &str, wanted: impl Fn(from_shard::Message) -> Option<T>) -> T {
        loop {
            let message = within(what, self.told.recv()).await.expect("the workshop lives").message.expect("a message");
            if let from_shard::Message::Failed(failed) = &message {
                panic!("{what} does not come: {failed:?}");
            }
            if let Some(found) = wanted(message) {
                return found;
            }
        }
    }

    async fn loaded(&mut self) -> Loaded {
        let loaded = |message| if let from_shard::Message::Loaded(loaded) = message { Some(loaded) } else { None };
        self.hears("a loaded stage", loaded).await
    }

    async fn taken(&mut self) -> Taken {
        let taken = |message| if let from_shard::Message::Taken(taken) = message { Some(taken) } else { None };
        self.hears("the end of a move", taken).await
    }

    async fn failed(&mut self) -> Failed {
        loop {
            let message = within("a failure", self.told.recv()).await.expect("the workshop lives").message;
            if let Some(from_shard::Message::Failed(failed)) = message {
                return failed;
            }
        }
    }
}

/// Two sessions: greedy, and by chance with penalties.
struct Talks {
    step: u64,
    tokens: [Vec<u32>; 2],
    read: [usize; 2],
}

fn session(index: usize) -> SessionId {
    SessionId(Uuid::from_u128(index as u128 + 1))
}

impl Talks {
    fn new() -> Self {
        let tokens = [(1..20).collect(), (30..37).collect()];
        Self { step: 0, tokens, read: [0; 2] }
    }

    fn opening(&self, index: usize) -> [Operation; 2] {
        let chance = SamplingSettings {
            temperature: 1.0,
            seed: 3,
            repetition_penalty: 1.2,
            presence_penalty: 0.5,
            ..SamplingSettings::default()
        };
        let sampling = Box::new(if index == 0 { SamplingSettings::default() } else { chance });
        let (session, slot) = (session(index), Slot(1 - index as u32));
        let generated_from = self.tokens[index].len() as u32;
        let pages = (0..PAGES / 2).map(|page| PageId(page * 2 + index as u32)).collect();
        [
            Operation::Open { session, slot, sampling, generated_from, reused: Reused::default() },
            Operation::Grant { session, pages },
        ]
    }

    /// Runs a step of both sessions through a row.
    async fn step(&mut self, row: &mut Row) {
        let operations =
            if self.step == 0 { (0..2).flat_map(|index| self.opening(index)).collect() } else { Vec::new() };
        let chunk = |index: usize| Chunk {
            session: session(index),
            start: self.read[index] as u32,
            input: ChunkInput::Tokens(self.tokens[index][self.read[index]..].to_vec()),
            wanted: Wanted::Sample,
            void: false,
        };
        let step = Step { epoch: row.epoch, id: StepId(self.step), operations, chunks: [0, 1].map(chunk).to_vec() };
        row.head.send(Frame { step, payload: Payload::empty(), times: Vec::new() }).expect("the head is there");
        let reply = within("the result of a step", row.replies.recv()).await.expect("the row lives");
        let Reply::Done(done) = reply else { panic!("step {}: {reply:?}", self.step) };
        for (index, result) in done.results.into_iter().enumerate() {
            let Outcome::Sampled(sampled) = result.outcome else { panic!("nothing sampled: {result:?}") };
            self.read[index] = self.tokens[index].len();
            self.tokens[index].push(sampled.token);
        }
        self.step += 1;
    }

    async fn steps(&mut self, row: &mut Row, count: usize) {
        for _ in 0..count {
            self.step(row).await;
        }
    }
}

/// What comes of so many steps if nothing ever moves.
async fn unmoved(steps: usize) -> [Vec<u32>; 2] {
    let mut cluster = Cluster::new().await;
    let layers = cluster.layers;
    let mut row = cluster.row(1, &[(0, 0..layers)], None).await;
    let mut talks = Talks::new();
    talks.steps(&mut row, steps).await;
    talks.tokens
}

#[test]
fn a_row_moves_to_other_nodes_and_goes_on() {
    on_system(async {
        let expected = unmoved(12).await;
        let mut cluster = Cluster::new().await;
        let (layers, middle) = (cluster.layers, cluster.middle);
        let mut talks = Talks::new();
        let mut one = cluster.row(1, &[(0, 0..layers)], None).await;
        talks.steps(&mut one, 4).await;

        // From one node to both: what stays is copied, and its weights are not loaded again.
        let mut both = cluster.row(2, &[(0, 0..middle), (1, middle..layers)], Some(1)).await;
        assert_eq!((both.loaded[0].reused, both.loaded[1].reused), (both.loaded[0].weights, 0));
        assert_eq!(cluster.nodes[0].workshop.progress(), (Epoch(2), 0));
        // Whoever takes may be told before the one who gives.
        cluster.order(1, cluster.take(2, 1, &[(0, middle..layers, true)]));
        cluster.give(0, 1);
        cluster.order(0, cluster.take(2, 1, &[(0, 0..middle, false)]));
        let [first, second] = [cluster.nodes[0].taken().await, cluster.nodes[1].taken().await];
        assert!(first.copied > 0 && first.fetched == 0, "{first:?}");
        assert!(second.fetched > 0 && second.copied == 0, "{second:?}");
        talks.steps(&mut both, 2).await;
        cluster.release(0, 1).await;
        talks.steps(&mut both, 2).await;

        // And all of it to the other one.
        let mut other = cluster.row(3, &[(1, 0..layers)], Some(2)).await;
        let (known, all) = (both.loaded[1].weights, other.loaded[0].weights);
        assert!(other.loaded[0].reused == known && known < all, "{:?}", other.loaded);
        for node in 0..2 {
            cluster.give(node, 2);
        }
        cluster.order(1, cluster.take(3, 2, &[(0, 0..middle, false), (1, middle..layers, true)]));
        let taken = cluster.nodes[1].taken().await;
        assert!(taken.fetched > 0 && taken.copied > 0, "{taken:?}");
        for node in 0..2 {
            cluster.release(node, 2).await;
        }
        talks.steps(&mut other, 4).await;
        assert_eq!(talks.tokens, expected);

        // What the first node no longer uses has left its memory, but the last stage's weights are kept.
        let whole = cluster.row(4, &[(0, 0..layers)], None).await;
        assert!(whole.loaded[0].reused == both.loaded[0].weights, "{:?}", whole.loaded);
    });
}

#[test]
fn a_move_that_is_given_up_changes_nothing() {
    on_system(async {
        let expected = unmoved(8).await;
        let mut cluster = Cluster::new().await;
        let (layers, middle) = (cluster.layers, cluster.middle);
        let mut talks = Talks::new();
        let mut one = cluster.row(1, &[(0, 0..layers)], None).await;
        talks.steps(&mut one, 3).await;
        for (epoch, takes) in [(2, false), (3, true)] {
            let row = cluster.row(epoch, &[(0, 0..middle), (1, middle..layers)], Some(1)).await;
            if takes {
                cluster.give(0, 1);
                cluster.order(0, cluster.take(epoch, 1, &[(0, 0..middle, false)]));
                cluster.nodes[0].taken().await;
            }
            drop(row);
            for node in 0..2 {
                cluster.release(node, epoch).await;
            }
            assert_eq!(cluster.nodes[0].workshop.progress(), (Epoch(1), talks.step));
            talks.steps(&mut one, 2).await;
        }
        talks.steps(&mut one, 1).await;
        assert_eq!(talks.tokens, expected);
    });
}

#[test]
fn a_row_that_is_made_again_loads_nothing() {
    on_system(made_again(false));
}

#[test]
fn a_row_that_is_made_again_fetches_nothing() {
    on_system(made_again(true));
}

async fn made_again(fetched: bool) {
    let mut cluster = Cluster::with(fetched).await;
    let (layers, middle) = (cluster.layers, cluster.middle);
    let cut = [(0, 0..middle), (1, middle..layers)];
    let first = cluster.row(1, &cut, None).await;
    assert!(first.loaded.iter().all(|loaded| loaded.reused == 0 && loaded.weights > 0), "{:?}", first.loaded);
    drop(first);
    cluster.release(0, 1).await;
    // The second ends because the first did, and is held on to: a coordinator that is gone, or forgot, releases nothing.
    let lost = cluster.nodes[1].failed().await;
    assert!(lost.epoch == 1 && lost.neighbour, "{lost:?}");
    cluster.sources.clear();
    let again = cluster.row(2, &cut, None).await;
    assert!(again.loaded.iter().all(|loaded| loaded.reused == loaded.weights), "{:?}", again.loaded);
    let tokens = |mut row: Row| async move {
        let mut talks = Talks::new();
        talks.steps(&mut row, 5).await;
        talks.tokens
    };
    assert_eq!(tokens(again).await, unmoved(5).await);
}

#[test]
fn orders_that_cannot_be_carried_out_are_told() {
    on_system(async {
        let mut cluster = Cluster::new().await;
        let (layers, middle) = (cluster.layers, cluster.middle);
        let mut one = cluster.row(1, &[(0, 0..layers)], None).await;
        let mut talks = Talks::new();
        talks.steps(&mut one, 2).await;
        cluster.give(0, 9);
        let unknown = cluster.nodes[0].failed().await;
        assert!(unknown.epoch == 9 && unknown.reason.contains("no stage of epoch 9"), "{unknown:?}");
        cluster.order(0, cluster.take(9, 1, &[]));
        let unknown = cluster.nodes[0].failed().await;
        assert!(unknown.epoch == 9 && unknown.reason.contains("no such stage"), "{unknown:?}");
        let load = Load { beside: Some(1), ..cluster.load(1, 0, &[(0, 0..layers)], None) };
        let Node { workshop, outbox, .. } = &cluster.nodes[0];
        workshop.load(load, outbox.clone()).await;
        let itself = cluster.nodes[0].failed().await;
        assert!(itself.reason.contains("beside itself"), "{itself:?}");
        cluster.give(0, 1);

        let sound = [(0, 0..middle, false)];
        let with = |change: &dyn Fn(&mut Take), sources: &[_]| {
            let mut take = cluster.take(0, 1, sources);
            change(&mut take);
            take
        };
        let cases = [
            (with(&|take| take.pages.push(PAGES), &sound), "13 pages"),
            (with(&|take| take.slots = vec![u32::MAX], &sound), "state slots"),
            (with(&|take| take.from_epoch = 7, &sound), "no stage of epoch 7"),
            (with(&|take| take.secret.truncate(3), &sound), "3 bytes"),
            (with(&|take| take.sources[0].peer = None, &sound), "has no name"),
            (with(&|take| take.sources[0].first_layer = u32::MAX, &sound), "layers 4294967295"),
            (with(&|_| (), &[(0, 0..layers, false)]), "is none of this stage's"),
            (with(&|_| (), &[(0, 0..middle - 1, false)]), "nothing for layer"),
            (with(&|_| (), &[]), "nothing for layer 0"),
            (with(&|take| take.pages.clear(), &sound), "not all of its pages"),
        ];
        for (epoch, (take, expected)) in (2..).zip(cases) {
            let row = cluster.row(epoch, &[(0, 0..middle), (1, middle..layers)], Some(1)).await;
            cluster.order(0, Take { epoch, ..take });
            let failed = cluster.nodes[0].failed().await;
            assert!(failed.epoch == epoch && failed.reason.contains(expected), "{expected}: {failed:?}");
            drop(row);
            for node in 0..2 {
                cluster.release(node, epoch).await;
            }
        }
        // Whoever does not know the secret gets nothing from another node either.
        let row = cluster.row(20, &[(1, 0..layers)], Some(1)).await;
        let take = Take { secret: vec![1; 16], ..cluster.take(20, 1, &[(0, 0..layers, true)]) };
        cluster.order(1, take);
        let stranger = cluster.nodes[1].failed().await;
        assert!(stranger.reason.contains("no memories are given"), "{stranger:?}");
        drop(row);
        talks.steps(&mut one, 2).await;
        assert_eq!(talks.tokens, unmoved(4).await);
    });
}
