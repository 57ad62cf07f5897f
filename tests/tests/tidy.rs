//! The rules of the house that a compiler does not check: who may import whom, where `unsafe` and actix may
//! appear, how long a file may be, and that the map names what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// A file tells one story; tests that belong to it may be longer.
const LINES: usize = 500;
const TEST_LINES: usize = 700;

/// What each crate of ours may import of the others.
const MAY_IMPORT: [(&str, &[&str]); 21] = [
    ("paceline-gguf", &[]),
    ("paceline-proto", &[]),
    ("paceline-control", &[]),
    ("paceline-grammar", &[]),
    ("paceline-transport", &["paceline-proto"]),
    ("paceline-sampling", &["paceline-proto", "paceline-grammar"]),
    ("paceline-compute", &["paceline-gguf"]),
    ("paceline-cuda", &["paceline-gguf", "paceline-compute"]),
    ("paceline-emulation", &["paceline-compute", "paceline-cuda"]),
    ("paceline-weights", &["paceline-gguf"]),
    ("paceline-tier", &["paceline-proto"]),
    ("paceline-model", &["paceline-gguf", "paceline-compute"]),
    ("paceline-evaluation", &["paceline-gguf", "paceline-compute", "paceline-model"]),
    (
        "paceline-shard",
        &[
            "paceline-gguf",
            "paceline-grammar",
            "paceline-proto",
            "paceline-transport",
            "paceline-sampling",
            "paceline-tier",
            "paceline-compute",
            "paceline-model",
        ],
    ),
    ("paceline-core", &["paceline-gguf", "paceline-proto"]),
    ("paceline-simulation", &["paceline-core", "paceline-proto"]),
    ("paceline-text", &["paceline-gguf", "paceline-grammar"]),
    ("paceline-coordinator", &["paceline-proto", "paceline-transport", "paceline-core", "paceline-text"]),
    ("paceline-api", &["paceline-grammar", "paceline-proto", "paceline-coordinator", "paceline-text"]),
    ("paceline", &["*"]),
    ("paceline-tests", &["*"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the workspace").to_owned()
}

/// Every Rust file of ours, by its path from the root.
fn sources() -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for folder in ["proto", "transport", "shard", "coordinator", "cluster", "tests"] {
        collect(&root().join(folder), &mut found);
    }
    assert!(found.len() > 50, "only {} files found, the walk is broken", found.len());
    found
}

fn collect(folder: &Path, found: &mut BTreeMap<PathBuf, String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of ours") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            found.insert(path.strip_prefix(root()).expect("below the root").to_owned(), text);
        }
    }
}

/// Complains about every place at once.
fn none(rule: &str, places: &[String]) {
    assert!(places.is_empty(), "{rule}:\n  {}", places.join("\n  "));
}

fn packages() -> Vec<Package> {
    let metadata = MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec();
    metadata.expect("cargo knows the workspace").packages
}

fn is_test(path: &Path) -> bool {
    path.components()
        .any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "benches" | "tests.rs" | "testing.rs")))
}

/// The code of a file without its unit tests and comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).enumerate();
    lines.filter(|(_, line)| !line.trim_start().starts_with("//")).map(|(number, line)| (number + 1, line))
}

/// Lines of code in which `word` appears, outside of the files that `may` names.
fn places(word: &str, may: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in sources() {
        if may(&path) || path.ends_with("tidy.rs") {
            continue;
        }
        let lines = code(&text).filter(|(_, line)| line.contains(word));
        found.extend(lines.map(|(number, _)| format!("{}:{number}", path.display())));
    }
    found
}

