//! Many clients, most of which leave in the middle, against one server: what it refuses says when to come back, its queue
//! stays within its bound, and when everybody has left nothing is left of them.

mod visit;

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::visit::{Outcome, Visit};
use crate::chaos::chance::Chance;

/// The server has let go of everything within this time, or never will.
const REST: Duration = Duration::from_secs(60);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// Memory may grow by this share between the middle of the run and its end, and by so much besides: allocators keep some.
const GROWTH: f64 = 0.05;
const SLACK_KIB: f64 = 16384.0;

/// What is run.
#[derive(Debug, Clone)]
pub struct Load {
    /// The `paceline` program.
    pub program: PathBuf,
    /// A model file; without it the tiny model inside the program.
    pub model: Option<PathBuf>,
    /// Clients at the same time.
    pub clients: usize,
    /// How long.
    pub time: Duration,
    /// Sessions that run at once.
    pub sessions: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// What everything is drawn by.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// Visits by how they ended.
    pub complete: usize,
    /// The client left in the middle.
    pub left: usize,
    /// Refused with 429 and a time to come back.
    pub refused: usize,
    /// Refused after it had waited too long, with a time to come back.
    pub overdue: usize,
    /// The most requests that waited, and what 99 of 100 looks saw at most.
    pub most_waiting: usize,
    /// Of all looks.
    pub p99_waiting: usize,
    /// Kibibytes in memory in the middle and at the end, as medians.
    pub memory_kib: (f64, f64),
    /// Threads in the middle and at the end.
    pub threads: (usize, usize),
    /// Everything that should not have happened.
    pub wrongs: Vec<String>,
}

/// What one look sees.
#[derive(Debug, Clone, Copy)]
struct Look {
    waiting: usize,
    memory_kib: f64,
    threads: usize,
}

impl Load {
    /// Runs it. The end of every client is part of the report.
    ///
    /// # Panics
    /// When the server does not start.
    pub fn run(&self) -> Report {
        let server = Served::start(self);
        let (over, board) = (AtomicBool::new(false), Mutex::new(Report::default()));
        let looks = std::thread::scope(|scope| {
            for client in 0..self.clients {
                let (server, over, board) = (&server, &over, &board);
                let chance = Chance::new(self.seed.wrapping_mul(1_000_003).wrapping_add(client as u64));
                scope.spawn(move || visits(server.address, chance, over, board));
            }
            let looks = self.watch(&server);
            over.store(true, Ordering::Relaxed);
            looks
        });
        let mut report = board.into_inner().expect("no client panics");
        self.judge(&looks, &mut report);
        rest(&server, &mut report);
        report
    }

    fn watch(&self, server: &Served) -> Vec<Look> {
        let begun = Instant::now();
        let mut looks = Vec::new();
        while begun.elapsed() < self.time {
            looks.push(server.look());
            // The pace of looking, not a wait for anything.
            std::thread::park_timeout(LOOK);
        }
        looks
    }

    fn judge(&self, looks: &[Look], report: &mut Report) {
        let mut waiting: Vec<usize> = looks.iter().map(|look| look.waiting).collect();
        waiting.sort_unstable();
        report.most_waiting = waiting.last().copied().unwrap_or(0);
        report.p99_waiting = waiting.get(waiting.len() * 99 / 100).copied().unwrap_or(0);
        if report.most_waiting > self.queue {
            report.wrongs.push(format!("{} requests waited, the bound is {}", report.most_waiting, self.queue));
        }
        // What is kept of conversations grows first, until its budget is used.
        let quarter = looks.len() / 4;
        let (middle, end) = (&looks[quarter * 2..quarter * 3], &looks[quarter * 3..]);
        report.memory_kib = (median(middle), median(end));
        if report.memory_kib.1 > report.memory_kib.0 * (1.0 + GROWTH) + SLACK_KIB {
            report.wrongs.push(format!("memory grew from {} to {} KiB", report.memory_kib.0, report.memory_kib.1));
        }
        let most = |looks: &[Look]| looks.iter().map(|look| look.threads).max().unwrap_or(0);
        report.threads = (most(middle), most(end));
        if report.threads.1 > report.threads.0 {
            report.wrongs.push(format!("threads grew from {} to {}", report.threads.0, report.threads.1));
        }
    }
}

