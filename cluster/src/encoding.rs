//! A model that reads texts and writes none, in this process: its thread, and what the API sees of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::MemoryUse;
use paceline_coordinator::{Answer, Embedder, EmbedderCard, EncoderLoad, Encodes, Error as EngineError};
use paceline_gguf::{EncoderShape, Gguf, KvType, Pooling};
use paceline_proto::EncodeText;
use paceline_shard::encoder::service::{EncoderThread, Refused};
use paceline_shard::{Encoder, EncoderSettings};
use paceline_text::Tokenizer;
use tokio::sync::watch;

use crate::cli::{ComputeArgs, DeviceChoice, Isa, LayoutArgs, ModelArgs};
use crate::{host, layout, model, row, text};

/// The most tokens of a text if none is asked for: enough for a page, little memory.
const USUAL_CONTEXT: usize = 8192;
/// What buffers take besides rows: scratch of attention, tables.
const SCRATCH: u64 = 32 << 20;
/// Rows of the residual stream's width that buffers have for each token of a step, besides those of the feed-forward network.
const BUFFERS: u64 = 8;
/// How much wider feed-forward networks are than the residual stream, at most, in common models.
const FEED_FORWARD: u64 = 8;

/// How often it is looked whether all are answered.
const DRAIN_POLL: Duration = Duration::from_millis(20);

/// Everything that such a model is loaded from.
pub(crate) struct Plan {
    /// The model.
    pub(crate) model: Arc<Gguf>,
    /// Its names, first the one it reports.
    pub(crate) names: Vec<String>,
    /// What it is.
    pub(crate) shape: EncoderShape,
    settings: EncoderSettings,
    threads: usize,
    isa: Option<Isa>,
    /// Requests that wait; more are refused.
    pub(crate) queue: usize,
    /// Show a progress bar.
    pub(crate) progress: bool,
}

/// Such a model in memory, not yet answering.
pub(crate) struct Loaded {
    encoder: Encoder,
    tokenizer: Arc<Tokenizer>,
    card: EmbedderCard,
    queue: usize,
}

/// Such a model at work.
pub(crate) struct Running {
    /// What answers.
    pub(crate) embedder: Embedder,
    encoder: Arc<LocalEncoder>,
}

/// Is this a model to be read texts with? `pooling` makes one of any model.
pub(crate) fn is_wanted(gguf: &Gguf, pooling: Option<Pooling>) -> Result<bool> {
    Ok(pooling.is_some() || EncoderShape::is_one(gguf)?)
}

/// What is needed to load the model as wished.
pub(crate) fn plan(
    gguf: &Arc<Gguf>,
    arguments: &ModelArgs,
    layout: &LayoutArgs,
    compute: &ComputeArgs,
    pooling: Option<Pooling>,
) -> Result<Plan> {
    ensure!(layout.shards <= 1, "--shards is {}: a model that makes vectors of texts runs in one stage", layout.shards);
    let device = compute.device;
    ensure!(
        !matches!(device, DeviceChoice::Cuda(_)),
        "--device is {device}: a model that makes vectors of texts runs on this host's cores"
    );
    let shape = EncoderShape::read(gguf, pooling)?;
    let settings = EncoderSettings {
        pooling,
        context: layout.ctx.unwrap_or(USUAL_CONTEXT),
        rows: compute.prefill_chunk,
        // Keys and values of short texts cost little; those of long ones are stored as asked for.
        key_value_type: if shape.bidirectional { KvType::F32 } else { layout.key_type() },
        overrides: model::overrides(arguments),
    };
    let threads = layout.threads.unwrap_or_else(host::cores);
    let names = vec![model::name(arguments)];
    let plan =
        Plan { model: Arc::clone(gguf), names, shape, settings, threads, isa: compute.isa, queue: 0, progress: false };
    if let Some(available) = host::available_memory() {
        let (needed, left) = (plan.memory_bytes(), available.saturating_sub(layout::MARGIN));
        ensure!(
            needed <= left,
            "the model needs {}, and this host has {} free; give a smaller --ctx, or a smaller model",
            text::bytes(needed),
            text::bytes(left)
        );
    }
    Ok(plan)
}

impl Plan {
    /// About what it takes: weights, keys and values of the texts of a step, and buffers.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let memory = self.settings.memory(&self.shape);
        let tokens = (memory.pages * memory.page_tokens) as u64;
        let width = self.shape.embedding_length as u64 * size_of::<f32>() as u64;
        let buffers = memory.rows as u64 * width * (BUFFERS + FEED_FORWARD);
        self.shape.packed + tokens * self.shape.key_value_bytes_per_token() + buffers + SCRATCH
    }

    /// What clients may know of it.
    pub(crate) fn card(&self) -> Result<EmbedderCard> {
        let (id, aliases) = self.names.split_first().context("a model needs a name")?;
        let EncoderShape { embedding_length, context_length, vocabulary, pooling, .. } = self.shape;
        Ok(EmbedderCard {
            id: id.clone(),
            aliases: aliases.to_vec(),
            created: row::seconds_since_1970(),
            architecture: self.shape.architecture.clone(),
            context: self.settings.context_of(&self.shape),
            trained_context: context_length,
            vocabulary,
            parameters: self.shape.total.parameters,
            file_bytes: self.model.file_bytes(),
            dimensions: embedding_length,
            pooling: pooling.name().to_owned(),
            ranks: pooling == Pooling::Rank,
        })
    }
}

