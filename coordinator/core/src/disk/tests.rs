//! The disk tier's core against stages that are maps.

use paceline_proto::KeptEntry;
use proptest::prelude::*;

use super::*;

const NOW: Duration = Duration::from_secs(5);
const PAGE: usize = 4;

/// What a stage has on disk: entries, and whether with the state.
type Stage = BTreeMap<EntryKey, (Entry, bool)>;

struct World {
    disk: Disk,
    stages: Vec<Stage>,
    /// Orders that stages have not carried out.
    orders: Vec<(usize, TierOrder)>,
}

impl World {
    fn new(stages: Vec<Stage>) -> Self {
        let root = EntryKey::root(&[4; 32], "");
        let mut disk = Disk::new(root, stages.len(), true, 16, 0, DiskCounts::default());
        assert!(disk.is_listing());
        disk.tick(NOW);
        let mut world = Self { disk, stages, orders: Vec::new() };
        world.take();
        world
    }

    fn take(&mut self) {
        self.orders.extend(self.disk.take_orders());
    }

    /// A stage carries out the order in this place.
    fn carry_out(&mut self, at: usize) {
        let (stage, TierOrder { ticket, task }) = self.orders.remove(at);
        let has = &mut self.stages[stage];
        let outcome = match task {
            TierTask::Keep { entry, state, .. } => {
                let known = has.entry(entry.key()).or_insert((entry, false));
                known.1 |= state.is_some();
                TierOutcome::Kept { evicted: Vec::new() }
            }
            TierTask::Fetch { path, .. } => match path.iter().find(|key| !has.contains_key(key)) {
                Some(missing) => TierOutcome::Refused(TierRefusal::Missing(*missing)),
                None => TierOutcome::Staged { bytes: 7 },
            },
            TierTask::List { after, .. } => {
                // One at a time, so that every list has many parts.
                let next = has.iter().find(|(key, _)| after.is_none_or(|after| **key > after));
                let entries = next.map(|(_, (entry, state))| KeptEntry { entry: entry.clone(), state: *state });
                TierOutcome::Listed { entries: entries.into_iter().collect(), next: next.map(|(key, _)| *key) }
            }
            TierTask::Drop => return,
            TierTask::Forget { .. } => TierOutcome::Forgotten(std::mem::take(has).into_keys().collect()),
            TierTask::Count => TierOutcome::Counted(TierCounts { entries: has.len() as u64, ..TierCounts::default() }),
        };
        self.disk.answer(stage, TierAnswer { ticket, outcome });
        self.take();
    }

    fn carry_out_all(&mut self) {
        while !self.orders.is_empty() {
            self.carry_out(0);
        }
    }

    fn keep(&mut self, entry: Entry, state: bool) {
        self.disk.keep(entry, Pinned { pages: vec![PageId(1)], slot: state.then_some(Slot(2)) });
        self.take();
    }

    /// Keeps what is missing up to each of these positions.
    fn keep_up_to(&mut self, tokens: &[u32], positions: &[usize]) {
        for position in positions {
            let (entry, state) = self.disk.missing(&tokens[..*position]).expect("it is missing");
            assert!(state && self.disk.may_keep());
            self.keep(entry, true);
            assert_eq!(self.disk.missing(&tokens[..*position]), None, "it is on its way");
        }
    }

    fn fetch(&mut self, tokens: &[u32], known: usize) -> Option<Ticket> {
        let ticket = self.disk.fetch(&tokens.into(), tokens.len() - 1, known, PAGE);
        self.take();
        ticket
    }

    fn state(&self, ticket: Ticket) -> Option<Fetching> {
        self.disk.fetching(ticket).map(|(_, state)| state)
    }
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).collect()
}

#[test]
fn what_every_stage_has_kept_is_found_also_after_a_restart() {
    let mut world = World::new(vec![Stage::new(), Stage::new()]);
    world.carry_out_all();
    assert!(!world.disk.is_listing() && world.disk.deadline().is_none());
    let tokens = tokens(100);
    world.keep_up_to(&tokens, &[30, 60, 90]);
    // The first stage is done with all, the second with nothing.
    for at in [0, 1, 2] {
        world.carry_out(at);
    }
    assert_eq!(world.disk.reach(&tokens, 99), 0);
    assert!(world.disk.take_unpinned().is_empty(), "pages are held for the second stage");
    world.carry_out_all();
    assert_eq!(world.disk.take_unpinned().len(), 3);
    assert_eq!(world.disk.tiers()[1].entries, 3);
    assert_eq!((world.disk.reach(&tokens, 99), world.disk.reach(&tokens, 89)), (90, 60));
    let mut other = tokens.clone();
    other[45] = 7;
    assert_eq!(world.disk.reach(&other, 99), 30);
    // The second stage loses what was kept last; then there is another life.
    let mut stages = world.stages;
    stages[1].retain(|_, (entry, _)| entry.start < 60);
    let mut world = World::new(stages);
    world.carry_out_all();
    assert_eq!(world.disk.reach(&tokens, 99), 60);
}

