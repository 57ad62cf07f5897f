//! A coordinator and its shards as processes, on a network that can be broken, and the ways to hurt them.

use std::fmt;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::network::{Network, entrance, own};

/// Everything that is not a fault is done within this time, however slow the machine.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Between two looks at a process, which has no event for us.
const LOOK: Duration = Duration::from_millis(20);
/// The memory that the first shard says it has, in MiB; each of the others says one more. The status tells it.
const MEMORY_MIB: u64 = 512;
/// A disk for a shard's cache: more than its share of the model, and soon full.
const DISK: &str = "size=48m";

/// What runs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The `paceline` program.
    pub program: PathBuf,
    /// The model; without one the embedded one.
    pub model: Option<PathBuf>,
    /// Stages of a row.
    pub stages: usize,
    /// Processes of shards.
    pub shards: usize,
    /// More flags of the coordinator, and of the process that says what is expected.
    pub flags: Vec<String>,
    /// Shards have disks for what they remember, of so many MiB.
    pub disk_mib: Option<u64>,
}

impl Plan {
    /// Places for all clients, and prompts in small pieces, so that a fault meets prompts that are half read.
    pub const FLAGS: [&str; 6] = ["--ctx", "2048", "--sessions", "8", "--prefill-chunk", "64"];
    /// Memory for few states between turns, so that much comes back from disks.
    pub const LITTLE_CACHE: [&str; 8] =
        ["--ctx", "2048", "--sessions", "4", "--prefill-chunk", "64", "--cache-ram", "8M"];
    /// Fewer places than clients.
    pub const FEW_PLACES: [&str; 8] = ["--ctx", "2048", "--sessions", "6", "--prefill-chunk", "64", "--queue", "16"];
}

/// The processes. Dropping it ends them.
pub struct Cluster {
    plan: Plan,
    /// The network between them.
    pub network: Network,
    folder: TempDir,
    coordinator: Child,
    shards: Vec<Shard>,
}

struct Shard {
    process: Option<Child>,
    joins_at: SocketAddr,
    data: u16,
    /// A disk of its own, where this user may mount one.
    disk: Option<Disk>,
    /// How often it was started.
    starts: usize,
}

