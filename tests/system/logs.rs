//! Log files, where they are asked for.

use std::path::Path;

use serde_json::Value;

use crate::program::{Server, output};

/// The names and lines of all files in the folder.
fn files(folder: &Path) -> Vec<(String, Vec<String>)> {
    let entries = std::fs::read_dir(folder).expect("a folder").flatten();
    let read = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path()).expect("a file");
        (entry.file_name().to_string_lossy().into_owned(), text.lines().map(str::to_owned).collect())
    };
    let mut files: Vec<(String, Vec<String>)> = entries.map(read).collect();
    files.sort();
    files
}

#[test]
fn a_days_file_tells_more_than_the_terminal_and_old_ones_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    for day in ["2020-01-01", "2020-01-02", "2020-01-03"] {
        std::fs::write(folder.path().join(format!("paceline-serve.{day}.log")), "long ago\n").expect("writable");
    }
    std::fs::write(folder.path().join("notes.log"), "not ours\n").expect("writable");
    let server = Server::start(&["--log-dir", path, "--log-keep", "2", "--log-format", "json"]);
    server.chat("Hello");
    assert_eq!(server.metric("paceline_log_lines_dropped_total"), 0.0);
    assert_eq!(server.end_by("-TERM"), Some(0));
    let files = files(folder.path());
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    // Of ours the newest two are left, today's among them.
    assert_eq!((names.len(), names[0]), (3, "notes.log"), "{names:?}");
    assert!(names[1].starts_with("paceline-serve.2020-01-0") && !names[2].contains("2020-01"), "{names:?}");
    let lines: Vec<Value> = files[2].1.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().any(|line| line["level"] == "INFO"), "{lines:?}");
    let told = |line: &Value| line["fields"]["message"].as_str().is_some_and(|text| text.contains("shutting down"));
    assert!(lines.iter().any(told), "{lines:?}");
}

#[test]
fn without_them_nothing_is_written_and_the_terminal_is_quiet() {
    let output = crate::program::run(&["run", "--raw", "-p", "In", "-n", "2"]);
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("INFO"), "{said}");
    let output = crate::program::run(&["run", "--raw", "-p", "In", "-n", "2", "-vv"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("DEBUG") || said.contains("INFO") || said.contains("TRACE"), "{said}");
    assert!(!said.contains('\x1b'), "colours are for terminals: {said}");
}

#[test]
fn a_folder_that_cannot_be_written_is_told() {
    let said = crate::program::complaint(&["run", "--raw", "-p", "In", "-n", "2", "--log-dir", "/proc/nowhere"]);
    assert!(said.contains("/proc/nowhere"), "{said}");
    output(&["--version"]);
}