/// Loads the model of the plan.
pub(crate) fn load(plan: &Plan) -> Result<Loaded> {
    let tokenizer = Arc::new(Tokenizer::from_gguf(&plan.model).context("cannot use the model's vocabulary")?);
    let device = CpuDevice::new(plan.threads, plan.isa.map(row::kernels))?;
    let bar = row::progress_bar("loading", plan.model.tensor_bytes(), plan.progress);
    let loaded = Encoder::load(&device, &plan.model, &plan.settings, &mut |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let encoder = loaded.context("cannot load the model")?;
    Ok(Loaded { encoder, tokenizer, card: plan.card()?, queue: plan.queue })
}

impl Loaded {
    /// Bytes it occupies.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let MemoryUse { weights, pages, states, buffers } = self.encoder.memory_use();
        weights + pages + states + buffers
    }

    /// Starts its thread.
    pub(crate) fn start(self) -> Result<Running> {
        let thread = EncoderThread::start(self.encoder, self.queue)?;
        let (ended, queue) = (thread.ended.clone(), self.queue);
        let thread = Mutex::new(Some(thread));
        let encoder = Arc::new(LocalEncoder { thread, ended, queue, draining: AtomicBool::new(false) });
        let encodes = Arc::clone(&encoder) as Arc<dyn Encodes>;
        Ok(Running { embedder: Embedder::new(self.card, self.tokenizer, encodes), encoder })
    }
}

impl Running {
    /// True when its thread has ended.
    pub(crate) fn ended(&self) -> watch::Receiver<bool> {
        self.encoder.ended.clone()
    }

    /// Lets it finish what it has begun.
    pub(crate) fn drainer(&self) -> Drainer {
        Drainer(Arc::clone(&self.encoder))
    }

    /// Lets the thread end, whoever still knows it, and waits for that. What was asked before is answered.
    pub(crate) async fn stop(self) {
        let mut ended = self.ended();
        drop(self.encoder.thread().take());
        // An error means that the thread is gone already.
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// Lets a model finish what it has begun.
pub(crate) struct Drainer(Arc<LocalEncoder>);

impl Drainer {
    /// Lets nobody in any more, and waits until all are answered.
    pub(crate) async fn drain(self) {
        self.0.draining.store(true, Ordering::Relaxed);
        while self.0.open().0 > 0 {
            tokio::time::sleep(DRAIN_POLL).await;
        }
    }
}

/// The thread, as the API asks it.
struct LocalEncoder {
    /// Until it is to end.
    thread: Mutex<Option<EncoderThread>>,
    ended: watch::Receiver<bool>,
    queue: usize,
    draining: AtomicBool,
}

impl LocalEncoder {
    /// It is whole whatever somebody was at when he panicked.
    fn thread(&self) -> MutexGuard<'_, Option<EncoderThread>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests that are not answered yet, and those of them that wait.
    fn open(&self) -> (usize, usize) {
        self.thread().as_ref().map_or((0, 0), EncoderThread::open)
    }
}

impl Encodes for LocalEncoder {
    fn encode(&self, texts: Vec<EncodeText>) -> Answer<Vec<Vec<f32>>> {
        let is_open = !self.draining.load(Ordering::Relaxed);
        let asked = self.thread().as_ref().filter(|_| is_open).map(|thread| thread.ask(texts));
        let Some(asked) = asked else { return Box::pin(std::future::ready(Err(EngineError::ShuttingDown))) };
        let limit = self.queue;
        Box::pin(async move {
            let lost = |reason: &str| EngineError::Lost { reason: reason.to_owned() };
            let answer = asked.map_err(|refused| match refused {
                Refused::Full { waiting } => EngineError::QueueFull { waiting, limit },
                Refused::Ended => lost("the model has ended"),
            })?;
            match answer.await {
                Ok(Ok(vectors)) => Ok(vectors),
                Ok(Err(reason)) => Err(lost(&reason)),
                Err(_) => Err(lost("the model ended before it answered")),
            }
        })
    }

    fn load(&self) -> EncoderLoad {
        let (open, waiting) = self.open();
        let draining = self.draining.load(Ordering::Relaxed);
        EncoderLoad { running: open.saturating_sub(waiting), waiting, draining }
    }
}
