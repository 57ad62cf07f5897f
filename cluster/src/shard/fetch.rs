//! The weights of a stage: this host's own copy of the model, or pieces of it from other nodes.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow, bail};
use futures_util::{StreamExt, TryStreamExt, stream};
use paceline_control::{Load, Model, Peer};
use paceline_gguf::Gguf;
use paceline_transport::{Endpoint, PieceClient, PieceRequest, Target};
use paceline_weights::{
    Cache, CachedModel, HashCache, Manifest, ModelHash, StageParts, header_pieces, layers_of, model_files, stage_pieces,
};
use tracing::{debug, info, warn};

use crate::cli::LinkChoice;
use crate::control::node_from;
use crate::pieces::Pieces;
use crate::{link, model};

/// Pieces on their way at once: enough to fill a network, little memory.
const AT_ONCE: usize = 8;

/// Where weights can come from.
pub(super) struct Weights {
    /// A copy of the model on this host, named on the command line.
    pub(super) own: Option<PathBuf>,
    /// Fetch, even if this host has the model.
    pub(super) always_fetch: bool,
    pub(super) hashes: HashCache,
    pub(super) cache: Cache,
    /// What this node hands out to others.
    pub(super) pieces: Arc<Pieces>,
    pub(super) endpoint: Endpoint,
    /// The models of the newest placement. They stay open, so that what was loaded of them is known again.
    pub(super) opened: Mutex<Option<Opened>>,
}

/// The models of a placement: the one that is served, and the one that drafts for it, if there is one.
pub(super) struct Opened {
    hashes: Vec<ModelHash>,
    /// Where they are, and both in one.
    model: Option<(Vec<Here>, Arc<Gguf>)>,
    /// What the cache has of them, where that is needed.
    cached: Vec<CachedModel>,
}

/// Where this host has a model.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Here {
    /// It is part of the program.
    Program,
    File(PathBuf),
}

impl Here {
    fn open(&self) -> Result<Gguf> {
        Ok(match self {
            Self::Program => {
                let (bytes, name) = model::embedded();
                Gguf::from_static(bytes, name)?
            }
            Self::File(path) => Gguf::open(path)?,
        })
    }
}

/// A model that an order to load names.
struct Wanted<'a> {
    offered: &'a Model,
    manifest: Arc<Manifest>,
    /// What is needed of it; all of it if nothing is said.
    parts: Option<StageParts>,
}

impl<'a> Wanted<'a> {
    fn read(offered: &'a Model, parts: Option<StageParts>) -> Result<Self> {
        let manifest = Manifest::decode(&offered.manifest).context("the model's manifest cannot be used")?;
        Ok(Self { offered, manifest: Arc::new(manifest), parts })
    }

    /// The model that is served.
    fn served(load: &'a Load) -> Result<Self> {
        let offered = load.model.as_ref().context("the order to load names no model")?;
        let (first, last) = (load.first_layer == 0, load.stage + 1 == load.stages);
        let layers = load.first_layer as usize..load.end_layer as usize;
        Self::read(offered, Some(StageParts { layers, first, last, mtp: last && load.mtp }))
    }

    /// The model that drafts at the tail. Other stages need no more than its headers and what belongs to
    /// no layer.
    fn draft(load: &'a Load) -> Result<Option<Self>> {
        let Some(draft) = &load.draft else { return Ok(None) };
        let offered = draft.model.as_ref().context("the order to load names no file of the draft model")?;
        let headers = StageParts { layers: 0..0, first: false, last: false, mtp: false };
        Self::read(offered, (load.stage + 1 < load.stages).then_some(headers)).map(Some)
    }
}

/// Runs what reads and hashes much beside everything else.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("a thread that hashed the model panicked")?
}

/// Which of these pieces are not here.
async fn missing(cached: &CachedModel, pieces: Vec<Range<u32>>) -> Result<Vec<u32>> {
    let cached = cached.clone();
    blocking(move || Ok(cached.missing(&pieces))).await
}

/// Is told of bytes to fetch and bytes fetched; also, with zeros, that files are looked at.
pub(super) type Fetched = Arc<dyn Fn(u64, u64) + Send + Sync>;
/// So many bytes of a file are hashed between two signs of life.
const HASHED_BYTES: u64 = 64 << 20;

