//! What the coordinator answers on the control plane. Decisions are the cluster actor's; here messages are checked and
//! handed on.

use std::sync::Arc;
use std::time::Duration;

use paceline_control::control_server::Control;
use paceline_control::{EnrollRequest, EnrollResponse, FromShard, Hello, ToShard, from_shard};
use paceline_proto::NodeId;
use paceline_transport::identity::{Authority, Peer, Role, TokenId};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use tracing::{info, warn};
use uuid::Uuid;

use super::listener::Caller;
use super::{OUTBOX, node_from, node_of};
use crate::coordinator::actor::{ClusterHandle, Joined, Said};

/// A node that attends says at once what it is.
const HELLO: Duration = Duration::from_secs(5);

/// The service.
pub(crate) struct Service {
    pub(crate) authority: Arc<Authority>,
    pub(crate) cluster: ClusterHandle,
}

#[tonic::async_trait]
impl Control for Service {
    async fn enroll(&self, request: Request<EnrollRequest>) -> Result<Response<EnrollResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let node = node_from(&request.node).map_err(|error| Status::invalid_argument(error.to_string()))?;
        if node != node_of(&request.public_key) {
            return Err(Status::permission_denied("a node's name must follow from its key"));
        }
        let token = match caller.peer {
            Peer::Newcomer(token) => Some(token),
            Peer::Node { node: itself, token } if itself == node => token,
            Peer::Node { .. } => return Err(Status::permission_denied("a node can renew its own certificate only")),
        };
        let issued = self.authority.issue(node, token, Role::Shard, &request.public_key);
        let certificate = issued.map_err(|error| Status::invalid_argument(error.to_string()))?;
        info!(%node, remote = %caller.remote, "a newcomer has a certificate");
        Ok(Response::new(EnrollResponse {
            certificate: certificate.to_vec(),
            authority: self.authority.certificate().to_vec(),
        }))
    }

    type AttendStream = ReceiverStream<Result<ToShard, Status>>;

    async fn attend(&self, request: Request<Streaming<FromShard>>) -> Result<Response<Self::AttendStream>, Status> {
        let caller = caller(&request)?;
        let Peer::Node { node, token } = caller.peer else {
            return Err(Status::permission_denied("enroll first"));
        };
        let mut messages = request.into_inner();
        let hello = timeout(HELLO, first(&mut messages)).await;
        let hello = hello.map_err(|_| Status::deadline_exceeded("no hello came in time"))??;
        let attendance = Uuid::new_v4();
        let (outbox, to_shard) = mpsc::channel(OUTBOX);
        let joined = Joined { node, token, attendance, hello, caller, outbox };
        self.cluster.joined(joined).await?;
        tokio::spawn(listen(node, attendance, messages, self.cluster.clone()));
        Ok(Response::new(ReceiverStream::new(to_shard)))
    }
}

fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    request.extensions().get::<Caller>().cloned().ok_or_else(|| Status::internal("the connection has no caller"))
}

async fn first(messages: &mut Streaming<FromShard>) -> Result<Hello, Status> {
    match messages.message().await?.and_then(|first| first.message) {
        Some(from_shard::Message::Hello(hello)) => Ok(hello),
        _ => Err(Status::invalid_argument("the first message must be a hello")),
    }
}

/// Hands on what a node says, in order, until it is gone.
async fn listen(node: NodeId, attendance: Uuid, mut messages: Streaming<FromShard>, cluster: ClusterHandle) {
    let reason = loop {
        let said = match messages.message().await {
            Ok(Some(FromShard { message: Some(message) })) => message,
            // A message of a kind that this version does not know.
            Ok(Some(FromShard { message: None })) => continue,
            Ok(None) => break "the node left".to_owned(),
            Err(status) => break format!("the connection ended: {}", status.message()),
        };
        if !cluster.said(Said { node, attendance, what: Ok(said) }).await {
            return;
        }
    };
    if !cluster.said(Said { node, attendance, what: Err(reason) }).await {
        warn!(%node, "the node's leaving could not be told");
    }
}

/// Lets a token's name be used in fields of the log.
pub(crate) fn token_name(token: Option<&TokenId>) -> String {
    token.map_or_else(|| "none".to_owned(), ToString::to_string)
}
