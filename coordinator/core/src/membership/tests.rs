//! Nodes that come, go, fail and fall silent, and what becomes of their rows.

mod moving;
mod remembered;

use std::sync::OnceLock;

use paceline_gguf::testing::PublishedShape;
use paceline_gguf::{Gguf, ModelShape};
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::planner::{Host, Wishes, plan, shared_weights};

fn node(number: u128) -> NodeId {
    NodeId(Uuid::from_u128(number))
}

fn device(number: u128) -> Box<DeviceSpec> {
    let host = format!("host{number}");
    Box::new(DeviceSpec {
        name: "cpu".into(),
        host,
        memory_bytes: 64 << 30,
        shares_memory: false,
        threads: 2,
        speed: None,
    })
}

/// The shape of a model of 24 layers.
fn shape() -> ModelShape {
    static SHAPE: OnceLock<ModelShape> = OnceLock::new();
    SHAPE.get_or_init(read_shape).clone()
}

fn read_shape() -> ModelShape {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("shape.gguf");
    PublishedShape::B0_8.writer().write(&path).expect("writable");
    let gguf = Gguf::open(&path).expect("a model");
    ModelShape::read(&gguf).expect("a model")
}

/// Places the model on so many devices, in the order in which they are given.
struct InOrder(ModelShape);

impl Planner for InOrder {
    fn place(&mut self, devices: &[(NodeId, DeviceSpec)], stages: usize) -> Result<Placement, String> {
        if devices.iter().any(|(_, device)| device.memory_bytes == 0) {
            return Err("no memory".to_owned());
        }
        let host = Host { memory_bytes: devices[0].1.memory_bytes, threads: stages };
        let placed = plan(&self.0, &Wishes::new(stages, 1024, 2), &host);
        let mut placement = placed.map_err(|error| error.to_string())?;
        for (index, stage) in placement.stages.iter_mut().enumerate() {
            stage.device = index;
        }
        Ok(placement)
    }

    fn shared(&self, one: &StagePlan, other: &StagePlan) -> u64 {
        shared_weights(&self.0, one, other)
    }
}

fn membership(wanted: usize) -> Membership {
    Membership::new(wanted, Box::new(InOrder(shape())))
}

/// A membership, its clock and what it did.
struct World {
    membership: Membership,
    now: Duration,
}

impl World {
    fn new(wanted: usize) -> Self {
        Self { membership: membership(wanted), now: Duration::from_secs(1) }
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.membership.on(event, self.now, &mut actions);
        actions
    }

    fn join(&mut self, number: u128) -> Vec<Action> {
        self.on(Event::Joined { node: node(number), device: device(number), standby: false })
    }

    /// Lets time pass while these nodes are heard.
    fn pass(&mut self, time: Duration, heard: &[u128]) -> Vec<Action> {
        let mut actions = Vec::new();
        let end = self.now + time;
        while self.now < end {
            self.now = end.min(self.now + Duration::from_secs(1));
            for number in heard {
                actions.extend(self.on(Event::Heard { node: node(*number) }));
            }
            actions.extend(self.on(Event::Tick));
        }
        actions
    }

    /// Brings a row of nodes into force.
    fn serve(&mut self, row: &[NodeId], epoch: Epoch) {
        for node in row {
            self.on(Event::Loaded { node: *node, epoch });
        }
        for node in row {
            self.on(Event::Linked { node: *node, epoch });
        }
        assert_eq!(self.on(Event::Ready { epoch }), [Action::Serve { epoch }]);
    }
}

/// The row that a `Load` among the actions names.
fn row_of(actions: &[Action]) -> (Epoch, Vec<NodeId>) {
    let load = actions.iter().find_map(|action| match action {
        Action::Load { epoch, row, placement, .. } => {
            assert_eq!(placement.stages.len(), row.len());
            Some((*epoch, row.clone()))
        }
        _ => None,
    });
    load.unwrap_or_else(|| panic!("no row is made: {actions:?}"))
}

#[test]
fn a_row_is_made_when_enough_nodes_are_here_and_serves_when_all_is_ready() {
    let mut world = World::new(2);
    assert_eq!(world.join(1), []);
    let (epoch, row) = row_of(&world.join(2));
    assert_eq!((epoch, row.len()), (Epoch(1), 2));
    assert_eq!(world.on(Event::Loaded { node: row[0], epoch }), []);
    assert_eq!(world.on(Event::Loaded { node: row[1], epoch }), [Action::Connect { epoch }]);
    assert_eq!(world.on(Event::Ready { epoch }), []);
    assert_eq!(world.on(Event::Linked { node: row[1], epoch }), []);
    assert_eq!(world.on(Event::Linked { node: row[0], epoch }), [Action::Serve { epoch }]);
    let view = world.membership.view();
    assert_eq!((view.nodes, view.free, view.epoch, view.serving), (2, 0, Some(epoch), true));
    // Another node waits beside the row.
    assert_eq!(world.join(3), []);
    assert_eq!(world.membership.view().free, 1);
}

