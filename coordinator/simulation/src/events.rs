//! What happens next: events in the order of their time, and of their posting where times are equal.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A queue of events under a virtual clock.
#[derive(Debug)]
pub(crate) struct Events<E> {
    now: Duration,
    posted: u64,
    heap: BinaryHeap<Reverse<Posted<E>>>,
}

#[derive(Debug)]
struct Posted<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> Events<E> {
    pub(crate) fn new() -> Self {
        Self { now: Duration::ZERO, posted: 0, heap: BinaryHeap::new() }
    }

    /// The time of the last event.
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    /// How many were posted.
    pub(crate) fn posted(&self) -> u64 {
        self.posted
    }

    /// Lets an event happen at a time, or now if that has passed.
    pub(crate) fn post(&mut self, at: Duration, event: E) {
        self.posted += 1;
        self.heap.push(Reverse(Posted { at: at.max(self.now), number: self.posted, event }));
    }

    /// The next event; the clock goes on to its time.
    pub(crate) fn next(&mut self) -> Option<E> {
        let Reverse(Posted { at, event, .. }) = self.heap.pop()?;
        self.now = at;
        Some(event)
    }
}

impl<E> Posted<E> {
    fn key(&self) -> (Duration, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Posted<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Posted<E> {}

impl<E> PartialOrd for Posted<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Posted<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward_and_equal_times_keep_their_order() {
        let mut events = Events::new();
        for (at, event) in [(5, 'c'), (2, 'a'), (5, 'd'), (2, 'b')] {
            events.post(Duration::from_secs(at), event);
        }
        assert_eq!(events.next(), Some('a'));
        assert_eq!(events.now(), Duration::from_secs(2));
        // nothing happens in the past
        events.post(Duration::from_secs(1), 'e');
        let rest: String = std::iter::from_fn(|| events.next()).collect();
        assert_eq!(rest, "becd");
        assert_eq!((events.now(), events.posted()), (Duration::from_secs(5), 5));
    }
}