#[test]
fn dependencies_point_one_way() {
    let allowed: BTreeMap<_, _> = MAY_IMPORT.into_iter().collect();
    let mut wrong = Vec::new();
    for package in packages() {
        let may = allowed.get(package.name.as_str()).unwrap_or_else(|| panic!("{} has no rule", package.name));
        for dependency in &package.dependencies {
            let ours = dependency.name.starts_with("paceline") && dependency.kind == DependencyKind::Normal;
            if ours && !may.contains(&"*") && !may.contains(&dependency.name.as_str()) {
                wrong.push(format!("{} imports {}", package.name, dependency.name));
            }
        }
    }
    none("these imports go the wrong way", &wrong);
}

#[test]
fn unsafe_lives_in_compute_and_the_memory_map_only() {
    let may = |path: &Path| path.starts_with("shard/compute") || path == Path::new("proto/gguf/src/map.rs");
    none("unsafe code has no place here", &places("unsafe ", may));
}

#[test]
fn only_actors_name_actix() {
    // The program makes the actors' system and gives the shards' addresses on.
    let may = |path: &Path| path.ends_with("actor.rs") || path == Path::new("cluster/src/row.rs") || is_test(path);
    let named = places("actix::", may);
    // actix-web is another crate: the HTTP server.
    none("only files named actor.rs may name actix", &named);
}

#[test]
fn cores_read_no_clock_and_start_no_threads() {
    let pure = |path: &Path| {
        path.starts_with("coordinator/core")
            || path.starts_with("coordinator/simulation")
            || path.starts_with("proto/src")
            || path.starts_with("shard/sampling")
    };
    for word in ["Instant::now", "SystemTime", "std::thread", "std::fs", "std::net", "tokio::"] {
        none(&format!("{word} has no place in a pure core"), &places(word, |path| !pure(path) || is_test(path)));
    }
}

#[test]
fn queues_are_bounded_and_libraries_do_not_print() {
    for word in ["unbounded_channel", "crossbeam_channel::unbounded", "mpsc::channel()", "do_send("] {
        none(&format!("{word} makes a queue without a bound"), &places(word, |_| false));
    }
    for word in ["println!", "eprintln!", "dbg!", "todo!", "unimplemented!"] {
        none(&format!("{word} has no place here"), &places(word, is_test));
    }
}

#[test]
fn files_tell_one_story() {
    let long = sources().into_iter().filter_map(|(path, text)| {
        let (lines, limit) = (text.lines().count(), if is_test(&path) { TEST_LINES } else { LINES });
        (lines > limit).then(|| format!("{}: {lines} lines, at most {limit}", path.display()))
    });
    none("these files are too long", &long.collect::<Vec<_>>());
}

#[test]
fn every_module_says_what_it_is_for() {
    let silent = sources().into_iter().filter(|(_, text)| !text.starts_with("//!"));
    none("these files do not begin with //!", &silent.map(|(path, _)| path.display().to_string()).collect::<Vec<_>>());
}

#[test]
fn no_test_is_switched_off() {
    let attribute = ["#[", "ignore"].concat();
    none("a test that nobody runs", &places(&attribute, |_| false));
}

#[test]
fn every_dependency_has_its_reason() {
    let reasons = std::fs::read_to_string(root().join("docs/dependencies.md")).expect("docs/dependencies.md");
    let mut names = BTreeSet::new();
    for package in packages() {
        names.extend(package.dependencies.into_iter().map(|dependency| dependency.name));
    }
    let missing =
        names.into_iter().filter(|name| !name.starts_with("paceline") && !reasons.contains(&format!("`{name}`")));
    none("docs/dependencies.md does not say what these are for", &missing.collect::<Vec<_>>());
}

#[test]
fn the_map_names_every_crate() {
    let map = std::fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let folder = |package: &Package| {
        let path = package.manifest_path.parent().expect("a manifest lies in a folder").to_string();
        path.strip_prefix(root().to_str().expect("a plain path")).expect("below the root")[1..].to_owned()
    };
    let packages = packages();
    let missing = packages.iter().map(folder).filter(|folder| !map.contains(&format!("`{folder}`")));
    none("ARCHITECTURE.md does not mention these", &missing.collect::<Vec<_>>());
}