/// One client: visit after visit until the end.
fn visits(address: SocketAddr, mut chance: Chance, over: &AtomicBool, board: &Mutex<Report>) {
    while !over.load(Ordering::Relaxed) {
        let outcome = Visit::draw(&mut chance).make(address);
        let refused = matches!(outcome, Outcome::Refused | Outcome::Overdue);
        let mut report = board.lock().expect("no client panics");
        match outcome {
            Outcome::Complete => report.complete += 1,
            Outcome::Left => report.left += 1,
            Outcome::Refused => report.refused += 1,
            Outcome::Overdue => report.overdue += 1,
            Outcome::Wrong(what) => report.wrongs.push(what),
        }
        drop(report);
        if refused {
            // Who is refused comes back, sooner than told: the bound must hold all the same.
            std::thread::park_timeout(chance.millis(20..200));
        }
    }
}

/// When everybody has left, nothing runs, waits, or holds memory.
fn rest(server: &Served, report: &mut Report) {
    const GAUGES: [&str; 4] =
        ["paceline_sessions_running", "paceline_sessions_waiting", "paceline_pages_used", "paceline_steps_in_flight"];
    let begun = Instant::now();
    loop {
        let text = server.metrics();
        let left: Vec<String> = GAUGES
            .into_iter()
            .filter_map(|name| metric(&text, name).filter(|value| *value > 0.0).map(|value| format!("{name} {value}")))
            .collect();
        // The request that asks is one.
        let asking = metric(&text, "paceline_http_requests_in_flight").unwrap_or(1.0);
        if left.is_empty() && asking <= 1.0 {
            return;
        }
        if begun.elapsed() > REST {
            report.wrongs.push(format!("left over: {left:?}, {asking} requests in flight"));
            return;
        }
    }
}

fn median(looks: &[Look]) -> f64 {
    let mut memory: Vec<f64> = looks.iter().map(|look| look.memory_kib).collect();
    memory.sort_by(f64::total_cmp);
    memory.get(memory.len() / 2).copied().unwrap_or(0.0)
}

/// The value of a metric without labels.
fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The server, which ends with this.
struct Served {
    process: Child,
    address: SocketAddr,
}

impl Served {
    fn start(load: &Load) -> Self {
        let mut command = Command::new(&load.program);
        command.args(["serve", "--port", "0", "--ctx", "512", "--cache-ram", "16M"]);
        command.args(["--sessions", &load.sessions.to_string(), "--queue", &load.queue.to_string()]);
        command.args(&load.model).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the program starts");
        let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines();
        let address = lines.find_map(|line| {
            let line = line.expect("readable");
            Some(line.split("listening on http://").nth(1)?.split_whitespace().next()?.parse().expect("an address"))
        });
        let address = address.expect("the server ended before it was ready");
        // Whatever it says later must not fill the pipe.
        std::thread::spawn(move || lines.count());
        Self { process, address }
    }

    fn metrics(&self) -> String {
        let agent = ureq::Agent::config_builder().proxy(None).build().new_agent();
        let mut response = agent.get(format!("http://{}/metrics", self.address)).call().expect("the server answers");
        response.body_mut().read_to_string().expect("readable")
    }

    fn look(&self) -> Look {
        let text = self.metrics();
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it runs");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field of every process");
            line.split_whitespace().next().expect("a number").parse::<f64>().expect("a number")
        };
        Look {
            waiting: metric(&text, "paceline_sessions_waiting").expect("a metric of every server") as usize,
            memory_kib: field("VmRSS:"),
            threads: field("Threads:") as usize,
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { complete, left, refused, overdue, most_waiting, p99_waiting, memory_kib, threads, wrongs } = self;
        writeln!(formatter, "{complete} answers complete, {left} left in the middle")?;
        writeln!(formatter, "{refused} refused (429, Retry-After), {overdue} waited too long (503, Retry-After)")?;
        writeln!(formatter, "waiting: at most {most_waiting}, 99 of 100 looks at most {p99_waiting}")?;
        writeln!(formatter, "memory {:.0} KiB in the middle, {:.0} KiB at the end", memory_kib.0, memory_kib.1)?;
        writeln!(formatter, "threads {} in the middle, {} at the end", threads.0, threads.1)?;
        if wrongs.is_empty() {
            return writeln!(formatter, "nothing went wrong");
        }
        writeln!(formatter, "{} wrongs, such as:", wrongs.len())?;
        wrongs.iter().take(10).try_for_each(|wrong| writeln!(formatter, "  {wrong}"))
    }
}
