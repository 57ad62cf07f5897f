//! The official clients, as people use them.

use std::process::Command;

use crate::program::{Server, root};

/// Runs a script with the server's address; skips aloud where its client is not installed, but never in CI.
fn client(package: &str, script: &str) {
    let found = Command::new("python3").args(["-c", &format!("import {package}")]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "python3 with {package} must be there in CI");
        eprintln!("skipped: python3 with the package {package} is not installed");
        return;
    }
    let server = Server::start(&["--sessions", "4"]);
    let output = Command::new("python3")
        .arg(root().join("tests/clients").join(script))
        .arg(format!("http://{}", server.address))
        .output()
        .expect("python3 runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}: {out}{err}");
    assert!(out.contains("all is well"), "{script} ended early: {out}");
}

#[test]
fn openai_python() {
    client("openai", "openai_chat.py");
}
