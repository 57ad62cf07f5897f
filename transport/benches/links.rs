//! How long a frame takes over each kind of link, and how many bytes go over it: medians of many, on this machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use paceline_proto::{Activations, Epoch, Frame, NodeId, Payload, Step, StepId};
use paceline_transport::identity::{Authority, Identity, NodeKey, Role};
use paceline_transport::{Endpoint, Expected, FrameReceiver, FrameSender, LinkKey, LinkSettings, Route, Target, local};
use uuid::Uuid;

const SIZES: [(&str, usize); 3] = [("4 KiB", 4 << 10), ("16 KiB", 16 << 10), ("2 MiB", 2 << 20)];
const SETTINGS: LinkSettings = LinkSettings { frames: 32, frame_bytes: 64 << 20, activations: Activations::F32 };
const DEADLINE: Duration = Duration::from_secs(10);
/// Frames under way while throughput is measured.
const CREDITS: u64 = 8;

type Link = (Box<dyn FrameSender>, Box<dyn FrameReceiver>);

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let cluster = runtime.block_on(Cluster::new());
    println!("{:<8} {:<8} {:>12} {:>12} {:>14}", "link", "frame", "one way us", "p99 us", "MiB/s");
    for (name, size) in SIZES {
        for carrier in ["local", "unix", "quic"] {
            let link = || -> Link {
                if carrier == "local" {
                    let (sender, receiver) = local::link(SETTINGS.frames);
                    return (Box::new(sender), Box::new(receiver));
                }
                runtime.block_on(cluster.link(carrier))
            };
            let (median, slow) = one_way(link(), link(), size);
            let mut rates: Vec<f64> = (0..5).map(|_| throughput(link(), size)).collect();
            rates.sort_by(f64::total_cmp);
            println!("{carrier:<8} {name:<8} {median:>12.1} {slow:>12.1} {:>14.0}", rates[2]);
        }
    }
}

/// Two endpoints of one authority.
struct Cluster {
    nodes: [(NodeId, Endpoint); 2],
    _folder: tempfile::TempDir,
}

impl Cluster {
    async fn new() -> Self {
        let (authority, folder) = (Authority::create().expect("an authority"), tempfile::tempdir().expect("a folder"));
        let node = async |name: &str| {
            let (node, key) = (NodeId(Uuid::new_v4()), NodeKey::generate().expect("a key"));
            let certificate = authority.issue(node, None, Role::Shard, &key.public_key_der()).expect("a certificate");
            let identity = Identity::new(node, key, certificate, authority.certificate().clone());
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            let path = folder.path().join(name);
            let endpoint = Endpoint::bind(identity.expect("an identity"), any, Some(&path)).await;
            (node, endpoint.expect("an endpoint"))
        };
        let nodes = [node("a").await, node("b").await];
        Self { nodes, _folder: folder }
    }

    async fn link(&self, carrier: &str) -> Link {
        let [(from, sends), (to, receives)] = &self.nodes;
        let route = match carrier {
            "unix" => Route::Unix(receives.unix_path().expect("it has one").to_owned()),
            _ => Route::Quic(receives.udp_address()),
        };
        let key = LinkKey { epoch: Epoch(1), link: 1, secret: [1; 16] };
        let pending = receives.expect(Expected { key, from: *from, settings: SETTINGS });
        let target = Target { node: *to, route };
        let (sender, _) = sends.connect(&target, key, SETTINGS).await.expect("a link");
        (Box::new(sender), Box::new(pending.wait(DEADLINE).await.expect("the link")))
    }
}

fn frame(size: usize) -> Frame {
    let step = Step { epoch: Epoch(1), id: StepId(0), operations: vec![], chunks: vec![] };
    Frame { step, payload: Payload::from_rows(1024, &vec![1.5; size / 4]), times: vec![] }
}

/// Microseconds from a stage thread to the next: median and 99th percentile of half a round trip.
fn one_way((mut there, mut at_other): Link, (mut back, mut at_home): Link, size: usize) -> (f64, f64) {
    let echo = thread::spawn(move || {
        while let Ok(frame) = at_other.receive() {
            back.send(frame).expect("there is room");
        }
    });
    let (frame, rounds) = (frame(size), if size > 1 << 20 { 300 } else { 5000 });
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let began = Instant::now();
            there.send(frame.clone()).expect("there is room");
            at_home.receive().expect("it comes back");
            began.elapsed().as_secs_f64() * 1e6 / 2.0
        })
        .skip(rounds / 10)
        .collect();
    drop(there);
    echo.join().expect("no panic");
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

/// MiB per second with several frames under way.
fn throughput((mut sender, mut receiver): Link, size: usize) -> f64 {
    let received = Arc::new(AtomicU64::new(0));
    let (frame, count) = (frame(size), (256 << 20) / size.max(64 << 10) as u64);
    let counter = received.clone();
    let counting = thread::spawn(move || {
        while receiver.receive().is_ok() {
            counter.fetch_add(1, Ordering::Release);
        }
    });
    let began = Instant::now();
    for sent in 0..count {
        while sent - received.load(Ordering::Acquire) >= CREDITS {
            thread::yield_now();
        }
        sender.send(frame.clone()).expect("there is room");
    }
    drop(sender);
    counting.join().expect("no panic");
    assert_eq!(received.load(Ordering::Acquire), count, "every frame arrives");
    (count as usize * size) as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20)
}
