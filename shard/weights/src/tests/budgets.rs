//! What is removed when the cache is full, and what never is.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::*;
use crate::Error;

/// Room for one small model with its manifest and records, and not for two.
const ONE: u64 = model::SMALL * 3 / 2;

/// A fetched model, with the reader that it came from.
fn fetched(cache: &Cache, seed: u64) -> (CachedModel, Vec<u8>) {
    let bytes = model::small(seed);
    let manifest = Manifest::of_bytes("small.gguf", bytes.clone().leak()).unwrap();
    let model = cache.model(&manifest).unwrap();
    model.store(0, &bytes).unwrap();
    (model, bytes)
}

fn folders(cache_folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(cache_folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

fn folder_of(model: &CachedModel) -> PathBuf {
    model.path().parent().unwrap().parent().unwrap().to_owned()
}

/// Says that a model that nobody uses was used some hours ago.
fn used(folder: &Path, hours: u64) {
    let lock = File::options().write(true).open(folder.join("lock")).unwrap();
    lock.set_modified(SystemTime::now() - Duration::from_secs(3600 * hours)).unwrap();
}

#[test]
fn the_model_that_was_used_longest_ago_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let unlimited = Cache::open(folder.path(), None).unwrap();
    let models: Vec<_> = (1..=3).map(|seed| folder_of(&fetched(&unlimited, seed).0)).collect();
    for (model, hours) in models.iter().zip([2, 3, 1]) {
        used(model, hours);
    }
    let each = unlimited.bytes().unwrap() / 3;
    let budget = Cache::open(folder.path(), Some(3 * each + each / 2)).unwrap();
    let (fourth, bytes) = fetched(&budget, 4);
    let mut expected = vec![models[0].clone(), models[2].clone(), folder_of(&fourth)];
    expected.sort();
    assert_eq!(folders(folder.path()), expected);
    assert!(budget.bytes().unwrap() <= 3 * each + each / 2);
    assert_eq!(fs::read(fourth.path()).unwrap(), bytes);
}

#[test]
fn a_model_in_use_stays_and_the_budget_says_no() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), Some(ONE)).unwrap();
    let (first, bytes) = fetched(&cache, 1);
    let other = Manifest::of_bytes("small.gguf", model::small(2).leak()).unwrap();
    let second = cache.model(&other).unwrap();
    let refused = second.store(0, &model::small(2)).unwrap_err();
    let (used, needed) = (cache.bytes().unwrap(), other.bytes());
    assert!(matches!(&refused, Error::OverBudget { budget: ONE, .. }), "{refused} with {used} used");
    assert!(refused.to_string().contains(&format!("{needed} more bytes would pass the cache's budget of {ONE}")));
    assert!(matches!(second.reserve(&[0]), Err(Error::OverBudget { .. })));
    assert_eq!(second.missing(&all(&other)), [0]);
    assert_eq!(fs::read(first.path()).unwrap(), bytes);

    // A clone keeps it as well; when the last is gone, there is room.
    let (clone, path) = (first.clone(), first.path().to_owned());
    drop(first);
    assert!(second.reserve(&[0]).is_err());
    drop(clone);
    second.reserve(&[0]).unwrap();
    assert!(!path.exists());
    second.store(0, &model::small(2)).unwrap();
}

#[test]
fn a_model_that_was_removed_can_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), Some(ONE)).unwrap();
    for seed in [1, 2, 1, 2] {
        let (model, bytes) = fetched(&cache, seed);
        assert_eq!(fs::read(model.path()).unwrap(), bytes);
        assert_eq!(folders(folder.path()), [folder_of(&model)]);
    }
}

#[test]
fn removals_that_were_cut_short_are_finished_and_strangers_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let cut = folder.path().join(format!("removed-{}-17-0", "0".repeat(64)));
    fs::create_dir_all(cut.join("files")).unwrap();
    fs::write(cut.join("files/model.gguf"), "left over").unwrap();
    let stranger = folder.path().join("notes");
    fs::create_dir(&stranger).unwrap();
    fs::write(stranger.join("large"), vec![1; 1 << 20]).unwrap();
    let cache = Cache::open(folder.path(), Some(ONE)).unwrap();
    assert_eq!(folders(folder.path()), std::slice::from_ref(&stranger));
    fetched(&cache, 1);
    assert!(stranger.join("large").exists());
}

#[test]
fn two_processes_worth_of_caches_never_break_each_others_models() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let folder = folder.path();
            scope.spawn(move || {
                let cache = Cache::open(folder, Some(8 * ONE)).unwrap();
                for turn in 0..30 {
                    let (model, bytes) = fetched(&cache, (thread * 7 + turn * 3) % 20);
                    assert_eq!(fs::read(model.path()).unwrap(), bytes);
                }
            });
        }
    });
}
