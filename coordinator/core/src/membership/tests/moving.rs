//! Rows that take over from each other, by request and by themselves, and everything that can come between.

use super::*;

const TICKET: Ticket = Ticket(7);
const PAUSED: Duration = Duration::from_millis(12);

fn nodes(numbers: &[u128]) -> Vec<NodeId> {
    numbers.iter().copied().map(node).collect()
}

fn add(numbers: &[u128]) -> Change {
    Change::Add { nodes: nodes(numbers) }
}

fn drain(numbers: &[u128]) -> Change {
    Change::Drain { nodes: nodes(numbers) }
}

fn remove(numbers: &[u128]) -> Change {
    Change::Remove { nodes: nodes(numbers) }
}

/// How far a move is to be brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Until {
    Loading,
    Linking,
    Holding,
    Taking,
    Switching,
    Clearing,
}

impl World {
    /// A row of these nodes in force, in epoch 1.
    fn serving(numbers: &[u128]) -> Self {
        let mut world = Self::new(numbers.len());
        let mut actions = Vec::new();
        for number in numbers {
            actions = world.join(*number);
        }
        let (epoch, row) = row_of(&actions);
        world.serve(&row, epoch);
        world
    }

    fn ask(&mut self, change: Change) -> Vec<Action> {
        self.on(Event::Scale { ticket: TICKET, change })
    }

    /// Asks for something that is done or refused at once.
    fn told(&mut self, change: Change) -> Outcome {
        outcome(&self.ask(change))
    }

    /// Brings a move whose row was asked for just now so far; returns what it did last.
    fn bring(&mut self, until: Until, (epoch, row): (Epoch, &[NodeId]), from: Epoch, old: &[NodeId]) -> Vec<Action> {
        let mut last = Vec::new();
        let steps = [Until::Loading, Until::Linking, Until::Holding, Until::Taking, Until::Switching, Until::Clearing];
        for step in steps.into_iter().filter(|step| *step < until) {
            last = match step {
                Until::Loading => self.each(row, |node| Event::Loaded { node, epoch }),
                Until::Linking => {
                    self.each(row, |node| Event::Linked { node, epoch });
                    self.on(Event::Ready { epoch })
                }
                Until::Holding => self.on(Event::Still { epoch: from }),
                Until::Taking => self.each(row, |node| Event::Taken { node, epoch, fetched: 100, copied: 10 }),
                Until::Switching => self.on(Event::Switched { epoch, pause: PAUSED }),
                Until::Clearing => self.each(old, |node| Event::Released { node, epoch: from }),
            };
        }
        last
    }

    fn each(&mut self, row: &[NodeId], event: impl Fn(NodeId) -> Event) -> Vec<Action> {
        row.iter().flat_map(|node| self.on(event(*node))).collect()
    }

    /// A change from its request to its end.
    fn change(&mut self, change: Change) -> Report {
        let old = self.row();
        let from = self.membership.view().epoch.expect("a row");
        let (epoch, row) = row_of(&self.ask(change));
        let cleared = self.bring(Until::Clearing, (epoch, &row), from, &old);
        let told: Vec<NodeId> = old.iter().copied().filter(|node| released(&cleared, *node, from)).collect();
        assert_eq!(told.len(), old.len(), "{cleared:?}");
        report(&self.each(&old, |node| Event::Released { node, epoch: from }))
    }

    /// The nodes of the row in force.
    fn row(&self) -> Vec<NodeId> {
        self.membership.row.as_ref().map(|row| row.nodes().collect()).unwrap_or_default()
    }

    /// What nodes hold or are to drop.
    fn holds(&self) -> Vec<(NodeId, Epoch)> {
        let duties = self.membership.nodes.iter();
        duties.flat_map(|(id, node)| node.duties.keys().map(|epoch| (*id, *epoch))).collect()
    }
}

fn released(actions: &[Action], node: NodeId, epoch: Epoch) -> bool {
    actions.contains(&Action::Release { node, epoch })
}

fn report(actions: &[Action]) -> Report {
    let reports = actions.iter().filter_map(|action| match action {
        Action::Report { report, .. } => Some(Report::clone(report)),
        _ => None,
    });
    let [report] = &reports.collect::<Vec<_>>()[..] else { panic!("not one report: {actions:?}") };
    report.clone()
}

fn outcome(actions: &[Action]) -> Outcome {
    report(actions).outcome
}

