//! Which tokens of which texts are read in which step.

use std::ops::Range;

/// Consecutive tokens of one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// Which text.
    pub(super) text: usize,
    /// Which of its tokens.
    pub(super) tokens: Range<usize>,
}

/// Packs texts of these lengths, in their order, into steps of at most `rows` tokens of at most `texts` texts. A text that
/// is longer than a step begins one of its own, and goes on as the first text of the next ones.
pub(super) fn cut(lengths: &[usize], rows: usize, texts: usize) -> Vec<Vec<Piece>> {
    let (mut steps, mut step, mut used) = (Vec::new(), Vec::new(), 0);
    for (text, &length) in lengths.iter().enumerate() {
        let mut start = 0;
        if used + length > rows || step.len() == texts {
            close(&mut steps, &mut step, &mut used);
        }
        while length - start > rows {
            steps.push(vec![Piece { text, tokens: start..start + rows }]);
            start += rows;
        }
        used += length - start;
        step.push(Piece { text, tokens: start..length });
    }
    close(&mut steps, &mut step, &mut used);
    steps
}

/// Ends a step, if anything is in it.
fn close(steps: &mut Vec<Vec<Piece>>, step: &mut Vec<Piece>, used: &mut usize) {
    *used = 0;
    if !step.is_empty() {
        steps.push(std::mem::take(step));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_token_is_read_once_in_order_and_only_the_first_text_of_a_step_goes_on(
            lengths in proptest::collection::vec(1usize..60, 0..30),
            rows in 1usize..40,
            texts in 1usize..6,
        ) {
            let steps = cut(&lengths, rows, texts);
            let mut read = vec![0; lengths.len()];
            for step in &steps {
                prop_assert!(!step.is_empty() && step.len() <= texts);
                prop_assert!(step.iter().map(|piece| piece.tokens.len()).sum::<usize>() <= rows);
                for (place, piece) in step.iter().enumerate() {
                    prop_assert_eq!(piece.tokens.start, read[piece.text]);
                    prop_assert!(place == 0 || piece.tokens.start == 0, "others begin here");
                    prop_assert!(step.len() == 1 || piece.tokens.end == lengths[piece.text], "only one alone is cut");
                    read[piece.text] = piece.tokens.end;
                }
            }
            prop_assert_eq!(read, lengths);
        }
    }

    #[test]
    fn short_texts_share_steps() {
        let piece = |text, tokens| Piece { text, tokens };
        let steps = cut(&[3, 4, 9, 2], 8, 64);
        assert_eq!(
            steps,
            [vec![piece(0, 0..3), piece(1, 0..4)], vec![piece(2, 0..8)], vec![piece(2, 8..9), piece(3, 0..2)],]
        );
    }
}
