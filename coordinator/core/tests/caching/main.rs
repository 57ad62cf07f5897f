//! Random operations on a coordinator whose sessions begin like others, checked by what the row's memory is made of.
//!
//! `cargo run --release -p paceline-core --example caching -- 1000000` does the same for longer. A failing run names its
//! seed.

mod world;

use world::{Tally, World};

#[test]
fn whatever_is_reused_is_what_would_have_been_computed() {
    let mut all = Tally::default();
    // The last three have found something: pins that stopped the only session, a move that forgot a shared page, and a
    // state that was kept before it was copied, since it was in the slot of another one that waited to be kept.
    for (seed, operations) in (0..60).map(|seed| (seed, 250)).chain([(2, 1000), (206, 1000), (1054, 1000)]) {
        all.add(World::run(seed, operations));
    }
    println!("{all:?}");
    assert!(all.cached_tokens > 10_000 && all.evicted_pages > 500 && all.evicted_snapshots > 50, "{all:?}");
    assert!(all.kept > 400 && all.fetched > 20 && all.not_fetched > 10 && all.disk_tokens > 1000, "{all:?}");
    assert!(all.failures > 5 && all.switches > 5 && all.cancelled > 50 && all.whole > 1000, "{all:?}");
    assert!(all.drafts > 1000 && all.accepted > 500 && all.accepted < all.drafts, "{all:?}");
}
