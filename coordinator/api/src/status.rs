//! `GET /health`, `GET /live`, `GET /admin/v1/status` and `GET /metrics`.

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use metrics::{counter, gauge};
use paceline_coordinator::{CacheStatus, DiskCacheStatus, EncoderLoad, Status};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::{Error, Result};
use crate::server::Host;
use crate::serving::{Card, ListedModel, ModelState, Served};
use crate::stage_metrics;

/// What programs know this service by.
pub const SERVICE: &str = "paceline";

/// What `GET /admin/v1/status` answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// [`SERVICE`].
    pub service: String,
    /// The program's version.
    pub version: String,
    /// The model's name.
    pub model: String,
    /// The model's architecture.
    pub architecture: String,
    /// Tokens of one session.
    pub context: usize,
    /// All models, this one among them; what is said of stages below is of this one.
    #[serde(default)]
    pub models: Vec<ModelReport>,
    /// The cluster; empty where everything is one process.
    #[serde(flatten)]
    pub cluster: ClusterCard,
    /// What the service is doing.
    #[serde(flatten)]
    pub status: Status,
}

/// One of the models of a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelReport {
    /// Its name.
    pub id: String,
    /// Other names that mean it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// What it makes: `texts`, `vectors` or `scores`.
    pub kind: String,
    /// How far it is.
    pub state: ModelState,
    /// Bytes of memory that it has, or would have.
    pub memory_bytes: u64,
    /// Requests that are being answered.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
}

/// What is known of a cluster besides what its row does.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterCard {
    /// The nodes that belong to it, those without a stage too.
    #[serde(default)]
    pub nodes: Vec<NodeCard>,
    /// The change of the row that is under way, and how far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<String>,
}

/// A node of a cluster, as a planner wants to know it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeCard {
    /// Its name.
    pub node: String,
    /// Its host. Two hosts of the same name are told apart here.
    pub host: String,
    /// Its device: `cpu`.
    pub device: String,
    /// Threads that compute.
    pub threads: usize,
    /// Bytes that may be planned with.
    pub memory_bytes: u64,
    /// That is what its host has free, for all nodes there that say so.
    pub shares_memory: bool,
    /// Bytes it reads per second, where it was measured.
    pub read: Option<f64>,
    /// Multiply-adds of integers it makes per second, where it was measured.
    pub products: Option<f64>,
    /// It is used only when others are too few.
    pub standby: bool,
    /// It is not used until it is added again.
    #[serde(default)]
    pub drained: bool,
}