impl Weights {
    /// Opens the model with everything in place that the stage needs, and the one that drafts for it. Without that it
    /// goes on, and says so.
    pub(super) async fn open(self: Arc<Self>, load: &Load, fetched: Fetched) -> Result<Arc<Gguf>> {
        let (served, draft) = (Wanted::served(load)?, Wanted::draft(load)?);
        let wanted = std::iter::once(&served).chain(&draft);
        let hashes: Vec<ModelHash> = wanted.map(|wanted| wanted.manifest.hash()).collect();
        self.forget_others(&hashes);
        let mut here = vec![Arc::clone(&self).bring(&served, &fetched).await?];
        if let Some(draft) = &draft {
            match Arc::clone(&self).bring(draft, &fetched).await {
                Ok(place) => here.push(place),
                Err(error) => warn!("the draft model cannot be had: {error:#}"),
            }
        }
        blocking(move || self.keep_open(&hashes, here)).await
    }

    /// Brings what is wanted of a model to this host, if it is not here.
    async fn bring(self: Arc<Self>, wanted: &Wanted<'_>, fetched: &Fetched) -> Result<Here> {
        let (weights, manifest, hint) = (Arc::clone(&self), Arc::clone(&wanted.manifest), wanted.offered.path.clone());
        let alive = Arc::clone(fetched);
        if let Some(own) = blocking(move || Ok(weights.own_copy(&manifest, &hint, &alive))).await? {
            return Ok(own);
        }
        let (weights, manifest) = (Arc::clone(&self), Arc::clone(&wanted.manifest));
        let cached = blocking(move || weights.cached(&manifest)).await?;
        self.complete(&cached, wanted, fetched).await?;
        self.pieces.models.add_cached(&cached);
        Ok(Here::File(cached.path().to_owned()))
    }

    /// Models of an earlier placement are no longer handed out, and the cache may remove them.
    fn forget_others(&self, hashes: &[ModelHash]) {
        let mut opened = self.opened();
        if let Some(old) = opened.take_if(|opened| opened.hashes != hashes) {
            for hash in old.hashes.iter().filter(|hash| !hashes.contains(hash)) {
                self.pieces.models.remove(hash);
            }
        }
        opened.get_or_insert(Opened { hashes: hashes.to_vec(), model: None, cached: Vec::new() });
    }

    /// Opens what is here of the models as one, unless it is open.
    fn keep_open(&self, hashes: &[ModelHash], here: Vec<Here>) -> Result<Arc<Gguf>> {
        let mut opened = self.opened();
        let Some(opened) = opened.as_mut().filter(|opened| opened.hashes == hashes) else {
            // A later order is for another model already.
            return open_as_one(&here);
        };
        if let Some((_, model)) = opened.model.as_ref().filter(|(known, _)| *known == here) {
            return Ok(Arc::clone(model));
        }
        let model = open_as_one(&here)?;
        opened.model = Some((here, Arc::clone(&model)));
        Ok(model)
    }

    /// What the cache has of a model, of which nothing is hashed twice.
    fn cached(&self, manifest: &Manifest) -> Result<CachedModel> {
        let hash = manifest.hash();
        let mut opened = self.opened();
        let Some(opened) = opened.as_mut().filter(|opened| opened.hashes.contains(&hash)) else {
            return Ok(self.cache.model(manifest)?);
        };
        if let Some(cached) = opened.cached.iter().find(|cached| cached.hash() == hash) {
            return Ok(cached.clone());
        }
        let cached = self.cache.model(manifest)?;
        opened.cached.push(cached.clone());
        Ok(cached)
    }

    fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of the very same model: in this program, the one that was named, or the one at the coordinator's path.
    fn own_copy(&self, manifest: &Manifest, hint: &str, alive: &Fetched) -> Option<Here> {
        if self.always_fetch {
            return None;
        }
        let (bytes, name) = model::embedded();
        if manifest.files().len() == 1 && manifest.bytes() == bytes.len() as u64 {
            let embedded = Manifest::of_bytes(name, bytes);
            if embedded.is_ok_and(|own| own.hash() == manifest.hash()) {
                return Some(Here::Program);
            }
        }
        let hint = (!hint.is_empty()).then(|| PathBuf::from(hint));
        self.own.iter().chain(hint.iter()).find_map(|path| self.same(path, manifest, alive))
    }

    fn same(&self, path: &Path, manifest: &Manifest, alive: &Fetched) -> Option<Here> {
        // The length tells most others apart before anything is hashed.
        let bytes = std::fs::metadata(path).ok()?.len();
        if manifest.files().first()?.bytes != bytes {
            return None;
        }
        let hashed = AtomicU64::new(0);
        let own = self.hashes.manifest(path, &|bytes| {
            let before = hashed.fetch_add(bytes, Ordering::Relaxed);
            if before / HASHED_BYTES != (before + bytes) / HASHED_BYTES {
                alive(0, 0);
            }
        });
        match own.map(|own| own.hash() == manifest.hash()) {
            Ok(true) => {
                let files = model_files(path).ok()?;
                if let Err(error) = self.pieces.models.add_files(manifest, &files) {
                    debug!(%error, "this copy of the model is not offered to others");
                }
                info!(path = %path.display(), "this host has the model");
                Some(Here::File(path.to_owned()))
            }
            Ok(false) => {
                warn!(path = %path.display(), "this is another model than the coordinator's");
                None
            }
            Err(error) => {
                warn!(path = %path.display(), %error, "this copy of the model cannot be used");
                None
            }
        }
    }

