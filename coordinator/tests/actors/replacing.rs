//! Rows that break, are replaced, and answer too late; and the sessions that go on through all that.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use paceline_coordinator::actor::{Control, start};
use paceline_coordinator::{
    Engine, Error, FinishReason, Generate, Generation, Health, PlacementError, StageCard, Update, Usage,
};
use paceline_core::Limits;
use paceline_proto::{Epoch, Frame, Reply};
use paceline_transport::{ReplySender, local};
use tokio::time::timeout;

use crate::played::{Script, answer, placed, request, run, service, settle, text_side, token_at};

/// Far more than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) type Held = Arc<Mutex<Vec<Frame>>>;

async fn replace(control: &Control, epoch: u32, script: Script) {
    control.replace(placed(epoch, script).0).await.expect("a placement that can run");
}

/// Reads an answer to its end.
pub(crate) async fn read(mut generation: Generation) -> (Vec<u32>, Option<Error>) {
    let mut tokens = Vec::new();
    while let Some(update) = timeout(PATIENCE, generation.updates.recv()).await.expect("an answer goes on") {
        match update {
            Update::Token(token) => tokens.push(token.token),
            Update::Finished(_) => return (tokens, None),
            Update::Failed(error) => return (tokens, Some(error)),
        }
    }
    panic!("the answer has no end");
}

/// The whole answer to a prompt of so many tokens.
pub(crate) fn whole(prompt: u32, tokens: u32) -> (Vec<u32>, Option<Error>) {
    ((prompt..prompt + tokens).map(token_at).collect(), None)
}

pub(crate) async fn is_served(engine: &Engine, tokens: usize) {
    let (answer, error) = read(engine.generate(request(tokens)).await.expect("admitted")).await;
    assert_eq!((answer.len(), error), (tokens, None));
    assert_eq!(answer[0], token_at(3));
}

async fn health_is(control: &Control, wanted: impl Fn(&Health) -> bool) -> Health {
    let mut health = control.health();
    timeout(PATIENCE, health.wait_for(wanted)).await.expect("it comes").expect("the coordinator lives").clone()
}

#[test]
fn a_row_is_replaced_while_sessions_decode_prefill_and_wait() {
    run(async {
        let held = Held::default();
        let (engine, control) = service(Script::HoldsAfter(12, held.clone()));
        let decodes = engine.generate(request(1000)).await.expect("admitted");
        settle(&engine).await;
        let prefills = engine.generate(Generate { prompt: vec![1; 2000], ..request(1000) }).await.expect("admitted");
        let waits = tokio::task::spawn_local({
            let engine = engine.clone();
            async move { engine.generate(request(5)).await }
        });
        settle(&engine).await;
        let status = engine.status().await.expect("status");
        assert_eq!((status.running, status.waiting, status.interrupted), (2, 1, 0));
        assert!(status.steps_in_flight > 0 && !held.lock().expect("unpoisoned").is_empty());

        replace(&control, 2, Script::Answers).await;
        assert_eq!(read(decodes).await, whole(3, 1000));
        assert_eq!(read(prefills).await, whole(2000, 1000));
        let waited = waits.await.expect("no panic").expect("it waited for the new row");
        assert_eq!(read(waited).await, whole(3, 5));

        settle(&engine).await;
        let status = engine.status().await.expect("status");
        assert_eq!((status.running, status.waiting, status.pages_used, status.steps_in_flight), (0, 0, 0, 0));
        assert_eq!(status.admitted, 3);
        is_served(&engine, 100).await;
    });
}

#[test]
fn a_row_is_replaced_again_and_again() {
    run(async {
        let (engine, control) = service(Script::Answers);
        let lasts = engine.generate(request(2000)).await.expect("admitted");
        for epoch in [2, 3, 7] {
            let running = engine.generate(request(500)).await.expect("admitted");
            replace(&control, epoch, Script::Answers).await;
            assert_eq!(read(running).await, whole(3, 500));
            assert_eq!(*control.health().borrow(), Health::Serving { epoch: Epoch(epoch) });
            is_served(&engine, 20).await;
        }
        // Two at once: the second takes the place of one that was never used.
        let (first, second) = (placed(8, Script::FailsAfter(0)).0, placed(9, Script::Answers).0);
        let (first, second) = tokio::join!(control.replace(first), control.replace(second));
        assert_eq!((first, second), (Ok(()), Ok(())));
        is_served(&engine, 20).await;
        assert_eq!(read(lasts).await, whole(3, 2000));
    });
}

