//! `POST /admin/v1/scale`: nodes added, drained and removed while people type.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::json::Document;
use crate::server::Host;

/// What is to be done with the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScaleAction {
    /// Nodes take part; without names all that are free.
    Add,
    /// Nodes hold nothing until they are added again.
    Drain,
    /// Nodes are drained, and must leave.
    Remove,
    /// The layers are placed anew.
    Rebalance,
}

/// A request to change the row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ScaleRequest {
    /// How.
    pub action: ScaleAction,
    /// Which nodes: ids, beginnings of ids that only one node has, or names of hosts.
    pub nodes: Vec<String>,
}

/// How a change of the row ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScaleOutcome {
    /// The memory of all sessions went to the new row, and they ran on.
    Moved,
    /// The new row was loaded in the old one's place, and sessions read their tokens again.
    Replayed,
    /// The row is as wanted already.
    Unchanged,
    /// The new row could not be made, and the old one went on.
    RolledBack,
    /// The row broke meanwhile; another one is placed as soon as that can be.
    Lost,
}

/// What became of a change of the row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaleReport {
    /// What was wanted.
    pub action: ScaleAction,
    /// How it ended.
    pub outcome: ScaleOutcome,
    /// Why not as was hoped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The epoch of the row before, and of the one that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<[u32; 2]>,
    /// The stages before.
    pub before: Vec<StageShare>,
    /// The stages that were wanted; those there are now, if all went well.
    pub after: Vec<StageShare>,
    /// Bytes of keys, values and states that went from node to node.
    pub bytes_fetched: u64,
    /// Bytes of them that were copied within a node.
    pub bytes_copied: u64,
    /// How long no step ran, where a row was switched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_millis: Option<f64>,
}

/// What a node holds of a row.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageShare {
    /// Its id.
    pub node: String,
    /// Its host; empty when it is gone.
    pub host: String,
    /// Its layers.
    pub layers: Range<usize>,
}

/// Why a change of the row was not begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScaleError {
    /// Another one is under way, or no row is in force.
    #[error("{0}")]
    NotNow(String),
    /// No node is called so.
    #[error("there is no node {name:?}; paceline status lists those there are")]
    UnknownNode {
        /// The name.
        name: String,
    },
    /// Several nodes are called so.
    #[error("{name:?} begins the ids of {count} nodes: write more of it")]
    Ambiguous {
        /// The name.
        name: String,
        /// How many.
        count: usize,
    },
    /// It cannot be done with these nodes.
    #[error("{0}")]
    Impossible(String),
    /// The service ends.
    #[error("the service is shutting down")]
    ShuttingDown,
}

/// A future answer.
pub type Scaled = Pin<Box<dyn Future<Output = std::result::Result<ScaleReport, ScaleError>> + Send>>;

/// Whoever can change the row.
pub trait Scaling: Send + Sync {
    /// Changes it, and says what became of that. It goes on even if nobody waits for the answer.
    fn scale(&self, request: ScaleRequest) -> Scaled;
}

#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = ScaleFields)]
#[serde(default)]
struct Fields {
    action: Option<ScaleAction>,
    nodes: Vec<String>,
}

/// Changes the row; answers when that is done.
#[utoipa::path(
    post,
    path = "/admin/v1/scale",
    request_body = Fields,
    responses(
        (status = 200, description = "What became of it", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn create(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let Fields { action, nodes } = Document::receive(&request, body, &host.config).await?.read()?;
    let action = action.ok_or_else(|| {
        Error::parameter("action", "action is missing: it must be \"add\", \"drain\", \"remove\" or \"rebalance\"")
    })?;
    if action == ScaleAction::Rebalance && !nodes.is_empty() {
        return Err(Error::parameter("nodes", "nodes: a rebalance is of the whole row and takes no nodes"));
    }
    let Some(scaling) = &host.config.scaling else {
        let reason = "all stages run in this one process: only a coordinator's row can be changed";
        return Err(ScaleError::Impossible(reason.to_owned()).into());
    };
    Ok(HttpResponse::Ok().json(scaling.scale(ScaleRequest { action, nodes }).await?))
}
