//! Placing on devices that differ.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_gguf::testing::PublishedShape;

use super::*;

pub(super) fn device(host: &str, memory_bytes: u64, speed: Option<Speed>) -> DeviceSpec {
    DeviceSpec { name: "gpu".to_owned(), host: host.to_owned(), memory_bytes, shares_memory: false, threads: 1, speed }
}

fn cards(description: &str) -> Cluster {
    Cluster::described(&[description.parse().unwrap()])
}

fn cluster_of(descriptions: &[&str]) -> Cluster {
    Cluster::described(&descriptions.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>())
}

pub(super) fn of_kind(kind: KvType, context: usize, sessions: usize) -> Wishes {
    Wishes { key_type: kind, value_type: kind, ..Wishes::of(context, sessions) }
}

pub(super) fn layers(placement: &Placement) -> Vec<Range<usize>> {
    placement.stages.iter().map(|stage| stage.layers.clone()).collect()
}

pub(super) fn devices(placement: &Placement) -> Vec<usize> {
    placement.stages.iter().map(|stage| stage.device).collect()
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / GIB as f64
}

/// Seen with llama.cpp: 13 to 15 GB on each of eight cards, two attention layers on each.
#[test]
fn a_27b_on_eight_cards_takes_no_more_than_was_seen() {
    let shape = shapes::published_as(PublishedShape::B27, paceline_gguf::TensorType::Q6K);
    let wishes = of_kind(KvType::Q8_0, 262_144, 4);
    let placement = place(&shape, &wishes, &cards("8x 24GB 1008GB/s")).unwrap();
    assert_eq!(devices(&placement), [0, 1, 2, 3, 4, 5, 6, 7]);
    for stage in &placement.stages {
        assert_eq!(stage.attention_layers, 2);
        assert!(stage.memory.total() < 13_000_000_000, "{:?}", stage.memory);
        assert_eq!(stage.device_free, 24_000_000_000 - stage.memory.total());
    }
    assert!(placement.left_out.is_empty());
    // 21.0 GB for a token, of 1008 GB/s: 47 tokens per second are the limit.
    let prediction = placement.prediction.unwrap();
    assert!((25.0..47.0).contains(&prediction.decode_one), "{prediction:?}");
}

/// Seen with llama.cpp: 14.0 and 12.8 GiB.
#[test]
fn a_35b_on_two_cards_takes_no_more_than_was_seen() {
    let shape = published(PublishedShape::B35_A3);
    let wishes = of_kind(KvType::Q8_0, 225_000, 1);
    let placement = place(&shape, &wishes, &cards("2x 16GiB 900GB/s")).unwrap();
    let mut needed: Vec<f64> = placement.stages.iter().map(|stage| gib(stage.memory.total())).collect();
    needed.sort_by(f64::total_cmp);
    assert!(needed[0] < 12.8 && needed[1] < 14.0, "{needed:?}");
}

#[test]
fn a_slow_device_is_left_out_and_told_why() {
    let shape = published(PublishedShape::B0_8);
    let placement =
        place(&shape, &Wishes::of(8192, 4), &cluster_of(&["24GiB 1008GB/s", "cpu 64GiB 40GB/s 8threads"])).unwrap();
    assert_eq!(devices(&placement), [0]);
    let [LeftOut { device: 1, device_name, reason, .. }] = &placement.left_out[..] else { panic!("{placement:?}") };
    assert_eq!(device_name, "cpu");
    assert!(reason.starts_with("even one block would take it"), "{reason}");
}

#[test]
fn a_device_too_small_for_a_block_is_left_out() {
    let shape = published(PublishedShape::B27);
    let placement = place(&shape, &Wishes::of(8192, 1), &cluster_of(&["1GiB 4000GB/s", "24GiB 1008GB/s"])).unwrap();
    assert_eq!(devices(&placement), [1]);
    assert!(placement.left_out[0].reason.starts_with("it has 1.0 GiB, the smallest part of the model needs"));
}

#[test]
fn more_devices_than_blocks_leave_some_out() {
    let placement = place(&narrow(), &Wishes::of(1024, 1), &cards("6x 24GiB 1008GB/s")).unwrap();
    assert_eq!(placement.stages.len() + placement.left_out.len(), 6);
    assert!(placement.stages.len() <= 4);
}

#[test]
fn a_device_twice_as_fast_gets_twice_the_layers() {
    let shape = published(PublishedShape::B27);
    let placement = place(&shape, &Wishes::of(8192, 1), &cluster_of(&["24GiB 500GB/s", "24GiB 1000GB/s"])).unwrap();
    let of = |device| placement.stages.iter().find(|stage| stage.device == device).unwrap();
    let (slow, fast) = (of(0), of(1));
    let ratio = fast.layers.len() as f64 / slow.layers.len() as f64;
    assert!((1.6..2.6).contains(&ratio), "{:?}", layers(&placement));
    let busy = |stage: &StagePlan| stage.timing.unwrap().busy;
    assert!(busy(slow).max(busy(fast)) > 0.999 && busy(slow).min(busy(fast)) > 0.85);
}

