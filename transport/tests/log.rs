//! Who is refused leaves one line in the log, and many leave few.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use paceline_proto::NodeId;
use paceline_transport::Endpoint;
use paceline_transport::hello::HELLO_BYTES;
use paceline_transport::identity::{Authority, Identity, NodeKey, Role};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use uuid::Uuid;

static WARNINGS: AtomicUsize = AtomicUsize::new(0);

/// Counts this crate's warnings.
struct Counter;

impl Subscriber for Counter {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("paceline_transport")
    }

    fn event(&self, _: &Event<'_>) {
        WARNINGS.fetch_add(1, Ordering::SeqCst);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

async fn be_refused(path: &std::path::Path) {
    let mut stream = UnixStream::connect(path).await.expect("it listens");
    stream.write_all(&[0xff; HELLO_BYTES]).await.expect("it is sent");
    let mut answer = Vec::new();
    let refused = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut answer));
    let _ = refused.await.expect("it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_cannot_fill_the_log() {
    tracing::subscriber::set_global_default(Counter).expect("the first one");
    let authority = Authority::create().expect("an authority");
    let (node, key) = (NodeId(Uuid::new_v4()), NodeKey::generate().expect("a key"));
    let certificate = authority.issue(node, None, Role::Shard, &key.public_key_der()).expect("a certificate");
    let identity = Identity::new(node, key, certificate, authority.certificate().clone()).expect("an identity");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("data");
    let any = "127.0.0.1:0".parse().expect("an address");
    let endpoint = Endpoint::bind(identity, any, Some(&path)).await.expect("an endpoint");
    be_refused(&path).await;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while WARNINGS.load(Ordering::SeqCst) == 0 {
        assert!(tokio::time::Instant::now() < deadline, "nothing was said about it");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(WARNINGS.load(Ordering::SeqCst), 1);
    for _ in 0..300 {
        be_refused(&path).await;
    }
    // Twenty lines in ten seconds; a slow machine may begin a second period.
    let lines = WARNINGS.load(Ordering::SeqCst);
    assert!((20..100).contains(&lines), "{lines} lines about 301 strangers");
    endpoint.close().await;
}
