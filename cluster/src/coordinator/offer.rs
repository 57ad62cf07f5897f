//! The model as shards get it: its manifest, where the coordinator has it, and its pieces for those who have not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use paceline_api::NodeCard;
use paceline_control::{Device, Hello, Model, Peer};
use paceline_core::planner::{DeviceSpec, MAX_THREADS, Speed};
use paceline_gguf::{Gguf, ModelShape};
use paceline_proto::NodeId;
use paceline_transport::PieceSource;
use paceline_weights::{HashCache, Manifest, ModelHash, PieceReader};

use crate::pieces::Pieces;
use crate::{model, row};

/// The models that shards may need.
pub(crate) struct Offer {
    /// The one that is served.
    pub(super) model: Offered,
    /// The one that drafts for it, if it was opened with one.
    pub(super) draft: Option<Offered>,
    pieces: Arc<Pieces>,
    /// Values of a row between the model's stages, at most.
    pub(super) width: usize,
}

/// One model.
pub(super) struct Offered {
    manifest: Vec<u8>,
    /// Names the model by its content.
    pub(super) hash: ModelHash,
    path: String,
}

impl Offered {
    /// What a node is told of it, and of the nodes that have it.
    pub(super) fn told(&self, sources: Vec<Peer>) -> Model {
        Model { manifest: self.manifest.clone(), path: self.path.clone(), sources }
    }

    fn of(manifest: &Manifest, path: String) -> Self {
        Self { hash: manifest.hash(), manifest: manifest.encode(), path }
    }

    /// Hashes a model in files, unless that was done before, and lets its pieces be read.
    fn in_files(gguf: &Gguf, path: &Path, hashes: &Path, reader: &PieceReader) -> Result<Self> {
        let bar = row::progress_bar("hashing", gguf.file_bytes(), true);
        let manifest = HashCache::open(hashes)?.manifest(path, &|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        let files: Vec<PathBuf> = gguf.files().map(|file| file.path.to_owned()).collect();
        reader.add_files(&manifest, &files)?;
        let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
        Ok(Self::of(&manifest, path.to_string_lossy().into_owned()))
    }
}

impl Offer {
    /// Hashes the models, unless that was done before; `hashes` is where results are kept. `path` is the model's, if it
    /// is not part of the program, `draft` that of the model that drafts for it.
    pub(crate) fn of(gguf: &Gguf, path: Option<&Path>, draft: Option<&Path>, hashes: &Path) -> Result<Self> {
        let width = ModelShape::read(gguf)?.sent_width();
        let reader = PieceReader::new();
        let model = match path {
            None => {
                let (bytes, name) = model::embedded();
                let manifest = Manifest::of_bytes(name, bytes)?;
                reader.add_bytes(&manifest, bytes);
                Offered::of(&manifest, String::new())
            }
            Some(path) => Offered::in_files(gguf, path, hashes, &reader)?,
        };
        let draft = gguf.draft().zip(draft);
        let draft = draft.map(|(gguf, path)| Offered::in_files(gguf, path, hashes, &reader)).transpose()?;
        Ok(Self { model, draft, pieces: Arc::new(Pieces::of_models(reader)), width })
    }

    pub(super) fn pieces(&self) -> Arc<dyn PieceSource> {
        Arc::clone(&self.pieces) as _
    }
}

/// What the planner is told of a node.
pub(super) fn device_spec(hello: &Hello, device: &Device) -> Result<DeviceSpec, String> {
    let threads = usize::try_from(device.threads).unwrap_or(usize::MAX);
    if !(1..=MAX_THREADS).contains(&threads) {
        return Err(format!("a device with {threads} threads cannot be used, from 1 to {MAX_THREADS} can"));
    }
    let usable = |number: f64| number.is_finite() && number > 0.0;
    let speed = (usable(device.read) && usable(device.products)).then(|| Speed::new(device.read, device.products));
    // Hosts may have the same name; kernels that run at the same time have not the same boot.
    let boot: String = hello.boot.chars().take(8).collect();
    let host = format!("{}-{boot}", hello.host);
    let (name, shares_memory) = (device.name.clone(), !device.own_memory);
    Ok(DeviceSpec { name, host, memory_bytes: device.memory, shares_memory, threads, speed })
}

/// What others are told of a node.
pub(super) fn node_card(node: NodeId, hello: &Hello, drained: bool) -> Option<NodeCard> {
    let device = hello.device.as_ref()?;
    let DeviceSpec { name, host, memory_bytes, shares_memory, threads, speed } = device_spec(hello, device).ok()?;
    Some(NodeCard {
        node: node.to_string(),
        host,
        device: name,
        threads,
        memory_bytes,
        shares_memory,
        read: speed.map(|speed| speed.read),
        products: speed.map(|speed| speed.products),
        standby: hello.standby,
        drained,
    })
}
