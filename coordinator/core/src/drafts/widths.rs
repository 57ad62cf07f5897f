//! What a step takes by how many rows it has, learned from the steps there were.

/// How much of what was learned remains at the next step of the width: the last five or so count.
const KEEP: f64 = 0.8;
/// Before anything but one width is known: what a row more costs, of what a step takes.
const ROW_SHARE: f64 = 1.0 / 16.0;
/// Every width up to here is learned by itself; beyond, widths that differ by a quarter are as one.
const SINGLE: usize = 16;

#[derive(Debug, Clone, Copy, Default)]
struct Width {
    weight: f64,
    rows: f64,
    time: f64,
}

impl Width {
    fn rows(&self) -> f64 {
        self.rows / self.weight
    }

    fn time(&self) -> f64 {
        self.time / self.weight
    }
}

/// Times of steps by rows.
#[derive(Debug, Clone, Default)]
pub struct Widths {
    /// By [`place`], those never seen without weight.
    widths: Vec<Width>,
}

impl Widths {
    /// A step of `rows` rows, one or more, took so long.
    pub fn learn(&mut self, rows: usize, time: f64) {
        let place = place(rows);
        if self.widths.len() <= place {
            self.widths.resize(place + 1, Width::default());
        }
        let width = &mut self.widths[place];
        width.weight = width.weight * KEEP + 1.0;
        width.rows = width.rows * KEEP + rows as f64;
        width.time = width.time * KEEP + time;
    }

    /// What a step of so many rows takes: between the widths around it, and beyond the widest known one as from the
    /// narrowest to there. Nothing for more than twice the widest: nobody finds out by a step of a hundred rows that
    /// rows are dear.
    pub fn time(&self, rows: usize) -> Option<f64> {
        let known = || self.widths.iter().filter(|width| width.weight > 0.0);
        let (narrowest, widest) = (known().next()?, known().next_back()?);
        let wanted = rows as f64;
        if wanted > 2.0 * widest.rows() {
            return None;
        }
        let below = known().take_while(|width| width.rows() <= wanted).last();
        let above = known().find(|width| width.rows() >= wanted);
        Some(match (below, above) {
            (Some(below), Some(above)) => between(below, above, wanted),
            (None, _) => narrowest.time(),
            (Some(_), None) if narrowest.rows() < widest.rows() => between(narrowest, widest, wanted),
            (Some(_), None) => widest.time() * (1.0 + ROW_SHARE * (wanted - widest.rows())),
        })
    }
}

/// On the line through both; never less than the narrower one takes, as measures of different steps may contradict each
/// other.
fn between(one: &Width, other: &Width, rows: f64) -> f64 {
    let span = other.rows() - one.rows();
    let share = if span > 0.0 { (rows - one.rows()) / span } else { 1.0 };
    (one.time() + share * (other.time() - one.time())).max(one.time().min(other.time()))
}

/// Where a width is kept: four places for each doubling.
fn place(rows: usize) -> usize {
    if rows <= SINGLE {
        return rows.max(1) - 1;
    }
    let doublings = rows.ilog2();
    let quarter = (rows >> (doublings - 2)) - 4;
    SINGLE + 4 * (doublings - SINGLE.ilog2()) as usize + quarter
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn between_what_is_known_and_not_far_beyond() {
        let mut widths = Widths::default();
        assert_eq!(widths.time(1), None);
        widths.learn(1, 100.0);
        assert_eq!((widths.time(1), widths.time(2)), (Some(100.0), Some(106.25)));
        assert_eq!(widths.time(3), None, "not more than twice as wide");
        widths.learn(2, 110.0);
        widths.learn(4, 150.0);
        assert_eq!(widths.time(3), Some(130.0));
        assert_eq!(widths.time(7), Some(200.0));
        assert_eq!(widths.time(9), None);
    }

    #[test]
    fn it_follows_changes() {
        let mut widths = Widths::default();
        widths.learn(4, 1000.0);
        (0..30).for_each(|_| widths.learn(4, 100.0));
        assert!((widths.time(4).expect("known") - 100.0).abs() < 10.0);
        assert_eq!(widths.time(1), widths.time(4), "narrower ones take no longer");
    }

    proptest! {
        #[test]
        fn places_are_in_order(rows in 1usize..100_000) {
            prop_assert!(place(rows + 1) >= place(rows) && place(rows + 1) <= place(rows) + 1);
        }

        #[test]
        fn times_are_of_what_was_seen(seen in prop::collection::vec((1usize..300, 1.0f64..1e6), 1..30), rows in 1usize..700) {
            let mut widths = Widths::default();
            seen.iter().for_each(|(rows, time)| widths.learn(*rows, *time));
            let least = seen.iter().map(|(_, time)| *time).fold(f64::MAX, f64::min);
            if let Some(time) = widths.time(rows) {
                prop_assert!(time >= least * (1.0 - 1e-9) && time.is_finite());
            }
        }
    }
}