#[test]
fn a_fetch_ends_when_all_have_staged_it_or_one_has_not_or_it_is_late() {
    let mut world = World::new(vec![Stage::new(), Stage::new()]);
    let tokens = tokens(100);
    world.carry_out_all();
    world.keep_up_to(&tokens, &[30, 60]);
    world.carry_out_all();
    let ticket = world.fetch(&tokens, 0).expect("two entries");
    assert_eq!(world.fetch(&tokens, 8), Some(ticket), "what is on its way is not fetched twice");
    world.carry_out_all();
    assert_eq!(world.state(ticket), Some(Fetching::Staged));
    // Only what is behind the known pages is fetched, from the page in which it begins.
    let behind = world.fetch(&tokens, 30).expect("one entry");
    let (fetch, _) = world.disk.fetching(behind).expect("it is wanted");
    assert_eq!((fetch.start, fetch.end, fetch.path.len()), (28, 60, 1));
    // One stage hangs.
    world.carry_out(0);
    assert_eq!(world.disk.deadline(), Some(NOW + FETCH));
    world.disk.tick(NOW + FETCH);
    assert_eq!(world.state(behind), Some(Fetching::Failed { missing: false }));
    assert_eq!(world.disk.deadline(), None);
    world.carry_out_all();
    assert_eq!(world.state(behind), Some(Fetching::Failed { missing: false }), "what comes too late changes nothing");
    // One stage has lost something: nobody looks for it again.
    world.stages[1].retain(|_, (entry, _)| entry.start < 30);
    let ticket = world.fetch(&tokens, 0).expect("two entries");
    world.carry_out_all();
    assert_eq!(world.state(ticket), Some(Fetching::Failed { missing: true }));
    assert_eq!(world.disk.reach(&tokens, 99), 30);
    // Whoever leaves has nothing staged for him.
    let ticket = world.fetch(&tokens, 0).expect("one entry");
    world.disk.retain_fetches(&BTreeSet::new());
    world.take();
    let drops = |(_, order): &&(usize, TierOrder)| order.ticket == ticket && order.task == TierTask::Drop;
    assert_eq!((world.orders.iter().filter(drops).count(), world.state(ticket)), (2, None));
}

#[test]
fn stages_that_never_say_what_they_keep_are_not_waited_for_for_ever() {
    let mut world = World::new(vec![Stage::new(), Stage::new()]);
    world.carry_out(0);
    assert!(world.disk.is_listing());
    world.disk.tick(NOW + LISTING);
    assert!(!world.disk.is_listing());
}

#[test]
fn only_so_many_are_kept_at_once_and_pages_are_held_without_a_deadline() {
    let mut world = World::new(vec![Stage::new()]);
    world.carry_out_all();
    let tokens = tokens(9000);
    let positions: Vec<usize> = (1..=KEEPING).map(|number| number * 10).collect();
    world.keep_up_to(&tokens, &positions);
    let (next, _) = world.disk.missing(&tokens[..500]).expect("it is missing");
    assert_eq!(next.start as usize, KEEPING * 10, "behind what is on its way");
    assert!(!world.disk.may_keep() && world.disk.deadline().is_none());
    assert_eq!(world.disk.pinned().count(), KEEPING);
    world.carry_out_all();
    assert!(world.disk.may_keep());
    world.keep(next.clone(), false);
    world.carry_out_all();
    // Its pages are kept, its state is not.
    assert_eq!(world.disk.missing(&tokens[..500]), Some((next, true)));
    assert_eq!(world.disk.reach(&tokens, 999), KEEPING * 10);
    // What is too long for one entry is divided, and the state goes with its end.
    let (first, state) = world.disk.missing(&tokens).expect("it is missing");
    assert_eq!((first.start, first.tokens.len(), state), (500, ENTRY_TOKENS, false));
    let (_, _, counts) = world.disk.end();
    assert_eq!((counts.kept, counts.not_kept), (KEEPING as u64 + 1, 0));
}

