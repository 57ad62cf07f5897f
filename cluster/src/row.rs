//! A row of stages in this process: loads them, links them, starts their actors and the coordinator.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::simd::Isa;
use paceline_compute::device::{Description, Device, MemorySpec, MemoryUse};
use paceline_coordinator::actor::Control;
use paceline_coordinator::placement::{MemoryBytes, StageMemory};
use paceline_coordinator::{Engine, LinkCard, ModelCard, Placed, Service, Shards, StageCard};
use paceline_core::Limits;
use paceline_core::disk::ORDERS;
use paceline_core::drafts::DraftSettings;
use paceline_core::planner::{Memory, Placement, StagePlan};
use paceline_gguf::{Gguf, ModelShape};
use paceline_model::{Overrides, StageLayers};
use paceline_proto::{Epoch, SessionId, TierOrder};
use paceline_shard::actor::{self, Shard};
use paceline_shard::worker::Links;
use paceline_shard::{DiskTier, Drafter, Feedback, Place, SharedStage, Stage, StageTier, feedback};
use paceline_text::{ChatTemplate, Tokenizer};
use paceline_transport::local;
use tokio::sync::{mpsc, watch};
use tracing::warn;

use crate::devices::Gpu;
use crate::{cli, disk, host, tail};

/// Threads of the runtime: they only wait for sockets and timers.
const WORKERS: usize = 2;
/// The node of stages that run in the coordinator's process.
const LOCAL_NODE: &str = "local";

/// Everything that a row is made from.
pub(crate) struct Plan {
    /// The model.
    pub(crate) model: Arc<Gguf>,
    /// Its names, first the one it reports.
    pub(crate) names: Vec<String>,
    /// What the command line changes of its settings.
    pub(crate) overrides: Overrides,
    /// Which drafts sessions have.
    pub(crate) drafts: DraftSettings,
    /// Which layers go where.
    pub(crate) placement: Placement,
    /// Every bound.
    pub(crate) limits: Limits,
    /// How keys and values are stored, and how much of them.
    pub(crate) memory: MemorySpec,
    /// Kernels, if the best are not wanted.
    pub(crate) isa: Option<cli::Isa>,
    /// What computes in place of this host's cores.
    pub(crate) gpu: Option<Gpu>,
    /// Keep every thread on a core of its own, if there are enough.
    pub(crate) pin: bool,
    /// A chat template instead of the model's.
    pub(crate) template: Option<String>,
    /// Show a progress bar.
    pub(crate) progress: bool,
    /// What of the stages' memory is kept on disk.
    pub(crate) disk: Option<DiskTier>,
}

impl Plan {
    /// The cores of a stage's threads: neighbours, and no other stage's. `None` if threads are not pinned.
    fn cores_of(&self, index: usize) -> Result<Option<Vec<usize>>> {
        if !self.pin {
            return Ok(None);
        }
        let stages = &self.placement.stages;
        let threads = |stages: &[StagePlan]| stages.iter().map(|stage| stage.threads).sum::<usize>();
        let (all, first) = (threads(stages), threads(&stages[..index]));
        let cores = host::core_numbers().context("--pin: the system does not say which cores there are")?;
        let own = cores.get(first..first + stages[index].threads);
        let own = own.with_context(|| format!("--pin: {all} threads need as many cores, there are {}", cores.len()))?;
        Ok(Some(own.to_vec()))
    }
}

/// A stage as it was loaded.
#[derive(Debug, Clone)]
struct LoadedAs {
    /// Its layers.
    layers: Range<usize>,
    /// Its device.
    device: Description,
    /// What it occupies.
    memory: MemoryUse,
}

/// Stages in memory, not yet running.
pub(crate) struct Loaded {
    plan: Plan,
    stages: Vec<Stage>,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    /// What is known of each stage.
    pub(crate) cards: Vec<StageCard>,
}

/// A row at work.
pub(crate) struct Running {
    /// What answers.
    pub(crate) engine: Engine,
    /// Drains and stops it.
    pub(crate) control: Control,
    /// One per stage: true when its thread has ended.
    ended: Vec<watch::Receiver<bool>>,
}

/// The actors' system: they live on the calling thread, everything else on the workers of the runtime.
pub(crate) fn system() -> Result<actix::SystemRunner> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(WORKERS).enable_all().build().context("cannot start the runtime")?;
    Ok(actix::System::with_tokio_rt(|| runtime))
}