#[test]
fn a_row_takes_over_step_by_step_while_the_old_one_serves() {
    let mut world = World::serving(&[1, 2]);
    world.join(3);
    let (old, from) = (world.row(), Epoch(1));
    let asked = world.ask(add(&[3]));
    let [Action::Load { epoch, row, beside: Some(Epoch(1)), placement }] = &asked[..] else { panic!("{asked:?}") };
    let (epoch, row) = (*epoch, row.clone());
    let cuts: Vec<_> = placement.stages.iter().map(|stage| stage.layers.clone()).collect();
    assert_eq!((epoch, &row), (Epoch(2), &nodes(&[1, 2, 3])));
    let view = world.membership.view();
    assert_eq!((view.epoch, view.serving), (Some(from), true));
    assert_eq!(view.moving.as_deref(), Some("add: loading beside the row in force"));

    let loaded = world.each(&row, |node| Event::Loaded { node, epoch });
    assert_eq!(loaded, [Action::Connect { epoch }]);
    assert_eq!(world.each(&row, |node| Event::Linked { node, epoch }), []);
    assert_eq!(world.on(Event::Ready { epoch }), [Action::Hold { epoch: from, next: epoch }]);
    assert_eq!(world.on(Event::Still { epoch }), [], "it is the old row that must be still");
    let still = world.on(Event::Still { epoch: from });
    let [Action::Move { from: Epoch(1), givers, epoch: Epoch(2), takers }] = &still[..] else { panic!("{still:?}") };
    assert_eq!(givers, &old);
    // Every layer of every new stage comes from whoever has it, in order; the samplers from tail to tail.
    let half = cuts[2].end / 2;
    for (index, taker) in takers.iter().enumerate() {
        assert_eq!(taker.node, row[index]);
        let mut next = cuts[index].start;
        for source in &taker.sources {
            assert_eq!(source.layers.start, next);
            assert_eq!(source.node, node(if source.layers.start < half { 1 } else { 2 }));
            assert_eq!(source.samplers, index == 2 && source.node == node(2));
            next = source.layers.end;
        }
        assert_eq!(next, cuts[index].end);
    }
    assert!(takers[2].sources.last().is_some_and(|source| source.samplers), "{takers:?}");

    let taken = |node| Event::Taken { node, epoch, fetched: 100, copied: 10 };
    assert_eq!(world.each(&row[..2], taken), []);
    assert_eq!(world.on(taken(row[0])), [], "it counts once");
    assert_eq!(world.on(taken(row[2])), [Action::Switch { epoch }]);
    let view = world.membership.view();
    assert_eq!((view.epoch, view.serving), (Some(epoch), true));
    let switched = world.on(Event::Switched { epoch, pause: PAUSED });
    assert_eq!(switched, old.iter().map(|&node| Action::Release { node, epoch: from }).collect::<Vec<_>>());
    assert_eq!(world.on(Event::Released { node: old[0], epoch: from }), []);
    let done = report(&world.on(Event::Released { node: old[1], epoch: from }));
    assert_eq!((&done.outcome, done.epochs, done.pause), (&Outcome::Moved, Some((from, epoch)), Some(PAUSED)));
    assert_eq!((done.fetched, done.copied, done.before.len(), done.after.len()), (300, 30, 2, 3));
    assert_eq!(world.holds(), nodes(&[1, 2, 3]).into_iter().map(|node| (node, epoch)).collect::<Vec<_>>());
    // The row waits for three from now on.
    assert_eq!(world.membership.view().wanted, 3);
}

#[test]
fn a_drained_node_holds_nothing_until_it_is_added_again() {
    let mut world = World::serving(&[1, 2, 3]);
    let done = world.change(drain(&[2]));
    assert_eq!((done.outcome, world.row()), (Outcome::Moved, nodes(&[1, 3])));
    assert!(world.membership.is_drained(node(2)));
    assert_eq!(world.told(drain(&[2])), Outcome::Unchanged);
    assert_eq!(world.told(add(&[])), Outcome::Refused(Refusal::NobodyFree));
    // A fault does not bring it back, and two are enough.
    let from = world.membership.view().epoch.expect("a row");
    world.on(Event::Left { node: node(3), reason: "gone".into() });
    world.on(Event::Released { node: node(1), epoch: from });
    assert_eq!(world.membership.view().epoch, None);
    // Nor does its own return.
    world.join(2);
    assert_eq!(world.membership.view().epoch, None);
    let (_, row) = row_of(&world.join(4));
    assert_eq!(row, nodes(&[1, 4]));
    let epoch = world.membership.view().epoch.expect("a row");
    world.serve(&row, epoch);
    assert_eq!(world.change(add(&[2])).outcome, Outcome::Moved);
    assert_eq!((world.row(), world.membership.is_drained(node(2))), (nodes(&[1, 4, 2]), false));
}

