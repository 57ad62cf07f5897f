//! What is kept, what is forgotten, and what becomes of it when the process is killed or the file is damaged.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use paceline_core::planner::{Host, Wishes, plan};
use paceline_gguf::{Gguf, ModelShape};

use super::*;

/// Tells this test's own program, started by the test, which store it writes to until it is killed.
const WRITER: &str = "PACELINE_TEST_STORE";

fn node(number: u128) -> NodeId {
    NodeId(Uuid::from_u128(number))
}

fn purpose(wishes: &str) -> Purpose {
    Purpose { program: "1".to_owned(), model: ModelHash([7; 32]), wishes: wishes.to_owned() }
}

fn record(epoch: u32) -> RowRecord {
    let (bytes, name) = crate::model::embedded();
    let shape = ModelShape::read(&Gguf::from_static(bytes, name).expect("a model")).expect("a model");
    let host = Host { memory_bytes: 64 << 30, threads: 2 };
    let placement = plan(&shape, &Wishes::new(2, 1024, 2), &host).expect("it fits");
    RowRecord { epoch: Epoch(epoch), purpose: purpose("a"), nodes: vec![node(1), node(2)], placement }
}

fn links(bytes_per_second: f64) -> MeasuredLinks {
    let speed = LinkSpeed { round_trip: Duration::from_micros(70), bytes_per_second };
    vec![((node(1), node(2)), speed), ((node(2), node(1)), speed)]
}

#[test]
fn what_is_kept_is_there_after_a_restart_for_the_same_purpose() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(folder.path()).expect("made");
    assert_eq!(store.remembered(&purpose("a")).expect("readable"), Remembered::default());
    assert_eq!(store.links().expect("readable"), []);
    store.keep_epoch(Epoch(8)).expect("written");
    store.keep_row(&record(8), &links(3e8)).expect("written");
    store.keep_row(&record(8), &links(4e8)).expect("written");
    store.keep_epoch(Epoch(9)).expect("written");
    store.keep_epoch(Epoch(7)).expect("an older one changes nothing");
    drop(store);
    let store = Store::open(folder.path()).expect("opened again");
    let Remembered { epoch, row, .. } = store.remembered(&purpose("a")).expect("readable");
    let RowRecord { nodes, placement, .. } = record(8);
    assert_eq!((epoch, row), (Epoch(9), RememberedRow::new(nodes, placement)));
    assert_eq!(store.links().expect("readable"), links(4e8));
    // Epochs go on for every purpose, rows do not.
    let other = store.remembered(&purpose("b")).expect("readable");
    assert_eq!(other, Remembered { epoch: Epoch(9), ..Remembered::default() });
}

#[test]
fn a_row_is_forgotten_only_by_its_own_epoch() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(folder.path()).expect("made");
    store.forget_row(Epoch(1)).expect("there is none");
    store.keep_row(&record(8), &links(3e8)).expect("written");
    store.keep_epoch(Epoch(9)).expect("written");
    store.forget_row(Epoch(9)).expect("written");
    assert!(store.remembered(&purpose("a")).expect("readable").row.is_some());
    store.forget_row(Epoch(8)).expect("written");
    assert_eq!(
        store.remembered(&purpose("a")).expect("readable"),
        Remembered { epoch: Epoch(9), ..Remembered::default() }
    );
}

#[test]
fn drained_nodes_are_kept_whatever_becomes_of_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::open(folder.path()).expect("made");
    for drained in [BTreeSet::from([node(1), node(5)]), BTreeSet::from([node(2)]), BTreeSet::new()] {
        store.keep_drained(&drained).expect("written");
        for wishes in ["a", "b"] {
            assert_eq!(store.remembered(&purpose(wishes)).expect("readable").drained, drained);
        }
        store.keep_epoch(Epoch(8)).expect("written");
        store.keep_row(&record(8), &links(3e8)).expect("written");
    }
}

#[test]
fn one_coordinator_has_the_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let _store = Store::open(folder.path()).expect("made");
    let error = Store::open(folder.path()).expect_err("in use");
    assert!(error.to_string().contains("another coordinator"), "{error:#}");
}

#[test]
fn a_killed_writer_leaves_what_it_had_written() {
    if let Some(folder) = std::env::var_os(WRITER) {
        return write_until_killed(Path::new(&folder));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut newest = 0;
    for round in 1..=10_u32 {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.args(["--exact", "--nocapture", "state::store::tests::a_killed_writer_leaves_what_it_had_written"]);
        command.env(WRITER, folder.path()).stdout(Stdio::piped()).stdin(Stdio::null());
        let mut writer = command.spawn().expect("it starts");
        let mut lines = BufReader::new(writer.stdout.take().expect("piped")).lines();
        // Each time at another moment of the writing.
        let told = lines.by_ref().map_while(Result::ok).filter_map(|line| line.parse::<u32>().ok());
        let told = told.take(round as usize * 3).last().expect("it writes");
        writer.kill().expect("it is killed");
        writer.wait().expect("it ends");
        let store = Store::open(folder.path()).expect("readable after a kill");
        let Remembered { epoch, row, .. } = store.remembered(&purpose("a")).expect("readable after a kill");
        assert!(epoch.0 >= told && told > newest, "{epoch} is kept, {told} was told, {newest} before");
        assert!(row.is_some() && !store.links().expect("readable").is_empty());
        newest = epoch.0;
    }
}

fn write_until_killed(folder: &Path) {
    let store = Store::open(folder).expect("opened");
    let first = store.remembered(&purpose("a")).expect("readable").epoch.0 + 1;
    let mut row = record(first);
    for epoch in (first..).map(Epoch) {
        row.epoch = epoch;
        store.keep_epoch(epoch).expect("written");
        store.keep_row(&row, &links(f64::from(epoch.0))).expect("written");
        let mut output = std::io::stdout();
        output.write_all(format!("{epoch}\n").as_bytes()).and_then(|()| output.flush()).expect("somebody reads");
    }
}

#[test]
fn a_damaged_file_is_told_by_name_and_ends_no_thread() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(FILE);
    let store = Store::open(folder.path()).expect("made");
    store.keep_epoch(Epoch(8)).expect("written");
    store.keep_row(&record(8), &links(3e8)).expect("written");
    drop(store);
    let whole = std::fs::read(&path).expect("readable");
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("writable");
        Store::open(folder.path()).and_then(|store| Ok((store.remembered(&purpose("a"))?, store.links()?)))
    };
    let good = read(&whole).expect("it is whole");
    let mut damaged = 0;
    let mut check = |what: String, bytes: &[u8]| match read(bytes) {
        // What is not in use may hold anything.
        Ok(same) => assert_eq!(same, good, "{what}"),
        Err(error) => {
            let told = format!("{error:#}");
            assert!(told.contains(FILE) && told.contains("Move it away"), "{what}: {told}");
            damaged += 1;
        }
    };
    check("empty".to_owned(), b"\0");
    check("text".to_owned(), &b"not a store ".repeat(2000));
    for length in [1, 100, 320, 4096, 9000, whole.len() / 2, whole.len() - 1] {
        check(format!("cut at {length}"), &whole[..length]);
    }
    // Every byte of the header, and some of every page.
    for at in (0..400).chain((400..whole.len()).step_by(509)) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        check(format!("byte {at}"), &bytes);
    }
    assert!(damaged > 20, "only {damaged} were noticed");
}
