//! Endpoints of one cluster, for tests.

use std::path::PathBuf;
use std::time::Duration;

use paceline_proto::{Activations, Chunk, ChunkInput, Epoch, Frame, NodeId, Payload, SessionId, Step, StepId, Wanted};
use paceline_transport::identity::{Authority, Identity, NodeKey, Role};
use paceline_transport::{
    Carrier, Endpoint, Expected, FrameReceiver, LinkKey, LinkReceiver, LinkSender, LinkSettings, Result, Route, Target,
};
use uuid::Uuid;

pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
pub(crate) const CARRIERS: [Carrier; 2] = [Carrier::Quic, Carrier::Unix];
pub(crate) const SETTINGS: LinkSettings =
    LinkSettings { frames: 64, frame_bytes: 64 << 20, activations: Activations::F32 };
pub(crate) const KEY: LinkKey = LinkKey { epoch: Epoch(7), link: 1, secret: [9; 16] };

/// An authority, and where its Unix sockets lie.
pub(crate) struct Cluster {
    pub(crate) authority: Authority,
    folder: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self { authority: Authority::create().expect("an authority"), folder: tempfile::tempdir().expect("a folder") }
    }

    pub(crate) fn identity(&self) -> Identity {
        let (node, key) = (NodeId(Uuid::new_v4()), NodeKey::generate().expect("a key"));
        let certificate = self.authority.issue(node, None, Role::Shard, &key.public_key_der());
        let authority = self.authority.certificate().clone();
        Identity::new(node, key, certificate.expect("a certificate"), authority).expect("an identity")
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join(Uuid::new_v4().to_string())
    }

    pub(crate) async fn node(&self) -> Node {
        let identity = self.identity();
        let node = identity.node();
        let any = "127.0.0.1:0".parse().expect("an address");
        let endpoint = Endpoint::bind(identity, any, Some(&self.path())).await.expect("an endpoint");
        Node { node, endpoint }
    }

    /// Two nodes and a link from the first to the second.
    pub(crate) async fn link(&self, carrier: Carrier, settings: LinkSettings) -> (LinkSender, LinkReceiver, [Node; 2]) {
        let (from, to) = (self.node().await, self.node().await);
        let (sender, receiver) = join(&from, &to, carrier, settings).await.expect("a link");
        (sender, receiver, [from, to])
    }
}

pub(crate) struct Node {
    pub(crate) node: NodeId,
    pub(crate) endpoint: Endpoint,
}

impl Node {
    pub(crate) fn target(&self, carrier: Carrier) -> Target {
        let route = match carrier {
            Carrier::Quic => Route::Quic(self.endpoint.udp_address()),
            Carrier::Unix => Route::Unix(self.endpoint.unix_path().expect("it has one").to_owned()),
        };
        Target { node: self.node, route }
    }
}

/// A link with the usual key.
pub(crate) async fn join(
    from: &Node,
    to: &Node,
    carrier: Carrier,
    settings: LinkSettings,
) -> Result<(LinkSender, LinkReceiver)> {
    let pending = to.endpoint.expect(Expected { key: KEY, from: from.node, settings });
    let (sender, report) = from.endpoint.connect(&to.target(carrier), KEY, settings).await?;
    assert_eq!(report.carrier, carrier);
    assert!(report.round_trip > Duration::ZERO && report.bytes_per_second > 0.0, "{report:?}");
    Ok((sender, pending.wait(DEADLINE).await?))
}

/// A frame with rows whose every bit depends on `id`.
pub(crate) fn frame(id: u64, values: usize) -> Frame {
    let width = if values == 0 { 1 } else { values.min(64) };
    let value = |at: usize| f32::from_bits((at as u32).wrapping_mul(2_654_435_761) ^ id as u32);
    let rows: Vec<f32> = (0..values / width * width).map(value).collect();
    let chunk = Chunk {
        session: SessionId(Uuid::from_u128(u128::from(id))),
        start: 0,
        input: ChunkInput::Tokens(vec![id as u32; 3]),
        wanted: Wanted::Sample,
        void: false,
    };
    let step = Step { epoch: KEY.epoch, id: StepId(id), operations: vec![], chunks: vec![chunk] };
    Frame { step, payload: Payload::from_rows(width, &rows), times: vec![] }
}

/// The next frame, taken as a stage thread takes it.
pub(crate) async fn receive(receiver: LinkReceiver) -> (Result<Frame>, LinkReceiver) {
    let (result, receiver) = within(tokio::task::spawn_blocking(move || {
        let mut receiver = receiver;
        (receiver.receive(), receiver)
    }))
    .await
    .expect("it does not panic");
    (result, receiver)
}

pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, work).await.expect("it takes no twenty seconds")
}