/// Loads every stage of the plan, all at once.
pub(crate) fn load(plan: Plan) -> Result<Loaded> {
    let tokenizer = Arc::new(Tokenizer::from_gguf(&plan.model).context("cannot use the model's vocabulary")?);
    let template = chat_template(&plan.model, plan.template.as_deref(), &tokenizer)?;
    let drafts = plan.model.draft().map_or(0, Gguf::tensor_bytes);
    let bar = progress_bar("loading", plan.model.tensor_bytes() + drafts, plan.progress);
    let count = plan.placement.stages.len();
    let mut feedbacks = feedbacks(count, plan.limits.credits * plan.limits.step_wanted);
    let loaded: Vec<Result<(Stage, LoadedAs)>> = std::thread::scope(|scope| {
        let threads = (0..count).map(|index| {
            let feedback = feedbacks[index].take().unwrap_or_else(Feedback::own);
            let (plan, bar, tokenizer) = (&plan, &bar, &*tokenizer);
            scope.spawn(move || load_stage(plan, index, feedback, tokenizer, bar))
        });
        let threads: Vec<_> = threads.collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a thread that loaded a stage panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    bar.finish_and_clear();
    let (stages, loaded): (Vec<_>, Vec<_>) = loaded.into_iter().collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let cards = loaded.iter().enumerate().map(|(index, loaded)| stage_card(&plan, index, loaded)).collect();
    Ok(Loaded { plan, stages, tokenizer, template, cards })
}

fn load_stage(
    plan: &Plan,
    index: usize,
    feedback: Feedback,
    tokenizer: &Tokenizer,
    bar: &ProgressBar,
) -> Result<(Stage, LoadedAs)> {
    let part = &plan.placement.stages[index];
    let layers = StageLayers { layers: part.layers.clone(), first: part.first, last: part.last };
    let drafter = plan.placement.drafter.and_then(|drafter| drafter.at(part.last));
    let program = tail::record(&plan.model, &layers, &plan.overrides, drafter)?;
    let device = stage_device(plan, index)?;
    let mut progress = |bytes| bar.inc(bytes);
    let loaded = device
        .load(program, &plan.model, plan.memory, &mut progress)
        .with_context(|| format!("cannot load stage {index}"))?;
    let place = Place { index, first: part.first, last: part.last, epoch: Epoch::default() };
    let mut stage = Stage::new(place, loaded, feedback);
    if place.last {
        stage = tail::with_speller(stage, tokenizer);
    }
    if let Some(drafter) = drafter.filter(|_| part.last) {
        stage = tail::with_drafter(stage, drafter, device.as_ref(), &plan.model, &plan.overrides, &mut progress)?;
    }
    let memory = stage.memory_use();
    Ok((stage, LoadedAs { layers: part.layers.clone(), device: device.describe(), memory }))
}

/// What a stage is loaded on.
fn stage_device(plan: &Plan, index: usize) -> Result<Arc<dyn Device>> {
    Ok(match &plan.gpu {
        Some(gpu) => Arc::clone(&gpu.device) as _,
        None => Arc::new(device(plan, index)?),
    })
}

/// The threads of a stage. To be called from a thread that no device has pinned yet.
pub(crate) fn device(plan: &Plan, index: usize) -> Result<CpuDevice> {
    let isa = plan.isa.map(kernels);
    Ok(match plan.cores_of(index)? {
        Some(cores) => CpuDevice::on_cores(&cores, isa)?,
        None => CpuDevice::new(plan.placement.stages[index].threads, isa)?,
    })
}

/// The way back from the tail to the head, if they are not the same stage.
fn feedbacks(stages: usize, results: usize) -> Vec<Option<Feedback>> {
    let mut ends: Vec<Option<Feedback>> = (0..stages).map(|_| None).collect();
    if stages > 1 {
        let (head, tail) = feedback(results);
        ends[0] = Some(head);
        ends[stages - 1] = Some(tail);
    }
    ends
}

/// The model's chat template, or the one that replaces it.
pub(crate) fn chat_template(
    model: &Gguf,
    replacement: Option<&str>,
    tokenizer: &Tokenizer,
) -> Result<Option<Arc<ChatTemplate>>> {
    match ChatTemplate::from_gguf(model, replacement, tokenizer) {
        Ok(template) => Ok(Some(Arc::new(template))),
        // A model without a template still completes texts; asking it to chat gives this very error.
        Err(paceline_text::Error::NoChatTemplate) => Ok(None),
        Err(error) if replacement.is_none() => {
            warn!(%error, "the model's chat template cannot be used; give one with --chat-template");
            Ok(None)
        }
        Err(error) => Err(error).context("cannot use the chat template"),
    }
}

/// A bar for so many bytes, if it is to be seen.
pub(crate) fn progress_bar(what: &str, bytes: u64, shown: bool) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    bar.set_draw_target(if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}");
    bar.set_style(style.expect("the template is correct"));
    bar.set_message(what.to_owned());
    bar
}

/// The instruction set that a flag names.
pub(crate) fn kernels(isa: cli::Isa) -> Isa {
    match isa {
        cli::Isa::Scalar => Isa::Scalar,
        cli::Isa::Avx2 => Isa::Avx2,
        cli::Isa::Avx512 => Isa::Avx512,
    }
}

/// The shards of this process, as the coordinator controls them.
struct LocalShards {
    shards: Vec<Shard>,
    /// One for each, or none.
    tiers: Vec<StageTier>,
}

impl Shards for LocalShards {
    fn cancel(&self, session: SessionId) {
        for shard in &self.shards {
            if !shard.cancel(session) {
                // The chunk is then computed in vain; nobody waits for its result.
                warn!(%session, "a shard could not be told of a cancel");
            }
        }
    }

    fn order(&self, stage: usize, order: TierOrder) -> bool {
        self.tiers.get(stage).map(|tier| tier.order(order)).is_some()
    }
}

impl Loaded {
    /// The same row, whose tail makes its drafts with this.
    pub(crate) fn with_drafter(mut self, drafter: Box<dyn Drafter>) -> Result<Self> {
        let tail = self.stages.pop().context("a row has stages")?;
        self.stages.push(tail.with_drafter(drafter)?);
        Ok(self)
    }

    /// Bytes that its stages occupy.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bytes = |card: &StageCard| {
            let MemoryBytes { weights, key_value, states, buffers, .. } = card.memory.actual;
            weights + key_value + states + buffers
        };
        self.cards.iter().map(bytes).sum()
    }

    /// Starts everything; to be called inside a running actix system.
    pub(crate) fn start(self) -> Result<Running> {
        let Loaded { plan, stages, tokenizer, template, cards } = self;
        let drafts = DraftSettings {
            // A draft model that could not be loaded makes none.
            proposals: if stages.iter().any(Stage::has_drafter) { plan.drafts.proposals } else { 0 },
            ..plan.drafts
        };
        let model = model_card(&plan.model, &plan.names, tokenizer.vocabulary_size(), drafts)?;
        let credits = plan.limits.credits;
        // Every stage may say once that it failed, beside the results of all credits.
        let (replies, from_row) = local::replies(credits + stages.len());
        let (head, mut from) = local::link(credits);
        let count = stages.len();
        let (mut shards, mut ended, mut tiers) = (Vec::new(), Vec::new(), Vec::new());
        let (answers, from_tiers) = mpsc::channel(ORDERS * count);
        for (index, stage) in stages.into_iter().enumerate() {
            let (to, next) = local::link(credits);
            let to = (index + 1 < count).then(|| Box::new(to) as _);
            let from = Box::new(std::mem::replace(&mut from, next));
            let stage = SharedStage::new(stage);
            if let Some(disk) = &plan.disk {
                tiers.push(disk.attach(&stage, None, disk::answer_into(answers.clone(), index))?);
            }
            let shard = actor::start(stage, Links { from, to, replies: Box::new(replies.clone()) });
            ended.push(shard.ended.clone());
            shards.push(shard);
        }
        let (engine, control) = paceline_coordinator::actor::start(
            Service { model, tokenizer, template },
            Placed {
                epoch: Epoch::default(),
                // Nobody places another row in its stead.
                limits: Limits { restore_deadline: Duration::ZERO, step_deadline: None, ..plan.limits },
                head: Box::new(head),
                replies: from_row,
                shards: Box::new(LocalShards { shards, tiers }),
                tiers: from_tiers,
                stages: cards,
            },
        );
        Ok(Running { engine, control, ended })
    }
}