#[test]
fn what_an_old_row_answers_is_ignored() {
    run(async {
        let held = Held::default();
        let (old, mut late) = placed(1, Script::HoldsAfter(2, held.clone()));
        let (engine, control) = start(text_side(), old);
        let running = engine.generate(request(100)).await.expect("admitted");
        settle(&engine).await;
        let frame = held.lock().expect("unpoisoned").first().cloned().expect("a step is held");
        // These wait in the old row's channel when the new row comes.
        let (new, mut way_back) = placed(2, Script::Answers);
        let replaced = control.replace(new);
        late.reply(answer(&frame)).expect("there is room");
        late.reply(Reply::Failed { stage: 0, reason: "too late".to_owned() }).expect("there is room");
        replaced.await.expect("a placement that can run");
        assert_eq!(read(running).await, whole(3, 100));
        is_served(&engine, 50).await;
        settle(&engine).await;
        assert_eq!(*control.health().borrow(), Health::Serving { epoch: Epoch(2) });
        assert_eq!(late.reply(answer(&frame)), Err(paceline_transport::Error::Closed), "the old way back is open");
        // A result of the old epoch on the new way back.
        way_back.reply(answer(&frame)).expect("there is room");
        is_served(&engine, 50).await;
        assert!(engine.status().await.expect("status").ready);
    });
}

#[test]
fn a_replaced_row_is_let_go_of() {
    run(async {
        let held = Held::default();
        let (engine, control) = service(Script::HoldsAfter(0, held.clone()));
        settle(&engine).await;
        assert_eq!(Arc::strong_count(&held), 2);
        replace(&control, 2, Script::Answers).await;
        assert_eq!(Arc::strong_count(&held), 1, "the link to the old head is still held");
    });
}

#[test]
fn whoever_places_learns_that_the_row_broke_and_mends_it() {
    run(async {
        let (engine, control) = service(Script::FailsAfter(5));
        assert_eq!(*control.health().borrow(), Health::Serving { epoch: Epoch(1) });
        let running = engine.generate(request(1000)).await.expect("admitted");
        let broken = health_is(&control, |health| !health.is_serving()).await;
        assert!(
            matches!(&broken, Health::Broken { epoch: Epoch(1), reason } if reason.contains("played")),
            "{broken:?}"
        );
        let refused = engine.generate(request(5)).await.expect_err("the row is broken");
        assert!(matches!(refused, Error::Restoring { .. }), "{refused}");
        settle(&engine).await;
        let status = engine.status().await.expect("status");
        assert_eq!((status.ready, status.running, status.waiting, status.interrupted), (false, 0, 1, 1));

        replace(&control, 2, Script::Answers).await;
        assert_eq!(health_is(&control, Health::is_serving).await.epoch(), Epoch(2));
        assert_eq!(read(running).await, whole(3, 1000));
        is_served(&engine, 3).await;
        control.failed(Epoch(1), 0, "an old one".to_owned()).await;
        assert_eq!(*control.health().borrow(), Health::Serving { epoch: Epoch(2) });
        control.failed(Epoch(2), 0, "its host is gone".to_owned()).await;
        let broken = health_is(&control, |health| !health.is_serving()).await;
        assert!(matches!(&broken, Health::Broken { reason, .. } if reason.contains("its host is gone")), "{broken:?}");
        replace(&control, 3, Script::Answers).await;
        is_served(&engine, 50).await;
        // A row whose stages have all ended says nothing more.
        let mut row = placed(4, Script::Answers).0;
        row.replies = local::replies(1).1;
        control.replace(row).await.expect("a placement that can run");
        let broken = health_is(&control, |health| !health.is_serving()).await;
        assert!(
            matches!(&broken, Health::Broken { epoch: Epoch(4), reason } if reason.contains("ended")),
            "{broken:?}"
        );
    });
}

