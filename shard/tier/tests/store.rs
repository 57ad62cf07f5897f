//! The store against a map, over restarts, budgets and every way in which files get lost.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use paceline_proto::{Entry, EntryKey};
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use paceline_tier::{Error, Part, Put, Store};

const FORM: &str = "cpu 1, pages of 16 tokens";
const PLENTY: u64 = 1 << 30;

fn root() -> EntryKey {
    EntryKey::root(&[1; 32], "")
}

/// Entry `depth` of branch `branch`: all branches share their first two entries.
fn entry(branch: u32, depth: u32) -> Entry {
    let (mut parent, mut start) = (root(), 0);
    for above in 0..=depth {
        let tokens = vec![if above < 2 { 0 } else { branch }, above, 7];
        let entry = Entry { root: root(), parent, start, tokens };
        if above == depth {
            return entry;
        }
        (parent, start) = (entry.key(), start + 3);
    }
    unreachable!("the loop ends at the depth")
}

fn bytes(branch: u32, depth: u32, layer: u32, length: usize) -> Vec<u8> {
    let branch = if depth < 2 { 0 } else { branch };
    (0..length).map(|at| (at as u32 * 31 + branch * 5 + depth * 3 + layer) as u8).collect()
}

fn put(store: &mut Store, entry: &Entry, form: &str, layers: &[(u32, Vec<u8>)]) -> Put {
    let parts: Vec<_> = layers.iter().map(|(layer, bytes)| Part { layer: *layer, bytes }).collect();
    store.put(entry, form, &parts).expect("the disk works")
}

fn read(store: &mut Store, entry: &Entry, form: &str, layer: u32) -> Option<Vec<u8>> {
    let mut bytes = vec![9];
    store.read(entry.key(), form, layer, &mut bytes).expect("the disk works").then_some(bytes)
}

fn data_files(folder: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(folder.join("data")).expect("the folder");
    let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    files
}

fn opened(budget: u64) -> (TempDir, Store) {
    let folder = tempdir().expect("a folder");
    let store = Store::open(folder.path(), budget).expect("it opens");
    (folder, store)
}

#[test]
fn what_is_kept_is_found_after_a_restart() {
    let (folder, mut store) = opened(PLENTY);
    let first = entry(1, 0);
    assert_eq!(put(&mut store, &first, FORM, &[(0, vec![1, 2]), (3, vec![])]), Put::Kept);
    assert_eq!(put(&mut store, &first, FORM, &[(0, vec![1, 2])]), Put::Known);
    // Another stage brings other layers, and another device the same ones in its own form.
    assert_eq!(put(&mut store, &first, FORM, &[(4, vec![5]), (0, vec![1, 2])]), Put::Kept);
    assert_eq!(put(&mut store, &first, "cuda 1", &[(0, vec![8, 8, 8])]), Put::Kept);
    assert_eq!(put(&mut store, &entry(1, 1), FORM, &[(0, vec![6])]), Put::Kept);
    drop(store);
    let mut store = Store::open(folder.path(), PLENTY).expect("it opens again");
    assert_eq!(read(&mut store, &first, FORM, 0), Some(vec![1, 2]));
    assert_eq!(read(&mut store, &first, FORM, 3), Some(vec![]));
    assert_eq!(read(&mut store, &first, FORM, 4), Some(vec![5]));
    assert_eq!(read(&mut store, &first, "cuda 1", 0), Some(vec![8, 8, 8]));
    assert_eq!(read(&mut store, &first, "cuda 1", 3), None);
    assert!(store.holds(first.key(), FORM, [0, 3, 4]) && !store.holds(first.key(), FORM, [0, 1]));
    let mut entries = store.entries(root(), None, 9).expect("a sound index");
    assert_eq!(store.entries(EntryKey([2; 32]), None, 9).expect("a sound index"), []);
    let pages = store.entries(root(), None, 1).expect("one");
    let rest = store.entries(root(), Some(pages[0].key()), 9).expect("the other");
    assert_eq!([pages, rest].concat(), entries);
    entries.sort_by_key(|entry| entry.start);
    assert_eq!(entries, [first, entry(1, 1)]);
    assert_eq!(store.counts().refused, 0);
}

