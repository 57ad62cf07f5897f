//! A link: frames go one after another, and each is on its way for half a round trip.

use std::time::Duration;

use paceline_core::planner::LinkSpeed;

/// A link inside one process, as it was measured: a microsecond there and back, and nothing is copied.
pub const LOCAL: LinkSpeed = LinkSpeed { round_trip: Duration::from_micros(1), bytes_per_second: f64::INFINITY };

/// A link and what went over it.
#[derive(Debug)]
pub(crate) struct Link {
    speed: LinkSpeed,
    free: Duration,
    stalled_until: Duration,
    pub(crate) busy: Duration,
    pub(crate) bytes: u64,
    pub(crate) frames: u64,
    /// How long frames waited because the link stalled.
    pub(crate) held: Duration,
}

impl Link {
    pub(crate) fn new(speed: LinkSpeed) -> Self {
        let zero = Duration::ZERO;
        Self { speed, free: zero, stalled_until: zero, busy: zero, bytes: 0, frames: 0, held: zero }
    }

    /// Sends a frame; returns when it arrives.
    pub(crate) fn send(&mut self, bytes: u64, now: Duration) -> Duration {
        let begin = now.max(self.free);
        let stalled = self.stalled_until.saturating_sub(begin);
        let sending = Duration::from_secs_f64(self.speed.transfer(bytes as f64));
        self.held += stalled;
        self.free = begin + stalled + sending;
        self.busy += sending;
        self.bytes += bytes;
        self.frames += 1;
        self.free + self.speed.round_trip / 2
    }

    /// Sends nothing more until then; what is on its way arrives.
    pub(crate) fn stall(&mut self, until: Duration) {
        self.stalled_until = self.stalled_until.max(until);
    }

    /// Forgets what waits to be sent.
    pub(crate) fn clear(&mut self, now: Duration) {
        self.free = self.free.min(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn frames_go_one_after_another() {
        let mut link = Link::new(LinkSpeed { round_trip: 10 * MILLI, bytes_per_second: 1e6 });
        assert_eq!(link.send(1_000, Duration::ZERO), 6 * MILLI);
        assert_eq!(link.send(2_000, Duration::ZERO), 8 * MILLI);
        assert_eq!(link.send(1_000, 50 * MILLI), 56 * MILLI);
        assert_eq!((link.busy, link.bytes, link.frames), (4 * MILLI, 4_000, 3));
    }

    #[test]
    fn a_stall_holds_what_is_not_yet_sent() {
        let mut link = Link::new(LOCAL);
        link.stall(10 * MILLI);
        link.stall(5 * MILLI);
        assert_eq!(link.send(1, 4 * MILLI), 10 * MILLI + LOCAL.round_trip / 2);
        assert_eq!(link.held, 6 * MILLI);
        link.send(1, 11 * MILLI);
        assert_eq!(link.held, 6 * MILLI);
    }
}
