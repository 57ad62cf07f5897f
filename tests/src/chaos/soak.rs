//! A long time of everything at once: answers of all kinds, clients that leave, dawdle, ask nonsense or come all at once,
//! and a fault every few seconds. At the end nothing may have grown, and nothing may be left.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::faults::Deck;
use super::misfits;
use super::processes::{Cluster, PATIENCE, Plan, Usage, get, pause, usage};
use super::traffic::{self, Board, Case};

/// A fault comes so long after the one before.
const FAULT_EVERY: Duration = Duration::from_secs(20);
/// What may grow of a process that has served for long: allocators keep some of what was freed.
const RESIDENT: u64 = 24 << 20;
/// Threads that an idle runtime keeps for a while, and connections that are about to close.
const THREADS: u64 = 8;
const FILES: u64 = 16;
/// What must be zero when nobody asks for anything.
const IDLE: [&str; 5] = [
    "paceline_sessions_running",
    "paceline_sessions_waiting",
    "paceline_pages_used",
    "paceline_pages_reserved",
    "paceline_steps_in_flight",
];

/// Whose usage is looked at.
const WHICH: [&str; 2] = ["coordinator", "largest shard"];

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Soak {
    /// The processes.
    pub plan: Plan,
    /// How long.
    pub time: Duration,
    /// What it is drawn by.
    pub seed: u64,
    /// Clients that stream all the time.
    pub clients: usize,
    /// No fault lasts longer.
    pub longest: Duration,
}

/// What became of it.
#[derive(Debug)]
pub struct Report {
    /// The coordinator and the largest shard, after a first while and at the end, when nobody asked for anything.
    pub usages: [[Usage; 2]; 2],
    /// What came of the clients' requests.
    pub counts: BTreeMap<String, u64>,
    /// Faults.
    pub faults: usize,
    /// Everything that must never be.
    pub wrongs: u64,
    /// The first of them in words.
    pub wrong: Vec<String>,
}

impl Soak {
    /// Does it, and says how it goes.
    ///
    /// # Panics
    /// When the cluster does not come back at all.
    pub fn run(&self, output: &mut dyn Write) -> Report {
        let cases = Arc::new(super::expected(&self.plan));
        let mut cluster = Cluster::start(self.plan.clone());
        let mut deck = Deck::new(self.seed, self.longest, &cluster);
        let mut report = Report {
            usages: [[Usage::default(); 2]; 2],
            counts: BTreeMap::new(),
            faults: 0,
            wrongs: 0,
            wrong: Vec::new(),
        };
        // What grows at first and then no more is no leak.
        for (part, time) in [self.time / 4, self.time - self.time / 4].into_iter().enumerate() {
            let board = Arc::new(Board::new(self.clients + misfits::COUNT, false));
            let clients = self.start(&board, &cluster, &cases, part as u64);
            report.faults += strike(&mut cluster, &mut deck, &board, time, output);
            board.stop();
            clients.into_iter().for_each(|client| client.join().expect("a client"));
            report.usages[part] = settle(&mut cluster, &board);
            report.add(&board);
        }
        let [first, last] = report.usages;
        for (place, which) in WHICH.into_iter().enumerate() {
            report.compare(which, first[place], last[place]);
        }
        if report.wrongs > 0 {
            writeln!(output, "logs are in {}", cluster.keep_logs().display()).expect("the output takes it");
        }
        report
    }

    fn start(&self, board: &Arc<Board>, cluster: &Cluster, cases: &Arc<Vec<Case>>, part: u64) -> Vec<JoinHandle<()>> {
        let seed = self.seed ^ part << 16;
        let mut clients = traffic::start(board, cluster.address(), cases, self.clients, seed);
        clients.extend(misfits::start(board, cluster.address(), cases, self.clients, seed));
        clients
    }
}

/// A fault now and then.
fn strike(cluster: &mut Cluster, deck: &mut Deck, board: &Board, time: Duration, output: &mut dyn Write) -> usize {
    let begun = Instant::now();
    let mut faults = 0;
    while begun.elapsed() < time {
        let round = Instant::now();
        let fault = deck.draw();
        if let Err(wrong) = fault.strike(cluster) {
            board.complain(format!("{fault}: {wrong}"));
        }
        faults += 1;
        while round.elapsed() < FAULT_EVERY {
            let ended = cluster.ended();
            if !fault.may_end_shards() {
                ended.into_iter().for_each(|words| board.complain(words));
            }
            pause(Duration::from_millis(500));
        }
        cluster.await_whole();
        let state = board.state();
        let (at, answered, wrongs) = (begun.elapsed().as_secs(), state.count(traffic::ANSWERED), state.wrongs);
        let coordinator = usage(cluster.coordinator()).unwrap_or_default();
        writeln!(output, "{at} s: {fault}; {answered} answers, {wrongs} wrong; {coordinator}")
            .expect("the output takes it");
    }
    faults
}

/// Waits until nobody is served any more; what the coordinator and the largest shard use then.
fn settle(cluster: &mut Cluster, board: &Board) -> [Usage; 2] {
    cluster.await_whole();
    let begun = Instant::now();
    while let Some(busy) = busy(cluster) {
        if begun.elapsed() > PATIENCE {
            board.complain(format!("nobody asks for anything, and yet {busy}"));
            break;
        }
        pause(Duration::from_millis(200));
    }
    let coordinator = usage(cluster.coordinator()).unwrap_or_default();
    let shards = cluster.shard_processes().into_iter().filter_map(usage).fold(Usage::default(), |one, other| Usage {
        resident_bytes: one.resident_bytes.max(other.resident_bytes),
        virtual_bytes: one.virtual_bytes.max(other.virtual_bytes),
        threads: one.threads.max(other.threads),
        files: one.files.max(other.files),
    });
    [coordinator, shards]
}

/// A metric that says that somebody is served.
fn busy(cluster: &Cluster) -> Option<String> {
    let text = get(cluster.address(), "/metrics").unwrap_or_default();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    IDLE.into_iter().find(|name| value(name) != Some("0")).map(|name| format!("{name} is {:?}", value(name)))
}

impl Report {
    fn add(&mut self, board: &Board) {
        let state = board.state();
        for (what, count) in &state.counts {
            *self.counts.entry(what.clone()).or_default() += count;
        }
        self.wrongs += state.wrongs;
        self.wrong.extend(state.wrong.iter().cloned());
    }

    fn compare(&mut self, which: &str, first: Usage, last: Usage) {
        let grown = last.resident_bytes > first.resident_bytes + first.resident_bytes / 5 + RESIDENT
            || last.threads > first.threads + THREADS
            || last.files > first.files + FILES;
        if grown {
            self.wrongs += 1;
            self.wrong.push(format!("{which}: {first} at first, {last} at the end"));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} faults", self.faults)?;
        for (place, which) in WHICH.into_iter().enumerate() {
            writeln!(
                f,
                "{which}: {} after the first quarter, {} at the end",
                self.usages[0][place], self.usages[1][place]
            )?;
        }
        self.counts.iter().try_for_each(|(what, count)| writeln!(f, "{what}: {count}"))?;
        writeln!(f, "lost, changed or doubled tokens, and whatever else must not be: {}", self.wrongs)?;
        self.wrong.iter().try_for_each(|wrong| writeln!(f, "  {wrong}"))
    }
}
