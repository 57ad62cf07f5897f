//! How long prompts and answers are.

use std::str::FromStr;

use crate::Error;
use crate::random::Random;

/// The longest there may be.
pub const MOST_TOKENS: usize = 1 << 24;
/// The spread of [`Lengths::Around`]: 95 of 100 are shorter than 3.7 medians.
const SPREAD: f64 = 0.8;

/// A distribution of lengths in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// All the same: `512`.
    Exactly(usize),
    /// All equally likely: `100-2000`.
    Between(usize, usize),
    /// Log-normal around a median, many short and few long ones, as conversations have them: `~800`.
    Around(usize),
}

impl Lengths {
    /// Draws a length, at least 1 and at most [`MOST_TOKENS`].
    pub fn draw(self, random: &mut Random) -> usize {
        let length = match self {
            Self::Exactly(length) => length,
            Self::Between(least, most) => random.between(least as u64, most as u64) as usize,
            Self::Around(median) => (median as f64 * libm::exp(SPREAD * random.normal())) as usize,
        };
        length.clamp(1, MOST_TOKENS)
    }
}

impl FromStr for Lengths {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::Length { text: text.to_owned(), most: MOST_TOKENS };
        let number = |text: &str| {
            let number: usize = text.parse().map_err(|_| wrong())?;
            if (1..=MOST_TOKENS).contains(&number) { Ok(number) } else { Err(wrong()) }
        };
        if let Some(median) = text.strip_prefix('~') {
            return Ok(Self::Around(number(median)?));
        }
        let Some((least, most)) = text.split_once('-') else { return Ok(Self::Exactly(number(text)?)) };
        let (least, most) = (number(least)?, number(most)?);
        if least <= most { Ok(Self::Between(least, most)) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read() {
        let read = |text: &str| text.parse::<Lengths>();
        assert_eq!(read("512"), Ok(Lengths::Exactly(512)));
        assert_eq!(read("1-9"), Ok(Lengths::Between(1, 9)));
        assert_eq!(read("~800"), Ok(Lengths::Around(800)));
        for bad in ["", "0", "-", "5-", "-5", "9-1", "~", "~0", "many", "1e3", "99999999999", "16777217", "1-2-3"] {
            let error = read(bad).expect_err(bad);
            assert!(error.to_string().contains("LEAST-MOST"), "{error}");
        }
    }

    #[test]
    fn draws_keep_their_bounds_and_their_median() {
        let mut random = Random::new(3);
        assert!((0..1000).all(|_| (5..=8).contains(&Lengths::Between(5, 8).draw(&mut random))));
        let mut drawn: Vec<_> = (0..10_001).map(|_| Lengths::Around(800).draw(&mut random)).collect();
        drawn.sort_unstable();
        assert!((770..830).contains(&drawn[5_000]), "{}", drawn[5_000]);
        assert!(drawn[9_500] < 3_300, "{}", drawn[9_500]);
        assert_eq!(Lengths::Exactly(7).draw(&mut random), 7);
    }
}
