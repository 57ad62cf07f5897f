//! The network side of an endpoint: its socket, its settings, and greeting those who connect.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use paceline_proto::NodeId;
use quinn::congestion::CubicConfig;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, EndpointConfig, IdleTimeout, Incoming, MtuDiscoveryConfig, ServerConfig, TokioRuntime,
    TransportConfig, VarInt,
};
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::{CONNECT_DEADLINE, HALF_OPEN, HELLO_DEADLINE, Shared, greeting, probe};
use crate::hello::{Answer, Hello, Purpose, Refusal};
use crate::identity::{Identity, data_client, data_server, named_node};
use crate::memories::answer;
use crate::remote::{QuicLink, Terms};
use crate::{Error, LinkKey, LinkSettings, MoveKey, Result};

/// Bytes that the kernel is asked to buffer for a data endpoint's socket, each way: with its default, bursts of a few
/// hundred kilobytes lose packets.
pub const SOCKET_BYTES: usize = 8 << 20;
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
/// Bytes that may be under way: a prefill frame never waits for the receiver's permission.
const WINDOW: u32 = 64 << 20;
/// A frame of a decode step must not wait for the window to grow.
const FIRST_WINDOW: u64 = 256 << 10;
/// Networks with jumbo frames carry this; on others it is found out that they do not.
const JUMBO: u16 = 8952;
/// Requests for pieces under way on one connection.
const STREAMS: u32 = 32;

const REFUSED: VarInt = VarInt::from_u32(1);

/// Listens on a UDP address.
pub(super) fn bind(identity: &Identity, address: SocketAddr) -> Result<quinn::Endpoint> {
    let socket = socket(address).map_err(|error| Error::system(format!("the UDP socket {address}"), error))?;
    let crypto = QuicServerConfig::try_from(data_server(identity)?).map_err(Error::certificate)?;
    let mut server = ServerConfig::with_crypto(Arc::new(crypto));
    server.transport_config(Arc::new(transport()?)).migration(false);
    server.max_incoming(2 * HALF_OPEN).incoming_buffer_size(64 << 10).incoming_buffer_size_total(4 << 20);
    let endpoint = quinn::Endpoint::new(EndpointConfig::default(), Some(server), socket, Arc::new(TokioRuntime));
    endpoint.map_err(|error| Error::system(format!("the UDP socket {address}"), error))
}

fn socket(address: SocketAddr) -> std::io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_recv_buffer_size(SOCKET_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BYTES)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// How this endpoint connects to others.
pub(super) fn client(identity: &Identity) -> Result<ClientConfig> {
    let crypto = QuicClientConfig::try_from(data_client(identity)?).map_err(Error::certificate)?;
    let mut client = ClientConfig::new(Arc::new(crypto));
    client.transport_config(Arc::new(transport()?));
    Ok(client)
}

fn transport() -> Result<TransportConfig> {
    let mut congestion = CubicConfig::default();
    congestion.initial_window(FIRST_WINDOW);
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(JUMBO);
    let idle = IdleTimeout::try_from(IDLE).map_err(|error| Error::system("the idle timeout", error))?;
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(KEEP_ALIVE))
        .stream_receive_window(WINDOW.into())
        .receive_window(WINDOW.into())
        .send_window(WINDOW.into())
        .max_concurrent_bidi_streams(STREAMS.into())
        .max_concurrent_uni_streams(0u32.into())
        .datagram_receive_buffer_size(None)
        .mtu_discovery_config(Some(discovery))
        .congestion_controller_factory(Arc::new(congestion));
    Ok(transport)
}

/// Greets everyone who comes, so many at a time.
pub(super) async fn accept(endpoint: quinn::Endpoint, shared: Arc<Shared>) {
    while let Some(incoming) = endpoint.accept().await {
        let from = incoming.remote_address();
        let half_full = shared.half_open.available_permits() < HALF_OPEN / 2;
        if half_full && incoming.may_retry() && !incoming.remote_address_validated() {
            // It must show that it can hear us before it takes one of the places that are left.
            let _ = incoming.retry();
            continue;
        }
        let Ok(permit) = shared.half_open.clone().try_acquire_owned() else {
            shared.complaints.refused(from, "too many connections have not yet said what they want");
            incoming.refuse();
            continue;
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(incoming, permit, &shared).await {
                shared.complaints.refused(from, error);
            }
        });
    }
}

struct Guest {
    connection: Connection,
    node: NodeId,
    send: quinn::SendStream,
    receive: quinn::RecvStream,
    hello: Hello,
}

