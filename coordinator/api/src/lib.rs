//! The HTTP API: requests in the shapes that clients of OpenAI know, answers as JSON or as a stream of events.
//!
//! Read [`serve`] first. A request is read ([`ApiConfig`] has the limits), checked, and turned into one session of
//! the engine for each answer wanted; what the sessions say is told in the shape that was asked for. A client that
//! leaves takes its sessions with it, wherever they are. This crate knows nothing of steps, pages or shards.

mod access;
mod answers;
mod cache;
mod caller;
mod chat;
mod completions;
mod config;
mod embeddings;
mod error;
mod head;
mod json;
mod keys;
mod limits;
mod logprobs;
mod messages;
mod models;
mod observe;
mod openapi;
mod page;
mod prompt;
mod rerank;
mod responses;
mod reuse;
mod scale;
mod server;
mod serving;
mod settings;
mod sse;
mod stage_metrics;
mod status;
mod structure;
mod tokenize;
mod transcript;
mod turn;
mod unserved;
mod usage;
mod wishes;

pub use cache::{CacheReport, PathCard};
pub use config::{ApiConfig, Defaults};
pub use error::{Error, Result};
pub use keys::{ApiKey, ApiKeys, KeyError};
pub use limits::{Exceeded, KeyLimits};
pub use observe::AUDIT_TARGET;
pub use responses::{ResponseLimits, ResponseShelf};
pub use scale::{ScaleAction, ScaleError, ScaleOutcome, ScaleReport, ScaleRequest, Scaled, Scaling, StageShare};
pub use server::serve;
pub use serving::{Card, ListedModel, ModelError, ModelState, Models, OneModel, Opening, Served, Serving, Task};
pub use status::{ClusterCard, ModelReport, NodeCard, SERVICE, StatusReport};
