//! Everybody who should not get in, and that everything else goes on meanwhile.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use paceline_proto::{Epoch, NodeId};
use paceline_transport::hello::{ANSWER_BYTES, Answer, HELLO_BYTES, Hello, Purpose, Refusal};
use paceline_transport::identity::{Authority, Role};
use paceline_transport::{
    Carrier, Endpoint, Error, Expected, FrameReceiver, FrameSender, LinkKey, LinkSettings, Route, Target,
};
use proptest::prelude::*;
use quinn::crypto::rustls::QuicClientConfig;
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use uuid::Uuid;

use crate::cluster::{CARRIERS, Cluster, DEADLINE, KEY, Node, SETTINGS, frame, join, receive, within};

/// The node still makes links.
async fn goes_on(cluster: &Cluster, node: &Node) {
    let other = cluster.node().await;
    for carrier in CARRIERS {
        let (mut sender, receiver) = within(join(&other, node, carrier, SETTINGS)).await.expect("a link");
        sender.send(frame(1, 64)).expect("there is room");
        assert_eq!(receive(receiver).await.0, Ok(frame(1, 64)));
    }
}

/// A QUIC client that trusts the authority, with any certificate or none.
fn quic_client(authority: &Authority, own: Option<(Vec<CertificateDer<'static>>, &KeyPair)>) -> quinn::Endpoint {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS 1.3");
    let builder = builder.with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
            builder.with_client_auth_cert(chain, key).expect("they belong together")
        }
    };
    config.alpn_protocols = vec![b"paceline/1".to_vec()];
    let config = QuicClientConfig::try_from(config).expect("TLS 1.3");
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).expect("an endpoint");
    endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(config)));
    endpoint
}

/// A raw client with a certificate of the authority: its bytes are ours to choose.
async fn raw(cluster: &Cluster, node: &Node) -> (NodeId, quinn::Connection) {
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let own = NodeId(Uuid::new_v4());
    let leaf = cluster.authority.issue(own, None, Role::Shard, &key.subject_public_key_info());
    let client = quic_client(&cluster.authority, Some((vec![leaf.expect("a certificate")], &key)));
    let name = format!("{}.node.paceline", node.node);
    let connecting = client.connect(node.endpoint.udp_address(), &name).expect("a name");
    (own, within(connecting).await.expect("a connection"))
}