#[test]
fn a_drain_puts_free_nodes_in_the_place_of_others() {
    let mut world = World::serving(&[1, 2]);
    world.on(Event::Joined { node: node(9), device: device(9), standby: true });
    assert_eq!(world.change(drain(&[1])).outcome, Outcome::Moved);
    assert_eq!(world.row(), nodes(&[2, 9]), "the one on standby makes up the number");
    world.join(3);
    world.change(drain(&[9]));
    assert_eq!(world.row(), nodes(&[2, 3]));
}

#[test]
fn a_row_that_is_drained_while_a_node_is_held_off_grows_again() {
    let mut world = World::serving(&[1, 2]);
    world.join(3);
    world.on(Event::Failed { node: node(2), epoch: Epoch(1), reason: "no memory".into() });
    world.on(Event::Released { node: node(1), epoch: Epoch(1) });
    let epoch = world.membership.view().epoch.expect("a row without the node that failed");
    world.serve(&nodes(&[1, 3]), epoch);
    assert_eq!(world.change(drain(&[3])).outcome, Outcome::Moved);
    assert_eq!(world.row(), nodes(&[1]));
    let (_, row) = row_of(&world.pass(HOLD_OFF, &[1, 2, 3]));
    assert_eq!(row, nodes(&[1, 2]));
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let mut world = World::new(2);
    world.join(1);
    assert!(matches!(world.told(Change::Rebalance), Outcome::Refused(Refusal::NotServing { .. })));
    let (epoch, row) = row_of(&world.join(2));
    assert!(matches!(world.told(drain(&[1])), Outcome::Refused(Refusal::NotServing { .. })));
    world.serve(&row, epoch);
    assert_eq!(world.told(drain(&[])), Outcome::Refused(Refusal::NoNames));
    assert_eq!(world.told(drain(&[5])), Outcome::Refused(Refusal::UnknownNode { node: node(5) }));
    assert_eq!(world.told(drain(&[1, 2])), Outcome::Refused(Refusal::NobodyLeft));
    assert_eq!(world.told(add(&[])), Outcome::Refused(Refusal::NobodyFree));
    assert_eq!(world.told(add(&[1, 2])), Outcome::Unchanged);
    assert_eq!(world.told(Change::Rebalance), Outcome::Unchanged);
    let poor = Box::new(DeviceSpec { memory_bytes: 0, ..*device(3) });
    world.on(Event::Joined { node: node(3), device: poor, standby: false });
    let refused = world.told(add(&[3]));
    assert_eq!(refused, Outcome::Refused(Refusal::DoesNotFit { nodes: 3, reason: "no memory".into() }));
    assert_eq!((world.row(), world.membership.view().serving, world.holds().len()), (row, true, 2));
    assert!(!world.membership.is_drained(node(1)));
}

#[test]
fn one_change_at_a_time() {
    let mut world = World::serving(&[1, 2]);
    world.join(3);
    let (epoch, row) = row_of(&world.ask(add(&[3])));
    let busy = Outcome::Refused(Refusal::Busy { change: "add: loading beside the row in force".into() });
    assert_eq!(world.told(Change::Rebalance), busy);
    world.bring(Until::Clearing, (epoch, &row), Epoch(1), &nodes(&[1, 2]));
    assert!(matches!(world.told(Change::Rebalance), Outcome::Refused(Refusal::Busy { .. })));
    world.each(&nodes(&[1, 2]), |node| Event::Released { node, epoch: Epoch(1) });
    assert_eq!(world.told(Change::Rebalance), Outcome::Unchanged);
}