/// A small disk.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: &Path) -> Option<Self> {
        std::fs::create_dir_all(path).expect("writable");
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", DISK, "none"]).arg(path).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success()).then(|| Self(path.to_owned()))
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a process that ends may still have files open.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let shards = self.shards.iter_mut().filter_map(|shard| shard.process.as_mut());
        for process in shards.chain([&mut self.coordinator]) {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Cluster {
    /// Starts everything and waits until it serves.
    ///
    /// # Panics
    /// When that does not come to pass.
    pub fn start(plan: Plan) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let network = Network::new().expect("sockets");
        let coordinator = coordinator(&plan, &network, &folder);
        let mut cluster = Self { plan, network, folder, coordinator, shards: Vec::new() };
        cluster.await_that("the token", |cluster| cluster.folder.path().join("token").exists());
        for index in 0..cluster.plan.shards {
            let (joins_at, data) = cluster.network.add(index + 1).expect("addresses of the loopback");
            let disk = Disk::mount(&cluster.cache(index));
            cluster.shards.push(Shard { process: None, joins_at, data, disk, starts: 0 });
            cluster.start_shard(index);
        }
        cluster.await_whole();
        cluster
    }

    /// Where requests go.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(own(0), self.network.ports().http)
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.plan.program
    }

    /// The folder of the coordinator's state.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// How many shards there are.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// The coordinator's process.
    pub fn coordinator(&self) -> u32 {
        self.coordinator.id()
    }

    /// The processes of the shards that run.
    pub fn shard_processes(&self) -> Vec<u32> {
        self.shards.iter().filter_map(|shard| shard.process.as_ref()).map(Child::id).collect()
    }

    /// Whether the coordinator still runs; it never may end by itself.
    ///
    /// # Panics
    /// When the system does not say.
    pub fn coordinator_lives(&mut self) -> bool {
        self.coordinator.try_wait().expect("its state").is_none()
    }

    /// What the coordinator says of itself, if it answers.
    pub fn status(&self) -> Option<Value> {
        get(self.address(), "/admin/v1/status").and_then(|text| serde_json::from_str(&text).ok())
    }

    /// The shards of the row in force, from head to tail.
    pub fn row(&self) -> Vec<usize> {
        let Some(status) = self.status() else { return Vec::new() };
        let none = Vec::new();
        let stages = status["stages"].as_array().unwrap_or(&none);
        stages.iter().filter_map(|stage| shard_of(&status, &stage["node"])).collect()
    }

    /// Starts the shards that do not run, and waits until all are there and a row serves.
    ///
    /// # Panics
    /// When that does not come to pass.
    pub fn await_whole(&mut self) {
        self.start_missing();
        let (all, stages) = (self.shards.len(), self.plan.stages);
        self.await_that("a whole cluster", |cluster| {
            cluster.status().is_some_and(|status| {
                let count = |list: &str| status[list].as_array().map_or(0, Vec::len);
                let at_rest = status["ready"] == true && status["moving"].is_null();
                at_rest && count("nodes") == all && count("stages") == stages
            })
        });
    }

    /// Starts the shards that do not run; how those ended that nobody has killed.
    pub fn start_missing(&mut self) -> Vec<String> {
        let ended = self.ended();
        for index in 0..self.shards.len() {
            if self.shards[index].process.is_none() {
                self.start_shard(index);
            }
        }
        ended
    }

    /// Looks for shards that have ended though nobody has killed them.
    pub fn ended(&mut self) -> Vec<String> {
        let mut told = Vec::new();
        for index in 0..self.shards.len() {
            let process = self.shards[index].process.as_mut();
            if let Some(status) = process.and_then(|process| process.try_wait().expect("its state")) {
                self.shards[index].process = None;
                told.push(format!("shard {index} has ended by itself: {status}; {}", self.last_words(index)));
            }
        }
        told
    }

    /// Starts a shard.
    ///
    /// # Panics
    /// When it runs already.
    pub fn start_shard(&mut self, index: usize) {
        let log = self.log(index);
        let log = File::options().create(true).append(true).open(log).expect("writable");
        let cache = self.cache(index);
        let disk = self.plan.disk_mib.map(|mib| format!("{}:{mib}M", self.remembers(index).display()));
        let shard = &mut self.shards[index];
        assert!(shard.process.is_none(), "shard {index} runs");
        let mut command = command(&self.plan);
        let memory = (MEMORY_MIB + index as u64) as f64 / 1024.0;
        command.args(["-v", "shard", "--threads", "1", "--fetch", "--memory", &memory.to_string()]);
        command.arg("--data").arg(SocketAddr::new(own(index + 1), shard.data).to_string());
        command.arg("--advertise").arg(entrance(index + 1).to_string());
        command.arg("--join").arg(shard.joins_at.to_string());
        command.arg("--token-file").arg(self.folder.path().join("token")).arg("--cache").arg(cache);
        command.args(disk.iter().flat_map(|disk| ["--cache-disk", disk]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        shard.process = Some(command.spawn().expect("the program starts"));
        shard.starts += 1;
    }

    /// Kills a shard by a signal that it cannot catch.
    pub fn kill_shard(&mut self, index: usize) {
        if let Some(mut process) = self.shards[index].process.take() {
            // It may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Ends a shard by SIGTERM and waits for its end.
    ///
    /// # Errors
    /// When it does not end, or not as if all were well.
    pub fn end_shard(&mut self, index: usize) -> Result<(), String> {
        self.signal(index, "-TERM");
        let Some(process) = &mut self.shards[index].process else { return Ok(()) };
        let begun = Instant::now();
        let status = loop {
            match process.try_wait().expect("its state") {
                Some(status) => break status,
                None if begun.elapsed() > PATIENCE => return Err(format!("shard {index} does not end at SIGTERM")),
                None => pause(LOOK),
            }
        };
        self.shards[index].process = None;
        if status.success() { Ok(()) } else { Err(format!("at SIGTERM shard {index} ends with {status}")) }
    }

    /// The node that a shard is.
    pub fn node(&self, index: usize) -> Option<String> {
        let status = self.status()?;
        let nodes = status["nodes"].as_array()?;
        let card = nodes.iter().find(|card| shard_of(&status, &card["node"]) == Some(index))?;
        card["node"].as_str().map(str::to_owned)
    }

    /// Gives the service a command.
    ///
    /// # Errors
    /// What the program says when it fails.
    pub fn command(&self, arguments: &[&str]) -> Result<(), String> {
        let mut command = command(&self.plan);
        let output = command.args(arguments).args(["--url", &self.address().to_string()]).output();
        let output = output.expect("the program starts");
        let said = || format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        if output.status.success() { Ok(()) } else { Err(said()) }
    }

    /// Sends a signal to a shard, if it runs.
    pub fn signal(&self, index: usize, signal: &str) {
        if let Some(process) = &self.shards[index].process {
            signal_to(process.id(), signal);
        }
    }

    /// Whether the system has `prlimit`.
    pub fn can_limit_memory(&self) -> bool {
        Command::new("prlimit").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Lets a shard have no more memory than it has now.
    pub fn limit_memory(&self, index: usize) {
        let Some(id) = self.shards[index].process.as_ref().map(Child::id) else { return };
        if let Some(now) = usage(id) {
            set_address_space(id, &now.virtual_bytes.to_string());
        }
    }

    /// Ends the limit.
    pub fn unlimit_memory(&self, index: usize) {
        if let Some(id) = self.shards[index].process.as_ref().map(Child::id) {
            set_address_space(id, "unlimited");
        }
    }

    /// Whether shards have disks that can be filled.
    pub fn has_disks(&self) -> bool {
        self.shards.iter().all(|shard| shard.disk.is_some())
    }

    /// Empties a shard's cache and fills its disk.
    ///
    /// # Panics
    /// Where [`has_disks`](Self::has_disks) is false.
    pub fn fill_disk(&self, index: usize) {
        let disk = self.shards[index].disk.as_ref().expect("it has a disk");
        for entry in std::fs::read_dir(&disk.0).expect("the disk").flatten() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
        let mut file = File::create(disk.ballast()).expect("a file on the disk");
        // It ends with the error that the disk is full.
        let _ = std::io::copy(&mut std::io::repeat(0), &mut file);
    }

    /// Makes room again.
    pub fn empty_disk(&self, index: usize) {
        if let Some(disk) = &self.shards[index].disk {
            let _ = std::fs::remove_file(disk.ballast());
        }
    }

    /// Kills the coordinator by a signal that it cannot catch, and starts it again.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart_coordinator(&mut self, away: Duration) {
        // It may have ended already.
        let _ = self.coordinator.kill();
        let _ = self.coordinator.wait();
        pause(away);
        self.coordinator = coordinator(&self.plan, &self.network, &self.folder);
    }

    /// How many stages each shard has loaded since it was first started.
    pub fn loads(&self) -> Vec<usize> {
        (0..self.shards.len()).map(|index| self.loaded(index).len()).collect()
    }

    /// Loads of which not all weights were in memory before, leaving out the first ones.
    pub fn reloads_after(&self, loads: &[usize]) -> Vec<String> {
        let mut reloads = Vec::new();
        for (index, before) in loads.iter().enumerate() {
            let anew = |line: &String| {
                let reused = number_in(line, "reused=");
                reused.is_none() || reused != number_in(line, "weights=")
            };
            reloads.extend(self.loaded(index).into_iter().skip(*before).filter(anew));
        }
        reloads
    }

    /// What a shard has said of every stage that it loaded.
    fn loaded(&self, index: usize) -> Vec<String> {
        let log = std::fs::read(self.log(index)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        log.lines().filter(|line| line.contains("stage loaded")).map(str::to_owned).collect()
    }

    /// The last that a shard has said.
    pub fn last_words(&self, index: usize) -> String {
        last_lines(&self.log(index), 3)
    }

    /// The last that the coordinator has said.
    pub fn coordinator_words(&self) -> String {
        last_lines(&self.folder.path().join("coordinator.log"), 12)
    }

    /// Keeps the folder with all logs, and says where it is.
    pub fn keep_logs(&mut self) -> PathBuf {
        self.folder.disable_cleanup(true);
        self.folder.path().to_owned()
    }

    fn log(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("shard{index}.log"))
    }

    fn cache(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("cache{index}"))
    }

    fn remembers(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("disk{index}"))
    }

    fn await_that(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(self.coordinator_lives(), "the coordinator has ended: {}", self.coordinator_words());
            if begun.elapsed() > PATIENCE {
                let folder = self.keep_logs();
                let words: Vec<String> = (0..self.shards.len()).map(|index| self.last_words(index)).collect();
                panic!(
                    "{what} does not come within {} s; logs in {}\n{:?}\ncoordinator: {}\nshards: {words:#?}",
                    PATIENCE.as_secs(),
                    folder.display(),
                    self.status(),
                    self.coordinator_words()
                );
            }
            pause(LOOK);
        }
    }
}

