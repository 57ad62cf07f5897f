//! How sessions end, pause and leave.

use std::time::Duration;

use paceline_coordinator::actor::start;
use paceline_coordinator::{Error, FinishReason, Generate, Update};

use crate::played::{Script, placed, request, run, service, settle, text_side, token_at};

#[test]
fn a_slow_reader_pauses_its_session_and_loses_nothing() {
    run(async {
        let (engine, _control) = service(Script::Answers);
        let mut slow = engine.generate(request(1000)).await.expect("admitted");
        settle(&engine).await;
        let paused = engine.status().await.expect("status");
        assert!(
            paused.decode_tokens < 140,
            "{} tokens were computed for a client that reads none",
            paused.decode_tokens
        );
        // Another one is served meanwhile.
        let mut quick = engine.generate(request(300)).await.expect("admitted");
        let mut tokens = 0;
        while let Some(update) = quick.updates.recv().await {
            tokens += usize::from(matches!(update, Update::Token(_)));
        }
        assert_eq!(tokens, 300);
        let mut position = 3;
        loop {
            match slow.updates.recv().await.expect("an update") {
                Update::Token(update) => assert_eq!(update.token, token_at(position)),
                Update::Finished(finished) => {
                    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Length, 1000));
                    break;
                }
                Update::Failed(error) => panic!("{error}"),
            }
            position += 1;
        }
        assert_eq!(position, 1003);
        assert_eq!(engine.status().await.expect("status").running, 0);
    });
}

#[test]
fn an_answer_that_ends_while_its_reader_sleeps_is_kept_whole() {
    // Around the size of the channel every way to be full at the end comes up.
    for tokens in (85..105).chain(120..135) {
        run(async move {
            let (engine, _control) = service(Script::Answers);
            let mut slow = engine.generate(request(tokens)).await.expect("admitted");
            settle(&engine).await;
            let mut count = 0;
            loop {
                match slow.updates.recv().await.expect("an update") {
                    Update::Token(_) => count += 1,
                    Update::Finished(_) => break,
                    Update::Failed(error) => panic!("{error}"),
                }
            }
            assert_eq!(count, tokens);
        });
    }
}

#[test]
fn a_client_that_leaves_frees_its_pages_wherever_it_is() {
    run(async {
        let (engine, _control) = service(Script::Answers);
        let paused = engine.generate(request(1000)).await.expect("admitted");
        let other = engine.generate(request(1000)).await.expect("admitted");
        settle(&engine).await;
        // Both places are taken: this one waits, and leaves while waiting.
        let waits = tokio::time::timeout(Duration::ZERO, engine.generate(request(5))).await;
        assert!(waits.is_err(), "there was a place for a third");
        settle(&engine).await;
        assert_eq!(engine.status().await.expect("status").waiting, 0);
        drop((paused, other));
        settle(&engine).await;
        let status = engine.status().await.expect("status");
        assert_eq!((status.running, status.pages_used), (0, 0));
    });
}

#[test]
fn where_no_other_row_is_placed_a_failed_stage_is_told_to_everyone_and_nobody_is_let_in() {
    run(async {
        let (mut row, _way_back) = placed(1, Script::FailsAfter(5));
        row.limits.restore_deadline = Duration::ZERO;
        let (engine, _control) = start(text_side(), row);
        let mut lost = engine.generate(request(1000)).await.expect("admitted");
        let mut last = None;
        while let Some(update) = lost.updates.recv().await {
            last = Some(update);
        }
        assert!(
            matches!(last, Some(Update::Failed(Error::Lost { ref reason })) if reason.contains("played")),
            "{last:?}"
        );
        let refused = engine.generate(request(5)).await.expect_err("the row is broken");
        assert!(matches!(refused, Error::Restoring { ref reason } if reason.contains("played")), "{refused}");
        assert!(!engine.status().await.expect("status").ready);
    });
}

#[test]
fn draining_lets_answers_finish_and_admits_nobody() {
    run(async {
        let (engine, control) = service(Script::Answers);
        let mut running = engine.generate(request(200)).await.expect("admitted");
        let drained = tokio::spawn(async move { control.drain().await });
        settle(&engine).await;
        assert!(matches!(engine.generate(request(5)).await, Err(Error::ShuttingDown)));
        let mut tokens = 0;
        while let Some(update) = running.updates.recv().await {
            tokens += usize::from(matches!(update, Update::Token(_)));
        }
        assert_eq!(tokens, 200);
        drained.await.expect("drained");
    });
}

#[test]
fn impossible_requests_are_refused_with_their_numbers() {
    run(async {
        let (engine, _control) = service(Script::Answers);
        let refusal = |prompt: Vec<u32>| {
            let engine = engine.clone();
            async move { engine.generate(Generate { prompt, ..request(5) }).await.expect_err("impossible") }
        };
        assert_eq!(refusal(vec![]).await, Error::EmptyPrompt);
        assert_eq!(refusal(vec![5000]).await, Error::TokenOutOfRange { token: 5000, vocabulary: 2048 });
        assert_eq!(refusal(vec![1; 4096]).await, Error::ContextLength { tokens: 4096, context: 4096 });
    });
}
