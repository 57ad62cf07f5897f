//! Who gets through a handshake of the control plane, over real TCP: every way in, and every way that must not be.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_proto::NodeId;
use paceline_transport::identity::{
    Authority, Fingerprint, Identity, JoinToken, NodeKey, Peer, Role, TokenId, TokenKey, Trust, control_server,
    coordinator_name, newcomer_client, node_client, peer_of,
};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, PublicKeyData};
use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use uuid::Uuid;

const DEADLINE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Tokens {
    keys: Mutex<BTreeMap<TokenKey, TokenId>>,
    live: Mutex<BTreeSet<TokenId>>,
}

impl Tokens {
    fn add(&self, token: &JoinToken) {
        self.keys.lock().expect("no panic").insert(token.key().expect("a key"), token.id);
        self.live.lock().expect("no panic").insert(token.id);
    }

    fn revoke(&self, token: &JoinToken) {
        self.live.lock().expect("no panic").remove(&token.id);
    }
}

impl Trust for Tokens {
    fn token_of(&self, key: &TokenKey) -> Option<TokenId> {
        self.keys.lock().expect("no panic").get(key).copied().filter(|token| self.is_live(token))
    }

    fn is_live(&self, token: &TokenId) -> bool {
        self.live.lock().expect("no panic").contains(token)
    }
}

/// A cluster with a coordinator that listens.
struct Cluster {
    authority: Authority,
    tokens: Arc<Tokens>,
    server: ServerConfig,
}

fn member(authority: &Authority, token: Option<TokenId>, role: Role) -> Identity {
    let (node, key) = (NodeId(Uuid::new_v4()), NodeKey::generate().expect("a key"));
    let certificate = authority.issue(node, token, role, &key.public_key_der()).expect("a certificate");
    Identity::new(node, key, certificate, authority.certificate().clone()).expect("an identity")
}

impl Cluster {
    fn new() -> Self {
        let authority = Authority::create().expect("an authority");
        let tokens = Arc::new(Tokens::default());
        let coordinator = member(&authority, None, Role::Coordinator);
        let server = control_server(&coordinator, tokens.clone()).expect("a configuration");
        Self { authority, tokens, server }
    }

    fn token(&self) -> JoinToken {
        let token = JoinToken::create("localhost:7070", self.authority.fingerprint()).expect("a token");
        self.tokens.add(&token);
        token
    }

    /// What both sides say of one connection.
    async fn attempt(&self, client: ClientConfig) -> (Result<(), String>, Result<Peer, String>) {
        attempt(&self.server, client, &self.tokens).await
    }

    async fn refuses(&self, client: ClientConfig) -> String {
        let (client, server) = self.attempt(client).await;
        assert!(client.is_err(), "the client got an answer");
        server.expect_err("the server let it in")
    }
}

async fn attempt(
    server: &ServerConfig,
    client: ClientConfig,
    tokens: &Arc<Tokens>,
) -> (Result<(), String>, Result<Peer, String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let pair = async { tokio::join!(connect(address, client), serve(&listener, server, tokens)) };
    tokio::time::timeout(DEADLINE, pair).await.expect("nobody waits for ever")
}

async fn connect(address: SocketAddr, client: ClientConfig) -> Result<(), String> {
    let stream = TcpStream::connect(address).await.expect("it listens");
    let connector = TlsConnector::from(Arc::new(client));
    let mut stream = connector.connect(coordinator_name(), stream).await.map_err(|error| error.to_string())?;
    // With TLS 1.3 a client learns only by reading whether it was let in.
    let answer = stream.read_u8().await.map_err(|error| error.to_string())?;
    assert_eq!((answer, stream.get_ref().1.alpn_protocol()), (42, Some(&b"h2"[..])));
    Ok(())
}

async fn serve(listener: &TcpListener, server: &ServerConfig, tokens: &Arc<Tokens>) -> Result<Peer, String> {
    let (stream, _) = listener.accept().await.expect("a connection");
    let acceptor = TlsAcceptor::from(Arc::new(server.clone()));
    let mut stream = acceptor.accept(stream).await.map_err(|error| error.to_string())?;
    let certificates = stream.get_ref().1.peer_certificates().expect("certificates are mandatory").to_vec();
    stream.write_u8(42).await.map_err(|error| error.to_string())?;
    stream.shutdown().await.map_err(|error| error.to_string())?;
    peer_of(&certificates, tokens.as_ref()).map_err(|error| error.to_string())
}