#[test]
fn the_least_valuable_leaf_makes_room_and_never_the_prefix_of_what_comes() {
    // Room for three entries.
    let (_folder, mut store) = opened(3 * (4096 + 1000) + 500);
    let part = |number| vec![(0, bytes(number, 9, 0, 1000))];
    assert_eq!(put(&mut store, &entry(1, 0), FORM, &part(0)), Put::Kept);
    assert_eq!(put(&mut store, &entry(1, 1), FORM, &part(1)), Put::Kept);
    assert_eq!(put(&mut store, &entry(1, 2), FORM, &part(2)), Put::Kept);
    // The leaf of branch 1 goes, not what both have in common.
    assert_eq!(put(&mut store, &entry(2, 2), FORM, &part(3)), Put::Kept);
    assert_eq!(read(&mut store, &entry(1, 2), FORM, 0), None);
    // Only the path itself is left: it is not destroyed for its own end.
    assert_eq!(put(&mut store, &entry(2, 3), FORM, &part(4)), Put::NoRoom);
    for depth in 0..3 {
        assert!(read(&mut store, &entry(2, depth), FORM, 0).is_some(), "entry {depth} is still there");
    }
    // Whatever saves more for its bytes stays: the small one.
    let other = Entry { root: root(), parent: root(), start: 0, tokens: vec![5; 3] };
    assert_eq!(put(&mut store, &other, FORM, &[(0, vec![1; 10])]), Put::Kept);
    assert_eq!(read(&mut store, &entry(2, 2), FORM, 0), None);
    assert_eq!(store.counts().evicted, 2);
    let huge = Entry { tokens: vec![6; 3], ..other.clone() };
    assert_eq!(put(&mut store, &huge, FORM, &[(0, vec![1; 20_000])]), Put::NoRoom);
    assert!(read(&mut store, &other, FORM, 0).is_some(), "nothing goes for what never fits");
}

#[test]
fn what_is_used_stays() {
    let (folder, mut store) = opened(4 * (4096 + 1000));
    let alone = |number: u32| Entry { root: root(), parent: root(), start: 0, tokens: vec![number; 3] };
    let part = vec![(0, vec![3; 1000])];
    put(&mut store, &alone(0), FORM, &part);
    for number in 1..40 {
        put(&mut store, &alone(number), FORM, &part);
        store.touch(alone(0).key());
        if number % 10 == 0 {
            store.note().expect("it is written");
            drop(store);
            store = Store::open(folder.path(), 4 * (4096 + 1000)).expect("it opens");
        }
        assert!(read(&mut store, &alone(0), FORM, 0).is_some(), "it was used before entry {number} came");
    }
    assert!(read(&mut store, &alone(1), FORM, 0).is_none());
    assert_eq!(data_files(folder.path()).len(), 4, "files of what was evicted are gone");
}

#[test]
fn a_smaller_budget_holds_after_a_restart() {
    let (folder, mut store) = opened(PLENTY);
    for depth in 0..10 {
        put(&mut store, &entry(1, depth), FORM, &[(0, bytes(1, depth, 0, 1000))]);
    }
    drop(store);
    let budget = 5 * (4096 + 1000);
    let mut store = Store::open(folder.path(), budget).expect("it opens");
    assert!(store.counts().bytes <= budget && store.counts().entries == 5);
    assert!(read(&mut store, &entry(1, 4), FORM, 0).is_some());
    assert!(read(&mut store, &entry(1, 5), FORM, 0).is_none(), "the end of the path went first");
}

#[test]
fn a_text_is_forgotten_with_all_that_goes_on_from_it() {
    let whole = |branch, depth| -> Vec<u32> { (0..=depth).flat_map(|above| entry(branch, above).tokens).collect() };
    let kept = |store: &Store| -> Vec<EntryKey> {
        store.entries(root(), None, 99).expect("the index").iter().map(Entry::key).collect()
    };
    let filled = || {
        let (folder, mut store) = opened(PLENTY);
        for (branch, depth) in [(1, 0), (1, 1), (1, 2), (1, 3), (2, 2), (3, 2), (3, 3)] {
            put(&mut store, &entry(branch, depth), FORM, &[(0, bytes(branch, depth, 0, 50))]);
        }
        (folder, store)
    };
    let sorted = |entries: &[(u32, u32)]| {
        let mut keys: Vec<EntryKey> = entries.iter().map(|(branch, depth)| entry(*branch, *depth).key()).collect();
        keys.sort();
        keys
    };
    let all = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 2), (3, 2), (3, 3)];
    // Where it ends: with an entry, inside one, at the end of all; in front of everything, and where nothing is.
    type Case<'a> = (Vec<u32>, &'a [(u32, u32)]);
    let cases: [Case<'_>; 6] = [
        (whole(1, 2), &[(1, 0), (1, 1), (2, 2), (3, 2), (3, 3)]),
        (whole(3, 3)[..10].to_vec(), &[(1, 0), (1, 1), (1, 2), (1, 3), (2, 2)]),
        (whole(1, 3), &[(1, 0), (1, 1), (2, 2), (3, 2), (3, 3)]),
        (whole(1, 0)[..1].to_vec(), &[]),
        (whole(1, 1), &[]),
        (vec![9, 9], &all),
    ];
    for (tokens, expected) in cases {
        let (folder, mut store) = filled();
        let forgotten = store.forget_text(root(), &tokens).expect("the disk works");
        assert_eq!((kept(&store), forgotten.len()), (sorted(expected), 7 - expected.len()), "{tokens:?}");
        assert_eq!(data_files(folder.path()).len(), expected.len(), "{tokens:?}");
        drop(store);
        let store = Store::open(folder.path(), PLENTY).expect("it opens");
        assert_eq!(kept(&store), sorted(expected), "{tokens:?}: after a restart");
    }
    // What hangs in the air goes with anything.
    let (folder, mut store) = filled();
    fs::remove_file(&data_files(folder.path())[1]).expect("removed");
    assert_eq!(read(&mut store, &entry(1, 1), FORM, 0), None);
    assert_eq!(store.forget_text(root(), &[9]).expect("the disk works").len(), 5);
    assert_eq!(kept(&store), sorted(&[(1, 0)]));
}

