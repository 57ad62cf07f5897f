//! The links that may come, and those who wait for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use paceline_proto::NodeId;
use subtle::ConstantTimeEq;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::hello::Refusal;
use crate::{Error, Expected, LinkKey, LinkReceiver, LinkSettings, Result};

/// Every link that this endpoint lets in.
#[derive(Debug, Default)]
pub(super) struct ExpectedLinks(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    links: BTreeMap<u64, (Expected, oneshot::Sender<LinkReceiver>)>,
}

impl ExpectedLinks {
    pub(super) fn add(self: &Arc<Self>, expected: Expected) -> Pending {
        let (sender, arrival) = oneshot::channel();
        let mut table = self.table();
        let id = table.next;
        table.next += 1;
        if expected.settings.check().is_ok() {
            table.links.insert(id, (expected, sender));
        }
        Pending { links: self.clone(), id, expected, arrival }
    }

    /// Takes the expectation that this link meets; it is met once.
    pub(super) fn claim(
        &self,
        from: NodeId,
        key: &LinkKey,
        settings: &LinkSettings,
    ) -> std::result::Result<oneshot::Sender<LinkReceiver>, Refusal> {
        let mut table = self.table();
        let meets = |expected: &Expected| {
            let place = (expected.from, expected.key.epoch, expected.key.link) == (from, key.epoch, key.link);
            place && bool::from(expected.key.secret.ct_eq(&key.secret))
        };
        let found = table.links.iter().find(|(_, (expected, _))| meets(expected));
        let (id, (expected, _)) = found.ok_or(Refusal::Unexpected)?;
        if expected.settings != *settings {
            return Err(Refusal::Settings);
        }
        let id = *id;
        table.links.remove(&id).map(|(_, arrival)| arrival).ok_or(Refusal::Unexpected)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A link that has yet to arrive, or has arrived and waits to be taken. Dropping it withdraws the expectation.
#[derive(Debug)]
#[must_use = "the link is expected only as long as this lives"]
pub struct Pending {
    links: Arc<ExpectedLinks>,
    id: u64,
    expected: Expected,
    arrival: oneshot::Receiver<LinkReceiver>,
}

impl Pending {
    /// Waits for the link.
    ///
    /// # Errors
    /// [`Timeout`](Error::Timeout) when it does not come, [`Closed`](Error::Closed) when it came and broke before it
    /// was measured, [`Settings`](Error::Settings) when no link can have the expected settings.
    pub async fn wait(mut self, deadline: Duration) -> Result<LinkReceiver> {
        self.expected.settings.check()?;
        match timeout(deadline, &mut self.arrival).await {
            Ok(arrived) => arrived.map_err(|_| Error::Closed),
            Err(_) => Err(Error::Timeout { what: self.describe(), after: deadline }),
        }
    }

    fn describe(&self) -> String {
        let Expected { key, from, .. } = &self.expected;
        format!("link {} of epoch {} from node {from}", key.link, key.epoch)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.links.table().links.remove(&self.id);
    }
}
