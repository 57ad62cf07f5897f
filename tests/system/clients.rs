//! The official clients, as people use them.

use std::process::Command;

use crate::program::{Server, root};

/// Whether a package of Python is there; skips aloud where it is not, but never in CI.
pub(crate) fn has_package(package: &str) -> bool {
    let found = Command::new("python3").args(["-c", &format!("import {package}")]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("CI").is_none(), "python3 with {package} must be there in CI");
        eprintln!("skipped: python3 with the package {package} is not installed");
    }
    found
}

/// Runs a script with the server's address.
fn client(package: &str, script: &str) {
    client_with(package, script, &["--sessions", "4"], &[]);
}

/// The same with flags of the server and arguments of the script.
fn client_with(package: &str, script: &str, flags: &[&str], arguments: &[&str]) {
    if !has_package(package) {
        return;
    }
    let server = Server::start(flags);
    let output = Command::new("python3")
        .arg(root().join("tests/clients").join(script))
        .arg(format!("http://{}", server.address))
        .args(arguments)
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

#[test]
fn openai_python_responses() {
    client("openai", "openai_responses.py");
}

#[test]
fn anthropic_python() {
    client("anthropic", "anthropic_messages.py");
}

/// Any package stands for none: the script needs Python alone.
#[test]
fn agents_and_gateways() {
    client("json", "agents.py");
}

/// A thousand calls and a thousand spoilt bodies; the script makes more when it is run by hand.
#[test]
fn the_server_is_as_it_is_described() {
    client_with("schemathesis", "description.py", &["--sessions", "4", "--ctx", "128"], &["1000"]);
}
