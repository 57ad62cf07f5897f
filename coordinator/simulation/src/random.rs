//! A small seeded generator. Every party has its own stream, so that what one draws does not depend on the others,
//! and two runs that differ in one thing differ in nothing else.

/// SplitMix64: 64 bits of state, a full period, good enough for arrivals and lengths.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// Who draws.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stream {
    /// The moments of arrival.
    Arrivals = 1,
    /// One session's lengths and patience.
    Session,
    /// The noise of one stage in one step.
    Noise,
    /// What fails, and when.
    Faults,
    /// How long a user thinks.
    Thinking,
}

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The generator of the `number`-th of a stream.
    pub(crate) fn stream(seed: u64, stream: Stream, number: u64) -> Self {
        Self(mix(mix(seed ^ ((stream as u64) << 56)) ^ number))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 to 1, 0 included.
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// From `low` to `high`, both included; `low` if they are not in this order.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        match high.saturating_sub(low).checked_add(1) {
            Some(span) => low + self.number() % span,
            None => self.number(),
        }
    }

    /// Exponentially distributed.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(1.0 - self.unit())
    }

    /// Normally distributed around 0, with a deviation of 1.
    pub fn normal(&mut self) -> f64 {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.unit()));
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }
}

fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 100_000;

    fn mean(mut draw: impl FnMut(&mut Random) -> f64) -> f64 {
        let mut random = Random::new(1);
        (0..DRAWS).map(|_| draw(&mut random)).sum::<f64>() / DRAWS as f64
    }

    #[test]
    fn distributions_have_their_means() {
        assert!((mean(Random::unit) - 0.5).abs() < 0.01);
        assert!((mean(|random| random.exponential(3.0)) - 3.0).abs() < 0.05);
        assert!(mean(Random::normal).abs() < 0.02);
        assert!((mean(|random| random.normal().powi(2)) - 1.0).abs() < 0.03);
    }

    #[test]
    fn bounds_are_included_and_kept() {
        let mut random = Random::new(2);
        let drawn: std::collections::BTreeSet<_> = (0..200).map(|_| random.between(3, 6)).collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(random.between(5, 5), 5);
        assert_eq!(random.between(9, 2), 9);
        random.between(0, u64::MAX);
    }

    #[test]
    fn streams_are_apart() {
        let first = |stream, number| Random::stream(7, stream, number).number();
        let drawn = [
            first(Stream::Session, 0),
            first(Stream::Session, 1),
            first(Stream::Noise, 0),
            Random::stream(8, Stream::Noise, 0).number(),
        ];
        assert_eq!(drawn.iter().collect::<std::collections::BTreeSet<_>>().len(), drawn.len());
    }
}