async fn serve(incoming: Incoming, permit: OwnedSemaphorePermit, shared: &Arc<Shared>) -> Result<()> {
    let late = |_| Error::Timeout { what: "the greeting".into(), after: HELLO_DEADLINE };
    let guest = timeout(HELLO_DEADLINE, hear(incoming, shared)).await.map_err(late)??;
    if guest.hello.to != shared.node {
        return refuse(guest, shared, Refusal::Node).await;
    }
    match guest.hello.purpose {
        Purpose::Link(key, settings) => link(guest, shared, &key, &settings).await,
        Purpose::Pieces => pieces(guest, permit, shared).await,
        Purpose::Memories(key) => memories(guest, permit, shared, &key).await,
    }
}

/// Handshake, certificate and hello.
async fn hear(incoming: Incoming, shared: &Arc<Shared>) -> Result<Guest> {
    let from = incoming.remote_address();
    let connecting = incoming.accept().map_err(|error| Error::connection(from, error))?;
    let connection = connecting.await.map_err(|error| Error::connection(from, error))?;
    let node = certified_node(&connection)?;
    let streams = connection.accept_bi().await.map_err(|error| Error::connection(from, error))?;
    let (mut send, mut receive) = streams;
    match greeting::hear(&mut receive).await {
        Ok(hello) => Ok(Guest { connection, node, send, receive, hello }),
        Err(error) => {
            greeting::answer(&mut send, Answer::refuse(shared.node, Refusal::Unreadable)).await?;
            depart(&connection, send).await;
            Err(error)
        }
    }
}

fn certified_node(connection: &Connection) -> Result<NodeId> {
    let identity = connection.peer_identity().and_then(|identity| identity.downcast::<Vec<CertificateDer>>().ok());
    let certificates = identity.ok_or_else(|| Error::certificate("the peer has shown none"))?;
    named_node(certificates.first().ok_or_else(|| Error::certificate("the peer has shown none"))?)
}

async fn link(guest: Guest, shared: &Arc<Shared>, key: &LinkKey, settings: &LinkSettings) -> Result<()> {
    // Who it is, the certificate says; what the hello says must be the same.
    let same = guest.hello.from == guest.node;
    let claimed = if same { shared.expected.claim(guest.node, key, settings) } else { Err(Refusal::Unexpected) };
    let arrival = match claimed {
        Ok(arrival) => arrival,
        Err(refusal) => return refuse(guest, shared, refusal).await,
    };
    let Guest { connection, mut send, mut receive, .. } = guest;
    greeting::answer(&mut send, Answer::accept(shared.node)).await?;
    let measured = timeout(CONNECT_DEADLINE, probe::be_measured(&mut receive, &mut send)).await;
    measured.map_err(|_| Error::Timeout { what: "measuring the link".into(), after: CONNECT_DEADLINE })??;
    let terms = Terms::new(key, *settings);
    // Whoever expected it may have left; then the link closes.
    let _ = arrival.send(QuicLink { connection, send, receive }.into_receiver(terms));
    Ok(())
}

async fn pieces(mut guest: Guest, permit: OwnedSemaphorePermit, shared: &Arc<Shared>) -> Result<()> {
    let Ok(_fetcher) = shared.fetchers.clone().try_acquire_owned() else {
        return Err(Error::greeting("too many nodes fetch pieces"));
    };
    greeting::answer(&mut guest.send, Answer::accept(shared.node)).await?;
    drop(permit);
    shared.pieces.answer_quic(&guest.connection).await;
    Ok(())
}

async fn memories(mut guest: Guest, permit: OwnedSemaphorePermit, shared: &Arc<Shared>, key: &MoveKey) -> Result<()> {
    let Ok(_taker) = shared.takers.clone().try_acquire_owned() else {
        return Err(Error::greeting("too many nodes take memories"));
    };
    drop(permit);
    let Some(source) = shared.gives.find(key).await else { return refuse(guest, shared, Refusal::NotGiven).await };
    greeting::answer(&mut guest.send, Answer::accept(shared.node)).await?;
    answer(source, &mut guest.receive, &mut guest.send).await?;
    // Dropping the connection would drop what has not arrived yet.
    let _ = timeout(CONNECT_DEADLINE, guest.send.stopped()).await;
    Ok(())
}

async fn refuse(mut guest: Guest, shared: &Arc<Shared>, refusal: Refusal) -> Result<()> {
    greeting::answer(&mut guest.send, Answer::refuse(shared.node, refusal)).await?;
    depart(&guest.connection, guest.send).await;
    Err(Error::greeting(format!("node {}: {refusal}", guest.node)))
}

/// Closes after the last answer has arrived.
async fn depart(connection: &Connection, mut send: quinn::SendStream) {
    if send.finish().is_ok() {
        let _ = timeout(Duration::from_secs(1), send.stopped()).await;
    }
    connection.close(REFUSED, b"refused");
}

/// What a failed greeting was about: the connection may know more than the stream.
pub(super) fn why(connection: &Connection, error: Error) -> Error {
    match connection.close_reason() {
        Some(reason) if matches!(error, Error::Greeting { .. }) => {
            Error::connection(connection.remote_address(), reason)
        }
        _ => error,
    }
}