/// Whether requests are served, for whoever sends them.
#[utoipa::path(
    get,
    path = "/health",
    responses(
        (status = 200, description = "How it is", body = Object),
        (status = 503, description = "Requests are not served now", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn health(host: web::Data<Host>) -> Result<HttpResponse> {
    let (mut ready, mut draining, mut running, mut waiting) = (true, false, 0, 0);
    for load in loads(&host.models.list()).await? {
        (ready, draining) = (ready && load.ready, draining || load.draining);
        (running, waiting) = (running + load.running, waiting + load.waiting);
    }
    let (code, status) = match (ready, draining) {
        (true, _) => (StatusCode::OK, "ok"),
        (false, true) => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        (false, false) => (StatusCode::SERVICE_UNAVAILABLE, "loading"),
    };
    Ok(HttpResponse::build(code).json(json!({ "status": status, "running": running, "waiting": waiting })))
}

/// What a model has to do at this moment.
struct Load {
    ready: bool,
    draining: bool,
    running: usize,
    waiting: usize,
}

/// The loads of all models, in their order; one that is not loaded has nothing to do, and is ready to be asked for.
async fn loads(models: &[ListedModel]) -> Result<Vec<Load>> {
    let mut loads = Vec::with_capacity(models.len());
    for model in models {
        loads.push(match &model.served {
            None => Load { ready: true, draining: false, running: 0, waiting: 0 },
            Some(Served::Texts(engine)) => match engine.status().await {
                Ok(Status { ready, draining, running, waiting, .. }) => Load { ready, draining, running, waiting },
                // One of several may have been let go a moment ago.
                Err(_) if models.len() > 1 => Load { ready: true, draining: false, running: 0, waiting: 0 },
                Err(error) => return Err(error.into()),
            },
            Some(Served::Vectors(embedder)) => {
                let EncoderLoad { running, waiting, draining } = embedder.load();
                Load { ready: !draining, draining, running, waiting }
            }
        });
    }
    Ok(loads)
}

/// What the first model that is loaded and writes texts is doing. Without one there is nothing to tell of stages.
async fn first_status(models: &[ListedModel]) -> Result<Status> {
    let engine = models.iter().find_map(|model| match &model.served {
        Some(Served::Texts(engine)) => Some(engine),
        _ => None,
    });
    match engine {
        Some(engine) => match engine.status().await {
            Err(_) if models.len() > 1 => Ok(Status { ready: true, ..Status::default() }),
            status => Ok(status?),
        },
        None => Ok(Status { ready: true, ..Status::default() }),
    }
}

/// Whether the service answers at all, for whoever would start it again: it may wait for shards.
#[utoipa::path(
    get,
    path = "/live",
    responses(
        (status = 200, description = "How it is", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn live(host: web::Data<Host>) -> Result<HttpResponse> {
    loads(&host.models.list()).await?;
    Ok(HttpResponse::Ok().json(json!({ "status": "alive" })))
}

/// What every stage holds and does, for people and programs that look after it.
#[utoipa::path(
    get,
    path = "/admin/v1/status",
    responses(
        (status = 200, description = "How it is", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn report(host: web::Data<Host>) -> Result<HttpResponse> {
    let models = host.models.list();
    let (status, loads) = (first_status(&models).await?, loads(&models).await?);
    let writes = |model: &&ListedModel| matches!(model.card, Card::Texts(_));
    let loaded = models.iter().filter(writes).find(|model| model.served.is_some());
    let first = loaded.or(models.iter().find(writes)).or(models.first());
    let (architecture, context) = match first.map(|model| &model.card) {
        Some(Card::Texts(card)) => (card.architecture.clone(), card.context),
        Some(Card::Vectors(card)) => (card.architecture.clone(), card.context),
        None => Default::default(),
    };
    Ok(HttpResponse::Ok().json(StatusReport {
        service: SERVICE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        model: first.map_or_else(String::new, |model| model.card.id().to_owned()),
        architecture,
        context,
        models: models.iter().zip(loads).map(|(model, load)| ModelReport::new(model, &load)).collect(),
        cluster: host.config.cluster.as_ref().map(|cluster| cluster.borrow().clone()).unwrap_or_default(),
        status,
    }))
}

impl ModelReport {
    fn new(model: &ListedModel, load: &Load) -> Self {
        Self {
            id: model.card.id().to_owned(),
            aliases: model.card.aliases().to_vec(),
            kind: model.card.kind().to_owned(),
            state: model.state,
            memory_bytes: model.memory_bytes,
            running: load.running,
            waiting: load.waiting,
        }
    }
}

/// All metrics of the process, in the text form of Prometheus.
#[utoipa::path(
    get,
    path = "/metrics",
    responses(
        (status = 200, description = "The metrics", body = String, content_type = "text/plain"),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn metrics(host: web::Data<Host>, request: HttpRequest) -> Result<HttpResponse> {
    let Some(handle) = &host.config.metrics else {
        return Err(Error::UnknownRoute { method: request.method().clone(), path: request.path().to_owned() });
    };
    let models = host.models.list();
    let status = first_status(&models).await?;
    measure(&status);
    models.iter().zip(loads(&models).await?).for_each(|(model, load)| measure_model(model, &load));
    let text = handle.render() + &stage_metrics::render(&status);
    Ok(HttpResponse::Ok().content_type("text/plain; version=0.0.4; charset=utf-8").body(text))
}

/// The state of the engine at this moment.
fn measure(status: &Status) {
    gauge!("paceline_sessions_running").set(status.running as f64);
    gauge!("paceline_sessions_waiting").set(status.waiting as f64);
    gauge!("paceline_pages_used").set(status.pages_used as f64);
    gauge!("paceline_pages").set(status.pages as f64);
    gauge!("paceline_pages_reserved").set(status.pages_reserved as f64);
    gauge!("paceline_slots").set(status.slots as f64);
    gauge!("paceline_steps_in_flight").set(status.steps_in_flight as f64);
    gauge!("paceline_credits").set(status.credits as f64);
    gauge!("paceline_epoch").set(f64::from(status.epoch));
    gauge!("paceline_ready").set(f64::from(u8::from(status.ready)));
    counter!("paceline_prefill_tokens_total").absolute(status.prefill_tokens);
    counter!("paceline_decode_tokens_total").absolute(status.decode_tokens);
    counter!("paceline_steps_total").absolute(status.steps);
    counter!("paceline_sessions_admitted_total").absolute(status.admitted);
    counter!("paceline_sessions_paused_total").absolute(status.pauses);
    counter!("paceline_drafts_total").absolute(status.drafts.run);
    counter!("paceline_drafts_accepted_total").absolute(status.drafts.accepted);
    counter!("paceline_drafts_declined_total").absolute(status.drafts.declined);
    counter!("paceline_draft_chunks_total").absolute(status.drafts.chunks);
    counter!("paceline_draft_chunks_sent_ahead_total").absolute(status.drafts.sent_ahead);
    counter!("paceline_draft_chunks_void_total").absolute(status.drafts.void);
    measure_cache(&status.cache);
}

/// One of the models at this moment.
fn measure_model(model: &ListedModel, load: &Load) {
    let id = model.card.id().to_owned();
    let loaded = if model.state == ModelState::Loaded { 1.0 } else { 0.0 };
    gauge!("paceline_model_loaded", "model" => id.clone()).set(loaded);
    gauge!("paceline_model_memory_bytes", "model" => id.clone()).set(model.memory_bytes as f64);
    gauge!("paceline_model_requests_running", "model" => id.clone()).set(load.running as f64);
    gauge!("paceline_model_requests_waiting", "model" => id).set(load.waiting as f64);
}

fn measure_disk(disk: &DiskCacheStatus) {
    gauge!("paceline_cache_entries", "tier" => "disk", "kind" => "entry").set(disk.entries as f64);
    gauge!("paceline_cache_bytes", "tier" => "disk", "kind" => "entry").set(disk.bytes as f64);
    gauge!("paceline_cache_budget_bytes", "tier" => "disk").set(disk.budget as f64);
    counter!("paceline_cache_hits_total", "tier" => "disk").absolute(disk.hits);
    counter!("paceline_cache_tokens_total", "tier" => "disk").absolute(disk.tokens);
    counter!("paceline_cache_evictions_total", "tier" => "disk", "kind" => "entry").absolute(disk.evicted);
    counter!("paceline_cache_damaged_total", "tier" => "disk").absolute(disk.damaged);
    counter!("paceline_cache_kept_total", "tier" => "disk").absolute(disk.kept);
    counter!("paceline_cache_not_kept_total", "tier" => "disk").absolute(disk.not_kept);
    counter!("paceline_cache_fetched_total", "tier" => "disk").absolute(disk.fetched);
    counter!("paceline_cache_not_fetched_total", "tier" => "disk").absolute(disk.not_fetched);
}

/// What is remembered, by where it is.
fn measure_cache(cache: &CacheStatus) {
    gauge!("paceline_cache_entries", "tier" => "device", "kind" => "page").set(cache.pages as f64);
    gauge!("paceline_cache_entries", "tier" => "device", "kind" => "snapshot").set(cache.snapshots as f64);
    gauge!("paceline_cache_bytes", "tier" => "device", "kind" => "page").set(cache.page_bytes as f64);
    gauge!("paceline_cache_bytes", "tier" => "device", "kind" => "snapshot").set(cache.snapshot_bytes as f64);
    gauge!("paceline_cache_idle_pages", "tier" => "device").set(cache.idle_pages as f64);
    gauge!("paceline_cache_snapshot_slots", "tier" => "device").set(cache.snapshot_slots as f64);
    let disk = cache.disk.unwrap_or_default();
    counter!("paceline_cache_hits_total", "tier" => "device").absolute(cache.hits.saturating_sub(disk.hits));
    counter!("paceline_cache_tokens_total", "tier" => "device")
        .absolute(cache.cached_tokens.saturating_sub(disk.tokens));
    if let Some(disk) = &cache.disk {
        measure_disk(disk);
    }
    let snapshots = cache.evicted_snapshots + cache.stranded_snapshots;
    counter!("paceline_cache_evictions_total", "tier" => "device", "kind" => "page").absolute(cache.evicted_pages);
    counter!("paceline_cache_evictions_total", "tier" => "device", "kind" => "snapshot").absolute(snapshots);
    counter!("paceline_cache_lookups_total").absolute(cache.lookups);
    counter!("paceline_cache_reread_tokens_total").absolute(cache.reread_tokens);
}