#[test]
fn the_status_tells_what_the_stages_did_and_what_is_known_of_them() {
    run(async {
        let (engine, control) = service(Script::Answers);
        is_served(&engine, 10).await;
        let status = engine.status().await.expect("status");
        let [stage] = &status.stages[..] else { panic!("{status:?}") };
        assert_eq!((status.epoch, status.slots, status.credits, status.admitted), (1, 2, 2, 1));
        assert!(status.uptime_seconds > 0.0);
        assert!(stage.steps >= 10 && stage.busy_micros == stage.steps, "{stage:?}");

        let named = StageCard { host: "far".to_owned(), ..StageCard::default() };
        control.describe(Epoch(1), vec![named.clone()]).await;
        assert_eq!(engine.status().await.expect("status").stages[0].card, named);
        // Of another placement, or of another number of stages.
        control.describe(Epoch(2), vec![StageCard::default()]).await;
        control.describe(Epoch(1), vec![]).await;
        assert_eq!(engine.status().await.expect("status").stages[0].card, named);

        replace(&control, 2, Script::Answers).await;
        let status = engine.status().await.expect("status");
        assert_eq!((status.epoch, status.stages[0].steps, status.admitted), (2, 0, 1));
    });
}

#[test]
fn a_service_starts_without_stages() {
    run(async {
        let (engine, control) = start(text_side(), None);
        let health = control.health().borrow().clone();
        assert!(matches!(&health, Health::Broken { reason, .. } if reason.contains("no stages")), "{health:?}");
        let refused = engine.generate(request(5)).await.expect_err("nothing is placed");
        assert!(matches!(refused, Error::Restoring { .. }), "{refused}");
        control.failed(Epoch(0), 0, "nobody".to_owned()).await;
        assert_eq!(engine.model().stages, 0);
        // The very first may have epoch 0.
        replace(&control, 0, Script::Answers).await;
        assert_eq!(engine.model().stages, 1);
        is_served(&engine, 50).await;
    });
}

#[test]
fn context_and_stages_are_those_of_the_placement() {
    run(async {
        let (engine, control) = service(Script::Answers);
        assert_eq!((engine.model().context, engine.model().stages), (4096, 1));
        let (mut row, _way_back) = placed(2, Script::Answers);
        row.limits = Limits::new(2, 1, 10, 16, 64);
        row.stages = vec![StageCard::default(), StageCard { index: 1, ..StageCard::default() }];
        control.replace(row).await.expect("a placement that can run");
        assert_eq!((engine.model().context, engine.model().stages), (64, 2));
        assert_eq!(engine.status().await.expect("status").pages, 10);
        let long = Generate { prompt: vec![1; 64], ..request(1) };
        assert_eq!(
            engine.generate(long).await.expect_err("too long"),
            Error::ContextLength { tokens: 64, context: 64 }
        );
        let whole = Generate { max_tokens: None, ..request(1) };
        let (tokens, error) = read(engine.generate(whole).await.expect("admitted")).await;
        assert_eq!((tokens.len(), error), (64 - 3, None));
    });
}

#[test]
fn a_placement_that_cannot_run_is_refused_and_the_row_stays() {
    run(async {
        let (engine, control) = service(Script::Answers);
        let running = engine.generate(request(200)).await.expect("admitted");
        for epoch in [0, 1] {
            let refused = control.replace(placed(epoch, Script::Answers).0).await;
            assert_eq!(refused, Err(PlacementError::Epoch { epoch: Epoch(epoch), newest: Epoch(1) }));
        }
        let (mut row, _) = placed(2, Script::Answers);
        row.limits.pages = 0;
        assert!(
            matches!(control.replace(row).await, Err(PlacementError::Limits { limit, .. }) if limit.name == "pages")
        );
        let (mut row, _) = placed(2, Script::Answers);
        row.stages.clear();
        assert!(matches!(control.replace(row).await, Err(PlacementError::Stages { limits: 1, cards: 0, .. })));
        assert_eq!(read(running).await.0.len(), 200);
        replace(&control, 2, Script::Answers).await;
        is_served(&engine, 20).await;
    });
}

