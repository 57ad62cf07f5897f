//! Frames and replies arrive, in order and bit for bit, and links end as they should.

use std::sync::Arc;
use std::time::Duration;

use paceline_proto::{Activations, Epoch, Payload, Reply, StepDone, StepId};
use paceline_transport::{Carrier, Endpoint, Error, Expected, FrameSender, LinkSettings, ReplySender};

use crate::cluster::{CARRIERS, Cluster, DEADLINE, KEY, Node, SETTINGS, frame, join, receive, within};

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_all_sizes_arrive_in_order_and_bit_for_bit() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (mut sender, mut receiver, _nodes) = cluster.link(carrier, SETTINGS).await;
        let sizes = [0, 1, 4096, 64, 786_432, 16_384, 1_000_000, 5, 20_000];
        for (id, size) in (0..).zip(sizes) {
            sender.send(frame(id, size)).expect("there is room");
        }
        let mut frames = Vec::new();
        for id in 0..sizes.len() as u64 {
            let (received, rest) = receive(receiver).await;
            frames.push(received.expect("a frame"));
            receiver = rest;
            assert_eq!(frames.last(), Some(&frame(id, sizes[id as usize])), "{carrier}, frame {id}");
        }
        let bytes: usize = frames.iter().map(|frame| frame.encode().len()).sum();
        for counters in [sender.counters(), receiver.counters()] {
            assert_eq!((counters.frames(), counters.bytes()), (sizes.len() as u64, bytes as u64));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_small_frames_keep_their_order() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let settings = LinkSettings { frames: 4096, ..SETTINGS };
        let (mut sender, mut receiver, _nodes) = cluster.link(carrier, settings).await;
        let count = 4000;
        for id in 0..count {
            sender.send(frame(id, id as usize % 70)).expect("there is room for all");
        }
        drop(sender);
        for id in 0..count {
            let (received, rest) = receive(receiver).await;
            receiver = rest;
            assert_eq!(received, Ok(frame(id, id as usize % 70)), "{carrier}");
        }
        assert_eq!(receive(receiver).await.0, Err(Error::Closed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_are_sent_arrive_though_the_sender_and_its_endpoint_are_gone() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (mut sender, mut receiver, [from, _to]) = cluster.link(carrier, SETTINGS).await;
        for id in 0..8 {
            sender.send(frame(id, 786_432)).expect("there is room");
        }
        drop(sender);
        let closing = tokio::spawn(async move { from.endpoint.close().await });
        for id in 0..8 {
            let (received, rest) = receive(receiver).await;
            receiver = rest;
            assert_eq!(received, Ok(frame(id, 786_432)), "{carrier}");
        }
        assert_eq!(receive(receiver).await.0, Err(Error::Closed));
        within(closing).await.expect("closing does not panic");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_learns_that_the_receiver_is_gone() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (mut sender, receiver, _nodes) = cluster.link(carrier, SETTINGS).await;
        drop(receiver);
        within(async {
            // What was sent before the news came is lost with the link.
            while sender.send(frame(0, 16)) != Err(Error::Closed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_learns_that_the_senders_endpoint_is_gone() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (sender, receiver, [from, _to]) = cluster.link(carrier, SETTINGS).await;
        drop(sender);
        from.endpoint.close().await;
        assert_eq!(receive(receiver).await.0, Err(Error::Closed), "{carrier}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_never_waits_and_says_when_the_link_is_full() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let settings = LinkSettings { frames: 2, ..SETTINGS };
        let (mut sender, receiver, _nodes) = cluster.link(carrier, settings).await;
        // Nobody reads yet, so the network takes some megabytes and no more.
        let refused = (0..200).find_map(|id| sender.send(frame(id, 1_000_000)).err());
        assert_eq!(refused, Some(Error::Full { frames: 2 }), "{carrier}");
        drop(receiver);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_ignores_its_credits_loses_the_link() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let settings = LinkSettings { frames: 4, ..SETTINGS };
        let (mut sender, receiver, _nodes) = cluster.link(carrier, settings).await;
        sender.send(frame(0, 1)).expect("there is room");
        let (first, mut receiver) = receive(receiver).await;
        assert_eq!(first, Ok(frame(0, 1)));
        within(async {
            let mut id = 1;
            loop {
                match sender.send(frame(id, 1)) {
                    Ok(()) => id += 1,
                    Err(Error::Closed) => break,
                    Err(Error::Full { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        })
        .await;
        for id in 1..=4 {
            let (received, rest) = receive(receiver).await;
            receiver = rest;
            assert_eq!(received, Ok(frame(id, 1)), "{carrier}: what there was room for arrives");
        }
        let (error, receiver) = receive(receiver).await;
        assert_eq!(error, Err(Error::Full { frames: 4 }), "{carrier}");
        assert_eq!(receive(receiver).await.0, Err(Error::Closed));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_over_the_limit_is_not_sent() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let settings = LinkSettings { frame_bytes: 1000, ..SETTINGS };
        let (mut sender, receiver, _nodes) = cluster.link(carrier, settings).await;
        let refused = sender.send(frame(0, 1024));
        let Err(Error::Frame(paceline_proto::Error::TooLarge { limit: 1000, .. })) = refused else {
            panic!("{carrier}: {refused:?}")
        };
        sender.send(frame(1, 64)).expect("a smaller one is");
        assert_eq!(receive(receiver).await.0, Ok(frame(1, 64)), "{carrier}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_of_another_epoch_ends_the_link() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (mut sender, receiver, _nodes) = cluster.link(carrier, SETTINGS).await;
        let mut stale = frame(0, 64);
        stale.step.epoch = Epoch(6);
        sender.send(stale).expect("there is room");
        assert_eq!(receive(receiver).await.0, Err(Error::Epoch { found: 6, expected: 7 }), "{carrier}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_forms_of_activations_arrive_as_their_f32_values() {
    for carrier in CARRIERS {
        for activations in [Activations::F16, Activations::Int8] {
            let cluster = Cluster::new();
            let (mut sender, mut receiver, _nodes) =
                cluster.link(carrier, LinkSettings { activations, ..SETTINGS }).await;
            let values: Vec<f32> = (0..100_000).map(|at| (at % 255 - 127) as f32).collect();
            for size in [0, 100, 100_000] {
                let mut sent = frame(size as u64, 0);
                sent.payload = Payload::from_rows(if size == 0 { 1 } else { 50 }, &values[..size]);
                sender.send(sent.clone()).expect("there is room");
                let (received, rest) = receive(receiver).await;
                receiver = rest;
                let expected = paceline_proto::Frame::decode(&sent.encode_as(activations).clone());
                assert_eq!(received.ok(), expected.ok(), "{carrier} {activations} {size}");
            }
        }
    }
}

fn done(step: u64) -> Reply {
    Reply::Done(StepDone { epoch: Epoch(7), step: StepId(step), results: vec![], times: vec![] })
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_arrive_at_a_task_and_end_with_the_sender() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (mut sender, receiver, _nodes) = cluster.link(carrier, SETTINGS).await;
        let mut replies = receiver.into_replies(64);
        let failed = Reply::Failed { stage: 2, reason: "no memory".into() };
        for step in 0..20 {
            sender.reply(done(step)).expect("there is room");
        }
        let mut other = sender.clone();
        drop(sender);
        other.reply(failed.clone()).expect("a clone is the same link");
        for step in 0..20 {
            assert_eq!(within(replies.recv()).await, Some(done(step)), "{carrier}");
        }
        assert_eq!(within(replies.recv()).await, Some(failed));
        drop(other);
        assert_eq!(within(replies.recv()).await, None, "{carrier}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_whose_replies_nobody_wants_closes() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (mut sender, receiver, _nodes) = cluster.link(carrier, SETTINGS).await;
        drop(receiver.into_replies(4));
        within(async {
            while sender.reply(done(1)) != Err(Error::Closed) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_where_frames_are_expected_ends_the_link() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let (mut sender, receiver, _nodes) = cluster.link(carrier, SETTINGS).await;
        sender.reply(done(1)).expect("there is room");
        let (error, _) = receive(receiver).await;
        assert_eq!(error, Err(paceline_proto::Error::Kind { found: 2 }.into()), "{carrier}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_may_have_links_in_both_directions_and_over_both_carriers() {
    let cluster = Cluster::new();
    let (a, b) = (cluster.node().await, cluster.node().await);
    for carrier in CARRIERS {
        let (mut there, at_b) = join(&a, &b, carrier, SETTINGS).await.expect("a link");
        let (mut back, at_a) = join(&b, &a, carrier, SETTINGS).await.expect("a link");
        there.send(frame(1, 64)).expect("there is room");
        back.send(frame(2, 64)).expect("there is room");
        assert_eq!(receive(at_b).await.0, Ok(frame(1, 64)));
        assert_eq!(receive(at_a).await.0, Ok(frame(2, 64)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_without_a_word_is_noticed_at_both_ends() {
    for carrier in CARRIERS {
        let cluster = Cluster::new();
        let alive = cluster.node().await;
        // Its runtime stops as a process does: nothing is finished, nothing is said.
        let dying = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let dying = dying.expect("a runtime");
        let dead = dying.spawn({
            let (path, identity) = (cluster.path(), cluster.identity());
            async move {
                let any = "127.0.0.1:0".parse().expect("an address");
                let node = identity.node();
                Node { node, endpoint: Endpoint::bind(identity, any, Some(&path)).await.expect("an endpoint") }
            }
        });
        let dead = Arc::new(within(dead).await.expect("no panic"));
        let pending = dead.endpoint.expect(Expected { key: KEY, from: alive.node, settings: SETTINGS });
        let target = dead.target(carrier);
        let connect = alive.endpoint.connect(&target, KEY, SETTINGS);
        let (mut to_dead, _) = within(connect).await.expect("a link");
        let at_dead = within(pending.wait(DEADLINE)).await.expect("the link");
        let pending = alive.endpoint.expect(Expected { key: KEY, from: dead.node, settings: SETTINGS });
        let connect = dying.spawn({
            let (dead, target) = (dead.clone(), alive.target(carrier));
            async move { dead.endpoint.connect(&target, KEY, SETTINGS).await }
        });
        let (from_dead, _) = within(connect).await.expect("no panic").expect("a link");
        let at_alive = within(pending.wait(DEADLINE)).await.expect("the link");
        dying.shutdown_background();
        if carrier == Carrier::Unix {
            // Of a dead process the system closes the sockets.
            drop((at_dead, from_dead));
        } else {
            std::mem::forget((at_dead, from_dead));
        }
        assert_eq!(receive(at_alive).await.0, Err(Error::Closed), "{carrier}");
        within(async {
            while to_dead.send(frame(0, 16)) != Err(Error::Closed) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }
}
