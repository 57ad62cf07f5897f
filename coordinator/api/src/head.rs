//! What every response object begins with.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

/// Which program answers; changes only with its version.
const FINGERPRINT: &str = concat!("paceline-", env!("CARGO_PKG_VERSION"));

/// The first fields of a response, the same in all events of a stream.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Head {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
}

impl Head {
    /// Begins a response of type `object`, with a new id.
    pub(crate) fn new(id_prefix: &str, object: &'static str, model: &str) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            id: format!("{id_prefix}-{}", Uuid::new_v4().simple()),
            object,
            created,
            model: model.to_owned(),
            system_fingerprint: FINGERPRINT,
        }
    }
}
