//! Random operations on the coordinator and its cache, by seed: `caching [OPERATIONS] [FIRST SEED]`.

#[path = "../tests/caching/world.rs"]
mod world;

use std::io::Write;

use world::{Tally, World};

/// Operations of one seed.
const EACH: usize = 1000;

fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1).map(|number| number.parse::<u64>().expect("a number"));
    let (operations, first) = (arguments.next().unwrap_or(1_000_000), arguments.next().unwrap_or(1_000));
    let mut all = Tally::default();
    for seed in first..first + operations.div_ceil(EACH as u64) {
        all.add(World::run(seed, EACH));
    }
    writeln!(std::io::stdout(), "{operations} operations, all counts balance, no wrong token: {all:?}")
}