#[test]
fn a_new_row_that_fails_is_rolled_back_and_the_old_one_goes_on() {
    for until in [Until::Loading, Until::Linking, Until::Holding, Until::Taking] {
        for way in 0..4 {
            let mut world = World::serving(&[1, 2]);
            world.join(3);
            let (epoch, row) = row_of(&world.ask(add(&[3])));
            world.bring(until, (epoch, &row), Epoch(1), &nodes(&[1, 2]));
            let reason = "no memory".to_owned();
            let failed = match way {
                0 => world.on(Event::Left { node: node(3), reason }),
                1 => world.on(Event::Failed { node: node(2), epoch, reason }),
                2 => world.on(Event::Broken { epoch, reason }),
                _ => {
                    let deadline = match until {
                        Until::Loading => LOAD_DEADLINE,
                        Until::Linking => LINK_DEADLINE,
                        Until::Holding => HOLD_DEADLINE,
                        _ => TAKE_DEADLINE,
                    };
                    world.pass(deadline, &[1, 2, 3])
                }
            };
            let held = failed.contains(&Action::Resume);
            assert_eq!(held, until >= Until::Holding, "{until:?} {way}: {failed:?}");
            let over = failed.iter().filter(|action| matches!(action, Action::Over { .. }));
            assert!(over.clone().all(|action| matches!(action, Action::Over { epoch: Epoch(2), .. })), "{failed:?}");
            assert_eq!(over.count(), 1, "{failed:?}");
            assert!(released(&failed, node(1), epoch), "{failed:?}");
            let view = world.membership.view();
            assert_eq!((view.epoch, view.serving, view.wanted), (Some(Epoch(1)), true, 2));
            assert_eq!(view.moving.as_deref(), Some("add: giving the new row up"));
            // What comes too late changes nothing.
            for event in [
                Event::Still { epoch: Epoch(1) },
                Event::Taken { node: node(1), epoch, fetched: 1, copied: 1 },
                Event::Switched { epoch, pause: PAUSED },
                Event::Ready { epoch },
            ] {
                assert_eq!(world.on(event), []);
            }
            let done = world.each(&nodes(&[1, 2, 3]), |node| Event::Released { node, epoch });
            assert!(matches!(outcome(&done), Outcome::RolledBack { .. }), "{done:?}");
            assert_eq!(world.holds(), [(node(1), Epoch(1)), (node(2), Epoch(1))]);
            world.pass(HOLD_OFF, &[1, 2, 3]);
            assert_eq!(world.membership.view().epoch, Some(Epoch(1)));
        }
    }
}

#[test]
fn an_old_row_that_is_lost_takes_the_new_one_along() {
    for until in [Until::Loading, Until::Linking, Until::Holding, Until::Taking] {
        let mut world = World::serving(&[1, 2]);
        world.join(3);
        let (epoch, row) = row_of(&world.ask(add(&[3])));
        world.bring(until, (epoch, &row), Epoch(1), &nodes(&[1, 2]));
        let lost = world.on(Event::Left { node: node(2), reason: "gone".into() });
        assert_eq!(lost[0], Action::Over { epoch: Epoch(1), stage: Some(1), reason: "gone".into() });
        assert!(released(&lost, node(1), Epoch(1)) && released(&lost, node(1), epoch), "{lost:?}");
        assert!(!lost.contains(&Action::Resume), "there is nothing to resume: {lost:?}");
        assert_eq!(outcome(&lost), Outcome::Lost { reason: "gone".into() });
        // Nothing is placed before both stages are gone.
        assert_eq!(world.on(Event::Released { node: node(3), epoch }), []);
        assert_eq!(world.on(Event::Released { node: node(1), epoch }), []);
        let (next, row) = row_of(&world.on(Event::Released { node: node(1), epoch: Epoch(1) }));
        assert_eq!((next, row), (Epoch(3), nodes(&[1, 3])));
    }
}

#[test]
fn a_row_that_breaks_at_the_switch_is_replaced() {
    let mut world = World::serving(&[1, 2]);
    world.join(3);
    let (epoch, row) = row_of(&world.ask(add(&[3])));
    let last = world.bring(Until::Switching, (epoch, &row), Epoch(1), &nodes(&[1, 2]));
    assert_eq!(last, [Action::Switch { epoch }]);
    let broken = world.on(Event::Broken { epoch, reason: "not taken".into() });
    assert_eq!(outcome(&broken), Outcome::Lost { reason: "not taken".into() });
    for (number, held) in [(1, Epoch(1)), (2, Epoch(1)), (1, epoch), (2, epoch), (3, epoch)] {
        assert!(released(&broken, node(number), held), "{broken:?}");
    }
    world.pass(PAUSE, &[1, 2, 3]);
    world.each(&nodes(&[1, 2]), |node| Event::Released { node, epoch: Epoch(1) });
    world.each(&nodes(&[1, 2]), |node| Event::Released { node, epoch });
    let (_, row) = row_of(&world.on(Event::Released { node: node(3), epoch }));
    assert_eq!(row.len(), 3);

    // A coordinator that says nothing is no better.
    let mut world = World::serving(&[1, 2]);
    world.join(3);
    let (epoch, row) = row_of(&world.ask(add(&[3])));
    world.bring(Until::Switching, (epoch, &row), Epoch(1), &nodes(&[1, 2]));
    let late = world.pass(SWITCH_DEADLINE, &[1, 2, 3]);
    assert!(matches!(outcome(&late), Outcome::Lost { reason } if reason.contains("did not take the row")));
}

