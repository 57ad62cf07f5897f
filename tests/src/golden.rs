//! The reference's results, and how close to them is close enough.

use std::path::PathBuf;

use crate::models::data;
use crate::npy::{self, Array};

/// A folder of golden data.
#[derive(Debug, Clone)]
pub struct Golden {
    folder: PathBuf,
}

/// How far two results lie apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Distance {
    /// Largest difference.
    pub max: f32,
    /// Root of the mean square of the differences.
    pub rms: f32,
}

impl Golden {
    /// The folder of a model's name.
    pub fn named(name: &str) -> Golden {
        Golden { folder: data().join("golden").join(name) }
    }

    /// An array of numbers.
    pub fn f32(&self, name: &str) -> Array<f32> {
        npy::read_f32(&self.path(name))
    }

    /// An array of token ids.
    pub fn tokens(&self, name: &str) -> Vec<u32> {
        let values = npy::read_i32(&self.path(name)).values;
        values.into_iter().map(|token| u32::try_from(token).expect("token ids are not negative")).collect()
    }

    /// An array of whole numbers.
    pub fn i32(&self, name: &str) -> Array<i32> {
        npy::read_i32(&self.path(name))
    }

    /// Is there such an array?
    pub fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.npy"))
    }
}

/// How far `found` lies from `expected`.
///
/// # Panics
/// If they have different lengths, or something is not a number.
pub fn distance(found: &[f32], expected: &[f32]) -> Distance {
    assert_eq!(found.len(), expected.len(), "lengths differ");
    let differences: Vec<f32> = found.iter().zip(expected).map(|(found, expected)| (found - expected).abs()).collect();
    assert!(differences.iter().all(|difference| difference.is_finite()), "a result is not a number");
    Distance { max: differences.iter().copied().fold(0.0, f32::max), rms: rms(&differences) }
}

/// Root of the mean of the squares.
pub fn rms(values: &[f32]) -> f32 {
    let squares: f64 = values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
    (squares / values.len().max(1) as f64).sqrt() as f32
}

/// The index of the largest number (the first, if there are several).
pub fn greedy(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    u32::try_from(best).expect("vocabularies have fewer than 2^32 tokens")
}

/// The difference between the two largest numbers.
pub fn gap(logits: &[f32]) -> f32 {
    let best = greedy(logits) as usize;
    let second = logits.iter().enumerate().filter(|(index, _)| *index != best);
    logits[best] - second.map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_and_gaps() {
        assert_eq!(distance(&[1.0, 2.0], &[1.0, 2.5]), Distance { max: 0.5, rms: (0.125_f32).sqrt() });
        assert_eq!(greedy(&[1.0, 3.0, 3.0]), 1);
        assert_eq!((gap(&[1.0, 3.0, 3.0]), gap(&[4.0, 1.0, 3.0])), (0.0, 1.0));
    }

    #[test]
    #[should_panic(expected = "not a number")]
    fn a_result_that_is_no_number_is_noticed() {
        distance(&[f32::NAN], &[1.0]);
    }
}
