//! What the program says of the host that these tests run on.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{complaint, output, run, text};

/// A socket that listens, and its port.
fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    (listener, port)
}

/// The findings about an area.
fn about<'a>(report: &'a Value, area: &str) -> Vec<&'a Value> {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().filter(|finding| finding["area"] == area).collect()
}

#[test]
fn every_finding_is_a_line_for_people_and_an_object_for_programs() {
    let (other, address) = listener();
    let (free, port) = listener();
    drop(free);
    let arguments = ["doctor", "--port", &port, "--reach", &format!("127.0.0.1:{address}")];
    let output = run(&[&arguments[..], &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["can_serve"], output.status.success(), "{report}");
    let areas = ["instructions", "cores", "other load", "memory", "swap", "huge pages", "locked memory", "open files"];
    for area in areas.into_iter().chain(["container", "control groups", "UDP buffers", "GPU", "port 7070", "port 7071"])
    {
        let [finding] = about(&report, area)[..] else { panic!("not one finding about {area}: {report}") };
        assert!(["good", "note", "warning"].iter().any(|grade| finding["grade"] == *grade), "{finding}");
        assert!(finding["found"].as_str().is_some_and(|found| !found.is_empty()), "{finding}");
        assert!(finding["grade"] != "good" || finding["advice"].is_null(), "{finding}");
    }
    assert_eq!(about(&report, &format!("port {port}"))[0]["grade"], "good");
    let reached = about(&report, "reach")[0];
    assert_eq!(reached["prevents_serving"], false, "{reached}");
    let told = text(&run(&arguments).stdout);
    for finding in report["findings"].as_array().expect("a list") {
        let area = finding["area"].as_str().expect("a text");
        assert!(
            told.lines().any(|line| line.split_once("  ").is_some_and(|(_, rest)| rest.trim().starts_with(area))),
            "{told}"
        );
    }
    assert!(
        told.trim_end().lines().last().is_some_and(|line| line.contains("warning") && line.contains("note")),
        "{told}"
    );
    drop(other);
}

#[test]
fn what_makes_serving_impossible_ends_in_failure_after_all_is_told() {
    let (_listener, port) = listener();
    let (free, gone) = listener();
    drop(free);
    let output = run(&["doctor", "--port", &port, "--reach", &format!("127.0.0.1:{gone}"), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON, also then");
    assert_eq!(report["can_serve"], false);
    assert_eq!(about(&report, &format!("port {port}"))[0]["prevents_serving"], true, "{report}");
    let reason = text(&output.stderr);
    for word in ["cannot serve", &format!("port {port}: in use"), "refuses connections"] {
        assert!(reason.contains(word), "{reason}");
    }
    let nobody = text(&run(&["doctor", "--reach", "nowhere"]).stdout);
    assert!(nobody.contains("nowhere is no address"), "{nobody}");
}

/// Where there is no card, whoever asks for one is told what to install, and nobody else notices.
#[test]
fn a_card_that_is_not_there_is_an_error_with_advice() {
    let report: Value = serde_json::from_slice(&run(&["doctor", "--json"]).stdout).expect("JSON");
    let found = about(&report, "GPU")[0]["found"].as_str().unwrap_or_default().to_owned();
    if !found.contains("no card of NVIDIA is seen") {
        return;
    }
    for device in ["cuda", "cuda:3"] {
        let said = complaint(&["run", "--device", device, "-p", "Hello"]);
        assert!(said.contains("--device cuda:") && said.contains("cannot be used"), "{said}");
        assert!(said.contains("install NVIDIA's driver"), "{said}");
    }
    let unknown = complaint(&["serve", "--device", "gpu"]);
    assert!(unknown.contains("say cpu, cuda, cuda:N"), "{unknown}");
    let arguments = |device| output(&["run", "--device", device, "-p", "Hello", "-n", "4", "--raw"]);
    assert_eq!(arguments("auto"), arguments("cpu"));
}

/// A library as build images have it: a name without what it stands for.
fn stub(folder: &Path, name: &str) {
    let file = folder.join(name);
    let compiler = Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(file).status();
    assert!(compiler.expect("a C compiler").success());
}

/// Some libraries, and not all: each message is about what is missing.
#[test]
fn some_libraries_are_not_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = |arguments: &[&str]| {
        let program = env!("CARGO_BIN_EXE_paceline");
        let mut command = Command::new(program);
        let output = command.args(arguments).env("LD_LIBRARY_PATH", folder.path()).stdin(Stdio::null()).output();
        let output = output.expect("the program starts");
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let ask = ["run", "--device", "cuda", "-p", "Hello"];
    stub(folder.path(), "libcuda.so.1");
    stub(folder.path(), "libcuda.so");
    let (code, _, complaint) = said(&ask);
    assert_eq!(code, Some(1));
    assert!(complaint.contains("libcuda.so.1 lacks cuInit: it is too old, or a stub"), "{complaint}");
    assert!(!complaint.contains("panicked"), "{complaint}");
    stub(folder.path(), "libnvrtc.so.12");
    let (_, told, _) = said(&["doctor"]);
    assert!(told.contains("libnvrtc.so.12 lacks nvrtcVersion") || told.contains("no card of NVIDIA is seen"), "{told}");
    // Who asks for no card is served as ever.
    let (code, answer, complaint) = said(&["run", "-p", "Hello", "-n", "3"]);
    assert_eq!(code, Some(0), "{complaint}");
    assert!(!answer.is_empty());
}