/// A client that trusts the authority, with any certificate or none.
fn client(authority: &Authority, own: Option<(Vec<CertificateDer<'static>>, &KeyPair)>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS 1.3");
    let builder = builder.with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder.with_client_auth_cert(chain, private(key)).expect("they belong together"),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

fn private(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(key.serialize_der()).into()
}

fn pair() -> KeyPair {
    KeyPair::generate_for(&PKCS_ED25519).expect("a key")
}

#[tokio::test]
async fn members_and_newcomers_are_let_in_and_known() {
    let cluster = Cluster::new();
    let token = cluster.token();
    let (said, peer) = cluster.attempt(newcomer_client(&token).expect("a client")).await;
    assert_eq!((said, peer), (Ok(()), Ok(Peer::Newcomer(token.id))));
    for token in [None, Some(token.id)] {
        let node = member(&cluster.authority, token, Role::Shard);
        let (said, peer) = cluster.attempt(node_client(&node).expect("a client")).await;
        assert_eq!((said, peer), (Ok(()), Ok(Peer::Node { node: node.node(), token })));
    }
}

#[tokio::test]
async fn a_token_that_went_through_text_still_opens_the_door() {
    let cluster = Cluster::new();
    let token = cluster.token();
    let token: JoinToken = token.to_string().parse().expect("a token");
    let (_, peer) = cluster.attempt(newcomer_client(&token).expect("a client")).await;
    assert_eq!(peer, Ok(Peer::Newcomer(token.id)));
}

#[tokio::test]
async fn strangers_are_refused() {
    let cluster = Cluster::new();
    let bare = cluster.refuses(client(&cluster.authority, None)).await;
    assert!(bare.contains("no certificates"), "{bare}");
    let other = JoinToken::create("localhost:1", cluster.authority.fingerprint()).expect("a token");
    cluster.refuses(newcomer_client(&other).expect("a client")).await;
    let key = pair();
    let own = CertificateParams::new(vec!["a.b".into()]).expect("names").self_signed(&key).expect("a certificate");
    cluster.refuses(client(&cluster.authority, Some((vec![own.der().clone()], &key)))).await;
}

#[tokio::test]
async fn certificates_of_a_foreign_authority_are_refused() {
    let (cluster, foreign) = (Cluster::new(), Authority::create().expect("an authority"));
    let token = cluster.token();
    for root in [&foreign, &cluster.authority] {
        let key = pair();
        let node = NodeId(Uuid::new_v4());
        let leaf = foreign.issue(node, Some(token.id), Role::Coordinator, &key.subject_public_key_info());
        let chain = vec![leaf.expect("a certificate"), root.certificate().clone()];
        cluster.refuses(client(&cluster.authority, Some((chain, &key)))).await;
    }
}

#[tokio::test]
async fn a_revoked_token_lets_in_neither_newcomers_nor_its_nodes() {
    let cluster = Cluster::new();
    let (token, kept) = (cluster.token(), cluster.token());
    let [node, neighbour] = [&token, &kept].map(|token| member(&cluster.authority, Some(token.id), Role::Shard));
    let newcomer = newcomer_client(&token).expect("a client");
    let member = node_client(&node).expect("a client");
    for client in [newcomer.clone(), member.clone()] {
        assert!(cluster.attempt(client).await.1.is_ok());
    }
    cluster.tokens.revoke(&token);
    // The same configurations again: nothing is resumed.
    cluster.refuses(newcomer).await;
    let reason = cluster.refuses(member).await;
    assert!(reason.contains("Revoked"), "{reason}");
    assert!(cluster.attempt(node_client(&neighbour).expect("a client")).await.1.is_ok());
    assert!(cluster.attempt(newcomer_client(&kept).expect("a client")).await.1.is_ok());
}

#[tokio::test]
async fn who_was_let_in_is_asked_for_again_after_a_revocation() {
    let cluster = Cluster::new();
    let token = cluster.token();
    let key = pair();
    let node = NodeId(Uuid::new_v4());
    let public = key.subject_public_key_info();
    let certificate = cluster.authority.issue(node, Some(token.id), Role::Shard, &public).expect("a certificate");
    let known = peer_of(std::slice::from_ref(&certificate), cluster.tokens.as_ref());
    assert_eq!(known, Ok(Peer::Node { node, token: Some(token.id) }));
    cluster.tokens.revoke(&token);
    assert!(peer_of(&[certificate], cluster.tokens.as_ref()).is_err());
    assert!(peer_of(&[], cluster.tokens.as_ref()).is_err());
    assert!(peer_of(&[vec![1, 2, 3].into()], cluster.tokens.as_ref()).is_err());
    assert!(peer_of(&[cluster.authority.certificate().clone()], cluster.tokens.as_ref()).is_err());
}

#[tokio::test]
async fn a_newcomer_cannot_call_itself_a_node() {
    let cluster = Cluster::new();
    let key = pair();
    // The coordinator knows this key as a token's, as it would the key of a malicious holder of a token.
    let token = cluster.token();
    let hash = <sha2::Sha256 as sha2::Digest>::digest(key.subject_public_key_info());
    let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    cluster.tokens.keys.lock().expect("no panic").insert(hash.parse().expect("a key"), token.id);
    let attempt = async |name: String| {
        let own = CertificateParams::new(vec![name]).expect("names").self_signed(&key).expect("a certificate");
        cluster.attempt(client(&cluster.authority, Some((vec![own.der().clone()], &key)))).await.1
    };
    assert_eq!(attempt("newcomer.paceline".into()).await, Ok(Peer::Newcomer(token.id)));
    assert!(attempt(format!("{}.node.paceline", Uuid::new_v4())).await.is_err());
    assert!(attempt("coordinator.paceline".into()).await.is_err());
}

/// Shows one certificate and signs with another key.
#[derive(Debug)]
struct Thief(Arc<CertifiedKey>);

impl ResolvesClientCert for Thief {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_certificate_without_its_key_is_worth_nothing() {
    let cluster = Cluster::new();
    let token = cluster.token();
    let (owner, thief) = (pair(), pair());
    let public = owner.subject_public_key_info();
    let node = NodeId(Uuid::new_v4());
    let stolen = cluster.authority.issue(node, Some(token.id), Role::Shard, &public).expect("a certificate");
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(private(&thief)).expect("a key");
    let chain = vec![stolen, cluster.authority.certificate().clone()];
    let mut config = client(&cluster.authority, None);
    config.client_auth_cert_resolver = Arc::new(Thief(Arc::new(CertifiedKey::new(chain, key))));
    cluster.refuses(config).await;
}

#[tokio::test]
async fn a_false_coordinator_is_found_out() {
    let (cluster, foreign) = (Cluster::new(), Cluster::new());
    let token = cluster.token();
    foreign.tokens.add(&token);
    let node = member(&cluster.authority, Some(token.id), Role::Shard);
    let clients = || [newcomer_client(&token).expect("a client"), node_client(&node).expect("a client")];
    for client in clients() {
        let (said, _) = attempt(&foreign.server, client, &foreign.tokens).await;
        assert!(said.is_err(), "a server of another authority was believed");
    }
    let shard = member(&cluster.authority, None, Role::Shard);
    let server = control_server(&shard, cluster.tokens.clone()).expect("a configuration");
    for client in clients() {
        let (said, _) = attempt(&server, client, &cluster.tokens).await;
        assert!(said.is_err(), "a shard's certificate was taken for the coordinator's");
    }
    let mut wrong = token.clone();
    wrong.fingerprint = Fingerprint::of(foreign.authority.certificate());
    let (said, _) = cluster.attempt(newcomer_client(&wrong).expect("a client")).await;
    assert!(said.is_err(), "another fingerprint was believed");
}

#[tokio::test]
async fn a_pinned_authority_must_have_signed_what_comes_with_it() {
    // A man in the middle has seen the authority's certificate and sends it along with his own.
    let (cluster, foreign) = (Cluster::new(), Authority::create().expect("an authority"));
    let token = cluster.token();
    let key = pair();
    let node = NodeId(Uuid::new_v4());
    let public = key.subject_public_key_info();
    let leaf = foreign.issue(node, None, Role::Coordinator, &public).expect("a certificate");
    let chains = [
        vec![leaf.clone(), cluster.authority.certificate().clone()],
        vec![leaf, foreign.certificate().clone(), cluster.authority.certificate().clone()],
        vec![cluster.authority.certificate().clone(), cluster.authority.certificate().clone()],
        vec![cluster.authority.issue(node, None, Role::Coordinator, &public).expect("a certificate")],
    ];
    for chain in chains {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let signing = provider.key_provider.load_private_key(private(&key)).expect("a key");
        let resolver = rustls::sign::SingleCertAndKey::from(CertifiedKey::new(chain, signing));
        let builder = ServerConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_safe_default_protocol_versions().expect("TLS 1.3").with_no_client_auth();
        let (said, _) = attempt_bare(builder.with_cert_resolver(Arc::new(resolver)), &token).await;
        assert!(said.is_err());
    }
}

async fn attempt_bare(server: ServerConfig, token: &JoinToken) -> (Result<(), String>, bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let serve = async {
        let (stream, _) = listener.accept().await.expect("a connection");
        TlsAcceptor::from(Arc::new(server)).accept(stream).await.is_ok()
    };
    let pair = async { tokio::join!(connect(address, newcomer_client(token).expect("a client")), serve) };
    tokio::time::timeout(DEADLINE, pair).await.expect("nobody waits for ever")
}

#[tokio::test]
async fn a_recorded_session_cannot_be_played_again() {
    let cluster = Cluster::new();
    let token = cluster.token();
    let (proxy, real) = (listen().await, listen().await);
    let (address, target) = (proxy.local_addr().expect("an address"), real.local_addr().expect("an address"));
    let record = async {
        let (mut client, _) = proxy.accept().await.expect("a connection");
        let mut server = TcpStream::connect(target).await.expect("it listens");
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) = (client.split(), server.split());
        let mut recorded = Vec::new();
        let there = async {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
                recorded.extend_from_slice(&buffer[..count]);
                to_server.write_all(&buffer[..count]).await.expect("the server listens");
            }
        };
        let back = tokio::io::copy(&mut from_server, &mut to_client);
        let _ = tokio::join!(there, back);
        recorded
    };
    let client = newcomer_client(&token).expect("a client");
    let session =
        async { tokio::join!(record, connect(address, client), serve(&real, &cluster.server, &cluster.tokens)) };
    let (recorded, said, peer) = tokio::time::timeout(DEADLINE, session).await.expect("nobody waits for ever");
    assert_eq!((said, peer), (Ok(()), Ok(Peer::Newcomer(token.id))));
    assert!(recorded.len() > 500, "{} bytes are no handshake", recorded.len());
    let replay = async {
        let mut stream = TcpStream::connect(target).await.expect("it listens");
        stream.write_all(&recorded).await.expect("it takes them");
        stream.shutdown().await.expect("it can be closed");
        stream.read_to_end(&mut Vec::new()).await
    };
    let again = async { tokio::join!(replay, serve(&real, &cluster.server, &cluster.tokens)) };
    let (_, peer) = tokio::time::timeout(DEADLINE, again).await.expect("nobody waits for ever");
    assert!(peer.is_err(), "a replay was taken for {peer:?}");
}

#[tokio::test]
async fn garbage_is_refused() {
    let cluster = Cluster::new();
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff], &[0; 4096], &[]] {
        let listener = listen().await;
        let address = listener.local_addr().expect("an address");
        let send = async {
            let mut stream = TcpStream::connect(address).await.expect("it listens");
            stream.write_all(garbage).await.expect("it takes them");
            let _ = stream.shutdown().await;
        };
        let both = async { tokio::join!(send, serve(&listener, &cluster.server, &cluster.tokens)).1 };
        assert!(tokio::time::timeout(DEADLINE, both).await.expect("nobody waits for ever").is_err());
    }
}

async fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("a port")
}