#[test]
fn a_damaged_file_is_never_served_and_is_counted() {
    for damage in ["changed", "cut", "gone", "swapped"] {
        let (folder, mut store) = opened(PLENTY);
        put(&mut store, &entry(1, 0), FORM, &[(0, vec![1; 100])]);
        put(&mut store, &entry(1, 1), FORM, &[(0, vec![2; 100])]);
        let files = data_files(folder.path());
        match damage {
            "changed" => fs::write(&files[0], [vec![1; 99], vec![0]].concat()).expect("written"),
            "cut" => fs::write(&files[0], [1; 99]).expect("written"),
            "gone" => fs::remove_file(&files[0]).expect("removed"),
            // Bytes of another entry are sound, but not these.
            _ => drop(fs::copy(&files[1], &files[0]).expect("copied")),
        }
        assert_eq!(read(&mut store, &entry(1, 0), FORM, 0), None, "{damage}");
        assert_eq!((store.counts().refused, store.counts().entries), (1, 1), "{damage}");
        assert_eq!(read(&mut store, &entry(1, 1), FORM, 0), Some(vec![2; 100]), "{damage}: others are not concerned");
        assert_eq!(put(&mut store, &entry(1, 0), FORM, &[(0, vec![1; 100])]), Put::Kept, "{damage}: it is kept anew");
        assert_eq!(read(&mut store, &entry(1, 0), FORM, 0), Some(vec![1; 100]));
    }
}

#[test]
fn what_others_left_in_the_folder_is_cleaned_up_and_nothing_else() {
    let (folder, mut store) = opened(PLENTY);
    put(&mut store, &entry(1, 0), FORM, &[(0, vec![1; 100])]);
    drop(store);
    let data = folder.path().join("data");
    // A file that a killed process did not finish; and one that is none of ours.
    fs::write(data.join("00000000000000ff"), "half").expect("written");
    fs::write(data.join("notes.txt"), "mine").expect("written");
    let mut store = Store::open(folder.path(), PLENTY).expect("it opens");
    assert!(!data.join("00000000000000ff").exists() && data.join("notes.txt").exists());
    assert_eq!(read(&mut store, &entry(1, 0), FORM, 0), Some(vec![1; 100]));
}

#[test]
fn a_folder_that_cannot_be_used_says_why() {
    let (folder, store) = opened(PLENTY);
    let busy = Store::open(folder.path(), PLENTY).expect_err("it is open");
    assert!(matches!(busy, Error::InUse { .. }), "{busy}");
    drop(store);
    let index = folder.path().join("index-1.redb");
    let sound = fs::read(&index).expect("the index");
    for damaged in [sound[..sound.len() / 2].to_vec(), vec![7; sound.len()], b"short".to_vec()] {
        fs::write(&index, damaged).expect("written");
        let error = Store::open(folder.path(), PLENTY).expect_err("no index");
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        assert!(error.to_string().contains("remove the folder"), "{error}");
    }
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    let error = Store::open(&file, PLENTY).expect_err("a file is no folder");
    assert!(matches!(error, Error::Io { .. }), "{error}");
    let error = Store::open(Path::new("/proc/no such folder"), PLENTY).expect_err("nobody can write there");
    assert!(error.to_string().contains("/proc/no such folder: cannot make the folder"), "{error}");
}

