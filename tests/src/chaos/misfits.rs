//! Clients that no server wants: they leave in the middle, read slowly, ask nonsense, or come all at once.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::chance::Chance;
use super::processes::pause;
use super::traffic::{self, Board, Case, Outcome};

/// How many they are.
pub const COUNT: usize = KINDS.len();

/// How many come all at once: more than may wait.
const CROWD: usize = 40;
/// Between two events that a slow reader reads.
const SLOWLY: Duration = Duration::from_millis(60);
/// Between two requests of one that does not stream.
const REST: Duration = Duration::from_millis(400);

/// Requests that are wrong, and what must come of them.
const NONSENSE: [(&str, &str, u16); 6] = [
    ("/v1/completions", "{", 400),
    ("/v1/completions", r#"{"prompt": [4000000000]}"#, 400),
    ("/v1/completions", r#"{"prompt": "x", "max_tokens": 0, "n": 0}"#, 400),
    ("/v1/completions", r#"{"prompt": "x", "temperature": "hot"}"#, 400),
    ("/v1/chat/completions", r#"{"messages": []}"#, 400),
    ("/v1/nothing", "{}", 404),
];

type Misfit = fn(&Board, usize, SocketAddr, &Arc<Vec<Case>>, &mut Chance);

const KINDS: [Misfit; 4] = [leave, dawdle, ask_nonsense, come_all_at_once];

/// Starts one of each kind, numbered from `first`, until the board says stop.
pub fn start(
    board: &Arc<Board>,
    address: SocketAddr,
    cases: &Arc<Vec<Case>>,
    first: usize,
    seed: u64,
) -> Vec<JoinHandle<()>> {
    let start = |(number, misfit): (usize, Misfit)| {
        let (board, cases) = (Arc::clone(board), Arc::clone(cases));
        let mut chance = Chance::new(seed ^ (number as u64) << 40);
        std::thread::spawn(move || {
            while !board.stopped() {
                misfit(&board, first + number, address, &cases, &mut chance);
            }
        })
    };
    KINDS.into_iter().enumerate().map(start).collect()
}

/// Leaves after some tokens, or before the first.
fn leave(board: &Board, _: usize, address: SocketAddr, cases: &Arc<Vec<Case>>, chance: &mut Chance) {
    let (case, stays) = (chance.of(cases), chance.below(30));
    let outcome = case.stream(address, |place| if place < stays { Ok(()) } else { Err("left".to_owned()) });
    match outcome {
        Outcome::Wrong(what) if what == "left" => board.count("left in the middle"),
        other => board.note(other),
    }
}

/// Reads slowly.
fn dawdle(board: &Board, number: usize, address: SocketAddr, cases: &Arc<Vec<Case>>, chance: &mut Chance) {
    let outcome = traffic::ask(board, number, address, chance.of(cases), || pause(SLOWLY));
    board.ended(number, outcome);
}

/// Asks nonsense.
fn ask_nonsense(board: &Board, _: usize, address: SocketAddr, _: &Arc<Vec<Case>>, chance: &mut Chance) {
    let (path, body, expected) = *chance.of(&NONSENSE);
    match traffic::post(address, path, body) {
        Ok(status) if status == expected => board.count("nonsense refused"),
        other => board.complain(format!("{path} {body} gives {other:?}, expected {expected}")),
    }
    board.wait(REST, |_| false);
}

/// Comes with many others, more than may wait.
fn come_all_at_once(board: &Board, _: usize, address: SocketAddr, cases: &Arc<Vec<Case>>, chance: &mut Chance) {
    let cases: Vec<&Case> = (0..CROWD).map(|_| chance.of(cases)).collect();
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| board.note(case.stream(address, |_| Ok(()))));
        }
    });
    board.wait(REST, |_| false);
}
