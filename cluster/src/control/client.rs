//! How a shard reaches the coordinator: first as a newcomer for its certificate, then as a node.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::{fmt, io};

use anyhow::{Context, Result, anyhow, ensure};
use hyper_util::rt::TokioIo;
use paceline_control::EnrollRequest;
use paceline_control::control_client::ControlClient;
use paceline_transport::identity::{
    Fingerprint, Identity, JoinToken, NodeKey, coordinator_name, newcomer_client, node_client,
};
use rustls::pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tower::service_fn;

use super::{HANDSHAKE, KEEP_ALIVE, MESSAGE_BYTES, node_of};

/// The coordinator's service, and the address of ours that reaches it.
pub(crate) struct Reached {
    pub(crate) client: ControlClient<Channel>,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// Gets a certificate for a new key, or for that of a seed.
pub(crate) async fn enroll(token: &JoinToken, seed: Option<&[u8; 32]>) -> Result<Identity> {
    let config = newcomer_client(token)?;
    let mut reached = reach(&token.address, config).await?;
    let key = seed.map_or_else(NodeKey::generate, NodeKey::from_seed)?;
    let node = node_of(&key.public_key_der());
    let request = EnrollRequest { node: node.0.as_bytes().to_vec(), public_key: key.public_key_der() };
    let enrolled = timeout(HANDSHAKE * 2, reached.client.enroll(request)).await;
    let enrolled = enrolled.map_err(|_| anyhow!("the coordinator at {} does not answer", token.address))?;
    let response = enrolled.map_err(|status| refused(&token.address, status))?;
    let response = response.into_inner();
    let authority = CertificateDer::from(response.authority);
    ensure!(Fingerprint::of(&authority) == token.fingerprint, "the coordinator sent another authority's certificate");
    Ok(Identity::new(node, key, CertificateDer::from(response.certificate), authority)?)
}

/// Reaches the coordinator as a node.
pub(crate) async fn attend(address: &str, identity: &Identity) -> Result<Reached> {
    reach(address, node_client(identity)?).await
}

/// What a coordinator says that does not want us.
#[derive(Debug)]
struct Refused {
    address: String,
    status: Status,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status.source() {
            Some(_) => write!(f, "the coordinator at {} ends the connection without an answer", self.address),
            None => write!(f, "the coordinator at {} refuses: {}", self.address, self.status.message()),
        }
    }
}

impl Error for Refused {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.status.source()
    }
}

/// What a coordinator that does not want us says.
pub(crate) fn refused(address: &str, status: Status) -> anyhow::Error {
    Refused { address: address.to_owned(), status }.into()
}

/// Whether another attempt would end the same way: the coordinator does not want this newcomer, or is not the one that
/// the token means. A connection that only breaks off is no such thing.
pub(crate) fn is_final(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let inside = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let by_tls = cause.is::<rustls::Error>() || inside.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>);
        by_tls || cause.downcast_ref::<Refused>().is_some_and(|refused| is_refusal(refused.status.code()))
    })
}

/// Whether a connection was made and ended without an answer: what a newcomer sees whose token is not known. A coordinator
/// that is killed at this moment looks the same.
pub(crate) fn was_dropped(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<Refused>().is_some_and(|refused| refused.status.source().is_some()))
}

fn is_refusal(code: Code) -> bool {
    matches!(code, Code::PermissionDenied | Code::InvalidArgument | Code::FailedPrecondition | Code::Unauthenticated)
}

async fn reach(address: &str, config: rustls::ClientConfig) -> Result<Reached> {
    let connector = TlsConnector::from(Arc::new(config));
    let (told, addresses) = watch::channel(None);
    let target = address.to_owned();
    let connect = service_fn(move |_: Uri| {
        let (connector, told, target) = (connector.clone(), told.clone(), target.clone());
        async move {
            let stream = TcpStream::connect(&target).await?;
            stream.set_nodelay(true)?;
            told.send_replace(Some((stream.local_addr()?, stream.peer_addr()?)));
            Ok::<_, io::Error>(TokioIo::new(connector.connect(coordinator_name(), stream).await?))
        }
    });
    // The name is never looked up: the connector knows where to go, and TLS knows who must be there.
    let endpoint = Endpoint::from_static("http://coordinator.paceline")
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    let connecting = timeout(HANDSHAKE * 2, endpoint.connect_with_connector(connect)).await;
    let channel = connecting
        .map_err(|_| anyhow!("the coordinator at {address} does not answer"))?
        .with_context(|| format!("cannot join the coordinator at {address}"))?;
    let (local, remote) = addresses.borrow().context("the connection has no address")?;
    let client = ControlClient::new(channel).max_decoding_message_size(MESSAGE_BYTES);
    Ok(Reached { client, local, remote })
}