/// What the planner reckoned with for a stage.
pub(crate) fn planned_bytes(stage: &StagePlan) -> MemoryBytes {
    let Memory { weights, key_value, states, buffers, reserve, .. } = stage.memory;
    MemoryBytes { weights, key_value, states, buffers, reserve }
}

/// What is known of a stage of this process.
fn stage_card(plan: &Plan, index: usize, loaded: &LoadedAs) -> StageCard {
    let last = index + 1 == plan.placement.stages.len();
    StageCard {
        index,
        node: LOCAL_NODE.to_owned(),
        host: host::name(),
        device: format!("{} ({})", loaded.device.name, loaded.device.detail),
        layers: loaded.layers.clone(),
        memory: StageMemory {
            planned: planned_bytes(&plan.placement.stages[index]),
            actual: MemoryBytes {
                weights: loaded.memory.weights,
                key_value: loaded.memory.pages,
                states: loaded.memory.states,
                buffers: loaded.memory.buffers,
                reserve: 0,
            },
        },
        link: (!last).then(|| LinkCard { carrier: "local".to_owned(), ..LinkCard::default() }),
    }
}

/// What clients may know of a model. Its context and its stages come with the placement.
pub(crate) fn model_card(
    model: &Gguf,
    names: &[String],
    vocabulary: usize,
    drafts: DraftSettings,
) -> Result<ModelCard> {
    let shape = ModelShape::read(model)?;
    let (id, aliases) = names.split_first().context("a model needs a name")?;
    ensure!(vocabulary > 0, "the model's vocabulary is empty");
    let created = seconds_since_1970();
    Ok(ModelCard {
        id: id.clone(),
        aliases: aliases.to_vec(),
        created,
        architecture: model.architecture()?.to_owned(),
        context: shape.context_length,
        trained_context: shape.context_length,
        vocabulary,
        parameters: shape.total().parameters,
        file_bytes: model.file_bytes(),
        stages: 0,
        drafts,
        draft_model: model.draft().filter(|_| drafts.proposals > 0).map(|draft| draft.name().to_owned()),
    })
}

/// Now, as clients want to know when a model was loaded.
pub(crate) fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl Running {
    /// Ends whatever still runs and waits for every stage's thread.
    pub(crate) async fn stop(self) {
        self.control.stop().await;
        drop(self.engine);
        for mut end in self.ended {
            // An error means that the actor itself is gone.
            let _ = end.wait_for(|ended| *ended).await;
        }
    }
}
