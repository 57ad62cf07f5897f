//! How much a key may use: requests and tokens a minute, and sessions at once. Pure: the time is told.
//!
//! Tokens are charged as they come, and a caller may start whatever it likes while something of its minute is left. So
//! nothing must be guessed of answers that are not there yet; a caller that took more than its minute has to wait until
//! the debt is paid.

use std::time::Duration;

use tokio::time::Instant;

/// When to try again where only the caller itself knows how long its sessions take.
const SESSION_WAIT: Duration = Duration::from_secs(2);

const MINUTE: f64 = 60.0;

/// The limits of one key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyLimits {
    /// Requests in a minute. Default: any number.
    pub requests: Option<u32>,
    /// Tokens in a minute, of prompts and answers together. Default: any number.
    pub tokens: Option<u32>,
    /// Sessions at once: every choice of a request is one. Default: any number.
    pub sessions: Option<u32>,
}

impl KeyLimits {
    /// These limits, and `other` where there are none.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            requests: self.requests.or(other.requests),
            tokens: self.tokens.or(other.tokens),
            sessions: self.sessions.or(other.sessions),
        }
    }
}

/// A limit that is reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this key has used up its {limit} {of}; try again in {} s", self.seconds())]
pub struct Exceeded {
    limit: u32,
    of: &'static str,
    wait: Duration,
}

impl Exceeded {
    /// When to try again, in whole seconds; at least one.
    pub fn seconds(&self) -> u64 {
        (self.wait.as_secs_f64().ceil() as u64).max(1)
    }
}

/// What is left for a client to use, for the headers of responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) limit: u32,
    pub(crate) left: u32,
}

/// What one key has used lately.
#[derive(Debug)]
pub(crate) struct Meter {
    limits: KeyLimits,
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    sessions: u32,
}

impl Meter {
    pub(crate) fn new(limits: KeyLimits) -> Self {
        let bucket = |limit: Option<u32>| limit.map(Bucket::new);
        Self { limits, requests: bucket(limits.requests), tokens: bucket(limits.tokens), sessions: 0 }
    }

    /// One more request.
    pub(crate) fn request(&mut self, now: Instant) -> Result<(), Exceeded> {
        let Some(bucket) = &mut self.requests else { return Ok(()) };
        bucket.refill(now);
        if bucket.level < 1.0 {
            return Err(Exceeded { limit: bucket.limit, of: "requests a minute", wait: bucket.time_to(1.0) });
        }
        bucket.level -= 1.0;
        Ok(())
    }

    /// So many sessions more; each must be [closed](Meter::close).
    pub(crate) fn open(&mut self, sessions: u32, now: Instant) -> Result<(), Exceeded> {
        if let Some(bucket) = &mut self.tokens {
            bucket.refill(now);
            if bucket.level <= 0.0 {
                return Err(Exceeded { limit: bucket.limit, of: "tokens a minute", wait: bucket.time_to(1.0) });
            }
        }
        let total = self.sessions.saturating_add(sessions);
        if let Some(limit) = self.limits.sessions
            && total > limit
        {
            return Err(Exceeded { limit, of: "sessions at once", wait: SESSION_WAIT });
        }
        self.sessions = total;
        Ok(())
    }

    /// So many sessions are over.
    pub(crate) fn close(&mut self, sessions: u32) {
        self.sessions = self.sessions.saturating_sub(sessions);
    }

    /// So many tokens were read or made.
    pub(crate) fn charge(&mut self, tokens: usize, now: Instant) {
        if let Some(bucket) = &mut self.tokens {
            bucket.refill(now);
            bucket.level -= tokens as f64;
        }
    }

    /// Requests and tokens that are left, where they are limited.
    pub(crate) fn left(&mut self, now: Instant) -> (Option<Left>, Option<Left>) {
        let left = |bucket: &mut Option<Bucket>| {
            let bucket = bucket.as_mut()?;
            bucket.refill(now);
            Some(Left { limit: bucket.limit, left: bucket.level.max(0.0) as u32 })
        };
        (left(&mut self.requests), left(&mut self.tokens))
    }
}

/// A minute's worth that refills evenly; below zero it is a debt.
#[derive(Debug)]
struct Bucket {
    limit: u32,
    level: f64,
    refilled: Option<Instant>,
}

impl Bucket {
    fn new(limit: u32) -> Self {
        Self { limit, level: f64::from(limit), refilled: None }
    }

    fn refill(&mut self, now: Instant) {
        let since = self.refilled.map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        self.refilled = Some(now);
        let limit = f64::from(self.limit);
        self.level = (self.level + since.as_secs_f64() * limit / MINUTE).min(limit);
    }

    fn time_to(&self, level: f64) -> Duration {
        Duration::from_secs_f64((level - self.level).max(0.0) * MINUTE / f64::from(self.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(requests: u32, tokens: u32, sessions: u32) -> KeyLimits {
        KeyLimits { requests: Some(requests), tokens: Some(tokens), sessions: Some(sessions) }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_come_back_evenly() {
        let (mut meter, start) = (Meter::new(limits(6, 1, 1)), Instant::now());
        for _ in 0..6 {
            assert_eq!(meter.request(start), Ok(()));
        }
        let refused = meter.request(start).unwrap_err();
        assert_eq!(refused.seconds(), 10);
        assert_eq!(refused.to_string(), "this key has used up its 6 requests a minute; try again in 10 s");
        assert!(meter.request(start + Duration::from_secs(9)).is_err());
        assert_eq!(meter.request(start + Duration::from_secs(11)), Ok(()));
        assert!(meter.request(start + Duration::from_secs(12)).is_err());
        // However long it is quiet, a minute's worth is all there is.
        let later = start + Duration::from_secs(3600);
        assert_eq!(meter.left(later).0, Some(Left { limit: 6, left: 6 }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_debt_of_tokens_is_paid_before_anything_starts() {
        let (mut meter, start) = (Meter::new(limits(1, 60, 9)), Instant::now());
        assert_eq!(meter.open(1, start), Ok(()));
        meter.charge(90, start);
        assert_eq!(meter.left(start).1, Some(Left { limit: 60, left: 0 }));
        assert_eq!(meter.open(1, start).unwrap_err().seconds(), 31);
        assert_eq!(meter.open(1, start + Duration::from_secs(31)), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_make_room_when_they_end() {
        let (mut meter, now) = (Meter::new(limits(1, 1, 3)), Instant::now());
        assert_eq!(meter.open(2, now), Ok(()));
        assert_eq!(meter.open(2, now).unwrap_err().seconds(), 2);
        meter.close(1);
        assert_eq!(meter.open(2, now), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn without_limits_nothing_is_refused() {
        let (mut meter, now) = (Meter::new(KeyLimits::default()), Instant::now());
        for _ in 0..10_000 {
            assert_eq!((meter.request(now), meter.open(100, now)), (Ok(()), Ok(())));
            meter.charge(1_000_000, now);
        }
        assert_eq!(meter.left(now), (None, None));
    }
}
