//! The deployment files, checked by the tools that will read them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::program::{PACELINE, root};

fn deploy() -> PathBuf {
    root().join("cluster/deploy")
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(deploy().join(folder)).expect("a folder").flatten().map(|entry| entry.path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    assert!(files.len() >= 2, "only {files:?}");
    files.sort();
    files
}

/// Runs a tool; skips aloud where it is not installed, but never in CI.
fn tool(name: &str, arguments: &[&Path], flags: &[&str]) -> Option<Output> {
    match Command::new(name).args(flags).args(arguments).output() {
        Ok(output) => Some(output),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "{name} must be there in CI: {error}");
            eprintln!("skipped: {name} is not installed");
            None
        }
    }
}

fn assert_good(name: &str, file: &Path, output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} does not like {}: {out}{err}", file.display());
}

#[test]
fn systemd_understands_every_line_of_the_units() {
    let folder = tempfile::tempdir().expect("a folder");
    for unit in files("systemd", "service") {
        let text = std::fs::read_to_string(&unit).expect("a unit");
        // The program need not be installed where its files are checked.
        let text = text.replace("/usr/local/bin/paceline", PACELINE);
        let copy = folder.path().join(unit.file_name().expect("a name"));
        std::fs::write(&copy, text).expect("writable");
        let Some(output) = tool("systemd-analyze", &[&copy], &["verify", "--man=no"]) else { return };
        assert_good("systemd-analyze verify", &unit, &output);
        // What it does not know it says and goes on.
        let said = String::from_utf8_lossy(&output.stderr);
        let about_ours = said.lines().filter(|line| line.contains("paceline")).collect::<Vec<_>>();
        assert!(about_ours.is_empty(), "{about_ours:?}");
        let security = tool("systemd-analyze", &[&copy], &["security", "--offline=true", "--threshold=20"]);
        assert_good("systemd-analyze security", &unit, &security.expect("it was there just now"));
    }
}

#[test]
fn kubernetes_manifests_follow_the_schema_of_their_kinds() {
    for manifest in files("kubernetes", "yaml") {
        let Some(output) = tool("kubernetes-validate", &[&manifest], &["--strict"]) else { return };
        assert_good("kubernetes-validate", &manifest, &output);
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("passed for resource statefulset"), "{said}");
    }
}

#[test]
fn the_dockerfile_passes_its_linter() {
    let dockerfile = deploy().join("Dockerfile");
    if let Some(output) = tool("hadolint", &[&dockerfile], &[]) {
        assert_good("hadolint", &dockerfile, &output);
    }
}
