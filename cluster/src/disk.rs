//! The disk tier of this process: its flag, its folder, and the root of what is kept there.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, anyhow};
use paceline_core::planner::{CacheRam, Placement};
use paceline_model::Overrides;
use paceline_proto::{Activations, EntryKey, TierAnswer};
use paceline_shard::DiskTier;
use paceline_tier::Store;
use paceline_transport::identity::NodeKey;
use paceline_weights::{HashCache, Manifest, ModelHash};
use tokio::sync::mpsc;
use tracing::warn;

use crate::control::PROGRAM;
use crate::row::Plan;
use crate::state::replace;
use crate::{host, model, row};

/// What is on its way from the disk may take this part of the memory that is free when the program starts...
const STAGING_SHARE: u64 = 4;
/// ...and so much at least.
const LEAST_STAGING: u64 = 256 << 20;

/// What computes in this process.
const DEVICE: &str = "cpu";

/// A folder and how many bytes it may take: `/var/cache/paceline:50G`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheDisk {
    folder: PathBuf,
    bytes: u64,
}

impl FromStr for CacheDisk {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text:?} is no folder with a size, such as /var/cache/paceline:50G");
        let (folder, size) = text.rsplit_once(':').ok_or_else(form)?;
        let CacheRam::Bytes(bytes) = size.parse().map_err(|error| format!("{}: {error}", form()))? else {
            return Err(form());
        };
        if folder.is_empty() || bytes == 0 {
            return Err(form());
        }
        Ok(Self { folder: folder.into(), bytes })
    }
}

impl CacheDisk {
    /// The most that it may take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The seed of the name under which a node with this folder joins, in this life and the next: so the row that was in
    /// force before is placed again as it was, and each node finds its own layers on its disk.
    pub(crate) fn seed(&self) -> Result<[u8; 32]> {
        let path = self.folder.join("node.key");
        match std::fs::read(&path) {
            Ok(bytes) => bytes.try_into().map_err(|_| anyhow!("{} is no key of a node; remove it", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let seed = NodeKey::new_seed()?;
                replace(&path, &seed)?;
                Ok(seed)
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Opens the folder, and starts the thread that reads and writes there.
    pub(crate) fn start(&self) -> Result<DiskTier> {
        let store = Store::open(&self.folder, self.bytes)
            .with_context(|| format!("--cache-disk: cannot use {}", self.folder.display()))?;
        let free = host::available_memory().map_or(0, |free| free / STAGING_SHARE);
        Ok(DiskTier::start(store, free.max(LEAST_STAGING))?)
    }
}

/// What stands before everything that is kept: the content of the model, and what changes what is computed.
pub(crate) fn root(
    model: &ModelHash,
    placement: &Placement,
    overrides: &Overrides,
    activations: Activations,
    devices: &[String],
) -> EntryKey {
    let Placement { page_tokens, key_type, value_type, .. } = placement;
    let mut settings = format!("{PROGRAM}; pages {page_tokens}; keys {key_type}; values {value_type}; {overrides:?}");
    // Where activations lose something on links, or devices compute in other ways, it matters where the row is cut.
    let alike = devices.windows(2).all(|pair| pair[0] == pair[1]);
    if activations != Activations::F32 || !alike {
        let cuts: Vec<usize> = placement.stages.iter().map(|stage| stage.layers.start).collect();
        settings += &format!("; {activations} between {devices:?} at {cuts:?}");
    } else if let Some(device) = devices.first() {
        settings += &format!("; {device}");
    }
    EntryKey::root(&model.0, &settings)
}

/// That of a row in this process. The model is hashed, unless that was done before.
pub(crate) fn root_of_plan(plan: &Plan, path: Option<&Path>, disk: &CacheDisk) -> Result<EntryKey> {
    let manifest = match path {
        None => {
            let (bytes, name) = model::embedded();
            Manifest::of_bytes(name, bytes)?
        }
        Some(path) => {
            let bar = row::progress_bar("hashing", plan.model.file_bytes(), plan.progress);
            let hashes = HashCache::open(&disk.folder.join("hashes"))?;
            let manifest = hashes.manifest(path, &|bytes| bar.inc(bytes))?;
            bar.finish_and_clear();
            manifest
        }
    };
    Ok(root(&manifest.hash(), &plan.placement, &plan.overrides, Activations::F32, &[DEVICE.to_owned()]))
}

/// Passes on what the tier of a stage answers. There is room for as many answers as there are orders.
pub(crate) fn answer_into(
    answers: mpsc::Sender<(usize, TierAnswer)>,
    stage: usize,
) -> impl Fn(TierAnswer) + Send + Sync + 'static {
    move |answer| {
        if answers.try_send((stage, answer)).is_err() {
            warn!(stage, "an answer of the disk tier found nobody");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_and_a_size() {
        let disk: CacheDisk = "/var/cache/a:b:1.5G".parse().expect("a folder and a size");
        assert_eq!(disk, CacheDisk { folder: "/var/cache/a:b".into(), bytes: 3 << 29 });
        for wrong in ["", "/var/cache", "/var/cache:", ":5G", "/var/cache:0", "/var/cache:much", "/var/cache:-5G"] {
            let told = wrong.parse::<CacheDisk>().expect_err(wrong);
            assert!(told.contains("such as /var/cache/paceline:50G"), "{told}");
        }
    }
}