#[test]
fn a_switched_row_that_breaks_while_the_old_one_is_cleared_was_moved_all_the_same() {
    let mut world = World::serving(&[1, 2]);
    world.join(3);
    let (epoch, row) = row_of(&world.ask(add(&[3])));
    world.bring(Until::Clearing, (epoch, &row), Epoch(1), &nodes(&[1, 2]));
    let lost = world.on(Event::Left { node: node(3), reason: "gone".into() });
    assert_eq!(lost[0], Action::Over { epoch, stage: Some(2), reason: "gone".into() });
    world.on(Event::Released { node: node(1), epoch: Epoch(1) });
    let done = world.on(Event::Released { node: node(2), epoch: Epoch(1) });
    assert_eq!(outcome(&done), Outcome::Moved);
}

#[test]
fn a_node_that_does_not_let_go_is_given_up() {
    let mut world = World::serving(&[1, 2, 3]);
    let (epoch, row) = row_of(&world.ask(drain(&[3])));
    world.bring(Until::Clearing, (epoch, &row), Epoch(1), &nodes(&[1, 2, 3]));
    world.each(&nodes(&[1, 2]), |node| Event::Released { node, epoch: Epoch(1) });
    world.pass(RELEASE_DEADLINE / 2, &[1, 2, 3]);
    // It still loads, which cannot be broken off.
    world.on(Event::Progressed { node: node(3), epoch: Epoch(1) });
    assert_eq!(world.pass(RELEASE_DEADLINE - Duration::from_secs(1), &[1, 2, 3]), []);
    let late = world.pass(Duration::from_secs(1), &[1, 2, 3]);
    assert!(matches!(&late[0], Action::Expel { reason, .. } if reason.contains("did not drop its stage")), "{late:?}");
    assert_eq!(outcome(&late), Outcome::Moved);
    assert_eq!(world.row(), nodes(&[1, 2]));
}

#[test]
fn a_node_that_wants_to_leave_gives_its_work_to_others_first() {
    let mut world = World::serving(&[1, 2, 3]);
    let (epoch, row) = row_of(&world.on(Event::Leaving { node: node(2) }));
    assert_eq!(row, nodes(&[1, 3]));
    assert_eq!(world.on(Event::Leaving { node: node(2) }), [], "it is said once");
    world.bring(Until::Clearing, (epoch, &row), Epoch(1), &nodes(&[1, 2, 3]));
    world.each(&nodes(&[1, 2]), |node| Event::Released { node, epoch: Epoch(1) });
    let done = world.on(Event::Released { node: node(3), epoch: Epoch(1) });
    assert!(matches!(&done[0], Action::Report { ticket: None, .. }), "{done:?}");
    assert_eq!(done[1..], [Action::Leave { node: node(2), reason: "it was let go".into() }]);
    let view = world.membership.view();
    assert_eq!((view.nodes, view.wanted, world.row()), (2, 2, nodes(&[1, 3])));
    // Another in its place, perhaps itself again: the row grows back by itself, and tries that once.
    let (epoch, row) = row_of(&world.join(4));
    assert_eq!(row, nodes(&[1, 3, 4]));
    world.on(Event::Broken { epoch, reason: "no way".into() });
    let failed = world.each(&row, |node| Event::Released { node, epoch });
    assert!(matches!(outcome(&failed), Outcome::RolledBack { .. }));
    assert_eq!(world.pass(HOLD_OFF * 2, &[1, 3, 4]), []);
    let (epoch, row) = row_of(&world.join(5));
    assert_eq!(row, nodes(&[1, 3, 5]));
    let old = nodes(&[1, 3]);
    world.bring(Until::Clearing, (epoch, &row), Epoch(2), &old);
    world.each(&old, |node| Event::Released { node, epoch: Epoch(2) });
    assert_eq!((world.membership.view().wanted, world.row()), (3, row));
}

