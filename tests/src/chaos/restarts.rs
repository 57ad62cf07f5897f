//! The coordinator itself is killed and started again, under load: shards join again by themselves with the weights
//! that they have in memory, answers that were under way end early, and the next ones are right.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::chance::Chance;
use super::processes::{Cluster, PATIENCE, Plan, pause};
use super::traffic::{self, BROKEN, Board};

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Restarts {
    /// The processes.
    pub plan: Plan,
    /// How often.
    pub times: usize,
    /// What the moments are drawn by.
    pub seed: u64,
    /// Clients that stream all the time.
    pub clients: usize,
}

/// What became of it.
#[derive(Debug)]
pub struct Report {
    /// From the start of the new coordinator until it served with all shards.
    pub returns: Vec<Duration>,
    /// What came of the requests.
    pub counts: BTreeMap<String, u64>,
    /// Everything that must never be.
    pub wrongs: u64,
    /// The first of them in words.
    pub wrong: Vec<String>,
}

impl Restarts {
    /// Does it, and says how it goes.
    ///
    /// # Panics
    /// When the cluster does not come back at all.
    pub fn run(&self, output: &mut dyn Write) -> Report {
        let cases = Arc::new(super::expected(&self.plan));
        let mut cluster = Cluster::start(self.plan.clone());
        let board = Arc::new(Board::new(self.clients, true));
        let clients = traffic::start(&board, cluster.address(), &cases, self.clients, self.seed);
        let mut chance = Chance::new(self.seed);
        let mut returns = Vec::new();
        for time in 1..=self.times {
            await_answers(&board, &cluster);
            pause(chance.millis(0..700));
            let back = restart(&mut cluster, chance.millis(0..2_000), &board);
            returns.push(back);
            let (back, state) = (back.as_secs_f64(), board.state());
            let told = writeln!(
                output,
                "{time}: serves after {back:.2} s; {} broken, {} wrong",
                state.count(BROKEN),
                state.wrongs
            );
            told.expect("the output takes it");
        }
        await_answers(&board, &cluster);
        super::end(&board, clients, &mut cluster, output);
        let state = board.state();
        Report { returns, counts: state.counts.clone(), wrongs: state.wrongs, wrong: state.wrong.clone() }
    }
}

/// Waits until every client has a whole answer from now on.
pub(super) fn await_answers(board: &Board, cluster: &Cluster) {
    let before: Vec<u64> = board.state().clients.iter().map(|client| client.answered).collect();
    let all = board
        .wait(PATIENCE, |state| state.clients.iter().zip(&before).all(|(client, before)| client.answered > *before));
    if !all {
        board.complain(format!("not every client has an answer; {}", cluster.coordinator_words()));
    }
}

/// Kills and starts the coordinator; how long it took until it served again.
fn restart(cluster: &mut Cluster, away: Duration, board: &Board) -> Duration {
    let (tokens, epoch, loads) = (tokens(cluster), epoch(cluster), cluster.loads());
    cluster.restart_coordinator(away);
    let begun = Instant::now();
    for words in cluster.ended() {
        board.complain(words);
    }
    cluster.await_whole();
    let back = begun.elapsed();
    for words in cluster.ended() {
        board.complain(words);
    }
    for line in cluster.reloads_after(&loads) {
        board.complain(format!("weights that were in memory were loaded again: {line}"));
    }
    if cluster.loads() == loads {
        board.complain("nobody told of having loaded a stage".to_owned());
    }
    let now = self::tokens(cluster);
    if now != tokens {
        board.complain(format!("the join tokens were {tokens}, now they are {now}"));
    }
    let now = self::epoch(cluster);
    if now <= epoch {
        board.complain(format!("the epoch was {epoch:?}, now it is {now:?}: a number that was in use before"));
    }
    back
}

/// The join tokens, as `paceline token` reads them from the coordinator's folder.
fn tokens(cluster: &Cluster) -> Value {
    let mut command = Command::new(cluster.program());
    let output = command.args(["token", "--state"]).arg(cluster.state()).args(["list", "--json"]).output();
    let output = output.expect("the program starts");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: paceline token list says {}", String::from_utf8_lossy(&output.stderr)))
}

fn epoch(cluster: &Cluster) -> Option<u64> {
    cluster.status()?["epoch"].as_u64()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut returns = self.returns.clone();
        returns.sort_unstable();
        if let (Some(median), Some(most)) = (returns.get(returns.len() / 2), returns.last()) {
            let (count, median, most) = (returns.len(), median.as_secs_f64(), most.as_secs_f64());
            writeln!(
                f,
                "{count} times killed and started: serves again after {median:.2} s (median), at most {most:.2} s"
            )?;
        }
        self.counts.iter().try_for_each(|(what, count)| writeln!(f, "{what}: {count}"))?;
        writeln!(f, "changed or doubled tokens, and whatever else must not be: {}", self.wrongs)?;
        self.wrong.iter().try_for_each(|wrong| writeln!(f, "  {wrong}"))
    }
}
