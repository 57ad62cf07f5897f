//! How many drafts go into a step.
//!
//! A step of `n` sessions brings `n` tokens, and each draft adds as many as it is probable that it and all drafts before
//! it are right. It makes the step take longer, for all who are in it. So drafts are taken in the order of what they
//! add, over all sessions, and of all numbers the one is chosen that brings the most tokens in the time. With many
//! sessions in a step, or drafts that are rarely right, that is none.

use super::{Draft, gains};

/// By session, how many of its drafts go along. Each session has one row besides; `time` says how long after a step of so
/// many rows the next one comes, and nothing where that is not known. Meanwhile `others` who are not in the step get a
/// token each: in a row of several stages a step that takes longer than those before and behind it holds them up. `most`
/// is how many drafts may go along altogether.
pub fn allot(offers: &[&[Draft]], others: usize, most: usize, time: impl Fn(usize) -> Option<f64>) -> Vec<usize> {
    let mut allotted = vec![0; offers.len()];
    // gains of one session never grow, so a stable sort keeps its drafts in order
    let mut gains: Vec<(f64, usize)> =
        offers.iter().enumerate().flat_map(|(index, drafts)| gains(drafts).map(move |gain| (gain, index))).collect();
    gains.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    gains.truncate(most);
    let rows = offers.len();
    let Some(plain) = time(rows).filter(|_| rows > 0) else { return allotted };
    let mut tokens = (rows + others) as f64;
    let (mut best, mut chosen) = (tokens / plain, 0);
    for (number, (gain, _)) in gains.iter().enumerate() {
        tokens += gain;
        let Some(time) = time(rows + number + 1) else { break };
        if tokens / time > best {
            (best, chosen) = (tokens / time, number + 1);
        }
    }
    for (_, index) in &gains[..chosen] {
        allotted[*index] += 1;
    }
    allotted
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drafts(chance: f32, count: usize) -> Vec<Draft> {
        vec![Draft { token: 1, chance }; count]
    }

    #[test]
    fn as_many_as_pay() {
        let offer = drafts(0.8, 15);
        assert_eq!(allot(&[&offer], 0, 15, |_| Some(1.0)), [15], "rows cost nothing");
        assert_eq!(allot(&[&offer], 0, 7, |_| Some(1.0)), [7]);
        assert_eq!(allot(&[&offer], 0, 15, |rows| Some(rows as f64)), [0], "rows cost as much as steps");
        let some = allot(&[&offer], 0, 15, |rows| Some(1.0 + 0.1 * rows as f64))[0];
        assert!((3..9).contains(&some), "{some}");
        assert_eq!(allot(&[&offer], 0, 15, |rows| (rows <= 4).then_some(1.0)), [3], "as far as times are known");
        assert_eq!(allot(&[&offer], 0, 15, |_| None), [0]);
        assert_eq!(allot(&[], 0, 15, |_| Some(1.0)), [0; 0]);
    }

    #[test]
    fn a_step_that_is_cheap_again_further_on_is_found() {
        // as on devices that compute eight rows at once: the ninth costs as much as eight more
        let time = |rows: usize| Some(rows.div_ceil(8) as f64);
        assert_eq!(allot(&[&drafts(0.95, 15)], 0, 15, time), [7]);
        assert_eq!(allot(&[&drafts(1.0, 15), &drafts(0.1, 15)], 0, 15, time), [6, 0]);
    }

    #[test]
    fn with_many_sessions_batching_wins() {
        let (sure, unsure) = (drafts(0.9, 4), drafts(0.3, 4));
        let time = |rows: usize| Some(4.0f64.max(rows as f64));
        assert_eq!(allot(&[&sure, &unsure], 0, 15, time), [2, 0]);
        assert_eq!(allot(&[&sure[..]; 8], 0, 32, time), [0; 8]);
    }

    #[test]
    fn those_who_are_held_up_count_too() {
        let (sure, time) = (drafts(0.6, 1), |rows: usize| Some(2.0 + rows as f64));
        assert_eq!(allot(&[&sure], 0, 9, time), [1]);
        assert_eq!(allot(&[&sure], 3, 9, time), [0]);
    }

    proptest! {
        #[test]
        fn it_is_the_best_of_all_ways(
            offers in prop::collection::vec(prop::collection::vec(0.0f32..=1.0, 0..4), 1..4),
            times in prop::collection::vec(0.1f64..5.0, 20),
        ) {
            let offers: Vec<Vec<Draft>> =
                offers.iter().map(|all| all.iter().map(|chance| Draft { token: 0, chance: *chance }).collect()).collect();
            let slices: Vec<&[Draft]> = offers.iter().map(Vec::as_slice).collect();
            let rate = |counts: &[usize]| {
                let rows = counts.iter().sum::<usize>() + counts.len();
                let tokens: f64 =
                    offers.iter().zip(counts).map(|(drafts, count)| super::super::expected(&drafts[..*count])).sum();
                (tokens + counts.len() as f64) / times[rows]
            };
            let chosen = rate(&allot(&slices, 0, 99, |rows| Some(times[rows])));
            let mut counts = vec![0; offers.len()];
            'all: loop {
                prop_assert!(chosen >= rate(&counts) * (1.0 - 1e-9));
                for (place, drafts) in offers.iter().enumerate() {
                    counts[place] += 1;
                    if counts[place] <= drafts.len() {
                        continue 'all;
                    }
                    counts[place] = 0;
                }
                break;
            }
        }
    }
}
