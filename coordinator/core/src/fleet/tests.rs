//! Single stories, and random ones in which nothing may ever go wrong.

use proptest::prelude::*;

use super::*;

/// A fleet, the time, and what is done.
struct Scene {
    fleet: Fleet,
    now: Duration,
    tickets: u64,
}

fn berth(memory: u64) -> Berth {
    Berth { memory, part: Part::Texts, idle: None, at_start: false }
}

impl Scene {
    fn new(berths: &[Berth], total: u64) -> Self {
        let models: Vec<(Part, u64)> = berths.iter().map(|berth| (berth.part, berth.memory)).collect();
        let budget = Budget::divide(total, &models).unwrap();
        Self { fleet: Fleet::new(berths.to_vec(), budget), now: Duration::ZERO, tickets: 0 }
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.fleet.on(event, self.now, &mut actions);
        actions
    }

    fn want(&mut self, place: usize) -> Vec<Action> {
        self.tickets += 1;
        self.on(Event::Want { ticket: Ticket(self.tickets), place })
    }

    fn loaded(&mut self, place: usize) -> Vec<Action> {
        let memory = self.fleet.memory(place);
        self.on(Event::Loaded { place, memory })
    }

    /// Has a model loaded, and nobody use it.
    fn used_once(&mut self, place: usize) {
        assert_eq!(self.want(place), [Action::Load(place)]);
        let ticket = Ticket(self.tickets);
        assert_eq!(self.loaded(place), [Action::Grant { ticket, place }]);
        assert_eq!(self.on(Event::Release { place }), []);
    }

    fn pass(&mut self, seconds: u64) -> Vec<Action> {
        self.now += Duration::from_secs(seconds);
        self.on(Event::Tick)
    }
}

fn grant(ticket: u64, place: usize) -> Action {
    Action::Grant { ticket: Ticket(ticket), place }
}

#[test]
fn a_request_loads_its_model_and_those_behind_it_share_it() {
    let mut scene = Scene::new(&[berth(5)], 10);
    assert_eq!(scene.want(0), [Action::Load(0)]);
    assert_eq!(scene.want(0), []);
    assert_eq!(scene.fleet.waiting(0), 2);
    assert_eq!(scene.loaded(0), [grant(1, 0), grant(2, 0)]);
    assert_eq!(scene.want(0), [grant(3, 0)]);
    assert_eq!(scene.fleet.state(0), State::Loaded { users: 3, since: Duration::ZERO });
}

#[test]
fn two_models_that_do_not_fit_together_take_turns() {
    let mut scene = Scene::new(&[berth(7), berth(6)], 10);
    scene.used_once(0);
    for round in 0..100 {
        let (old, new) = (round % 2, (round + 1) % 2);
        assert_eq!(scene.want(new), [Action::Unload(old)]);
        let ticket = scene.tickets;
        assert_eq!(scene.on(Event::Unloaded { place: old }), [Action::Load(new)]);
        assert_eq!(scene.loaded(new), [grant(ticket, new)]);
        assert_eq!(scene.on(Event::Release { place: new }), []);
    }
}

#[test]
fn a_model_in_use_stays_and_the_request_waits() {
    let mut scene = Scene::new(&[berth(7), berth(6)], 10);
    scene.want(0);
    scene.loaded(0);
    assert_eq!(scene.want(1), []);
    assert_eq!(scene.on(Event::Release { place: 0 }), [Action::Unload(0)]);
    assert_eq!(scene.on(Event::Unloaded { place: 0 }), [Action::Load(1)]);
}

#[test]
fn the_fewest_bytes_go_that_are_enough_of_what_was_used_longest_ago() {
    let mut scene = Scene::new(&[berth(2), berth(6), berth(2), berth(5)], 10);
    for place in 0..3 {
        scene.now += Duration::from_secs(1);
        scene.used_once(place);
    }
    // The first alone would not do, and with the second it is not needed.
    assert_eq!(scene.want(3), [Action::Unload(1)]);
    assert_eq!(scene.fleet.state(0), State::Loaded { users: 0, since: Duration::from_secs(1) });
}

#[test]
fn a_vector_never_costs_a_conversation() {
    let vectors = |memory| Berth { part: Part::Vectors, ..berth(memory) };
    let mut scene = Scene::new(&[berth(79), vectors(10), vectors(9)], 90);
    assert_eq!(scene.fleet.budget, Budget { texts: 79, vectors: 11 });
    scene.used_once(0);
    scene.used_once(1);
    // Another model of vectors goes, and the one of texts stays.
    assert_eq!(scene.want(2), [Action::Unload(1)]);
}

