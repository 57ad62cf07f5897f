//! Memories come over both carriers, whole or not at all, and only to those who know the secret.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use paceline_proto::{Epoch, NodeId};
use paceline_transport::hello::{ANSWER_BYTES, Answer, HELLO_BYTES, Hello, Purpose};
use paceline_transport::{Endpoint, Error, MemorySource, MoveKey, Result, Route, Target, pipe};
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use uuid::Uuid;

use crate::cluster::{CARRIERS, Cluster, Node, within};

const MOVE: MoveKey = MoveKey { epoch: Epoch(3), secret: [7; 16] };

/// Gives as many bytes as the request says, in pieces of odd sizes; errs behind 100,000, and panics on an empty request.
#[derive(Default)]
struct Source {
    /// Nobody took any more.
    left: AtomicBool,
}

fn byte(at: u64) -> u8 {
    (at ^ (at >> 8)) as u8
}

impl MemorySource for Source {
    fn give(&self, request: &[u8], to: &mut dyn Write) -> std::result::Result<(), String> {
        let wanted: [u8; 8] = request.try_into().expect("a source with a fault");
        let (wanted, fails) = (u64::from_le_bytes(wanted) >> 1, wanted[0] & 1 == 1);
        let mut at = 0;
        while at < wanted {
            if fails && at > 100_000 {
                return Err("the stage has run on".to_owned() + &"!".repeat(10_000));
            }
            let end = wanted.min(at + 1 + at % 40_007);
            let piece: Vec<u8> = (at..end).map(byte).collect();
            if let Err(error) = to.write_all(&piece) {
                self.left.store(true, Ordering::SeqCst);
                return Err(error.to_string());
            }
            at = end;
        }
        Ok(())
    }
}

fn request(bytes: u64, fails: bool) -> [u8; 8] {
    (bytes << 1 | u64::from(fails)).to_le_bytes()
}

/// Takes everything, as a thread that may block.
async fn take(from: &Endpoint, to: &Target, key: MoveKey, request: &[u8]) -> Result<std::io::Result<Vec<u8>>> {
    let (mut reader, _transfer) = within(from.take(to, key, request)).await?;
    let read = move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| bytes)
    };
    Ok(within(tokio::task::spawn_blocking(read)).await.expect("no panic"))
}

