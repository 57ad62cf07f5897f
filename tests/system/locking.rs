//! `--mlock`: granted or refused, as the system's limit has it.

use std::process::{Command, Stdio};

use crate::program::{PACELINE, Server, mini16, text};

/// For this user no limit would hold (`CAP_IPC_LOCK`).
fn is_privileged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("capabilities");
    u64::from_str_radix(set.trim(), 16).expect("a set") >> 14 & 1 == 1
}

/// The program under a limit of locked memory, which holds for it.
fn limited(limit: &str) -> Command {
    let limit = format!("--memlock={limit}:{limit}");
    if !is_privileged() {
        let mut command = Command::new("prlimit");
        command.args([&limit, PACELINE]);
        return command;
    }
    let mut command = Command::new("prlimit");
    command.args([&limit, "setpriv", "--inh-caps=-ipc_lock", "--bounding-set=-ipc_lock", PACELINE]);
    command
}

#[test]
fn memory_is_not_locked_against_a_limit_and_nobody_is_left_in_doubt() {
    for arguments in [&["serve", "--port", "0"][..], &["coordinator", "--port", "0"], &["shard", "--token", "x"]] {
        for (limit, told) in [("0", "only 0 B"), ("1048576", "only 1.0 MiB")] {
            let output =
                limited(limit).args(arguments).arg("--mlock").stdin(Stdio::null()).output().expect("it starts");
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            let complaint = text(&output.stderr);
            for word in ["--mlock", told, "RLIMIT_MEMLOCK", "ulimit -l unlimited", "LimitMEMLOCK=infinity"] {
                assert!(complaint.contains(word), "{complaint}");
            }
        }
    }
}

#[test]
fn all_memory_but_the_models_file_is_locked_where_that_is_allowed() {
    let model = mini16();
    let model = model.to_str().expect("UTF-8");
    let may_raise = Command::new("prlimit").args(["--memlock=unlimited:unlimited", "true"]).output().expect("prlimit");
    if !is_privileged() && !may_raise.status.success() {
        eprintln!("skipped: this user has a limit of locked memory and may not raise it");
        return;
    }
    let serve = |flags: &[&str]| {
        let mut command = if is_privileged() { Command::new(PACELINE) } else { limited("unlimited") };
        command.args(["serve", model, "--port", "0", "--ctx", "512", "--sessions", "1"]).args(flags);
        Server::of(command)
    };
    let (usual, locked) = (serve(&[]), serve(&["--mlock"]));
    assert_eq!(usual.chat("Hello")["choices"], locked.chat("Hello")["choices"], "texts do not depend on it");
    assert_eq!(locked_bytes(&usual, ""), 0);
    let file = std::fs::metadata(model).expect("a file").len();
    assert!(locked_bytes(&locked, "") > file, "what was made of the file is locked");
    assert_eq!(locked_bytes(&locked, model), 0, "the file itself is read again when it is needed");
}

/// Bytes in memory of locked maps whose line in `/proc/PID/smaps` ends so.
fn locked_bytes(server: &Server, name: &str) -> u64 {
    let smaps = server.proc("smaps");
    let mut is_named = false;
    let mut maps = 0;
    let mut kibibytes = 0;
    for line in smaps.lines() {
        if let Some(locked) = line.strip_prefix("Locked:") {
            let locked: u64 = locked.trim().trim_end_matches("kB").trim().parse().expect("a number");
            kibibytes += if is_named { locked } else { 0 };
        } else if line.split(' ').next().is_some_and(|range| range.contains('-')) {
            is_named = line.ends_with(name);
            maps += usize::from(is_named);
        }
    }
    assert!(maps > 0, "nothing is mapped of {name}");
    kibibytes * 1024
}