#[test]
fn a_node_that_leaves_ends_the_row_and_a_new_one_takes_its_place_after_the_others_are_free() {
    let mut world = World::new(2);
    world.join(1);
    let (epoch, row) = row_of(&world.join(2));
    world.serve(&row, epoch);
    let actions = world.on(Event::Left { node: row[1], reason: "gone".into() });
    let over = Action::Over { epoch, stage: Some(1), reason: "gone".into() };
    assert_eq!(actions, [over, Action::Release { node: row[0], epoch }]);
    // The one that is left still holds its part: nothing is placed on it before it says that it does not.
    assert_eq!(world.join(3), []);
    let (next, row) = row_of(&world.on(Event::Released { node: row[0], epoch }));
    assert_eq!((next, row.len()), (Epoch(2), 2));
    // What is said of the old epoch counts no more.
    assert_eq!(world.on(Event::Loaded { node: row[0], epoch }), []);
    assert_eq!(world.on(Event::Broken { epoch, reason: "late".into() }), []);
    world.serve(&row, next);
}

#[test]
fn silence_ends_the_lease_and_stuck_rows_are_given_up_with_a_name() {
    let mut world = World::new(1);
    let (epoch, _) = row_of(&world.join(1));
    let actions = world.pass(LEASE, &[]);
    assert!(matches!(&actions[..], [Action::Over { stage: Some(0), .. }, Action::Expel { .. }]), "{actions:?}");

    let mut world = World::new(2);
    world.join(1);
    let (_, row) = row_of(&world.join(2));
    world.on(Event::Loaded { node: row[0], epoch });
    let actions = world.pass(LOAD_DEADLINE, &[1, 2]);
    let stuck = actions.iter().find_map(|action| match action {
        Action::Over { stage, reason, .. } => Some((*stage, reason.clone())),
        _ => None,
    });
    let (stage, reason) = stuck.expect("it is given up");
    assert_eq!(stage, Some(1));
    assert!(reason.contains("stage 1 made no progress"), "{reason}");

    let mut world = World::new(1);
    let (epoch, row) = row_of(&world.join(1));
    world.on(Event::Loaded { node: row[0], epoch });
    world.on(Event::Linked { node: row[0], epoch });
    let actions = world.pass(LINK_DEADLINE, &[1]);
    let coordinator = actions
        .iter()
        .any(|action| matches!(action, Action::Over { stage: None, reason, .. } if reason.contains("the coordinator")));
    assert!(coordinator, "{actions:?}");
}

#[test]
fn slow_loading_with_progress_is_waited_for() {
    let mut world = World::new(1);
    let (epoch, row) = row_of(&world.join(1));
    for _ in 0..10 {
        assert_eq!(world.pass(LOAD_DEADLINE / 2, &[1]), []);
        world.on(Event::Progressed { node: row[0], epoch });
    }
    world.serve(&row, epoch);
}

#[test]
fn a_failed_stage_is_held_off_before_it_is_tried_again() {
    let mut world = World::new(1);
    let (epoch, row) = row_of(&world.join(1));
    let actions = world.on(Event::Failed { node: row[0], epoch, reason: "no memory".into() });
    assert_eq!(actions, [Action::Over { epoch, stage: Some(0), reason: "no memory".into() }]);
    assert_eq!(world.pass(HOLD_OFF - Duration::from_secs(1), &[1]), []);
    assert_eq!(row_of(&world.pass(Duration::from_secs(1), &[1])).0, Epoch(2));
}

#[test]
fn what_cannot_be_placed_is_said_once_until_the_nodes_change() {
    let mut world = World::new(1);
    let poor = Box::new(DeviceSpec { memory_bytes: 0, ..*device(1) });
    let actions = world.on(Event::Joined { node: node(1), device: poor, standby: false });
    assert_eq!(actions, [Action::Unplaced { reason: "no memory".into() }]);
    assert_eq!(world.pass(Duration::from_secs(3), &[1]), []);
    let actions = world.on(Event::Left { node: node(1), reason: "gone".into() });
    assert_eq!(actions, []);
    row_of(&world.join(2));
}

