//! A coordinator that was restarted, and the row that it had before.

use super::*;
use crate::membership::{RETURN, Remembered, RememberedRow};

/// A row of these nodes as a life before had it, cut as nobody would cut it now.
fn row(numbers: &[u128]) -> RememberedRow {
    let devices: Vec<_> = numbers.iter().map(|number| (node(*number), *device(*number))).collect();
    let mut placement = InOrder(shape()).place(&devices, numbers.len()).expect("it fits");
    placement.stages.reverse();
    RememberedRow::new(numbers.iter().map(|number| node(*number)).collect(), placement).expect("a row")
}

fn world(wanted: usize, epoch: u32, row: RememberedRow) -> World {
    let membership =
        membership(wanted).remembering(Remembered { epoch: Epoch(epoch), row: Some(row), ..Remembered::default() });
    World { membership, now: Duration::from_secs(1) }
}

#[test]
fn the_row_before_is_placed_again_as_it_was_when_its_nodes_are_back() {
    let before = row(&[7, 3]);
    let mut world = world(2, 41, before.clone());
    assert_eq!(world.on(Event::Tick), []);
    // Two others would do, but the nodes that have the layers may be on their way.
    assert_eq!(world.join(1), []);
    assert_eq!(world.join(2), []);
    assert_eq!(world.join(3), []);
    let actions = world.join(7);
    let [Action::Load { epoch, placement, row, beside: None }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((*epoch, &row[..]), (Epoch(42), &[node(7), node(3)][..]));
    assert_eq!(**placement, *before.placement());
    assert_eq!(placement.stages[1].layers.start, 0, "nobody would cut it like this now");
    // Once it is over, the past counts no more.
    let over = world.on(Event::Left { node: node(7), reason: "gone".into() });
    assert!(matches!(&over[0], Action::Over { epoch: Epoch(42), .. }), "{over:?}");
    let (epoch, row) = row_of(&over);
    assert_eq!((epoch, row), (Epoch(43), vec![node(1), node(2)]));
}

#[test]
fn nodes_that_do_not_come_back_are_waited_for_and_then_forgotten() {
    let mut world = world(2, 5, row(&[7, 3]));
    world.join(1);
    world.join(3);
    assert_eq!(world.pass(RETURN - Duration::from_millis(1), &[1, 3]), []);
    let (epoch, row) = row_of(&world.pass(Duration::from_millis(1), &[1, 3]));
    assert_eq!((epoch, row), (Epoch(6), vec![node(1), node(3)]));
}

#[test]
fn who_was_drained_is_not_used_in_a_later_life() {
    let drained = |actions: &[Action]| {
        let sets = actions.iter().filter_map(|action| match action {
            Action::Drained { nodes } => Some(nodes.clone()),
            _ => None,
        });
        sets.collect::<Vec<_>>()
    };
    let ask = |change| Event::Scale { ticket: Ticket(1), change };
    let mut before = World { membership: membership(3), now: Duration::from_secs(1) };
    before.join(3);
    let kept = drained(&before.on(ask(Change::Drain { nodes: vec![node(3)] })));
    assert_eq!(kept, [BTreeSet::from([node(3)])]);
    assert_eq!(drained(&before.on(ask(Change::Drain { nodes: vec![node(3)] }))), [], "nothing has changed");
    let remembered = Remembered { epoch: Epoch(4), drained: kept[0].clone(), row: None };
    let mut later = World { membership: membership(2).remembering(remembered), now: Duration::from_secs(1) };
    for number in [3, 1] {
        assert_eq!(later.join(number), [], "two are wanted, and one may be used");
    }
    let (epoch, row) = row_of(&later.join(2));
    assert_eq!((epoch, row), (Epoch(5), vec![node(1), node(2)]));
    let added = later.on(Event::Left { node: node(2), reason: "gone".into() });
    assert_eq!(drained(&added), []);
    later.on(Event::Released { node: node(1), epoch });
    assert_eq!(drained(&later.on(ask(Change::Add { nodes: vec![node(3)] }))), [BTreeSet::new()]);
}

#[test]
fn what_does_not_go_together_is_no_row() {
    let placement = row(&[1, 2]).placement().clone();
    for numbers in [&[][..], &[1], &[1, 1], &[1, 2, 3]] {
        let nodes = numbers.iter().map(|number| node(*number)).collect();
        assert_eq!(RememberedRow::new(nodes, placement.clone()), None, "{numbers:?}");
    }
}

#[test]
fn a_placement_is_the_same_after_it_was_written_and_read() {
    let placement = row(&[1, 2]).placement().clone();
    let text = serde_json::to_string(&placement).expect("written");
    assert_eq!(serde_json::from_str::<Placement>(&text).expect("read"), placement);
}
