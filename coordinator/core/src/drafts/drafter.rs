//! One session's drafts: which source they come from, and how likely each is.
//!
//! Chances are measured by kind: of lookup, how long the text agrees; of the tail's drafts, how probable its model thinks
//! them. Both sources are measured at every token, whether their drafts were run or not, so it costs nothing to find
//! that one has become the better.

use paceline_proto::Drafted;

use super::lookup::{Agreement, Lookup};
use super::{CHUNKS_UNDER_WAY, Chances, Draft, Proposals, expected};

/// By tokens that agree: 1, 2, 3, 4, up to 6, 9, 16, and more; what is expected of what follows.
const AGREEMENTS: [(usize, f32); 8] =
    [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.6), (6, 0.65), (9, 0.75), (16, 0.85), (usize::MAX, 0.9)];
/// By probability in the draft model's opinion, up to; what is expected of such drafts.
const OPINIONS: [(f32, f32); 6] = [(0.3, 0.2), (0.5, 0.4), (0.7, 0.55), (0.85, 0.7), (0.95, 0.85), (1.0, 0.95)];

/// Which drafts a session may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftSettings {
    /// How many in one chunk at most; 0 for none. Of its own text it offers some more, for chunks that are sent ahead.
    pub most: usize,
    /// Drafts end before the first one whose chance is smaller.
    pub least_chance: f32,
    /// Whether they may come from its own text.
    pub lookup: bool,
    /// How many the tail may be asked for; 0 where it has nothing to make them with.
    pub proposals: usize,
}

impl DraftSettings {
    /// No drafts at all.
    pub const NONE: Self = Self { most: 0, least_chance: 0.0, lookup: false, proposals: 0 };
}

/// Drafts of one source that what follows is held against, each with its kind.
type Pending = Vec<(u32, usize)>;

/// Makes a session's drafts. Told of every token that followed.
#[derive(Debug)]
pub struct Drafter {
    settings: DraftSettings,
    lookup: Lookup,
    agreements: Chances,
    opinions: Chances,
    looked_up: Pending,
    proposed: Pending,
}

impl Drafter {
    /// One that knows nothing yet.
    pub fn new(settings: DraftSettings) -> Self {
        Self {
            settings,
            lookup: Lookup::default(),
            agreements: Chances::new(&AGREEMENTS.map(|(_, expected)| expected)),
            opinions: Chances::new(&OPINIONS.map(|(_, expected)| expected)),
            looked_up: Pending::new(),
            proposed: Pending::new(),
        }
    }

    /// Learns from the tokens that followed the text for which drafts were made last.
    pub fn learn(&mut self, followed: &(impl Iterator<Item = u32> + Clone)) {
        let sources = [(&mut self.agreements, &self.looked_up), (&mut self.opinions, &self.proposed)];
        for (chances, pending) in sources {
            for ((draft, kind), token) in pending.iter().zip(followed.clone()) {
                chances.learn(*kind, *draft == token);
                if *draft != token {
                    break;
                }
            }
        }
        self.looked_up.clear();
        self.proposed.clear();
    }

    /// The drafts for what follows the text, `most` at most: of the source that promises more in a chunk. `proposed` are
    /// the tail's.
    pub fn drafts(&mut self, text: &[u32], proposed: &[Drafted], most: usize) -> Vec<Draft> {
        let most = most.min(self.settings.most * CHUNKS_UNDER_WAY);
        if most == 0 {
            return Vec::new();
        }
        if self.settings.lookup
            && let Some(found) = self.lookup.find(text)
        {
            let tokens = Lookup::continuation(text, found, most);
            self.looked_up = tokens.into_iter().zip(kinds_of(found)).collect();
        }
        self.proposed = proposed
            .iter()
            .take(most.min(self.settings.most))
            .map(|one| (one.token, opinion(one.probability)))
            .collect();
        let looked_up = self.rated(&self.looked_up, &self.agreements);
        let proposed = self.rated(&self.proposed, &self.opinions);
        let first = &looked_up[..looked_up.len().min(self.settings.most)];
        if expected(first) >= expected(&proposed) { looked_up } else { proposed }
    }