#[test]
fn as_many_stages_as_are_wanted() {
    let shape = published(PublishedShape::B0_8);
    for shards in 1..=6 {
        let wishes = Wishes::new(shards, 8192, 2);
        let placement =
            place(&shape, &wishes, &cluster_of(&["4x 24GiB 1008GB/s", "cpu 64GiB 40GB/s", "cpu 64GiB 20GB/s @b"]))
                .unwrap();
        assert_eq!(placement.stages.len(), shards);
    }
    let refused = |shards, text| place(&shape, &Wishes::new(shards, 8192, 2), &cards(text)).unwrap_err().to_string();
    assert_eq!(refused(3, "2x 24GiB"), "3 shards are wanted, but there are 2 devices: use at most 2 shards");
    assert_eq!(
        refused(7, "8x 24GiB"),
        "7 shards are wanted, but the model has 6 blocks, which may not be cut: use at most 6 shards"
    );
}

#[test]
fn hosts_stay_together_and_slow_links_are_avoided() {
    let shape = published(PublishedShape::B27);
    let cluster = cluster_of(&["16GiB 900GB/s @a", "16GiB 900GB/s @b", "16GiB 900GB/s @a", "16GiB 900GB/s @b"]);
    let placement = place(&shape, &Wishes::of(8192, 4), &cluster).unwrap();
    let hosts: Vec<&str> = placement.stages.iter().map(|stage| stage.host.as_str()).collect();
    assert_eq!(hosts, ["a", "a", "b", "b"]);
    // Where one direction of a link was measured to be slow, the row runs the other way.
    let mut measured = cluster_of(&["16GiB 900GB/s @a", "16GiB 900GB/s @b"]);
    let slow = LinkSpeed { round_trip: Duration::from_millis(500), bytes_per_second: 1e9 };
    measured.measured = BTreeMap::from([((0, 1), slow)]);
    assert_eq!(devices(&place(&shape, &Wishes::of(8192, 4), &measured).unwrap()), [1, 0]);
}

#[test]
fn one_user_may_be_preferred() {
    // It fits on one card: one user gains nothing by more.
    let shape = published(PublishedShape::B35_A3);
    let cluster = cluster_of(&["48GiB 1800GB/s", "3x 24GiB 900GB/s"]);
    let all = place(&shape, &Wishes::of(8192, 4), &cluster).unwrap();
    let one = place(&shape, &Wishes { prefer: Prefer::OneUser, ..Wishes::of(8192, 4) }, &cluster).unwrap();
    assert_eq!(devices(&one), [0]);
    assert_eq!(one.left_out[0].reason, "one user would wait longer for each token with it");
    assert!(all.stages.len() > 1);
    let speed = |placement: &Placement| placement.prediction.unwrap();
    assert!(speed(&one).decode_one > speed(&all).decode_one && speed(&one).prefill < speed(&all).prefill);
    assert!(all.reasons.iter().any(|reason| reason.starts_with("one user alone would have")), "{:?}", all.reasons);
}

#[test]
fn devices_of_unknown_speed_count_as_equal() {
    let shape = published(PublishedShape::B27);
    let placement = place(&shape, &Wishes::of(8192, 1), &cards("4x 24GiB")).unwrap();
    assert_eq!(layers(&placement), [0..16, 16..32, 32..48, 48..64]);
    assert_eq!(placement.prediction, None);
    assert_eq!(placement.notes, [Note::UnknownSpeed { devices: 4 }]);
    assert!(placement.stages.iter().all(|stage| stage.timing.is_none()));
}

