//! What can happen to a cluster, each at a time and to shards drawn by seed.

use std::fmt;
use std::time::Duration;

use super::chance::Chance;
use super::network::Weather;
use super::processes::{Cluster, pause};

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A shard of the row is killed, and comes back after a moment.
    Kill,
    /// A shard of the row is killed and does not come back: a spare takes its place.
    KillForGood,
    /// Two shards are killed at once.
    KillTwo,
    /// A shard is asked to end, and starts again.
    Restart,
    /// A shard hangs: it is stopped, and later goes on.
    Hang,
    /// Nothing gets from or to a shard.
    Partition,
    /// Nothing gets from one stage to the next, but both reach everybody else.
    CutLink,
    /// Everything from and to a shard takes long.
    SlowLink,
    /// A shard is killed, and who must fetch its layers has no room for them on its disk.
    FullDisk,
    /// A shard may have no more memory than it has, when it must load anew.
    MemoryLimit,
    /// A shard is drained by command, and replaced by another one.
    Drain,
    /// The layers are placed anew by command.
    Rebalance,
}

const ALL: [Kind; 12] = [
    Kind::Kill,
    Kind::KillForGood,
    Kind::KillTwo,
    Kind::Restart,
    Kind::Hang,
    Kind::Partition,
    Kind::CutLink,
    Kind::SlowLink,
    Kind::FullDisk,
    Kind::MemoryLimit,
    Kind::Drain,
    Kind::Rebalance,
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kill => "kill -9",
            Self::KillForGood => "kill -9, a spare takes over",
            Self::KillTwo => "kill -9 of two",
            Self::Restart => "restart",
            Self::Hang => "SIGSTOP",
            Self::Partition => "shard cut off",
            Self::CutLink => "link cut",
            Self::SlowLink => "slow link",
            Self::FullDisk => "full disk",
            Self::MemoryLimit => "memory limit",
            Self::Drain => "drain",
            Self::Rebalance => "rebalance",
        })
    }
}

/// A fault that is about to happen.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Of what kind.
    pub kind: Kind,
    /// To which shard of the row, counted from its head; another one is the next.
    place: usize,
    /// How long it lasts.
    time: Duration,
    /// How much later everything arrives on a slow link.
    delay: Duration,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {:.1} s", self.kind, self.time.as_secs_f64())
    }
}

/// Faults to come. All kinds come equally often, in an order by chance.
pub struct Deck {
    chance: Chance,
    kinds: Vec<Kind>,
    left: Vec<Kind>,
    longest: Duration,
}

impl Deck {
    /// A deck of all that this system allows; no fault lasts longer than `longest`.
    pub fn new(seed: u64, longest: Duration, cluster: &Cluster) -> Self {
        let possible = |kind: &Kind| match kind {
            Kind::FullDisk => cluster.has_disks(),
            Kind::MemoryLimit => cluster.can_limit_memory(),
            _ => true,
        };
        let kinds = ALL.into_iter().filter(possible).collect();
        Self { chance: Chance::new(seed), kinds, left: Vec::new(), longest }
    }

    /// Kinds that this system does not allow.
    pub fn impossible(&self) -> Vec<Kind> {
        ALL.into_iter().filter(|kind| !self.kinds.contains(kind)).collect()
    }

    /// The next fault.
    pub fn draw(&mut self) -> Fault {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
        }
        let kind = self.left.swap_remove(self.chance.below(self.left.len()));
        let time = match kind {
            Kind::Kill | Kind::KillTwo | Kind::FullDisk | Kind::MemoryLimit => self.chance.millis(0..4_000),
            Kind::KillForGood | Kind::Restart | Kind::Drain | Kind::Rebalance => Duration::ZERO,
            Kind::SlowLink => self.chance.millis(2_000..8_000),
            Kind::Hang | Kind::Partition | Kind::CutLink => self.silence(),
        };
        let (place, delay) = (self.chance.below(8), self.chance.millis(20..200));
        Fault { kind, place, time: time.min(self.longest), delay }
    }

    /// Often shorter than the coordinator's patience, often a little longer, at times much longer.
    fn silence(&mut self) -> Duration {
        match self.chance.below(8) {
            0..4 => self.chance.millis(300..4_000),
            4..7 => self.chance.millis(5_500..12_000),
            _ => Duration::from_secs(30),
        }
    }

    /// By chance, whether to strike while a prompt is read instead of while tokens come.
    pub fn in_prefill(&mut self) -> bool {
        self.chance.below(2) == 0
    }
}

impl Fault {
    /// Whether shards may end by themselves of it.
    pub fn may_end_shards(&self) -> bool {
        self.kind == Kind::MemoryLimit
    }

    /// Lets it happen and pass. What it has killed for good is still missing after it.
    ///
    /// # Errors
    /// What went wrong of that which must not.
    pub fn strike(&self, cluster: &mut Cluster) -> Result<(), String> {
        let row = cluster.row();
        let of_row = |place: usize| row.get(place % row.len().max(1)).copied().unwrap_or(place % cluster.shards());
        let (one, other) = (of_row(self.place), of_row(self.place + 1));
        match self.kind {
            Kind::Kill => {
                cluster.kill_shard(one);
                pause(self.time);
                cluster.start_missing();
            }
            Kind::KillForGood => cluster.kill_shard(one),
            Kind::KillTwo => {
                cluster.kill_shard(one);
                cluster.kill_shard(other);
                pause(self.time);
                cluster.start_missing();
            }
            Kind::Restart => {
                cluster.end_shard(one)?;
                cluster.start_missing();
            }
            Kind::Drain => {
                let node = cluster.node(one).ok_or_else(|| format!("shard {one} is no node"))?;
                cluster.command(&["drain", &node])?;
                cluster.end_shard(one)?;
                cluster.start_missing();
            }
            Kind::Rebalance => cluster.command(&["rebalance"])?,
            Kind::Hang => {
                cluster.signal(one, "-STOP");
                pause(self.time);
                cluster.signal(one, "-CONT");
            }
            Kind::Partition | Kind::CutLink | Kind::SlowLink => self.strike_network(cluster, one, other),
            Kind::FullDisk => self.strike_disk(cluster, &row, one),
            Kind::MemoryLimit => {
                cluster.limit_memory(one);
                cluster.kill_shard(other);
                pause(self.time);
                cluster.unlimit_memory(one);
                cluster.start_missing();
            }
        }
        Ok(())
    }

    fn strike_network(&self, cluster: &Cluster, one: usize, other: usize) {
        let weather = if self.kind == Kind::SlowLink { Weather::Slow(self.delay) } else { Weather::Cut };
        if self.kind == Kind::CutLink {
            cluster.network.between(one + 1, other + 1, Some(weather));
        } else {
            for host in (0..=cluster.shards()).filter(|host| *host != one + 1) {
                cluster.network.between(one + 1, host, Some(weather));
            }
        }
        pause(self.time);
        cluster.network.heal();
    }

    fn strike_disk(&self, cluster: &mut Cluster, row: &[usize], one: usize) {
        let full: Vec<usize> = (0..cluster.shards()).filter(|shard| *shard == one || !row.contains(shard)).collect();
        for shard in &full {
            cluster.fill_disk(*shard);
        }
        cluster.kill_shard(one);
        cluster.start_missing();
        pause(self.time);
        for shard in full {
            cluster.empty_disk(shard);
        }
    }
}
