//! Shards and the coordinator are killed while what was read goes to disks and comes back from there: no answer changes, and
//! what was whole is used again.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::sync::Arc;

use super::chance::Chance;
use super::processes::{Cluster, Plan, pause};
use super::restarts::await_answers;
use super::traffic::{self, BROKEN, Board};

/// What is to be done.
#[derive(Debug, Clone)]
pub struct DiskKills {
    /// The processes; their shards must have disks.
    pub plan: Plan,
    /// How often.
    pub times: usize,
    /// What moments and processes are drawn by.
    pub seed: u64,
    /// Clients that stream all the time.
    pub clients: usize,
}

/// What became of it.
#[derive(Debug)]
pub struct Report {
    /// Answers of which something came from disks.
    pub hits: u64,
    /// What came of the requests.
    pub counts: BTreeMap<String, u64>,
    /// Everything that must never be.
    pub wrongs: u64,
    /// The first of them in words.
    pub wrong: Vec<String>,
}

/// What each life of the coordinator says of the disks.
#[derive(Debug, Default)]
struct Hits {
    before: u64,
    now: u64,
}

impl DiskKills {
    /// Does it, and says how it goes.
    ///
    /// # Panics
    /// When the cluster does not come back at all.
    pub fn run(&self, output: &mut dyn Write) -> Report {
        let cases = Arc::new(super::expected(&self.plan));
        let mut cluster = Cluster::start(self.plan.clone());
        let board = Arc::new(Board::new(self.clients, true));
        let clients = traffic::start(&board, cluster.address(), &cases, self.clients, self.seed);
        let (mut chance, mut hits) = (Chance::new(self.seed), Hits::default());
        for time in 1..=self.times {
            if time % 2 == 0 {
                await_answers(&board, &cluster);
            }
            pause(chance.millis(0..1500));
            hits.look(&cluster, &board);
            let who = strike(&mut cluster, &mut chance);
            cluster.await_whole();
            for words in cluster.ended() {
                board.complain(words);
            }
            let state = board.state();
            let (hits, broken, wrongs) = (hits.all(), state.count(BROKEN), state.wrongs);
            writeln!(output, "{time}: {who} killed; {hits} answers from disks, {broken} broken, {wrongs} wrong")
                .expect("the output takes it");
        }
        await_answers(&board, &cluster);
        hits.look(&cluster, &board);
        super::end(&board, clients, &mut cluster, output);
        let state = board.state();
        Report { hits: hits.all(), counts: state.counts.clone(), wrongs: state.wrongs, wrong: state.wrong.clone() }
    }
}

/// Kills a shard of the row, two, the coordinator, or one of each, and starts them again.
fn strike(cluster: &mut Cluster, chance: &mut Chance) -> &'static str {
    let row = cluster.row();
    let shard = if row.is_empty() { 0 } else { *chance.of(&row) };
    let (who, away) = (chance.below(4), chance.millis(0..1000));
    if who < 3 {
        cluster.kill_shard(shard);
    }
    if who == 1 {
        cluster.kill_shard((shard + 1) % cluster.shards());
    }
    if who > 1 {
        cluster.restart_coordinator(away);
    } else {
        pause(away);
    }
    ["a shard", "two shards", "a shard and the coordinator", "the coordinator"][who]
}

impl Hits {
    fn look(&mut self, cluster: &Cluster, board: &Board) {
        let Some(status) = cluster.status() else { return };
        let disk = &status["cache"]["disk"];
        let now = disk["hits"].as_u64().unwrap_or(0);
        if now < self.now {
            self.before += self.now;
        }
        self.now = now;
        if disk["damaged"].as_u64().unwrap_or(0) > 0 {
            board.complain(format!("entries were damaged, though nobody has written into the folders: {disk}"));
        }
    }

    fn all(&self) -> u64 {
        self.before + self.now
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "answers of which something came from disks: {}", self.hits)?;
        self.counts.iter().try_for_each(|(what, count)| writeln!(f, "{what}: {count}"))?;
        writeln!(f, "changed or doubled tokens, and whatever else must not be: {}", self.wrongs)?;
        self.wrong.iter().try_for_each(|wrong| writeln!(f, "  {wrong}"))
    }
}