/// The shard that is a node, by the memory that it says it has.
fn shard_of(status: &Value, node: &Value) -> Option<usize> {
    let card = status["nodes"].as_array()?.iter().find(|card| card["node"] == *node)?;
    usize::try_from((card["memory_bytes"].as_u64()? >> 20).checked_sub(MEMORY_MIB)?).ok()
}

/// The program, which is to tell everything, in plain text.
fn command(plan: &Plan) -> Command {
    let mut command = Command::new(&plan.program);
    command.env("NO_COLOR", "1");
    command
}

fn coordinator(plan: &Plan, network: &Network, folder: &TempDir) -> Child {
    let ports = network.ports();
    let mut command = command(plan);
    command.args(["-v", "coordinator", "--link", "quic", "--shards", &plan.stages.to_string()]);
    command.args(["--port", &ports.http.to_string(), "--control", &format!("0.0.0.0:{}", ports.control)]);
    command.arg("--data").arg(SocketAddr::new(own(0), ports.data).to_string());
    command.arg("--state").arg(folder.path().join("state")).arg("--token-file").arg(folder.path().join("token"));
    let log = File::options().create(true).append(true).open(folder.path().join("coordinator.log"));
    command.args(&plan.flags).args(&plan.model);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.expect("writable"));
    command.spawn().expect("the program starts")
}