#[test]
fn a_node_whose_work_nobody_can_take_is_let_go_at_once() {
    let mut world = World::serving(&[1]);
    let actions = world.on(Event::Leaving { node: node(1) });
    assert_eq!(actions[0], Action::Leave { node: node(1), reason: "it was let go".into() });
    assert!(matches!(actions[1], Action::Over { epoch: Epoch(1), stage: Some(0), .. }), "{actions:?}");
    // One that holds nothing anyway.
    world.join(2);
    world.join(3);
    assert_eq!(world.on(Event::Leaving { node: node(3) }).len(), 1);
    // And one whose row is still being made.
    assert!(world.on(Event::Leaving { node: node(2) }).len() > 1);
    assert_eq!(world.membership.view().nodes, 0);
}

#[test]
fn a_node_whose_move_fails_is_let_go() {
    let mut world = World::serving(&[1, 2]);
    let (epoch, row) = row_of(&world.on(Event::Leaving { node: node(2) }));
    world.bring(Until::Taking, (epoch, &row), Epoch(1), &nodes(&[1, 2]));
    let failed = world.on(Event::Failed { node: node(1), epoch, reason: "no way".into() });
    assert_eq!(failed[0], Action::Resume);
    assert!(failed.contains(&Action::Leave { node: node(2), reason: "it was let go".into() }), "{failed:?}");
    let over = Action::Over { epoch: Epoch(1), stage: Some(1), reason: "it was let go".into() };
    assert!(failed.contains(&over), "{failed:?}");
}

#[test]
fn several_that_want_to_leave_do_so_one_after_the_other() {
    let mut world = World::serving(&[1, 2, 3]);
    let (epoch, row) = row_of(&world.on(Event::Leaving { node: node(3) }));
    assert_eq!(world.on(Event::Leaving { node: node(2) }), [], "after the one before");
    world.bring(Until::Clearing, (epoch, &row), Epoch(1), &nodes(&[1, 2, 3]));
    world.each(&nodes(&[1, 2]), |node| Event::Released { node, epoch: Epoch(1) });
    let (epoch, row) = row_of(&world.on(Event::Released { node: node(3), epoch: Epoch(1) }));
    assert_eq!(row, nodes(&[1]));
    world.bring(Until::Clearing, (epoch, &row), Epoch(2), &nodes(&[1, 2]));
    world.on(Event::Released { node: node(1), epoch: Epoch(2) });
    let done = world.on(Event::Released { node: node(2), epoch: Epoch(2) });
    for number in [2, 3] {
        let leave = Action::Leave { node: node(number), reason: "it was let go".into() };
        assert!(done.contains(&leave), "{done:?}");
    }
    assert_eq!((world.row(), world.membership.view().nodes), (row, 1));
}

#[test]
fn removed_nodes_must_leave_after_their_work_was_moved() {
    let mut world = World::serving(&[1, 2]);
    world.join(3);
    let removed = world.ask(remove(&[3]));
    assert_eq!(outcome(&removed), Outcome::Unchanged);
    assert_eq!(removed[1], Action::Leave { node: node(3), reason: "it was let go".into() });
    let (epoch, row) = row_of(&world.ask(remove(&[1])));
    world.bring(Until::Clearing, (epoch, &row), Epoch(1), &nodes(&[1, 2]));
    world.on(Event::Released { node: node(2), epoch: Epoch(1) });
    let done = world.on(Event::Released { node: node(1), epoch: Epoch(1) });
    assert_eq!(outcome(&done), Outcome::Moved);
    assert!(done.contains(&Action::Leave { node: node(1), reason: "it was let go".into() }), "{done:?}");
    assert_eq!((world.row(), world.membership.view().wanted), (nodes(&[2]), 1));
}