#[tokio::test(flavor = "multi_thread")]
async fn memories_arrive_whole() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (has, wants) = (cluster.node().await, cluster.node().await);
        let giving = has.endpoint.give(MOVE, Arc::new(Source::default()));
        for bytes in [0, 1, 262_143, 262_144, 262_145, 20_000_000] {
            let taken = take(&wants.endpoint, &has.target(carrier), MOVE, &request(bytes, false)).await;
            let taken = taken.expect("a connection").expect("they are given");
            assert!(taken.into_iter().eq((0..bytes).map(byte)), "{carrier}: {bytes} bytes");
        }
        drop(giving);
        let refused = take(&wants.endpoint, &has.target(carrier), MOVE, &request(1, false)).await;
        assert!(matches!(refused, Err(Error::Refused { .. })), "{carrier}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_any_without_the_secret() {
    let cluster = Cluster::new();
    let (has, wants) = (cluster.node().await, cluster.node().await);
    let _giving = has.endpoint.give(MOVE, Arc::new(Source::default()));
    let others = [MoveKey { secret: [8; 16], ..MOVE }, MoveKey { epoch: Epoch(4), ..MOVE }];
    let (endpoint, request) = (&wants.endpoint, request(1, false));
    let targets = CARRIERS.map(|carrier| has.target(carrier));
    let tries = others.iter().flat_map(|key| targets.iter().map(move |target| (target, *key)));
    for (target, key) in tries {
        let refused = take(endpoint, target, key, &request).await;
        assert!(matches!(refused, Err(Error::Refused { .. })), "{key:?}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taker_may_be_earlier_than_the_giver_is_told() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (has, wants) = (cluster.node().await, cluster.node().await);
        let (target, request) = (has.target(carrier), request(1000, false));
        let later = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            has.endpoint.give(MOVE, Arc::new(Source::default()))
        };
        let (taken, _giving) = tokio::join!(take(&wants.endpoint, &target, MOVE, &request), later);
        assert_eq!(taken.expect("a connection").expect("they are given").len(), 1000, "{carrier}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_in_the_middle_says_why() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (has, wants) = (cluster.node().await, cluster.node().await);
        let _giving = has.endpoint.give(MOVE, Arc::new(Source::default()));
        let failed = take(&wants.endpoint, &has.target(carrier), MOVE, &request(10_000_000, true)).await;
        let error = failed.expect("a connection").expect_err("it fails").to_string();
        assert!(error.starts_with("the stage has run on!!!") && error.len() <= 4096, "{error}");
        let failed = take(&wants.endpoint, &has.target(carrier), MOVE, &[]).await;
        let error = failed.expect("a connection").expect_err("it panics").to_string();
        assert_eq!(error, "the stage's memories could not be read");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taker_that_leaves_ends_the_giving() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (has, wants) = (cluster.node().await, cluster.node().await);
        let source = Arc::new(Source::default());
        let _giving = has.endpoint.give(MOVE, source.clone());
        let (target, request) = (has.target(carrier), request(1 << 40, false));
        let (mut reader, transfer) = within(wants.endpoint.take(&target, MOVE, &request)).await.expect("a connection");
        let first = tokio::task::spawn_blocking(move || reader.read_exact(&mut [0; 1000]).map(|()| reader));
        let mut reader = within(first).await.expect("no panic").expect("some come");
        drop(transfer);
        let rest = tokio::task::spawn_blocking(move || std::io::copy(&mut reader, &mut std::io::sink()));
        assert!(within(rest).await.expect("no panic").is_err(), "what is left is not all");
        within(async {
            while !source.left.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }
}

/// A connection of the same user to a node's socket that has said what it wants and has been let in.
async fn greeted(node: &Node) -> UnixStream {
    let mut stream = UnixStream::connect(node.endpoint.unix_path().expect("it has one")).await.expect("it listens");
    let hello = Hello { from: NodeId(Uuid::new_v4()), to: node.node, purpose: Purpose::Memories(MOVE) };
    stream.write_all(&hello.encode()).await.expect("it hears");
    let mut answer = [0; ANSWER_BYTES];
    within(stream.read_exact(&mut answer)).await.expect("it answers");
    assert_eq!(Answer::decode(&answer).expect("an answer").refusal, None);
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_none_get_no_answer_and_harm_nobody() {
    let cluster = Cluster::new();
    let (has, wants) = (cluster.node().await, cluster.node().await);
    let _giving = has.endpoint.give(MOVE, Arc::new(Source::default()));
    for (length, sent) in [(u32::MAX, 0), ((16 << 20) + 1, 0), (8, 3), (100_000, 99_999)] {
        let mut stream = greeted(&has).await;
        stream.write_all(&length.to_le_bytes()).await.expect("it hears");
        stream.write_all(&vec![1; sent]).await.expect("it hears");
        stream.shutdown().await.expect("it hears");
        let mut answer = Vec::new();
        // It may close before everything has been heard.
        let _ = within(stream.read_to_end(&mut answer)).await;
        assert!(answer.is_empty(), "a request of {length} bytes of which {sent} come");
    }
    let target = has.target(CARRIERS[1]);
    let taken = take(&wants.endpoint, &target, MOVE, &request(10, false)).await.expect("a connection");
    assert_eq!(taken.expect("they are given").len(), 10);
}

/// What a taker makes of the bytes that a giver answers with.
async fn answered_with(bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
    let cluster = Cluster::new();
    let wants = cluster.node().await;
    let (path, node) = (cluster.path(), NodeId(Uuid::new_v4()));
    let listener = UnixListener::bind(&path).expect("a socket");
    let giver = async {
        let (mut stream, _) = listener.accept().await.expect("the taker");
        stream.read_exact(&mut [0; HELLO_BYTES]).await.expect("a hello");
        stream.write_all(&Answer { node, refusal: None }.encode()).await.expect("it hears");
        stream.read_exact(&mut [0; 12]).await.expect("a request");
        // The taker may have heard enough.
        let _ = stream.write_all(&bytes).await;
    };
    let target = Target { node, route: Route::Unix(path) };
    let request = request(1, false);
    let (taken, ()) = tokio::join!(take(&wants.endpoint, &target, MOVE, &request), giver);
    taken.expect("a connection")
}

fn parts(parts: &[&[u8]], end: bool) -> Vec<u8> {
    let part = |part: &&[u8]| [&(part.len() as u32).to_le_bytes()[..], part].concat();
    let mut bytes: Vec<u8> = parts.iter().flat_map(part).collect();
    bytes.extend(end.then_some([0; 4]).into_iter().flatten());
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_none_are_errors() {
    let whole = answered_with(parts(&[b"abc", b"de"], true)).await;
    assert_eq!(whole.expect("an answer"), b"abcde");
    let endless = [&u32::MAX.to_le_bytes()[..], &u32::MAX.to_le_bytes(), b"no reason"].concat();
    let large = ((256 << 10) + 1_u32).to_le_bytes().to_vec();
    let cases = [Vec::new(), parts(&[b"abc"], false), parts(&[b"abc"], true)[..5].to_vec(), large, endless];
    for bytes in cases {
        let taken = answered_with(bytes.clone()).await;
        assert!(taken.is_err(), "{bytes:?} was taken for {taken:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_bytes_in_place_of_an_answer_end(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        // An end in it makes an answer of it; anything else is an error, and both come at once.
        let _ = runtime.block_on(answered_with(bytes));
    }

    #[test]
    fn a_pipe_brings_what_is_written(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5000), 0..20)) {
        let expected = pieces.concat();
        let (mut writer, mut reader) = pipe();
        let writing = std::thread::spawn(move || {
            let written = pieces.iter().try_for_each(|piece| writer.write_all(piece));
            writer.end(written.map_err(|error| error.to_string()));
        });
        let mut read = Vec::new();
        prop_assert_eq!(reader.read_to_end(&mut read).expect("an end comes"), expected.len());
        prop_assert!(read == expected);
        writing.join().expect("no panic");
    }
}

#[test]
fn a_pipe_without_an_end_is_an_error() {
    let (mut writer, mut reader) = pipe();
    writer.write_all(b"abc").and_then(|()| writer.flush()).expect("there is room");
    drop(writer);
    let mut read = Vec::new();
    assert!(reader.read_to_end(&mut read).is_err() && read == b"abc");
    let (mut writer, reader) = pipe();
    drop(reader);
    let refused = writer.write_all(&[0; 1 << 20]).expect_err("nobody reads");
    assert_eq!(refused.kind(), std::io::ErrorKind::BrokenPipe);
}
