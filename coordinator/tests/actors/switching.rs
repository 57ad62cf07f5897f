//! Rows that take over from each other while sessions run in them.

use std::time::Duration;

use paceline_coordinator::actor::start;
use paceline_coordinator::{Health, PlacementError, Still};
use paceline_core::Limits;
use paceline_proto::{Epoch, PageId, Slot, StepId};
use paceline_transport::ReplySender;
use tokio::time::timeout;

use crate::played::{Script, answer, placed, request, run, service, settle, text_side};
use crate::replacing::{Held, PATIENCE, is_served, read, whole};

const EPOCH: Epoch = Epoch(1);

#[test]
fn sessions_run_on_in_the_row_that_takes_over() {
    run(async {
        let held = Held::default();
        let (row, mut way_back) = placed(1, Script::HoldsAfter(12, held.clone()));
        let (engine, control) = start(text_side(), row);
        let running = engine.generate(request(1000)).await.expect("admitted");
        settle(&engine).await;
        let under_way = held.lock().expect("unpoisoned").len();
        assert!(under_way > 0);
        let holding = tokio::task::spawn_local({
            let control = control.clone();
            async move { control.hold(EPOCH).await }
        });
        settle(&engine).await;
        assert!(!holding.is_finished(), "a step is under way");
        // Newcomers are let in meanwhile, and the service is as healthy as before.
        let other = engine.generate(request(20)).await.expect("admitted");
        assert!(engine.status().await.expect("status").ready);
        let frames = std::mem::take(&mut *held.lock().expect("unpoisoned"));
        let last = frames.last().expect("a step").step.id;
        for frame in &frames {
            way_back.reply(answer(frame)).expect("there is room");
        }
        let still = timeout(PATIENCE, holding).await.expect("it comes").expect("no panic");
        assert_eq!(still, Ok(Still { pages: vec![PageId(0)], slots: vec![Slot(0)] }));
        settle(&engine).await;
        assert!(held.lock().expect("unpoisoned").is_empty(), "a step was sent in a row that is held");
        assert_eq!(*control.health().borrow(), Health::Serving { epoch: EPOCH });

        let next = Held::default();
        let (row, mut way_back) = placed(2, Script::HoldsAfter(0, next.clone()));
        let pause = control.switch(row).await.expect("it is still");
        assert!(pause > Duration::ZERO);
        assert_eq!(*control.health().borrow(), Health::Serving { epoch: Epoch(2) });
        let frame = next.lock().expect("unpoisoned").remove(0);
        assert_eq!((frame.step.epoch, frame.step.id), (Epoch(2), StepId(last.0 + 1)), "step numbers go on");
        way_back.reply(answer(&frame)).expect("there is room");
        // The old row's way back is closed, and one that answers everything takes over in turn.
        settle(&engine).await;
        for frame in next.lock().expect("unpoisoned").drain(..) {
            way_back.reply(answer(&frame)).expect("there is room");
        }
        timeout(PATIENCE, control.hold(Epoch(2))).await.expect("it comes").expect("it is still");
        control.switch(placed(3, Script::Answers).0).await.expect("it is still");
        assert_eq!((read(running).await, read(other).await), (whole(3, 1000), whole(3, 20)));
        settle(&engine).await;
        let status = engine.status().await.expect("status");
        assert_eq!((status.epoch, status.running, status.pages_used, status.admitted), (3, 0, 0, 2));
    });
}

#[test]
fn a_row_that_is_resumed_goes_on() {
    run(async {
        let (engine, control) = service(Script::Answers);
        let running = engine.generate(request(500)).await.expect("admitted");
        control.hold(EPOCH).await.expect("it is still");
        control.resume().await;
        assert_eq!(read(running).await, whole(3, 500));
        is_served(&engine, 20).await;
        control.resume().await;
        is_served(&engine, 20).await;
    });
}

#[test]
fn what_cannot_be_switched_is_refused() {
    run(async {
        let (engine, control) = service(Script::Answers);
        let not_still = PlacementError::NotStill { epoch: EPOCH };
        assert_eq!(control.switch(placed(2, Script::Answers).0).await, Err(not_still.clone()));
        let other = PlacementError::NotStill { epoch: Epoch(7) };
        assert_eq!(control.hold(Epoch(7)).await, Err(other));
        control.hold(EPOCH).await.expect("it is still");
        assert_eq!(control.hold(EPOCH).await, Err(not_still.clone()), "it is held already");
        let old = PlacementError::Epoch { epoch: EPOCH, newest: EPOCH };
        assert_eq!(control.switch(placed(1, Script::Answers).0).await, Err(old));
        let (mut row, _) = placed(2, Script::Answers);
        row.limits = Limits { pages: 127, ..row.limits };
        assert_eq!(control.switch(row).await, Err(PlacementError::OtherMemory { epoch: Epoch(2) }));
        // None of this has ended the hold.
        control.switch(placed(2, Script::Answers).0).await.expect("it is still");
        is_served(&engine, 20).await;
    });
}

#[test]
fn a_row_that_fails_while_it_is_held_is_over_and_sessions_are_replayed() {
    run(async {
        let held = Held::default();
        let (engine, control) = service(Script::HoldsAfter(5, held.clone()));
        let running = engine.generate(request(300)).await.expect("admitted");
        settle(&engine).await;
        let holding = tokio::task::spawn_local({
            let control = control.clone();
            async move { control.hold(EPOCH).await }
        });
        settle(&engine).await;
        control.failed(EPOCH, 0, "its host is gone".to_owned()).await;
        let not_still = PlacementError::NotStill { epoch: EPOCH };
        assert_eq!(timeout(PATIENCE, holding).await.expect("it comes").expect("no panic"), Err(not_still.clone()));
        assert_eq!(control.hold(EPOCH).await, Err(not_still.clone()), "there is nothing to hold");
        assert_eq!(control.switch(placed(2, Script::Answers).0).await, Err(not_still), "nor to take over");
        control.resume().await;
        control.replace(placed(3, Script::Answers).0).await.expect("a placement that can run");
        assert_eq!(read(running).await, whole(3, 300));
        // A row that is replaced while it is held is over, too.
        control.hold(Epoch(3)).await.expect("it is still");
        control.replace(placed(4, Script::Answers).0).await.expect("a placement that can run");
        control.hold(Epoch(4)).await.expect("nobody holds it yet");
        control.resume().await;
        is_served(&engine, 20).await;
        control.stop().await;
        assert_eq!(control.hold(Epoch(4)).await, Err(PlacementError::Stopped));
    });
}
