//! What was fetched and waits to be installed, for all stages of a process under one budget.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use paceline_proto::Ticket;

use crate::stage::tier::Staged;

/// All that is staged.
#[derive(Clone)]
pub(super) struct Staging {
    shared: Arc<Mutex<Shared>>,
    stages: Arc<AtomicU64>,
}

struct Shared {
    budget: u64,
    used: u64,
    /// By stage and ticket: from the moment when it is wanted until it is installed or dropped.
    tickets: HashMap<(u64, Ticket), Place>,
}

#[derive(Default)]
struct Place {
    reserved: u64,
    staged: Option<Staged>,
}

/// One stage's share.
#[derive(Clone)]
pub(crate) struct StageStaging {
    stage: u64,
    shared: Arc<Mutex<Shared>>,
}

impl Staging {
    pub(super) fn new(budget: u64) -> Self {
        let shared = Shared { budget, used: 0, tickets: HashMap::new() };
        Self { shared: Arc::new(Mutex::new(shared)), stages: Arc::default() }
    }

    /// The share of another stage.
    pub(super) fn of_stage(&self) -> StageStaging {
        StageStaging { stage: self.stages.fetch_add(1, Ordering::Relaxed), shared: Arc::clone(&self.shared) }
    }
}

impl StageStaging {
    /// Something will be staged under this ticket.
    pub(super) fn begin(&self, ticket: Ticket) {
        self.drop_ticket(ticket);
        self.lock().tickets.insert((self.stage, ticket), Place::default());
    }

    /// Takes so many more bytes of the budget for a ticket; false if there are not as many, or if it is no longer wanted.
    pub(super) fn reserve(&self, ticket: Ticket, bytes: u64) -> bool {
        let mut shared = self.lock();
        if shared.budget.saturating_sub(shared.used) < bytes {
            return false;
        }
        let Some(place) = shared.tickets.get_mut(&(self.stage, ticket)) else { return false };
        place.reserved += bytes;
        shared.used += bytes;
        true
    }

    /// Stages what was reserved for; false if it is no longer wanted.
    pub(super) fn put(&self, ticket: Ticket, staged: Staged) -> bool {
        let mut shared = self.lock();
        let place = shared.tickets.get_mut(&(self.stage, ticket));
        place.map(|place| place.staged = Some(staged)).is_some()
    }

    /// What is staged under a ticket, which is then no longer; `None` if nothing is.
    pub(crate) fn take(&self, ticket: Ticket) -> Option<Staged> {
        let mut shared = self.lock();
        let place = shared.tickets.remove(&(self.stage, ticket))?;
        shared.used -= place.reserved;
        place.staged
    }

    pub(super) fn drop_ticket(&self, ticket: Ticket) {
        drop(self.take(ticket));
    }

    pub(super) fn drop_all(&self) {
        let mut shared = self.lock();
        let mut freed = 0;
        shared.tickets.retain(|(stage, _), place| {
            let keep = *stage != self.stage;
            freed += if keep { 0 } else { place.reserved };
            keep
        });
        shared.used -= freed;
    }

    /// Nothing in here is half done when somebody panics.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged() -> Staged {
        Staged { pages: 1, state: false, layers: Vec::new() }
    }

    #[test]
    fn a_budget_holds_for_all_stages_together_and_comes_back() {
        let staging = Staging::new(100);
        let (one, other) = (staging.of_stage(), staging.of_stage());
        assert!(!one.reserve(Ticket(1), 10), "nobody wants it");
        one.begin(Ticket(1));
        other.begin(Ticket(1));
        assert!(one.reserve(Ticket(1), 60) && !other.reserve(Ticket(1), 60) && other.reserve(Ticket(1), 40));
        assert!(one.put(Ticket(1), staged()));
        assert!(one.take(Ticket(1)).is_some() && one.take(Ticket(1)).is_none());
        assert!(other.reserve(Ticket(1), 60), "what was installed is free");
        other.drop_all();
        assert!(!other.put(Ticket(1), staged()), "it is no longer wanted");
        one.begin(Ticket(2));
        assert!(one.reserve(Ticket(2), 100));
        one.begin(Ticket(2));
        assert!(one.reserve(Ticket(2), 100), "a ticket that is begun again has nothing yet");
        one.drop_ticket(Ticket(2));
        assert_eq!(staging.shared.lock().expect("nobody panicked").used, 0);
    }
}
