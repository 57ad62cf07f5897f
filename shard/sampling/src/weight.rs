//! From logits to weights: the numerators of the softmax.

/// Rows are summed in pieces of so many weights, which stay in registers and cache.
const PIECE: usize = 64;

/// Turns logits into weights in proportion to their probabilities; the largest logit has weight 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// The largest logit; finite.
    pub(crate) largest: f32,
    /// Greater than 0.
    pub(crate) temperature: f32,
}

impl Scale {
    /// The weight of one logit, 0 to 1.
    pub(crate) fn weight(self, logit: f32) -> f32 {
        exp((logit - self.largest) / self.temperature)
    }

    /// Replaces logits by their weights.
    pub(crate) fn weigh(self, logits: &mut [f32]) {
        logits.iter_mut().for_each(|logit| *logit = self.weight(*logit));
    }

    /// The weights of a whole row together, added in order.
    pub(crate) fn mass(self, logits: &[f32]) -> f64 {
        let mut mass = 0.0;
        let mut weights = [0.0; PIECE];
        for logits in logits.chunks(PIECE) {
            let weights = &mut weights[..logits.len()];
            weights.copy_from_slice(logits);
            self.weigh(weights);
            mass += weights.iter().map(|&weight| f64::from(weight)).sum::<f64>();
        }
        mass
    }
}

/// The exponential of a number that is not positive; 0 below -87, where it would no longer be a normal number.
///
/// With `x = n ln 2 + r` it is `2ⁿ eʳ`, and `eʳ` is its Taylor series. Only additions, multiplications and moving
/// bits: the same bits on every machine, and a compiler can do several at once, which makes it five times as fast as
/// the function of a mathematical library.
fn exp(x: f32) -> f32 {
    // Adding this rounds to an integer, which then is in the lowest bits.
    const ROUNDER: f32 = 12_582_912.0;
    // The upper bits of ln 2: products with small integers are exact.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let rounded = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = rounded - ROUNDER;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let series = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let power = series.into_iter().reduce(|sum, coefficient| sum * r + coefficient).unwrap_or(1.0);
    // `n` is -126 to 0; one more bit in the exponent doubles.
    let exponent = rounded.to_bits().wrapping_sub(ROUNDER.to_bits()).wrapping_add(127);
    let scale = f32::from_bits(exponent << 23);
    if x < -87.0 { 0.0 } else { power * scale }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn exact_at_the_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::MIN), 0.0);
        assert_eq!(exp(-1e-30), 1.0);
    }

    #[test]
    fn close_to_the_exponential_and_never_above_one() {
        // Every 97th number between -87 and the smallest: eleven million.
        for bits in (0..87f32.to_bits()).step_by(97) {
            let x = -f32::from_bits(bits);
            let (found, wanted) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((found / wanted - 1.0).abs() < 2e-7 && found <= 1.0, "exp({x}) is {found}, not {wanted}");
        }
    }

    #[test]
    fn extreme_temperatures_are_no_division_by_zero() {
        for temperature in [1e-45, f32::MIN_POSITIVE, 1.0, f32::MAX] {
            let scale = Scale { largest: f32::MAX, temperature };
            assert_eq!(scale.weight(f32::MAX), 1.0);
            assert_eq!(scale.weight(f32::NEG_INFINITY), 0.0);
            assert!((0.0..=1.0).contains(&scale.weight(f32::MIN)));
        }
    }

    proptest! {
        #[test]
        fn mass_is_the_sum_of_weights(logits in prop::collection::vec(-50f32..=3.0, 0..300)) {
            let scale = Scale { largest: 3.0, temperature: 0.7 };
            let wanted: f64 = logits.iter().map(|&logit| f64::from((logit - 3.0) / 0.7).exp()).sum();
            prop_assert!((scale.mass(&logits) - wanted).abs() <= 1e-6 * wanted);
        }
    }
}
