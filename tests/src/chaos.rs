//! Chaos by one command: clients stream from a cluster of processes while shards are killed, hung, cut off, starved. Every
//! token of every answer is known beforehand.
//!
//! [`network`] carries everything that the processes send each other, and can lose and delay it; [`processes`] starts and
//! hurts them; [`traffic`] is the clients; [`faults`] what happens; [`rounds`] lets one fault after another happen and
//! reports how long streams paused; [`restarts`] kills the coordinator itself;
//! [`disks`] kills whatever keeps or fetches what was read; [`soak`] mixes everything for a long time
//! and looks at what is left of it.

pub mod chance;
pub mod disks;
pub mod faults;
pub mod misfits;
pub mod network;
pub mod processes;
pub mod restarts;
pub mod rounds;
pub mod soak;
pub mod traffic;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use processes::{Cluster, Plan};
use traffic::{Board, Case};

/// Asks `paceline serve`, a single process that nobody disturbs, for what the clients will ask the cluster for.
///
/// # Panics
/// When it does not answer.
pub fn expected(plan: &Plan) -> Vec<Case> {
    let mut command = Command::new(&plan.program);
    command.args(["serve", "--port", "0", "--threads", "1"]).args(&plan.flags).args(&plan.model);
    let mut process = Ended(command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts"));
    let mut lines = BufReader::new(process.0.stderr.take().expect("piped")).lines();
    let address = lines.find_map(|line| {
        let line = line.expect("readable");
        Some(line.split("listening on http://").nth(1)?.split_whitespace().next()?.parse().expect("an address"))
    });
    let address = address.expect("the server ended before it was ready");
    // Whatever it says later must not fill the pipe.
    std::thread::spawn(move || lines.count());
    traffic::cases(address, traffic::requests(plan.model.is_none()))
}

/// Lets the clients end, and says where the processes' logs are if anything was wrong.
fn end(board: &Board, clients: Vec<JoinHandle<()>>, cluster: &mut Cluster, output: &mut dyn Write) {
    board.stop();
    for client in clients {
        client.join().expect("a client");
    }
    if board.state().wrongs > 0 {
        writeln!(output, "logs are in {}", cluster.keep_logs().display()).expect("the output takes it");
    }
}

/// A process that ends with this.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
