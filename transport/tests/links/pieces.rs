//! Pieces of models come over both carriers, many at once, and what cannot be had is said why.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline_transport::{Carrier, Error, PieceRequest, PieceSource};

use crate::cluster::{CARRIERS, Cluster, within};

/// Gives piece n as n bytes, errs on 7 and panics on 8.
#[derive(Default)]
struct Source {
    reading: AtomicUsize,
    most: AtomicUsize,
}

impl PieceSource for Source {
    fn read(&self, request: &PieceRequest) -> Result<Vec<u8>, String> {
        let reading = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(reading, Ordering::SeqCst);
        let piece = match request.piece {
            7 => Err(format!("model {:02x} has no piece 7{}", request.of[0], "!".repeat(10_000))),
            8 => panic!("a source with a fault"),
            piece => Ok((0..piece).map(|at| (at ^ piece) as u8).collect()),
        };
        self.reading.fetch_sub(1, Ordering::SeqCst);
        piece
    }
}

fn request(piece: u32) -> PieceRequest {
    PieceRequest { of: [5; 32], piece }
}

#[tokio::test(flavor = "multi_thread")]
async fn pieces_arrive_whole_and_many_at_once() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (has, wants) = (cluster.node().await, cluster.node().await);
        let source = Arc::new(Source::default());
        has.endpoint.serve_pieces(source.clone());
        let client = Arc::new(wants.endpoint.piece_client(&has.target(carrier)).await.expect("a connection"));
        let mut fetching = tokio::task::JoinSet::new();
        for piece in [0, 1, 100, 262_144, 262_145, 5_000_000].into_iter().chain(1000..1100) {
            let client = client.clone();
            fetching.spawn(async move { (piece, client.fetch(request(piece)).await) });
        }
        while let Some(fetched) = within(fetching.join_next()).await {
            let (piece, bytes) = fetched.expect("no panic");
            let expected: Vec<u8> = (0..piece).map(|at| (at ^ piece) as u8).collect();
            assert!(bytes.as_deref() == Ok(&expected[..]), "{carrier}: piece {piece}");
        }
        assert!(source.most.load(Ordering::SeqCst) <= 4, "a bounded number is read at once");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piece_that_cannot_be_had_is_refused_with_the_reason_and_others_still_come() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (has, wants) = (cluster.node().await, cluster.node().await);
        let client = within(wants.endpoint.piece_client(&has.target(carrier))).await.expect("a connection");
        let none = Err(Error::Piece { piece: 3, reason: "this node gives no pieces".into() });
        assert_eq!(within(client.fetch(request(3))).await, none, "{carrier}");
        has.endpoint.serve_pieces(Arc::new(Source::default()));
        let Err(Error::Piece { piece: 7, reason }) = within(client.fetch(request(7))).await else {
            panic!("{carrier}: piece 7 does not exist")
        };
        assert!(reason.starts_with("model 05 has no piece 7") && reason.len() <= 4096);
        assert!(matches!(within(client.fetch(request(9))).await.as_deref(), Ok([_, ..])));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_panics_costs_one_request() {
    let cluster = Cluster::new();
    let (has, wants) = (cluster.node().await, cluster.node().await);
    has.endpoint.serve_pieces(Arc::new(Source::default()));
    let client = within(wants.endpoint.piece_client(&has.target(Carrier::Unix))).await.expect("a connection");
    for _ in 0..6 {
        let failed = Err(Error::Piece { piece: 8, reason: "reading the piece failed".into() });
        assert_eq!(within(client.fetch(request(8))).await, failed);
    }
    assert_eq!(within(client.fetch(request(1))).await.as_deref(), Ok(&[1][..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_are_given_up_do_not_harm_others() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (has, wants) = (cluster.node().await, cluster.node().await);
        has.endpoint.serve_pieces(Arc::new(Source::default()));
        let client = within(wants.endpoint.piece_client(&has.target(carrier))).await.expect("a connection");
        for _ in 0..50 {
            let given_up =
                tokio::time::timeout(std::time::Duration::from_micros(300), client.fetch(request(5_000_000)));
            drop(given_up.await);
        }
        assert_eq!(within(client.fetch(request(1))).await.as_deref(), Ok(&[1][..]), "{carrier}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_gone_is_an_error() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (has, wants) = (cluster.node().await, cluster.node().await);
        has.endpoint.serve_pieces(Arc::new(Source::default()));
        let client = within(wants.endpoint.piece_client(&has.target(carrier))).await.expect("a connection");
        assert!(within(client.fetch(request(1))).await.is_ok());
        has.endpoint.close().await;
        let gone = within(client.fetch(request(1))).await;
        assert!(matches!(gone, Err(Error::Closed | Error::Connection { .. })), "{carrier}: {gone:?}");
        assert!(within(wants.endpoint.piece_client(&has.target(Carrier::Unix))).await.is_err());
    }
}
