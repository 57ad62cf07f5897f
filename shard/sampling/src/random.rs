//! Random numbers that are a function of where they are used.

/// The increment of SplitMix64: 2⁶⁴ divided by the golden ratio, odd.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number from 0 (included) to 1 (excluded), determined by the seed, the choice and the position alone.
///
/// This is the output number `choice · 2³² + position` of the generator SplitMix64 (Steele, Lea and Flood, 2014),
/// started at the mixed seed. Nothing is remembered between numbers, so it does not matter which were drawn before.
pub(crate) fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    let counter = u64::from(choice) << 32 | u64::from(position);
    let start = mix(seed.wrapping_add(GAMMA));
    let bits = mix(start.wrapping_add(counter.wrapping_add(1).wrapping_mul(GAMMA)));
    // The upper 53 bits fill the significand exactly.
    (bits >> 11) as f64 * (-53f64).exp2()
}

/// Spreads every input bit over all output bits; a bijection.
fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sum of (found − expected)² / expected over equally likely cells.
    fn chi_square(counts: &[u32]) -> f64 {
        let expected = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        counts.iter().map(|&found| (f64::from(found) - expected).powi(2) / expected).sum()
    }

    fn cells(numbers: impl Iterator<Item = f64>, cells: usize) -> Vec<u32> {
        let mut counts = vec![0; cells];
        for number in numbers {
            assert!((0.0..1.0).contains(&number));
            counts[(number * cells as f64) as usize] += 1;
        }
        counts
    }

    /// 99 degrees of freedom: above 148 and below 61 lies one in a thousand each.
    fn assert_uniform(numbers: impl Iterator<Item = f64>) {
        let found = chi_square(&cells(numbers, 100));
        assert!((61.0..148.0).contains(&found), "chi-square {found}");
    }

    #[test]
    fn uniform_along_positions_choices_and_seeds() {
        assert_uniform((0..100_000).map(|position| uniform(0, 0, position)));
        assert_uniform((0..100_000).map(|position| uniform(12_345, 3, position)));
        assert_uniform((0..100_000).map(|choice| uniform(0, choice, 7)));
        assert_uniform((0..100_000).map(|seed| uniform(seed, 0, 7)));
        assert_uniform((0..100_000).map(|seed| uniform(seed << 40, 0, 7)));
    }

    #[test]
    fn neighbours_are_independent() {
        // Pairs of numbers fall evenly into a square of 10 × 10 cells.
        let pair = |a: f64, b: f64| ((a * 10.0).floor() + b) / 10.0;
        assert_uniform((0..100_000).map(|n| pair(uniform(1, 0, n), uniform(1, 0, n + 1))));
        assert_uniform((0..100_000).map(|n| pair(uniform(1, 0, n), uniform(1, 1, n))));
        assert_uniform((0..100_000).map(|n| pair(uniform(1, 0, n), uniform(2, 0, n))));
    }

    #[test]
    fn every_part_of_the_key_matters() {
        let number = uniform(1, 2, 3);
        assert_eq!(number, uniform(1, 2, 3));
        assert_ne!(number, uniform(0, 2, 3));
        assert_ne!(number, uniform(1, 3, 2));
        assert_ne!(number, uniform(1 << 63 | 1, 2, 3));
    }

    #[test]
    fn the_numbers_do_not_change_between_releases() {
        // SplitMix64 from seed 0 begins with these two outputs.
        assert_eq!(mix(GAMMA), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(GAMMA.wrapping_mul(2)), 0x6e78_9e6a_a1b9_65f4);
        let start = 0xe220_a839_7b1d_cdaf_u64;
        assert_eq!(uniform(0, 0, 0), (mix(start.wrapping_add(GAMMA)) >> 11) as f64 / 9_007_199_254_740_992.0);
    }
}
