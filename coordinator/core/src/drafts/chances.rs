//! How often drafts of a kind were right.

/// How much of what was learned remains at the next draft of the kind: the last thirty or so count.
const KEEP: f32 = 0.97;
/// For how many drafts the expectation before the first one counts, for ever.
const BELIEF: f32 = 2.0;

#[derive(Debug, Clone, Copy)]
struct Kind {
    expected: f32,
    right: f32,
    all: f32,
}

/// How often drafts of each kind were right, newer ones counting more.
#[derive(Debug, Clone)]
pub struct Chances {
    kinds: Vec<Kind>,
}

impl Chances {
    /// Kinds with what is expected of each before anything is known.
    pub fn new(expected: &[f32]) -> Self {
        Self { kinds: expected.iter().map(|expected| Kind { expected: *expected, right: 0.0, all: 0.0 }).collect() }
    }

    /// How probable it is that a draft of this kind is right; the last kind stands for all above it.
    pub fn of(&self, kind: usize) -> f32 {
        let Kind { expected, right, all } = self.kinds[kind.min(self.kinds.len() - 1)];
        (right + BELIEF * expected) / (all + BELIEF)
    }

    /// A draft of this kind was right or not.
    pub fn learn(&mut self, kind: usize, is_right: bool) {
        let last = self.kinds.len() - 1;
        let Kind { right, all, .. } = &mut self.kinds[kind.min(last)];
        (*right, *all) = (*right * KEEP + f32::from(u8::from(is_right)), *all * KEEP + 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_outweighs_what_was_expected() {
        let mut chances = Chances::new(&[0.2, 0.8]);
        assert!((chances.of(0) - 0.2).abs() < 1e-6);
        assert!((chances.of(9) - 0.8).abs() < 1e-6, "the last kind stands for all above");
        (0..100).for_each(|_| chances.learn(1, false));
        assert!(chances.of(1) < 0.06 && chances.of(1) > 0.0);
        (0..100).for_each(|_| chances.learn(7, true));
        assert!(chances.of(1) > 0.9 && chances.of(1) < 1.0);
        assert!((chances.of(0) - 0.2).abs() < 1e-6, "each kind by itself");
    }
}
