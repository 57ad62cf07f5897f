//! The model as shards get it: its manifest, where the coordinator has it, and its pieces for those who have not.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use paceline_control::{Device, Hello};
use paceline_core::planner::{DeviceSpec, Speed};
use paceline_gguf::{Gguf, ModelShape};
use paceline_transport::PieceSource;
use paceline_weights::{HashCache, Manifest, PieceReader};

use crate::model;
use crate::pieces::Pieces;

/// The model.
pub(crate) struct Offer {
    manifest: Vec<u8>,
    path: String,
    pieces: Arc<Pieces>,
    /// Values per row of its residual stream.
    pub(super) width: usize,
}

impl Offer {
    /// Hashes the model, unless that was done before; `hashes` is where results are kept.
    pub(crate) fn of(gguf: &Gguf, path: Option<&Path>, hashes: &Path) -> Result<Self> {
        let width = ModelShape::read(gguf)?.embedding_length;
        let reader = PieceReader::new();
        let (manifest, path) = match path {
            None => {
                let (bytes, name) = model::embedded();
                let manifest = Manifest::of_bytes(name, bytes)?;
                reader.add_bytes(&manifest, bytes);
                (manifest, String::new())
            }
            Some(path) => {
                let manifest = HashCache::open(hashes)?.manifest(path, &|_| {})?;
                let files: Vec<PathBuf> = gguf.files().map(|file| file.path.to_owned()).collect();
                reader.add_files(&manifest, &files)?;
                let path = path.canonicalize().with_context(|| format!("cannot find {}", path.display()))?;
                (manifest, path.to_string_lossy().into_owned())
            }
        };
        Ok(Self { manifest: manifest.encode(), path, pieces: Arc::new(Pieces(reader)), width })
    }

    pub(super) fn manifest(&self) -> Vec<u8> {
        self.manifest.clone()
    }

    pub(super) fn path(&self) -> String {
        self.path.clone()
    }

    pub(super) fn pieces(&self) -> Arc<dyn PieceSource> {
        Arc::clone(&self.pieces) as _
    }
}

/// What the planner is told of a node.
pub(super) fn device_spec(hello: &Hello, device: &Device, threads: usize) -> Result<DeviceSpec, String> {
    if threads == 0 {
        return Err("the device has no threads".to_owned());
    }
    let usable = |number: f64| number.is_finite() && number > 0.0;
    let speed = (usable(device.read) && usable(device.products)).then(|| Speed::new(device.read, device.products));
    // Hosts may have the same name; kernels that run at the same time have not the same boot.
    let boot: String = hello.boot.chars().take(8).collect();
    let host = format!("{}-{boot}", hello.host);
    Ok(DeviceSpec { name: device.name.clone(), host, memory_bytes: device.memory, threads, speed })
}