    /// What the tail is to guess after it has run these.
    pub fn proposals(&self) -> Proposals {
        let DraftSettings { most, least_chance, proposals, .. } = self.settings;
        let most = u32::try_from(proposals.min(most)).unwrap_or(u32::MAX);
        Proposals { most, least_probability: (least_chance.clamp(0.0, 1.0) * 1000.0) as u16 }
    }

    fn rated(&self, pending: &Pending, chances: &Chances) -> Vec<Draft> {
        let drafts = pending.iter().map(|(token, kind)| Draft { token: *token, chance: chances.of(*kind) });
        drafts.take_while(|draft| draft.chance >= self.settings.least_chance).collect()
    }
}

/// The kinds of one draft after the other: each that is right makes the text agree for longer.
fn kinds_of(found: Agreement) -> impl Iterator<Item = usize> {
    (found.tokens..).map(|tokens| AGREEMENTS.iter().position(|(most, _)| tokens <= *most).unwrap_or(AGREEMENTS.len()))
}

fn opinion(probability: f32) -> usize {
    OPINIONS.iter().position(|(most, _)| probability <= *most).unwrap_or(OPINIONS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOKUP: DraftSettings = DraftSettings { most: 8, least_chance: 0.0, lookup: true, proposals: 4 };

    fn tokens(drafts: &[Draft]) -> Vec<u32> {
        drafts.iter().map(|draft| draft.token).collect()
    }

    #[test]
    fn the_source_that_promises_more_is_taken_and_both_are_measured() {
        let text: Vec<u32> = (0..50).chain(0..20).collect();
        let proposed = [Drafted { token: 77, probability: 0.99 }, Drafted { token: 78, probability: 0.2 }];
        let mut drafter = Drafter::new(LOOKUP);
        assert_eq!(tokens(&drafter.drafts(&text, &proposed, 5)), [20, 21, 22, 23, 24]);
        for _ in 0..60 {
            drafter.learn(&[77, 78].into_iter());
            drafter.drafts(&text, &proposed, 5);
        }
        let drafts = drafter.drafts(&text, &proposed, 5);
        assert_eq!(tokens(&drafts), [77, 78], "the text is wrong all the time");
        assert!(drafts[0].chance > 0.9 && drafts[1].chance > 0.9, "{drafts:?}");
        for _ in 0..60 {
            drafter.learn(&[20, 21, 22, 9].into_iter());
            drafter.drafts(&text, &proposed, 5);
        }
        assert_eq!(tokens(&drafter.drafts(&text, &proposed, 2)), [20, 21], "and right again");
    }

    #[test]
    fn settings_are_heeded() {
        let text: Vec<u32> = (0..50).chain(0..20).collect();
        assert_eq!(Drafter::new(DraftSettings::NONE).drafts(&text, &[], 8), []);
        let no_lookup = DraftSettings { lookup: false, ..LOOKUP };
        assert_eq!(Drafter::new(no_lookup).drafts(&text, &[], 8), []);
        let sure = DraftSettings { least_chance: 0.95, ..LOOKUP };
        assert_eq!(Drafter::new(sure).drafts(&text, &[], 8), []);
        assert_eq!(Drafter::new(LOOKUP).drafts(&text, &[], 100).len(), 8 * CHUNKS_UNDER_WAY);
        assert_eq!(Drafter::new(LOOKUP).drafts(&text, &[], 0), []);
    }

    #[test]
    fn an_agreement_that_grows_is_believed_more() {
        let drafts = Drafter::new(LOOKUP).drafts(&(0..50).chain(0..3).collect::<Vec<_>>(), &[], 8);
        assert!(drafts.windows(2).all(|pair| pair[0].chance <= pair[1].chance), "{drafts:?}");
        assert!(drafts[7].chance > drafts[0].chance);
    }

    #[test]
    fn absurd_opinions_are_survived() {
        let mut drafter = Drafter::new(LOOKUP);
        for probability in [f32::NAN, f32::INFINITY, -1.0] {
            drafter.drafts(&[1], &[Drafted { token: 5, probability }], 4);
            drafter.learn(&[5].into_iter());
        }
        assert!(drafter.drafts(&[1], &[Drafted { token: 5, probability: 0.5 }], 4)[0].chance.is_finite());
    }
}