    /// Fetches what is missing: first the headers, which say where everything else is.
    async fn complete(&self, cached: &CachedModel, wanted: &Wanted<'_>, fetched: &Fetched) -> Result<()> {
        let Wanted { offered, manifest, parts } = wanted;
        let headers = missing(cached, header_pieces(manifest)).await?;
        let mut sources = Sources { weights: self, peers: &offered.sources, client: None };
        sources.fetch(cached, &headers, fetched).await?;
        let gguf = Gguf::open(cached.path())?;
        let parts = match parts {
            Some(parts) => parts.clone(),
            None => StageParts::whole(layers_of(&gguf)?),
        };
        let wanted = missing(cached, stage_pieces(manifest, &gguf, &parts)?).await?;
        let bytes = manifest.piece_bytes(wanted.iter().copied());
        if bytes > 0 {
            info!(bytes, pieces = wanted.len(), "fetching layers");
        }
        sources.fetch(cached, &wanted, fetched).await
    }
}

/// Opens a model, and the one that drafts for it, if there is one.
fn open_as_one(here: &[Here]) -> Result<Arc<Gguf>> {
    let mut models = here.iter().map(Here::open);
    let model = models.next().context("no model is to be opened")??;
    Ok(Arc::new(match models.next().transpose()? {
        Some(draft) => model.with_draft(draft),
        None => model,
    }))
}

/// The nodes that have the model, and the one that is asked now.
struct Sources<'a> {
    weights: &'a Weights,
    peers: &'a [Peer],
    client: Option<PieceClient>,
}

impl Sources<'_> {
    async fn fetch(&mut self, cached: &CachedModel, pieces: &[u32], fetched: &Fetched) -> Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        let (room, wanted) = (cached.clone(), pieces.to_vec());
        blocking(move || Ok(room.reserve(&wanted)?)).await?;
        let total = cached.manifest().piece_bytes(pieces.iter().copied());
        let mut failures = Vec::new();
        for peer in self.peers {
            let left = missing(cached, pieces.iter().map(|piece| *piece..*piece + 1).collect()).await?;
            if left.is_empty() {
                return Ok(());
            }
            match self.fetch_from(peer, cached, &left, total, fetched).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    warn!("fetching layers: {error:#}");
                    self.client = None;
                    failures.push(format!("{error:#}"));
                }
            }
        }
        bail!("the layers could not be fetched: {}", failures.join("; "))
    }

    async fn fetch_from(
        &mut self,
        peer: &Peer,
        cached: &CachedModel,
        pieces: &[u32],
        total: u64,
        fetched: &Fetched,
    ) -> Result<()> {
        if self.client.is_none() {
            self.client = Some(reach(&self.weights.endpoint, peer).await?);
        }
        let client = self.client.as_ref().context("there is no connection")?;
        let model = cached.hash().0;
        let left = cached.manifest().piece_bytes(pieces.iter().copied());
        let done = AtomicU64::new(total.saturating_sub(left));
        let one = |piece: u32| {
            let (cached, done) = (cached.clone(), &done);
            async move {
                let bytes = client.fetch(PieceRequest { of: model, piece }).await?;
                let length = bytes.len() as u64;
                tokio::task::spawn_blocking(move || cached.store(piece, &bytes)).await??;
                let done = done.fetch_add(length, Ordering::Relaxed) + length;
                fetched(total, done);
                Ok::<_, anyhow::Error>(())
            }
        };
        stream::iter(pieces.iter().copied().map(one)).buffer_unordered(AT_ONCE).try_collect().await
    }
}

/// Connects to a node that gives pieces.
pub(super) async fn reach(endpoint: &Endpoint, peer: &Peer) -> Result<PieceClient> {
    let node = node_from(&peer.node)?;
    let unix = (!peer.unix.is_empty()).then_some(peer.unix.as_str());
    let mut failures = Vec::new();
    for route in link::routes(&peer.data, unix, LinkChoice::Auto)? {
        let target = Target { node, route };
        match endpoint.piece_client(&target).await {
            Ok(client) => return Ok(client),
            Err(error) => failures.push(error.to_string()),
        }
    }
    Err(anyhow!("node {node} cannot be reached: {}", failures.join("; ")))
}