#[test]
fn clusters_that_cannot_be_are_refused() {
    let shape = narrow();
    let message = |cluster: &Cluster| place(&shape, &Wishes::of(1024, 1), cluster).unwrap_err().to_string();
    assert_eq!(message(&Cluster::new(Vec::new())), "there are 0 devices, 1 to 4096 are possible");
    let many = vec![device("", GIB, None); 4097];
    assert_eq!(message(&Cluster::new(many)), "there are 4097 devices, 1 to 4096 are possible");
    let mut odd = device("b", GIB, None);
    odd.threads = 0;
    assert_eq!(message(&Cluster::new(vec![odd])), "the device gpu of b has 0 threads, 1 to 65536 are possible");
    for (read, products) in [(0.0, 1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (1.0, -1.0)] {
        let refused = message(&Cluster::new(vec![device("", GIB, Some(Speed::new(read, products)))]));
        assert!(refused.ends_with("numbers above 0 are needed"), "{refused}");
    }
    let mut cluster = cards("2x 24GiB");
    cluster.between_hosts.bytes_per_second = 0.0;
    assert_eq!(message(&cluster), "a link carries 0 bytes per second, a number above 0 is needed");
    let mut cluster = cards("2x 24GiB");
    cluster.measured = BTreeMap::from([((0, 2), LinkSpeed::WITHIN_HOST)]);
    assert_eq!(message(&cluster), "a link from device 0 to device 2 was measured, but there are 2 devices");
}

#[test]
fn what_does_not_fit_says_what_would() {
    let shape = published(PublishedShape::B27);
    let message = |wishes: &Wishes, cluster: &Cluster| place(&shape, wishes, cluster).unwrap_err().to_string();
    let refused = message(&Wishes::of(131_072, 4), &cards("2x 16GiB 900GB/s"));
    let start = "47.8 GiB are needed (weights 14.7 GiB, keys and values 32.0 GiB, states 598.5 MiB, buffers";
    assert!(refused.starts_with(start), "{refused}");
    assert!(refused.contains("but the 2 devices have 32.0 GiB together: it would fit with a context of"), "{refused}");
    assert!(refused.ends_with("or with one more device with 18.0 GiB"), "{refused}");
    // Together they have enough, but no block fits in the rest of either.
    let refused = message(&Wishes::of(8192, 1), &cards("20x 1GiB 900GB/s"));
    assert!(
        refused.contains("no cut between blocks fits into the 20 devices, which have 20.0 GiB together"),
        "{refused}"
    );
}

#[test]
fn a_large_cluster_is_placed() {
    let shape = published(PublishedShape { layers: 320, ..PublishedShape::B27 });
    let groups: Vec<DeviceGroup> = (0..64)
        .map(|host| format!("8x {}GiB {}GB/s @host{host}", 16 + host % 9, 700 + 10 * (host % 13)).parse().unwrap())
        .collect();
    let placement = place(&shape, &Wishes::of(32_768, 64), &Cluster::described(&groups)).unwrap();
    assert!(placement.stages.len() >= 64 && placement.stages.len() <= 80);
    assert_eq!(placement.stages.len() + placement.left_out.len(), 512);
}

#[test]
fn targets_are_judged_and_what_would_meet_them_is_told() {
    let shape = published(PublishedShape::B27);
    let cluster = cards("2x 24GiB 1008GB/s");
    let judged = |text: &str| {
        let wishes = Wishes { targets: text.parse().unwrap(), ..of_kind(KvType::Q8_0, 32_768, 4) };
        place(&shape, &wishes, &cluster).unwrap().targets
    };
    let [easy, modest] = &judged("first-token<60s decode>1 users=3 prompt=2000")[..] else { panic!() };
    assert!(easy.met && modest.met && easy.would_meet.is_empty());
    assert_eq!((easy.target.as_str(), modest.target.as_str()), ("first token within 60.0 s", "1 tok/s for each user"));
    let hard = &judged("first-token<2s users=3 prompt=2000")[0];
    assert!(!hard.met);
    assert!(hard.would_meet.iter().any(|advice| advice.contains("at a time")), "{hard:?}");
    let shorter = hard.would_meet.iter().find_map(|advice| advice.strip_prefix("prompts of ")).unwrap();
    let prompt: usize = shorter.split(' ').next().unwrap().parse().unwrap();
    assert!(judged(&format!("first-token<2s users=3 prompt={prompt}"))[0].met);
    assert!(!judged(&format!("first-token<2s users=3 prompt={}", prompt + 1))[0].met);
    assert!(!judged("decode>1000")[0].met && judged("decode>1000")[0].would_meet.is_empty());
    let too_long = Wishes { targets: "prompt=40000".parse().unwrap(), ..Wishes::of(32_768, 4) };
    assert_eq!(
        place(&shape, &too_long, &cluster).unwrap_err().to_string(),
        "a load with prompt=40000 is wanted, but prompt can be at most 32768 with these wishes"
    );
}

#[test]
fn a_table_for_unequal_devices() {
    let mut shape = published(PublishedShape::B27);
    shape.name = Some("Hybrid 27B".to_owned());
    let cluster =
        cluster_of(&["2x 16GiB 900GB/s @attic", "24GiB 1008GB/s 330TOPS @cellar", "cpu 64GiB 40GB/s 8threads @cellar"]);
    let targets = "first-token<4s users=3 prompt=2000".parse().unwrap();
    let placement = place(&shape, &Wishes { targets, ..of_kind(KvType::Q8_0, 32_768, 4) }, &cluster).unwrap();
    let text = render(&placement);
    assert_eq!(text, include_str!("unequal.txt"));
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}
