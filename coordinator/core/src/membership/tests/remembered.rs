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
    let membership = membership(wanted).remembering(Remembered { epoch: Epoch(epoch), row: Some(row) });
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