fn hello(from: NodeId, to: &Node) -> Hello {
    Hello { from, to: to.node, purpose: Purpose::Link(KEY, SETTINGS) }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_datagrams_are_ignored() {
    let cluster = Cluster::new();
    let node = cluster.node().await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    let mut state = 1u64;
    for round in 0..2000usize {
        let mut datagram = vec![0; round % 1400];
        for byte in &mut datagram {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
        socket.send_to(&datagram, node.endpoint.udp_address()).await.expect("the kernel takes them");
    }
    goes_on(&cluster, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_the_authoritys_certificate_are_refused() {
    let (cluster, foreign) = (Cluster::new(), Cluster::new());
    let node = cluster.node().await;
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let public = key.subject_public_key_info();
    let leaf = foreign.authority.issue(NodeId(Uuid::new_v4()), None, Role::Shard, &public).expect("a certificate");
    let chain = vec![leaf, foreign.authority.certificate().clone()];
    for own in [None, Some((chain, &key))] {
        let client = quic_client(&cluster.authority, own);
        let name = format!("{}.node.paceline", node.node);
        let connecting = client.connect(node.endpoint.udp_address(), &name).expect("a name");
        // With TLS 1.3 the client may think for a moment that it is in.
        let error = match within(connecting).await {
            Ok(connection) => within(connection.closed()).await,
            Err(error) => error,
        };
        assert!(matches!(error, quinn::ConnectionError::ConnectionClosed(_)), "{error}");
    }
    goes_on(&cluster, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_under_another_name_or_of_another_cluster_is_not_connected_to() {
    let (cluster, foreign) = (Cluster::new(), Cluster::new());
    let (node, other, stranger) = (cluster.node().await, cluster.node().await, foreign.node().await);
    for (there, carrier) in [(&other, Carrier::Quic), (&other, Carrier::Unix), (&stranger, Carrier::Quic)] {
        let target = Target { node: NodeId(Uuid::new_v4()), ..there.target(carrier) };
        let refused = within(node.endpoint.connect(&target, KEY, SETTINGS)).await.map(|_| ());
        assert!(matches!(refused, Err(Error::Connection { .. } | Error::Refused { .. })), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn links_that_are_not_expected_are_refused() {
    let cluster = Cluster::new();
    let (a, b, c) = (cluster.node().await, cluster.node().await, cluster.node().await);
    for carrier in CARRIERS {
        let target = b.target(carrier);
        let mut pending = b.endpoint.expect(Expected { key: KEY, from: a.node, settings: SETTINGS });
        let wrong =
            [LinkKey { secret: [8; 16], ..KEY }, LinkKey { epoch: Epoch(6), ..KEY }, LinkKey { link: 2, ..KEY }];
        for key in wrong {
            let refused = within(a.endpoint.connect(&target, key, SETTINGS)).await.map(|_| ());
            let Err(Error::Refused { reason, .. }) = refused else { panic!("{carrier} {key:?}: {refused:?}") };
            assert_eq!(reason, Refusal::Unexpected.to_string());
        }
        let refused = within(c.endpoint.connect(&target, KEY, SETTINGS)).await.map(|_| ());
        assert!(matches!(refused, Err(Error::Refused { .. })), "the right key from the wrong node");
        let other = LinkSettings { frames: 3, ..SETTINGS };
        let refused = within(a.endpoint.connect(&target, KEY, other)).await.map(|_| ());
        let Err(Error::Refused { reason, .. }) = refused else { panic!("{carrier}: {refused:?}") };
        assert_eq!(reason, Refusal::Settings.to_string());
        // None of them has used it up; the right one does.
        let (sender, _) = within(a.endpoint.connect(&target, KEY, SETTINGS)).await.expect("the expected link");
        let again = within(a.endpoint.connect(&target, KEY, SETTINGS)).await.map(|_| ());
        assert!(matches!(again, Err(Error::Refused { .. })), "a link is made once");
        drop((sender, within(pending.wait(DEADLINE)).await.expect("it has arrived")));
        pending = b.endpoint.expect(Expected { key: KEY, from: a.node, settings: SETTINGS });
        drop(pending);
        let withdrawn = within(a.endpoint.connect(&target, KEY, SETTINGS)).await.map(|_| ());
        assert!(matches!(withdrawn, Err(Error::Refused { .. })));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn impossible_settings_are_refused_at_both_ends() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.node().await, cluster.node().await);
    let wrong = [
        LinkSettings { frames: 0, ..SETTINGS },
        LinkSettings { frames: usize::MAX, ..SETTINGS },
        LinkSettings { frame_bytes: 0, ..SETTINGS },
        LinkSettings { frame_bytes: 1 << 40, ..SETTINGS },
    ];
    for settings in wrong {
        let refused = within(a.endpoint.connect(&b.target(Carrier::Unix), KEY, settings)).await.map(|_| ());
        assert!(matches!(refused, Err(Error::Settings { .. })), "{refused:?}");
        let refused = b.endpoint.expect(Expected { key: KEY, from: a.node, settings }).wait(DEADLINE).await;
        assert!(matches!(refused, Err(Error::Settings { .. })));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_there_and_nobody_coming_are_errors_in_time() {
    let cluster = Cluster::new();
    let node = cluster.node().await;
    let nowhere = Target { node: node.node, route: Route::Unix(cluster.path()) };
    let refused = node.endpoint.connect(&nowhere, KEY, SETTINGS).await.map(|_| ());
    assert!(matches!(refused, Err(Error::Connection { .. })), "{refused:?}");
    let pending = node.endpoint.expect(Expected { key: KEY, from: node.node, settings: SETTINGS });
    let late = pending.wait(std::time::Duration::from_millis(10)).await.map(|_| ());
    let Err(Error::Timeout { what, .. }) = late else { panic!("{late:?}") };
    assert!(what.starts_with("link 1 of epoch 7 from node"), "{what}");
}

/// Every greeting that is none: other sizes, other versions, other words.
fn false_hellos(from: NodeId, to: &Node) -> Vec<Vec<u8>> {
    let good = hello(from, to).encode();
    let with = |at: usize, value: u8| {
        let mut bytes = good.to_vec();
        bytes[at] = value;
        bytes
    };
    vec![with(0, 0), with(4, 9), with(6, 7), with(8, 85), with(8, 83), with(22, 9), vec![0xff; HELLO_BYTES]]
}

#[tokio::test(flavor = "multi_thread")]
async fn false_greetings_are_refused() {
    let cluster = Cluster::new();
    let node = cluster.node().await;
    let (own, _) = raw(&cluster, &node).await;
    for bytes in false_hellos(own, &node) {
        let (_, connection) = raw(&cluster, &node).await;
        let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
        send.write_all(&bytes).await.expect("it is sent");
        let mut answer = [0; ANSWER_BYTES];
        within(receive.read_exact(&mut answer)).await.expect("an answer");
        let refusal = Answer::decode(&answer).expect("one of ours").refusal;
        assert_eq!(refusal, Some(Refusal::Unreadable));
        let error = within(connection.closed()).await;
        assert!(matches!(error, quinn::ConnectionError::ApplicationClosed(_)), "{error}");
        let mut stream = UnixStream::connect(node.endpoint.unix_path().expect("a path")).await.expect("it listens");
        stream.write_all(&bytes).await.expect("it is sent");
        within(stream.read_exact(&mut answer)).await.expect("an answer");
        assert_eq!(Answer::decode(&answer).expect("one of ours").refusal, Some(Refusal::Unreadable));
        assert_eq!(within(stream.read(&mut answer)).await.expect("an end"), 0);
    }
    goes_on(&cluster, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_hello_is_refused_under_another_certificate() {
    let cluster = Cluster::new();
    let (node, honest) = (cluster.node().await, cluster.node().await);
    let _pending = node.endpoint.expect(Expected { key: KEY, from: honest.node, settings: SETTINGS });
    let (_, connection) = raw(&cluster, &node).await;
    let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
    send.write_all(&hello(honest.node, &node).encode()).await.expect("it is sent");
    let mut answer = [0; ANSWER_BYTES];
    within(receive.read_exact(&mut answer)).await.expect("an answer");
    assert_eq!(Answer::decode(&answer).expect("one of ours").refusal, Some(Refusal::Unexpected));
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_ended_and_places_come_back() {
    let cluster = Cluster::new();
    let node = cluster.node().await;
    let path = node.endpoint.unix_path().expect("a path");
    let (_, quiet) = raw(&cluster, &node).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(UnixStream::connect(path).await.expect("it listens"));
    }
    for stream in &mut silent {
        let end = within(stream.read(&mut [0])).await;
        assert!(end.as_ref().map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |count| *count == 0));
    }
    let error = within(quiet.closed()).await;
    assert!(!matches!(error, quinn::ConnectionError::LocallyClosed), "{error}");
    goes_on(&cluster, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_header_that_claims_too_much_ends_its_link_alone() {
    let cluster = Cluster::new();
    let node = cluster.node().await;
    let (own, connection) = raw(&cluster, &node).await;
    let pending = node.endpoint.expect(Expected { key: KEY, from: own, settings: SETTINGS });
    let (mut send, mut receive) = connection.open_bi().await.expect("a stream");
    send.write_all(&hello(own, &node).encode()).await.expect("it is sent");
    let mut answer = [0; ANSWER_BYTES];
    within(receive.read_exact(&mut answer)).await.expect("an answer");
    assert_eq!(Answer::decode(&answer).expect("one of ours").refusal, None);
    send.write_all(&[0; 5]).await.expect("the link starts without a measurement");
    let mut receiver = within(pending.wait(DEADLINE)).await.expect("the link");
    let mut claim = frame(1, 64).encode().to_vec();
    claim[32..40].copy_from_slice(&(1u64 << 40).to_le_bytes());
    send.write_all(&frame(0, 64).encode()).await.expect("a good frame");
    send.write_all(&claim).await.expect("a bad one");
    let (first, rest) = receive_two(&mut receiver);
    assert_eq!(first, Ok(frame(0, 64)));
    let Err(Error::Frame(paceline_proto::Error::TooLarge { .. })) = rest else { panic!("{rest:?}") };
    goes_on(&cluster, &node).await;
}

fn receive_two(
    receiver: &mut paceline_transport::LinkReceiver,
) -> (paceline_transport::Result<paceline_proto::Frame>, paceline_transport::Result<paceline_proto::Frame>) {
    tokio::task::block_in_place(|| (receiver.receive(), receiver.receive()))
}

#[tokio::test(flavor = "multi_thread")]
async fn measuring_without_end_is_refused() {
    let cluster = Cluster::new();
    let node = cluster.node().await;
    let from = NodeId(Uuid::new_v4());
    let measurements =
        [vec![1, 0xff, 0xff, 0xff, 0xff], vec![2, 0, 0, 0, 0], vec![0, 1, 0, 0, 0], [1, 0, 0, 0, 0].repeat(65)];
    for measurement in measurements {
        let pending = node.endpoint.expect(Expected { key: KEY, from, settings: SETTINGS });
        let mut stream = UnixStream::connect(node.endpoint.unix_path().expect("a path")).await.expect("it listens");
        stream.write_all(&hello(from, &node).encode()).await.expect("it is sent");
        stream.write_all(&measurement).await.expect("it is sent");
        let mut rest = Vec::new();
        let _ = within(stream.read_to_end(&mut rest)).await;
        assert!(within(pending.wait(DEADLINE)).await.is_err());
    }
    goes_on(&cluster, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_in_the_middle_of_a_link_ends_it() {
    let cluster = Cluster::new();
    let node = cluster.node().await;
    let from = NodeId(Uuid::new_v4());
    let good = frame(0, 64).encode();
    for garbage in [vec![0xff; 100], good[..good.len() - 1].to_vec(), good[..10].to_vec()] {
        let pending = node.endpoint.expect(Expected { key: KEY, from, settings: SETTINGS });
        let mut stream = UnixStream::connect(node.endpoint.unix_path().expect("a path")).await.expect("it listens");
        let mut bytes = hello(from, &node).encode().to_vec();
        bytes.extend_from_slice(&[0; 5]);
        bytes.extend_from_slice(&good);
        bytes.extend_from_slice(&garbage);
        stream.write_all(&bytes).await.expect("it is sent");
        let mut receiver = within(pending.wait(DEADLINE)).await.expect("the link");
        drop(stream);
        let (first, second) = receive_two(&mut receiver);
        assert_eq!(first, Ok(frame(0, 64)));
        assert!(second.is_err());
    }
}

#[tokio::test]
async fn the_unix_socket_is_the_users_own_and_left_over_ones_are_replaced() {
    let cluster = Cluster::new();
    let node = cluster.node().await;
    let path = node.endpoint.unix_path().expect("a path").to_owned();
    let mode = std::fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let any = "127.0.0.1:0".parse().expect("an address");
    let taken = Endpoint::bind(cluster.identity(), any, Some(&path)).await.map(|_| ());
    assert!(matches!(taken, Err(Error::System { .. })), "somebody listens there: {taken:?}");
    node.endpoint.close().await;
    assert!(!path.exists());
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket that nobody closes properly"));
    assert!(path.exists());
    Endpoint::bind(cluster.identity(), any, Some(&path)).await.expect("it is replaced").close().await;
    std::fs::write(&path, "precious").expect("a file");
    assert!(Endpoint::bind(cluster.identity(), any, Some(&path)).await.is_err(), "a file is not");
    assert_eq!(std::fs::read(&path).expect("the file"), b"precious");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_are_read_or_refused(bytes in any::<[u8; 32]>(), at in 0usize..HELLO_BYTES, value: u8) {
        let (node, other) = (NodeId(Uuid::from_u128(1)), NodeId(Uuid::from_u128(2)));
        let hello = Hello { from: node, to: other, purpose: Purpose::Link(KEY, SETTINGS) };
        prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        let mut changed = hello.encode();
        changed[at] = value;
        if let Ok(read) = Hello::decode(&changed) {
            prop_assert_eq!(read.encode(), changed);
        }
        let mut arbitrary = [0; HELLO_BYTES];
        arbitrary.iter_mut().zip(bytes.iter().cycle()).for_each(|(to, from)| *to = *from);
        let _ = Hello::decode(&arbitrary);
        let mut answer = [0; ANSWER_BYTES];
        answer.copy_from_slice(&bytes[..ANSWER_BYTES]);
        let _ = Answer::decode(&answer);
        let mut changed = Answer { node, refusal: None }.encode();
        changed[at % ANSWER_BYTES] = value;
        if let Ok(read) = Answer::decode(&changed) {
            prop_assert_eq!(read.encode(), changed);
        }
    }
}