#[test]
fn whoever_waits_long_goes_before_new_requests_for_what_is_in_the_way() {
    let mut scene = Scene::new(&[berth(7), berth(6)], 10);
    scene.want(0);
    scene.loaded(0);
    assert_eq!(scene.want(1), []);
    assert_eq!(scene.want(0), [grant(3, 0)], "at first everybody is served as they come");
    assert_eq!(scene.pass(PATIENCE.as_secs()), []);
    assert_eq!(scene.want(0), [], "then they queue");
    assert_eq!(scene.on(Event::Release { place: 0 }), []);
    assert_eq!(scene.on(Event::Release { place: 0 }), [Action::Unload(0)]);
    assert_eq!(scene.on(Event::Unloaded { place: 0 }), [Action::Load(1)]);
    assert_eq!(scene.loaded(1), [grant(2, 1)]);
    assert_eq!(scene.on(Event::Release { place: 1 }), [Action::Unload(1)]);
    assert_eq!(scene.on(Event::Unloaded { place: 1 }), [Action::Load(0)]);
    assert_eq!(scene.loaded(0), [grant(4, 0)]);
}

#[test]
fn idle_models_go_after_their_time() {
    let idle = Some(Duration::from_secs(10));
    let mut scene = Scene::new(&[Berth { idle, ..berth(5) }, berth(5)], 10);
    scene.used_once(0);
    scene.used_once(1);
    assert_eq!(scene.pass(9), []);
    assert_eq!(scene.pass(1), [Action::Unload(0)]);
    assert_eq!(scene.fleet.state(0), State::Unloading);
}

#[test]
fn models_are_loaded_at_the_start_as_far_as_there_is_room() {
    let first = Berth { at_start: true, ..berth(4) };
    let mut scene = Scene::new(&[first.clone(), berth(1), first.clone(), first], 9);
    assert_eq!(scene.on(Event::Start), [Action::Load(0), Action::Load(2)]);
}

#[test]
fn requests_are_refused_with_the_reason() {
    let mut scene = Scene::new(&[berth(7), berth(6)], 10);
    scene.want(0);
    let refused = |ticket, refusal| Action::Refuse { ticket: Ticket(ticket), refusal };
    let failed = Refusal::Failed { reason: "no such file".to_owned() };
    let event = Event::Failed { place: 0, reason: "no such file".to_owned() };
    assert_eq!(scene.on(event), [refused(1, failed)]);

    scene.want(0);
    scene.loaded(0);
    scene.want(1);
    let no_room = Refusal::NoRoom { needed: 6, left: 3, budget: 10 };
    assert_eq!(scene.pass(DEADLINE.as_secs()), [refused(3, no_room)]);

    for _ in 0..QUEUE {
        assert_eq!(scene.want(1), []);
    }
    let full = refused(scene.tickets + 1, Refusal::QueueFull { waiting: QUEUE });
    assert_eq!(scene.want(1), [full]);
    assert_eq!(scene.on(Event::Withdraw(Ticket(4))), []);
    assert_eq!(scene.want(1), [], "who left makes room");

    let refusals = scene.on(Event::Stop);
    assert_eq!(refusals.len(), QUEUE);
    let stopping = refused(scene.tickets + 1, Refusal::Stopping);
    assert_eq!(scene.want(0), [stopping]);
}

#[test]
fn a_budget_has_room_for_each_model_alone() {
    let (texts, vectors) = (Part::Texts, Part::Vectors);
    for (total, models, expected) in [
        (80, &[(texts, 60), (vectors, 5)][..], Ok([75, 5])),
        (80, &[(texts, 60), (vectors, 9), (vectors, 9)], Ok([70, 10])),
        (80, &[(texts, 60), (vectors, 15)], Ok([65, 15])),
        (80, &[(vectors, 50), (vectors, 50)], Ok([0, 80])),
        (80, &[(texts, 70), (vectors, 15)], Err((0, 65))),
        (80, &[(texts, 10), (vectors, 90)], Err((0, 0))),
    ] {
        let divided = Budget::divide(total, models);
        let divided = divided.map(|budget| [budget.texts, budget.vectors]).map_err(|error| (error.place, error.budget));
        assert_eq!(divided, expected, "{models:?}");
    }
}

/// What may happen next in a random story.
#[derive(Debug, Clone)]
enum Step {
    Want(usize),
    Release(usize),
    Settle(usize),
    Fail(usize),
    Withdraw(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..5).prop_map(Step::Want),
        3 => (0usize..8).prop_map(Step::Release),
        4 => (0usize..5).prop_map(Step::Settle),
        1 => (0usize..5).prop_map(Step::Fail),
        1 => (0usize..8).prop_map(Step::Withdraw),
        1 => (0u64..90).prop_map(Step::Pass),
    ]
}

