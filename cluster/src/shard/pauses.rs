//! How long a shard waits before it tries to join again.

use std::time::Duration;

use paceline_core::membership::RETURN;
use uuid::Uuid;

/// The first pause. A coordinator that is restarted is soon back.
const FIRST: Duration = Duration::from_millis(500);
/// The longest one.
const LONGEST: Duration = Duration::from_secs(5);

// A coordinator that was restarted waits for a shard that has just begun its longest pause, and for one more attempt.
const _: () = assert!(RETURN.as_millis() >= 2 * LONGEST.as_millis());

/// Pauses, each about twice as long as the one before.
#[derive(Debug)]
pub(super) struct Pauses(Duration);

impl Pauses {
    pub(super) fn new() -> Self {
        Self(FIRST)
    }

    /// The next pause: three quarters of it are certain, the rest is left to chance, so that not all shards of a lost
    /// coordinator come at the same moment.
    pub(super) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        let by_chance = u32::from(Uuid::new_v4().as_bytes()[0]);
        pause * 3 / 4 + pause / 4 * by_chance / 255
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_stay_there() {
        let mut pauses = Pauses::new();
        let mut whole = FIRST;
        for _ in 0..12 {
            let pause = pauses.next();
            assert!(pause >= whole * 3 / 4 && pause <= whole, "{pause:?} of {whole:?}");
            whole = (whole * 2).min(LONGEST);
        }
        assert_eq!(whole, LONGEST);
    }
}