#[test]
fn a_disk_that_takes_no_more_costs_the_entry_alone() {
    let (folder, mut store) = opened(PLENTY);
    put(&mut store, &entry(1, 0), FORM, &[(0, vec![1; 100])]);
    // The next file's name leads to a device that is always full.
    std::os::unix::fs::symlink("/dev/full", folder.path().join("data").join(format!("{:016x}", 1))).expect("a link");
    let parts = [Part { layer: 0, bytes: &[2; 100] }];
    let full = store.put(&entry(1, 1), FORM, &parts).expect_err("no space left");
    assert!(full.to_string().contains("No space left on device"), "{full}");
    assert_eq!(read(&mut store, &entry(1, 1), FORM, 0), None);
    assert_eq!(read(&mut store, &entry(1, 0), FORM, 0), Some(vec![1; 100]));
    assert_eq!(store.put(&entry(1, 1), FORM, &parts).expect("the link is gone"), Put::Kept);
}

#[test]
fn what_is_no_entry_is_refused() {
    let (_folder, mut store) = opened(PLENTY);
    let empty = Entry { tokens: vec![], ..entry(1, 0) };
    assert!(matches!(store.put(&empty, FORM, &[]), Err(Error::NoEntry { tokens: 0, .. })));
    // A stage without attention keeps nothing of an entry without a state, but that it keeps this.
    assert_eq!(store.put(&entry(1, 0), FORM, &[]).expect("kept"), Put::Kept);
    assert!(store.holds(entry(1, 0).key(), FORM, []));
}

#[derive(Debug, Clone)]
enum Step {
    Put {
        branch: u32,
        depth: u32,
        layers: u32,
        length: usize,
    },
    Read {
        branch: u32,
        depth: u32,
        layer: u32,
    },
    Touch {
        branch: u32,
        depth: u32,
    },
    Reopen,
    /// Changes, cuts or removes a file.
    Damage {
        file: usize,
        how: u8,
        at: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0..3_u32, 0..5_u32);
    let step = prop_oneof![
        4 => (place(), 1..8_u32, 0..3000_usize)
            .prop_map(|((branch, depth), layers, length)| Step::Put { branch, depth, layers, length }),
        4 => (place(), 0..3_u32).prop_map(|((branch, depth), layer)| Step::Read { branch, depth, layer }),
        1 => place().prop_map(|(branch, depth)| Step::Touch { branch, depth }),
        1 => Just(Step::Reopen),
        1 => (any::<usize>(), 0..3_u8, any::<usize>()).prop_map(|(file, how, at)| Step::Damage { file, how, at }),
    ];
    proptest::collection::vec(step, 1..40)
}

fn damage(folder: &Path, file: usize, how: u8, at: usize) -> bool {
    let files = data_files(folder);
    if files.is_empty() {
        return false;
    }
    let path = &files[file % files.len()];
    let mut content = fs::read(path).expect("a data file");
    match how {
        0 if !content.is_empty() => {
            let at = at % content.len();
            content[at] ^= 0x10;
            fs::write(path, content).expect("written");
        }
        1 if !content.is_empty() => fs::write(path, &content[..at % content.len()]).expect("written"),
        _ => fs::remove_file(path).expect("removed"),
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_store_gives_back_what_it_was_given_or_nothing(steps in steps(), small: bool) {
        let budget = if small { 20_000 } else { PLENTY };
        let (folder, mut store) = opened(budget);
        let mut given: BTreeMap<(EntryKey, u32), Vec<u8>> = BTreeMap::new();
        let mut damaged = false;
        for step in steps {
            match step {
                Step::Put { branch, depth, layers, length } => {
                    let entry = entry(branch, depth);
                    let parts: Vec<_> = (0..3).filter(|layer| layers >> layer & 1 == 1).map(|layer| {
                        let known = given.get(&(entry.key(), layer)).cloned();
                        (layer, known.unwrap_or_else(|| bytes(branch, depth, layer, length)))
                    }).collect();
                    if put(&mut store, &entry, FORM, &parts) != Put::NoRoom {
                        given.extend(parts.into_iter().map(|(layer, bytes)| ((entry.key(), layer), bytes)));
                    }
                }
                Step::Read { branch, depth, layer } => {
                    let entry = entry(branch, depth);
                    let expected = given.get(&(entry.key(), layer));
                    match read(&mut store, &entry, FORM, layer) {
                        Some(found) => prop_assert_eq!(Some(&found), expected),
                        None => prop_assert!(expected.is_none() || small || damaged, "it was lost"),
                    }
                }
                Step::Touch { branch, depth } => store.touch(entry(branch, depth).key()),
                Step::Reopen => {
                    drop(store);
                    store = Store::open(folder.path(), budget).expect("it opens again");
                }
                Step::Damage { file, how, at } => damaged |= damage(folder.path(), file, how, at),
            }
            let counts = store.counts();
            prop_assert!(counts.bytes <= budget);
            prop_assert!(damaged || counts.refused == 0);
            let listed = store.entries(root(), None, 100).expect("a sound index");
            prop_assert_eq!(listed.len() as u64, counts.entries);
        }
    }
}