/// The other side: what is loaded, who waits and who is served.
#[derive(Default)]
struct Mirror {
    waiting: Vec<(Ticket, usize)>,
    served: Vec<usize>,
    /// Models that are loaded or being loaded, and how far they are.
    present: Vec<(usize, &'static str)>,
}

impl Mirror {
    fn take(&mut self, actions: &[Action], memories: &[u64], total: u64) {
        for action in actions {
            match action {
                Action::Load(place) => {
                    assert!(self.present.iter().all(|(other, _)| other != place), "loaded once");
                    self.present.push((*place, "loading"));
                }
                Action::Unload(place) => {
                    assert!(!self.served.contains(place), "nobody uses what ends");
                    let present = self.present.iter_mut().find(|(other, _)| other == place);
                    let state = &mut present.expect("what ends is there").1;
                    assert_eq!(*state, "loaded");
                    *state = "unloading";
                }
                Action::Grant { ticket, place } => {
                    assert!(self.present.contains(&(*place, "loaded")), "what is granted is loaded");
                    self.leave(*ticket, Some(*place));
                    self.served.push(*place);
                }
                Action::Refuse { ticket, .. } => self.leave(*ticket, None),
            }
        }
        let bytes: u64 = self.present.iter().map(|(place, _)| memories[*place]).sum();
        assert!(bytes <= total, "{bytes} of {total} are taken");
    }

    fn leave(&mut self, ticket: Ticket, place: Option<usize>) {
        let index = self.waiting.iter().position(|(waiting, _)| *waiting == ticket).expect("it waits");
        let (_, wanted) = self.waiting.remove(index);
        assert!(place.is_none_or(|place| place == wanted), "it gets what it wants");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn memory_is_kept_to_nobody_loses_a_model_and_all_are_answered(
        memories in proptest::collection::vec(1u64..8, 5),
        room in 0u64..10,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let total = memories.iter().max().unwrap() + room;
        let idle = [None, Some(Duration::from_secs(30))];
        let berths = memories.iter().enumerate();
        let berths: Vec<Berth> =
            berths.map(|(place, memory)| Berth { idle: idle[place % 2], ..berth(*memory) }).collect();
        let (mut scene, mut mirror) = (Scene::new(&berths, total), Mirror::default());
        for step in steps {
            let event = match step {
                Step::Want(place) => {
                    scene.tickets += 1;
                    let ticket = Ticket(scene.tickets);
                    mirror.waiting.push((ticket, place));
                    Event::Want { ticket, place }
                }
                Step::Release(index) if index < mirror.served.len() => {
                    Event::Release { place: mirror.served.remove(index) }
                }
                Step::Settle(index) | Step::Fail(index) if index < mirror.present.len() => {
                    settle(&mut mirror, index, matches!(step, Step::Fail(_)), &memories)
                }
                Step::Withdraw(index) if index < mirror.waiting.len() => {
                    Event::Withdraw(mirror.waiting.remove(index).0)
                }
                Step::Pass(seconds) => {
                    scene.now += Duration::from_secs(seconds);
                    Event::Tick
                }
                _ => continue,
            };
            let actions = scene.on(event);
            mirror.take(&actions, &memories, total);
        }
        // Let everything end: every request is answered at last.
        for _ in 0..1000 {
            let event = if let Some(place) = mirror.served.pop() {
                Event::Release { place }
            } else if let Some(index) = mirror.present.iter().position(|(_, state)| *state != "loaded") {
                settle(&mut mirror, index, false, &memories)
            } else {
                break;
            };
            let actions = scene.on(event);
            mirror.take(&actions, &memories, total);
        }
        prop_assert!(mirror.waiting.is_empty(), "{:?} wait for nothing", mirror.waiting);
    }
}

/// A load or an unload comes to its end.
fn settle(mirror: &mut Mirror, index: usize, fails: bool, memories: &[u64]) -> Event {
    let (place, state) = mirror.present[index];
    match (state, fails) {
        ("loading", true) => {
            mirror.present.remove(index);
            Event::Failed { place, reason: "it fails".to_owned() }
        }
        ("loading", false) => {
            mirror.present[index].1 = "loaded";
            Event::Loaded { place, memory: memories[place] }
        }
        ("unloading", _) => {
            mirror.present.remove(index);
            Event::Unloaded { place }
        }
        _ => Event::Tick,
    }
}