#[test]
fn what_makes_room_is_no_longer_there_and_texts_without_states_are_cut_alike() {
    let mut world = World::new(vec![Stage::new()]);
    world.disk.has_states = false;
    world.carry_out_all();
    let tokens = tokens(40);
    let mut ends = Vec::new();
    while let Some((entry, state)) = world.disk.missing(&tokens) {
        assert!(!state);
        ends.push(entry.end().expect("an entry"));
        world.keep(entry, false);
    }
    assert_eq!(ends, [16, 32, 40]);
    world.carry_out_all();
    assert_eq!((world.disk.reach(&tokens, 39), world.disk.reach(&tokens, 40)), (32, 40));
    let (entry, _) = world.disk.missing(&[&tokens[..10], &[7]].concat()).expect("another text");
    world.keep(entry, false);
    let evicted = world.stages[0].iter().filter(|(_, (entry, _))| entry.start == 16).map(|(key, _)| *key).collect();
    let ticket = world.orders[0].1.ticket;
    world.disk.answer(0, TierAnswer { ticket, outcome: TierOutcome::Kept { evicted } });
    assert_eq!(world.disk.reach(&tokens, 40), 16);
}

proptest! {
    #[test]
    fn what_is_found_is_on_every_stage_and_nothing_longer_is(
        kept in proptest::collection::vec((0..4_u32, 1..7_usize, any::<prop::sample::Index>()), 0..40),
        asked in (0..4_u32, 1..12_usize),
    ) {
        // Branches of twelve tokens; each is different from its third token on.
        let branch = |number: u32| (0..12).map(|at| if at < 3 { 0 } else { number }).collect::<Vec<u32>>();
        let mut world = World::new(vec![Stage::new(), Stage::new()]);
        world.carry_out_all();
        let mut asked_for = 0;
        for (number, position, index) in &kept {
            if let Some((entry, state)) = world.disk.missing(&branch(*number)[..position * 2]).filter(|_| world.disk.may_keep()) {
                world.keep(entry, state);
                asked_for += 1;
            }
            if !world.orders.is_empty() {
                world.carry_out(index.index(world.orders.len()));
            }
        }
        let (number, most) = asked;
        let tokens = branch(number);
        let found = world.disk.reach(&tokens, most);
        // By force: every set of entries that both stages have.
        let both: BTreeSet<EntryKey> =
            world.stages[0].keys().filter(|key| world.stages[1].contains_key(*key)).copied().collect();
        let mut best = 0;
        for key in &both {
            let (entry, state) = &world.stages[0][key];
            let (mut at, mut all) = (entry, *state && world.stages[1][key].1);
            let mut parts = vec![entry.tokens.clone()];
            while at.start > 0 && all {
                all = both.contains(&at.parent);
                if all {
                    at = &world.stages[0][&at.parent].0;
                    parts.insert(0, at.tokens.clone());
                }
            }
            let whole = parts.concat();
            if all && whole.len() <= most && tokens.starts_with(&whole) {
                best = best.max(whole.len());
            }
        }
        prop_assert_eq!(found, best);
        world.carry_out_all();
        prop_assert_eq!(world.disk.take_unpinned().len(), asked_for, "everything that was held is free again");
    }
}

#[test]
fn a_text_is_forgotten_by_all_stages() {
    let mut world = World::new(vec![Stage::new(), Stage::new()]);
    world.carry_out_all();
    let tokens = tokens(100);
    assert!(!world.disk.forget(&tokens), "there is nothing to forget");
    // What is on its way goes too: it is kept first.
    world.keep_up_to(&tokens, &[30, 60]);
    assert!(world.disk.forget(&tokens));
    world.take();
    world.carry_out_all();
    assert_eq!((world.disk.reach(&tokens, 99), world.disk.catalog().len()), (0, 0));
    assert!(world.stages.iter().all(Stage::is_empty));
    world.keep_up_to(&tokens, &[30]);
    let given = (0..2 * FORGETTING).filter(|_| world.disk.forget(&tokens)).count();
    assert_eq!(given, FORGETTING, "orders are bounded");
    world.take();
    world.carry_out_all();
    assert!(world.disk.catalog().is_empty() && world.disk.forget(&tokens) == world.disk.is_listing());
}