#[test]
fn where_two_stages_have_no_room_the_old_row_makes_room_first() {
    let mut world = World::new(2);
    // Nodes of one host, which has enough for a row of three, and not for two rows.
    let row = [1, 2, 3].map(|number| (node(number), *device(number)));
    let need = world.membership.planner.place(&row, 3).expect("a plan").memory().total();
    let poor = |number| {
        let device = DeviceSpec { memory_bytes: need, shares_memory: true, host: "attic".into(), ..*device(number) };
        Event::Joined { node: node(number), device: Box::new(device), standby: false }
    };
    world.on(poor(1));
    let (epoch, row) = row_of(&world.on(poor(2)));
    world.serve(&row, epoch);
    world.on(poor(3));
    let asked = world.ask(add(&[3]));
    assert_eq!(asked[0], Action::MakeRoom { epoch: Epoch(1) });
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert_eq!(world.membership.view().moving.as_deref(), Some("add: making room"));
    // Nothing else is placed meanwhile.
    world.join(4);
    assert_eq!(world.on(Event::Released { node: node(1), epoch: Epoch(1) }), []);
    let loads = world.on(Event::Released { node: node(2), epoch: Epoch(1) });
    assert!(matches!(&loads[..], [Action::Load { beside: None, .. }]), "{loads:?}");
    let (epoch, row) = row_of(&loads);
    assert_eq!(row, nodes(&[1, 2, 3]));
    world.each(&row, |node| Event::Loaded { node, epoch });
    world.each(&row, |node| Event::Linked { node, epoch });
    let ready = world.on(Event::Ready { epoch });
    assert_eq!(ready[0], Action::Serve { epoch });
    let done = report(&ready);
    assert!(matches!(&done.outcome, Outcome::Replayed { reason } if reason.contains("both rows together need")));
    assert_eq!((done.epochs, done.pause), (Some((Epoch(1), epoch)), None));

    // One that leaves meanwhile ends the change, and whoever is left goes on.
    let row = world.row();
    let asked = world.ask(drain(&[1]));
    assert_eq!(asked[0], Action::MakeRoom { epoch: Epoch(2) });
    let left = world.on(Event::Left { node: node(3), reason: "gone".into() });
    assert!(matches!(outcome(&left), Outcome::Lost { .. }), "{left:?}");
    world.each(&row, |node| Event::Released { node, epoch });
    assert_eq!(row_of(&world.join(5)).1, nodes(&[2, 4, 5]));
}

/// A cluster whose nodes answer to what they are told, when the script lets them.
struct Cluster {
    world: World,
    /// What somebody will say.
    answers: Vec<Event>,
    /// By node: the epochs of which it has something, in order.
    holds: BTreeMap<NodeId, Vec<Epoch>>,
    in_force: Option<Epoch>,
    newest: Epoch,
    held: Option<Epoch>,
    tickets: u64,
    open: Vec<(Ticket, Change)>,
}

impl Cluster {
    fn new() -> Self {
        let (world, answers, holds, open) = (World::new(2), Vec::new(), BTreeMap::new(), Vec::new());
        Self { world, answers, holds, in_force: None, newest: Epoch(0), held: None, tickets: 0, open }
    }

    fn on(&mut self, event: Event) {
        match &event {
            Event::Joined { node, .. } | Event::Left { node, .. } => self.forget(*node),
            Event::Failed { node, epoch, .. } | Event::Released { node, epoch } => {
                self.holds.entry(*node).or_default().retain(|held| held != epoch);
            }
            _ => {}
        }
        for action in self.world.on(event) {
            self.obey(action);
        }
        for (node, held) in &self.holds {
            let duties: Vec<Epoch> =
                self.world.membership.nodes.get(node).map_or(vec![], |one| one.duties.keys().copied().collect());
            assert_eq!(held, &duties, "{node}");
        }
    }

    fn forget(&mut self, node: NodeId) {
        self.holds.remove(&node);
        let of = |event: &Event| match event {
            Event::Loaded { node, .. }
            | Event::Linked { node, .. }
            | Event::Released { node, .. }
            | Event::Taken { node, .. } => Some(*node),
            _ => None,
        };
        self.answers.retain(|answer| of(answer) != Some(node));
    }

