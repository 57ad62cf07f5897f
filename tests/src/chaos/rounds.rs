//! One fault after another under streaming clients; after each, every answer is the expected one, and how long streams
//! paused is noted.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::faults::{Deck, Fault, Kind};
use super::processes::{Cluster, PATIENCE, Plan};
use super::traffic::{self, Board, Phase};

/// Between two looks at the processes while the clients are waited for.
const LOOK: Duration = Duration::from_millis(500);
/// How long a fault waits for clients to be where it wants to meet them.
const MEET: Duration = Duration::from_secs(10);

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Rounds {
    /// The processes.
    pub plan: Plan,
    /// Faults.
    pub rounds: usize,
    /// What they are drawn by.
    pub seed: u64,
    /// Clients that stream all the time.
    pub clients: usize,
    /// No fault lasts longer.
    pub longest: Duration,
}

/// What became of it.
#[derive(Debug)]
pub struct Report {
    /// Of each kind of fault, the longest pause of each of its rounds, and the median of all streams' pauses.
    pub pauses: BTreeMap<Kind, Vec<(Duration, Duration)>>,
    /// Kinds that this system does not allow.
    pub impossible: Vec<Kind>,
    /// What came of the requests.
    pub counts: BTreeMap<String, u64>,
    /// Everything that must never be; the first ones in words.
    pub wrongs: u64,
    /// The first of them in words.
    pub wrong: Vec<String>,
}

impl Rounds {
    /// Does it, and says how it goes.
    ///
    /// # Panics
    /// When the cluster does not come back at all.
    pub fn run(&self, output: &mut dyn Write) -> Report {
        let cases = Arc::new(super::expected(&self.plan));
        let mut cluster = Cluster::start(self.plan.clone());
        let board = Arc::new(Board::new(self.clients, false));
        let clients = traffic::start(&board, cluster.address(), &cases, self.clients, self.seed);
        let mut deck = Deck::new(self.seed, self.longest, &cluster);
        let mut pauses: BTreeMap<Kind, Vec<(Duration, Duration)>> = BTreeMap::new();
        for round in 1..=self.rounds {
            let begun = Instant::now();
            let fault = deck.draw();
            let pause = self.round(&fault, deck.in_prefill(), &mut cluster, &board);
            pauses.entry(fault.kind).or_default().push(pause);
            let wrongs = board.state().wrongs;
            let (all, longest) = (begun.elapsed().as_secs_f64(), pause.0.as_secs_f64());
            let told = writeln!(output, "{round}: {fault}; paused {longest:.2} s; round {all:.1} s; {wrongs} wrong");
            told.expect("the output takes it");
        }
        super::end(&board, clients, &mut cluster, output);
        let state = board.state();
        let (counts, wrongs, wrong) = (state.counts.clone(), state.wrongs, state.wrong.clone());
        Report { pauses, impossible: deck.impossible(), counts, wrongs, wrong }
    }

    /// Lets a fault happen and waits until every client has had a whole answer since; the longest pause of all streams,
    /// and the median of the streams' longest.
    fn round(&self, fault: &Fault, prefill: bool, cluster: &mut Cluster, board: &Board) -> (Duration, Duration) {
        cluster.await_whole();
        board.wait(MEET, |state| {
            let count = |phase: Phase| state.clients.iter().filter(|client| client.phase == phase).count();
            count(Phase::Decode) * 2 >= state.clients.len() && (!prefill || count(Phase::Prefill) > 0)
        });
        board.mark();
        if let Err(wrong) = fault.strike(cluster) {
            board.complain(format!("{fault}: {wrong}"));
        }
        let before: Vec<u64> = board.state().clients.iter().map(|client| client.answered).collect();
        let begun = Instant::now();
        let all = |state: &traffic::State| {
            state.clients.iter().zip(&before).all(|(client, before)| client.answered > *before) || state.wrongs > 0
        };
        while !board.wait(LOOK, all) {
            self.look_after(fault, cluster, board);
            if begun.elapsed() > PATIENCE {
                board.complain(format!("{fault}: not every client has an answer; {}", cluster.coordinator_words()));
                break;
            }
        }
        self.look_after(fault, cluster, board);
        let mut pauses: Vec<Duration> = board.state().clients.iter().map(|client| client.pause).collect();
        pauses.sort_unstable();
        (pauses[pauses.len() - 1], pauses[pauses.len() / 2])
    }

    /// Starts again who has ended by itself, which only some faults allow.
    fn look_after(&self, fault: &Fault, cluster: &mut Cluster, board: &Board) {
        let ended = if fault.kind == Kind::KillForGood { cluster.ended() } else { cluster.start_missing() };
        if !fault.may_end_shards() {
            ended.into_iter().for_each(|words| board.complain(format!("{fault}: {words}")));
        }
        if !cluster.coordinator_lives() {
            board.complain(format!("{fault}: the coordinator has ended: {}", cluster.coordinator_words()));
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |time: Duration| time.as_secs_f64();
        writeln!(f, "{:<28} {:>6} {:>22} {:>22}", "fault", "rounds", "longest pause: median", "of all rounds")?;
        let mut every = Vec::new();
        for (kind, pauses) in &self.pauses {
            let mut longest: Vec<Duration> = pauses.iter().map(|(longest, _)| *longest).collect();
            longest.sort_unstable();
            let (median, most) = (longest[longest.len() / 2], longest[longest.len() - 1]);
            writeln!(f, "{kind:<28} {:>6} {:>20.2} s {:>20.2} s", longest.len(), seconds(median), seconds(most))?;
            every.extend(longest);
        }
        every.sort_unstable();
        if let (Some(median), Some(most)) = (every.get(every.len() / 2), every.last()) {
            writeln!(f, "{:<28} {:>6} {:>20.2} s {:>20.2} s", "all", every.len(), seconds(*median), seconds(*most))?;
        }
        for kind in &self.impossible {
            writeln!(f, "{kind:<28}   none: this needs root, mount and prlimit")?;
        }
        self.counts.iter().try_for_each(|(what, count)| writeln!(f, "{what}: {count}"))?;
        writeln!(f, "lost, changed or doubled tokens, and whatever else must not be: {}", self.wrongs)?;
        self.wrong.iter().try_for_each(|wrong| writeln!(f, "  {wrong}"))
    }
}
