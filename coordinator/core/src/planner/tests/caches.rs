//! The memory of the cache.

use super::*;

fn placed(shape: &ModelShape, wishes: &Wishes, ram: CacheRam, memory_bytes: u64) -> Result<Placement> {
    with_cache(shape, wishes, ram, |wishes| plan(shape, wishes, &Host { memory_bytes, threads: 4 }))
}

/// A model without recurrent layers.
fn attention_alone() -> ModelShape {
    let mut shape = published(PublishedShape::B0_8);
    shape.layers.retain(paceline_gguf::Layer::is_attention);
    shape
}

#[test]
fn usually_it_has_as_many_bytes_as_the_sessions() {
    // 12 KiB of keys and values per token, a state of 19 MiB, as 1584 tokens: 8 sessions of 8192 have 768 MiB.
    let shape = published(PublishedShape::B0_8);
    let placement = placed(&shape, &Wishes::new(2, 8192, 8), CacheRam::Usual, 64 * GIB).unwrap();
    let Cache { snapshots, pages } = placement.cache;
    assert_eq!((pages, snapshots), (512, LEAST_SNAPSHOTS * 8), "half of the bytes would be 20 snapshots");
    assert_eq!((placement.pages, placement.slots), (1024 + 512, 8 + 32));
    let (snapshot_bytes, page_bytes) = placement.cache_bytes();
    assert_eq!((snapshot_bytes, page_bytes), (placement.state_per_session * 32, 384 << 20));
    let without = placed(&shape, &Wishes::new(2, 8192, 8), CacheRam::Bytes(0), 64 * GIB).unwrap();
    assert_eq!(without.cache, Cache::default());
    assert_eq!(placement.memory().total(), without.memory().total() + snapshot_bytes + page_bytes);
    // long contexts have room for many snapshots, but no more than are of use
    let long = placed(&shape, &Wishes::new(1, 262_144, 2), CacheRam::Usual, 1 << 50).unwrap();
    assert_eq!(long.cache, Cache { snapshots: MOST_SNAPSHOTS * 2, pages: 4096 });

    // and one session alone has enough for a long prompt
    let one = placed(&shape, &Wishes::new(1, 8192, 1), CacheRam::Usual, 64 * GIB).unwrap();
    assert_eq!(one.cache, Cache { snapshots: LEAST_IN_ALL, pages: 64 });

    let attention = placed(&attention_alone(), &Wishes::new(1, 8192, 8), CacheRam::Usual, 64 * GIB).unwrap();
    assert_eq!(attention.cache, Cache { snapshots: 0, pages: 1024 });
}

#[test]
fn so_many_bytes_are_halved_in_hybrids_and_all_pages_in_others() {
    let (hybrid, attention) = (published(PublishedShape::B0_8), attention_alone());
    let wishes = Wishes::new(1, 8192, 1);
    let cache = |shape, bytes| Cache::of(shape, &wishes, bytes);
    let state = hybrid.state_bytes(0..hybrid.layers.len());
    let page = 64 * 12 * 1024;
    assert_eq!(cache(&hybrid, GIB), Cache { snapshots: (GIB / 2 / state) as usize, pages: (GIB / 2 / page) as usize });
    assert_eq!(cache(&attention, GIB), Cache { snapshots: 0, pages: (GIB / page) as usize });
    assert!(cache(&hybrid, GIB).bytes(&hybrid, &wishes) <= GIB);
    assert_eq!(cache(&hybrid, 0), Cache::default());
    assert_eq!(cache(&hybrid, 2 * state - 1).snapshots, 0);
}

#[test]
fn the_usual_one_is_made_smaller_before_anything_else_is_and_says_so() {
    let shape = published(PublishedShape::B0_8);
    let wishes = Wishes::new(1, 8192, 8);
    let needed = |ram| placed(&shape, &wishes, ram, 64 * GIB).unwrap().memory().total();
    let (usual, none) = (needed(CacheRam::Usual), needed(CacheRam::Bytes(0)));
    let mut seen = std::collections::BTreeSet::new();
    for memory in (none..=usual).step_by(((usual - none) / 40) as usize) {
        let placement = placed(&shape, &wishes, CacheRam::Usual, memory).unwrap();
        assert_eq!((placement.context, placement.sessions), (8192, 8));
        assert!(placement.memory().total() <= memory);
        let notes = placement.notes.iter().any(|note| matches!(note, Note::SmallCache { .. }));
        assert_eq!(notes, placement.memory().total() < usual);
        seen.insert(placement.cache.snapshots);
    }
    assert!(seen.len() >= 5 && seen.contains(&0), "{seen:?}");
    let text = render(&placed(&shape, &wishes, CacheRam::Usual, none).unwrap());
    let note = "the cache has 0 B instead of the usual 1000.5 MiB: there is no memory for more";
    assert!(text.contains(note), "{text}");
    // one that was asked for is not: it is refused with what would fit
    let refused = placed(&shape, &wishes, CacheRam::Bytes(GIB), none).unwrap_err().to_string();
    assert!(refused.contains("it would fit with a smaller cache"), "{refused}");
    let refused = placed(&shape, &wishes, CacheRam::Usual, none - 1).unwrap_err().to_string();
    assert!(!refused.contains("cache"), "{refused}");
}

#[test]
fn the_table_names_it() {
    let shape = published(PublishedShape::B0_8);
    let text = |ram| render(&placed(&shape, &Wishes::new(1, 8192, 1), ram, 64 * GIB).unwrap());
    let of_one_gib = text(CacheRam::Bytes(GIB));
    let line = of_one_gib.lines().find(|line| line.contains("for the cache")).unwrap();
    assert_eq!(line, "of these 682 pages (511.5 MiB) and 26 slots (500.9 MiB) are for the cache");
    assert!(!text(CacheRam::Bytes(0)).contains("for the cache"));
}

proptest! {
    #[test]
    fn a_cache_never_overcommits_and_takes_nothing_from_sessions(
        shape in any_shape(),
        wishes in any_wishes(),
        beyond_scratch in 0u64..4_000_000,
        bytes in prop::option::of(0u64..4_000_000),
    ) {
        let wishes = Wishes { cache: Cache::default(), shards: Some(1), ..wishes };
        let ram = bytes.map_or(CacheRam::Usual, CacheRam::Bytes);
        let host = Host { memory_bytes: SCRATCH_BYTES + beyond_scratch, threads: 3 };
        let placed = with_cache(&shape, &wishes, ram, |wishes| plan(&shape, wishes, &host));
        let without = plan(&shape, &wishes, &host);
        match placed {
            Ok(placement) => {
                prop_assert!(placement.memory().total() <= host.memory_bytes);
                prop_assert_eq!((placement.context, placement.sessions), (wishes.context, wishes.sessions));
                prop_assert!(bytes.is_none_or(|bytes| placement.cache.bytes(&shape, &wishes) <= bytes));
                prop_assert!(without.is_ok());
            }
            Err(_) => prop_assert!(without.is_err() || bytes.is_some()),
        }
    }
}