#[test]
fn standbys_are_used_only_to_make_up_the_number() {
    let mut world = World::new(2);
    world.on(Event::Joined { node: node(9), device: device(9), standby: true });
    world.join(1);
    let (epoch, row) = {
        // Two are wanted, and only one regular node is here.
        let actions = world.pass(Duration::from_secs(1), &[1, 9]);
        let view = world.membership.view();
        assert!(actions.is_empty() && view.epoch.is_some(), "{view:?}");
        (view.epoch.expect("a row"), [node(1), node(9)])
    };
    assert_eq!(world.on(Event::Left { node: row[1], reason: "gone".into() }).len(), 2);
    world.on(Event::Released { node: row[0], epoch });
    world.on(Event::Joined { node: node(9), device: device(9), standby: true });
    let view = world.membership.view();
    assert_eq!(view.epoch, Some(Epoch(2)));
}

#[test]
fn rows_that_cannot_work_are_tried_less_and_less_often() {
    let mut world = World::new(1);
    let (mut epoch, _) = row_of(&world.join(1));
    for pauses in 1..=4 {
        let actions = world.on(Event::Broken { epoch, reason: "refused".into() });
        assert_eq!(actions.len(), 2, "{actions:?}");
        world.on(Event::Released { node: node(1), epoch });
        assert_eq!(world.pass(PAUSE * pauses - Duration::from_millis(1), &[1]), []);
        epoch = row_of(&world.pass(Duration::from_secs(1), &[1])).0;
    }
    // One that worked for a while is replaced at once.
    assert_eq!(world.pass(SOON, &[1]), []);
    world.on(Event::Broken { epoch, reason: "a link".into() });
    row_of(&world.on(Event::Released { node: node(1), epoch }));
}

#[test]
fn a_standby_helps_where_the_others_are_too_small_and_nobody_is_asked_twice() {
    let mut world = World::new(1);
    world.on(Event::Joined { node: node(9), device: device(9), standby: true });
    // With one node wanted the standby makes up the number; it goes, and a node that cannot hold the model comes.
    world.on(Event::Left { node: node(9), reason: "gone".into() });
    let poor = Box::new(DeviceSpec { memory_bytes: 0, ..*device(1) });
    assert_eq!(world.on(Event::Joined { node: node(1), device: poor, standby: false }).len(), 1);
    let actions = world.on(Event::Joined { node: node(9), device: device(9), standby: true });
    // The plan of these tests refuses any row with the poor node in it.
    assert_eq!(actions, [Action::Unplaced { reason: "no memory".into() }]);
    assert_eq!(world.pass(Duration::from_secs(3), &[1, 9]), []);
}

#[test]
fn a_node_that_joins_again_has_lost_what_it_held() {
    let mut world = World::new(1);
    let (epoch, row) = row_of(&world.join(1));
    world.serve(&row, epoch);
    let actions = world.join(1);
    assert!(matches!(&actions[0], Action::Over { .. }), "{actions:?}");
    assert_eq!(row_of(&actions).0, Epoch(2));
}

proptest! {
    /// Whatever nodes say and however they come and go: epochs only grow, a node holds a stage of one row at a time,
    /// and nothing is served before everyone is loaded and linked.
    #[test]
    fn rows_come_into_force_in_order(script in prop::collection::vec((0_u8..9, 1_u128..5, 0_u64..3), 1..200)) {
        let mut world = World::new(2);
        let mut newest = Epoch(0);
        let mut holds: BTreeMap<NodeId, Epoch> = BTreeMap::new();
        for (kind, number, back) in script {
            world.now += Duration::from_millis(700);
            let node = node(number);
            let epoch = Epoch(newest.0.saturating_sub(back as u32));
            let event = match kind {
                0 => {
                    holds.remove(&node);
                    Event::Joined { node, device: device(number), standby: number == 4 }
                }
                1 => {
                    holds.remove(&node);
                    Event::Left { node, reason: "left".into() }
                }
                2 => Event::Loaded { node, epoch },
                3 => Event::Linked { node, epoch },
                4 => Event::Ready { epoch },
                5 => Event::Failed { node, epoch, reason: "failed".into() },
                6 => Event::Released { node, epoch },
                7 => Event::Broken { epoch, reason: "broken".into() },
                _ => Event::Heard { node },
            };
            if let Event::Failed { node, epoch, .. } | Event::Released { node, epoch } = &event
                && holds.get(node) == Some(epoch)
            {
                holds.remove(node);
            }
            for action in world.on(event) {
                match action {
                    Action::Load { epoch, row, placement, .. } => {
                        prop_assert!(epoch > newest);
                        prop_assert_eq!(row.len(), placement.stages.len());
                        newest = epoch;
                        for node in row {
                            prop_assert!(holds.insert(node, epoch).is_none(), "{} holds two stages", node);
                        }
                    }
                    Action::Expel { node, .. } => drop(holds.remove(&node)),
                    Action::Serve { epoch } | Action::Connect { epoch } => prop_assert_eq!(epoch, newest),
                    _ => {}
                }
            }
        }
    }
}
