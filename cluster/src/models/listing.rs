//! What the API sees of the models, and how it gets one.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use paceline_api::{ListedModel, ModelError, ModelState};
use paceline_core::fleet::{Refusal, State};
use tokio::sync::Notify;

/// Requests that have been answered and are not told yet, by model. To end a request must be possible anywhere and at once,
/// and no end may be lost, so ends are counted and not queued.
#[derive(Debug)]
pub(super) struct Releases {
    counts: Vec<AtomicUsize>,
    changed: Notify,
}

/// A request that uses a model, until it is dropped.
struct Lease {
    place: usize,
    releases: Arc<Releases>,
}

impl Releases {
    pub(super) fn new(models: usize) -> Arc<Self> {
        Arc::new(Self { counts: (0..models).map(|_| AtomicUsize::new(0)).collect(), changed: Notify::new() })
    }

    /// A request begins to use a model.
    pub(super) fn lease(self: &Arc<Self>, place: usize) -> Arc<dyn Any + Send + Sync> {
        Arc::new(Lease { place, releases: Arc::clone(self) })
    }

    /// Waits until requests have ended, and says how many of each model.
    pub(super) async fn next(&self) -> Vec<usize> {
        self.changed.notified().await;
        self.counts.iter().map(|count| count.swap(0, Ordering::AcqRel)).collect()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.releases.counts[self.place].fetch_add(1, Ordering::AcqRel);
        self.releases.changed.notify_one();
    }
}

/// How far a model is, as clients are told.
pub(super) fn state(state: State) -> ModelState {
    match state {
        State::Unloaded => ModelState::Unloaded,
        State::Loading => ModelState::Loading,
        State::Loaded { .. } => ModelState::Loaded,
        State::Unloading => ModelState::Unloading,
    }
}

/// Why a request does not get a model, as clients are told.
pub(super) fn refusal(model: &ListedModel, refusal: Refusal) -> ModelError {
    let model = model.card.id().to_owned();
    match refusal {
        Refusal::QueueFull { waiting } => ModelError::QueueFull { model, waiting },
        Refusal::NoRoom { needed, left, budget } => ModelError::NoRoom { model, needed, left, budget },
        Refusal::Failed { reason } => ModelError::Failed { model, reason },
        Refusal::Stopping => ModelError::ShuttingDown,
    }
}