#[test]
fn a_stopped_service_is_not_broken_and_takes_no_placement() {
    run(async {
        let (engine, control) = service(Script::Answers);
        let ended = engine.generate(request(2000)).await.expect("admitted");
        let mut health = control.health();
        control.stop().await;
        assert_eq!(read(ended).await.1, Some(Error::ShuttingDown));
        assert!(timeout(PATIENCE, health.changed()).await.expect("it ends").is_err(), "{:?}", health.borrow());
        assert_eq!(control.replace(placed(2, Script::Answers).0).await, Err(PlacementError::Stopped));
    });
}

/// All that a client is told of an answer but the times.
async fn told(engine: &Engine) -> (String, FinishReason, Usage) {
    let mut generation = engine.generate(request(400)).await.expect("admitted");
    let mut text = String::new();
    while let Some(update) = timeout(PATIENCE, generation.updates.recv()).await.expect("an answer goes on") {
        match update {
            Update::Token(token) => text.push_str(&token.text),
            Update::Finished(finished) => return (text + &finished.text, finished.reason, finished.usage),
            Update::Failed(error) => panic!("{error}"),
        }
    }
    panic!("the answer has no end");
}

/// Places a row whenever one breaks, and each breaks soon.
async fn mend(control: Control) {
    let mut health = control.health();
    while let Ok(broken) = health.wait_for(|health| !health.is_serving()).await {
        let epoch = broken.epoch().0 + 1;
        drop(broken);
        replace(&control, epoch, Script::FailsAfter(90)).await;
    }
}

#[test]
fn an_interrupted_answer_is_told_as_if_nothing_had_happened() {
    run(async {
        let (engine, _control) = service(Script::Answers);
        let expected = told(&engine).await;
        let (engine, control) = service(Script::FailsAfter(90));
        let mending = tokio::task::spawn_local(mend(control.clone()));
        assert_eq!(told(&engine).await, expected);
        mending.abort();
        assert!(control.health().borrow().epoch() > Epoch(3), "{:?}", control.health().borrow());
    });
}

#[test]
fn interrupted_sessions_end_with_their_clients_and_with_the_service() {
    run(async {
        let (engine, control) = service(Script::HoldsAfter(5, Held::default()));
        let leaves = engine.generate(request(1000)).await.expect("admitted");
        let stays = engine.generate(request(1000)).await.expect("admitted");
        settle(&engine).await;
        control.failed(Epoch(1), 0, "its host is gone".to_owned()).await;
        settle(&engine).await;
        assert_eq!(engine.status().await.expect("status").interrupted, 2);
        drop(leaves);
        settle(&engine).await;
        assert_eq!(engine.status().await.expect("status").interrupted, 1);
        control.stop().await;
        let (tokens, error) = read(stays).await;
        assert_eq!(error, Some(Error::ShuttingDown));
        assert!(whole(3, 1000).0.starts_with(&tokens));
    });
}

#[test]
fn a_placement_that_is_too_small_ends_what_does_not_fit_with_the_numbers() {
    run(async {
        let (engine, control) = service(Script::HoldsAfter(5, Held::default()));
        let long = engine.generate(request(1000)).await.expect("admitted");
        let short = engine.generate(request(40)).await.expect("admitted");
        settle(&engine).await;
        control.failed(Epoch(1), 0, "its host is gone".to_owned()).await;
        let (mut row, _way_back) = placed(2, Script::Answers);
        row.limits = Limits::new(1, 1, 10, 16, 64);
        control.replace(row).await.expect("a placement that can run");
        let (_, error) = read(long).await;
        let said = |reason: &str| reason.contains("1003 tokens exceed the context of 64 tokens");
        assert!(matches!(&error, Some(Error::Lost { reason }) if said(reason)), "{error:?}");
        assert_eq!(read(short).await, whole(3, 40));
    });
}