    fn obey(&mut self, action: Action) {
        match action {
            Action::Load { epoch, row, placement, beside } => {
                assert!(epoch > self.newest && row.len() == placement.stages.len());
                assert_eq!(beside, self.in_force, "a row is made beside the one in force");
                self.newest = epoch;
                for node in row {
                    let held = self.holds.entry(node).or_default();
                    assert!(held.iter().all(|held| Some(*held) == beside), "{node} holds {held:?}");
                    let added = |(_, change): &(Ticket, Change)| *change == Change::Add { nodes: vec![node] };
                    let drained = self.world.membership.is_drained(node);
                    assert!(!drained || self.open.iter().any(added), "{node} is drained");
                    held.push(epoch);
                    self.answers.push(Event::Loaded { node, epoch });
                    self.answers.push(Event::Linked { node, epoch });
                }
            }
            Action::Connect { epoch } => self.answers.push(Event::Ready { epoch }),
            Action::Serve { epoch } => {
                assert_eq!((self.in_force.replace(epoch), epoch), (None, self.newest));
            }
            Action::Hold { epoch, .. } => {
                assert_eq!(self.in_force, Some(epoch));
                assert_eq!(self.held.replace(epoch), None, "held twice");
                self.answers.push(Event::Still { epoch });
            }
            Action::Move { from, givers, epoch, takers } => {
                assert_eq!((self.in_force, self.held), (Some(from), Some(from)));
                for giver in givers {
                    assert!(self.holds[&giver].contains(&from));
                }
                for Taker { node, .. } in takers {
                    self.answers.push(Event::Taken { node, epoch, fetched: 1, copied: 1 });
                }
            }
            Action::Switch { epoch } => {
                assert!(self.held.take().is_some() && self.in_force.replace(epoch).is_some());
                self.answers.push(Event::Switched { epoch, pause: PAUSED });
            }
            Action::Resume => assert!(self.held.take().is_some() && self.in_force.is_some()),
            Action::Over { epoch, .. } if self.in_force == Some(epoch) => (self.in_force, self.held) = (None, None),
            Action::MakeRoom { epoch } => {
                assert_eq!(self.in_force.take(), Some(epoch));
            }
            Action::Over { .. } | Action::Unplaced { .. } | Action::Drained { .. } => {}
            Action::Release { node, epoch } => self.answers.push(Event::Released { node, epoch }),
            Action::Leave { node, .. } | Action::Expel { node, .. } => self.forget(node),
            Action::Report { ticket, .. } => {
                if let Some(ticket) = ticket {
                    let place = self
                        .open
                        .iter()
                        .position(|(open, _)| *open == ticket)
                        .expect("asked for, and not yet answered");
                    self.open.remove(place);
                }
            }
        }
    }

    fn ask(&mut self, change: Change) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.open.push((ticket, change.clone()));
        self.on(Event::Scale { ticket, change });
    }

    fn answer(&mut self, choice: usize) {
        if !self.answers.is_empty() {
            let answer = self.answers.swap_remove(choice % self.answers.len());
            self.on(answer);
        }
    }

    /// Lets time pass, and everybody answer, until nothing is left to say.
    fn rest(&mut self) {
        for _ in 0..10_000 {
            if self.answers.is_empty() && self.open.is_empty() {
                return;
            }
            self.world.now += Duration::from_millis(100);
            for number in 1..6 {
                self.on(Event::Heard { node: node(number) });
            }
            self.answer(0);
            self.on(Event::Tick);
        }
        panic!("{:?} and {:?} have no end", self.answers, self.open);
    }
}

proptest! {
    /// Whoever comes, goes, fails or asks for what, at whatever moment: one row is in force at a time, nodes hold what
    /// they are told to and no third stage, drained ones get nothing, and every request is answered once.
    #[test]
    fn rows_take_over_from_each_other_in_any_company(
        script in prop::collection::vec((0_u8..24, 1_u128..6, 0_usize..100), 1..300)
    ) {
        let mut cluster = Cluster::new();
        for (kind, number, choice) in script {
            cluster.world.now += Duration::from_millis(50);
            let (node, epoch) = (node(number), Epoch(cluster.newest.0.saturating_sub(choice as u32 % 3)));
            match kind {
                0 => cluster.on(Event::Joined { node, device: device(number), standby: number == 5 }),
                1 => cluster.on(Event::Left { node, reason: "left".into() }),
                2 => cluster.on(Event::Failed { node, epoch, reason: "failed".into() }),
                3 => cluster.on(Event::Broken { epoch, reason: "broken".into() }),
                4 => cluster.on(Event::Leaving { node }),
                5 => cluster.ask(add(&[number])),
                6 => cluster.ask(drain(&[number])),
                7 => cluster.ask(remove(&[number])),
                8 => cluster.ask(if choice % 2 == 0 { Change::Rebalance } else { add(&[]) }),
                _ => {
                    for number in 1..6 {
                        cluster.on(Event::Heard { node: super::node(number) });
                    }
                    cluster.answer(choice);
                }
            }
        }
        cluster.rest();
    }
}