/// The text that a page of a server has, if it answers.
pub fn get(address: SocketAddr, path: &str) -> Option<String> {
    let config = ureq::Agent::config_builder().timeout_global(Some(Duration::from_secs(20))).proxy(None);
    let agent = config.max_idle_connections(0).build().new_agent();
    agent.get(format!("http://{address}{path}")).call().ok()?.into_body().read_to_string().ok()
}

/// Lets time pass: what other processes do has no event for us, and faults last as long as they are drawn.
#[expect(clippy::disallowed_methods, reason = "other processes have no events for us")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}

fn signal_to(process: u32, signal: &str) {
    // It may have ended already.
    let _ = Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status();
}

fn set_address_space(process: u32, bytes: &str) {
    let mut command = Command::new("prlimit");
    command.args(["--pid", &process.to_string(), &format!("--as={bytes}:unlimited")]).stderr(Stdio::null());
    // It may have ended already.
    let _ = command.status();
}

/// The number after a word.
fn number_in(line: &str, word: &str) -> Option<u64> {
    let rest = line.split(word).nth(1)?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

fn last_lines(path: &Path, count: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// What a process uses of the system.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes in memory.
    pub resident_bytes: u64,
    /// Bytes of addresses.
    pub virtual_bytes: u64,
    /// Threads.
    pub threads: u64,
    /// Open files and sockets.
    pub files: u64,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { resident_bytes, threads, files, .. } = self;
        write!(f, "{:.1} MiB, {threads} threads, {files} open files", *resident_bytes as f64 / f64::from(1 << 20))
    }
}

/// What a process uses now; nothing when it is gone.
pub fn usage(process: u32) -> Option<Usage> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as u64;
    Some(Usage {
        resident_bytes: field("VmRSS")? << 10,
        virtual_bytes: field("VmSize")? << 10,
        threads: field("Threads")?,
        files,
    })
}
