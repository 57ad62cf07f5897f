//! The disk tier of this process, on a thread of its own, for all of its stages.
//!
//! Read [`DiskTier`]: a stage is attached, and from then on orders come in through its [`StageTier`] and answers go out
//! through the function that was given. Whoever waits for a session goes first: what is to be fetched overtakes what is to
//! be kept. Both queues are bounded, and an order that finds its queue full is refused at once.
//!
//! What this process does not keep, the tiers of other nodes may: of layers that were theirs before the row was cut in
//! another way ([`sharing`]).

pub mod sharing;
mod staging;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded, select_biased};
use paceline_proto::tiers::LISTED;
use paceline_proto::{
    Entry, EntryKey, KeptEntry, PageId, Slot, Ticket, TierAnswer, TierCounts, TierOrder, TierOutcome, TierRefusal,
    TierTask,
};
use paceline_tier::{Part, Put, Store};
use tracing::{debug, error, warn};

use crate::stage::SharedStage;
use crate::stage::tier::{Outline, OutlineLayer, Staged, StagedLayer};
use crate::{Error, Result};

use sharing::{Elsewhere, Others, Request};
pub(crate) use staging::StageStaging;
use staging::Staging;

/// Entries that wait to be kept. Nobody waits for them; the coordinator offers again what found no place.
const PATIENT: usize = 64;
/// Orders that somebody waits for: at most a few for each session that is being admitted.
const URGENT: usize = 256;

/// The tier's thread, as the rest of the process sees it. Cheap to clone. With the last one and the last [`StageTier`]
/// the thread ends, after the order it is at, which is waited for: then the folder is free. Orders that wait are not
/// answered any more.
#[derive(Clone)]
pub struct DiskTier(Arc<Thread>);

struct Thread {
    /// Until the thread is to end.
    queues: Option<Queues>,
    ending: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
    staging: Staging,
    skipped: Arc<AtomicU64>,
    store: SharedStore,
}

/// The store, which other nodes read as well. Nobody has it while he waits for them.
#[derive(Clone)]
struct SharedStore(Arc<Mutex<Store>>);

impl SharedStore {
    /// Whatever somebody was at when he panicked: the store's changes are whole or not at all.
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Queues {
    urgent: Sender<Job>,
    patient: Sender<Job>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        drop(self.queues.take());
        if self.handle.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the thread of the disk tier panicked");
        }
    }
}

/// What orders of a stage are told.
type Answer = Arc<dyn Fn(TierAnswer) + Send + Sync>;

/// A stage's way to the tier. When it is dropped, what is staged for the stage is, too.
pub struct StageTier {
    tier: DiskTier,
    attached: Attached,
}

/// What the thread must know of a stage.
#[derive(Clone)]
struct Attached {
    stage: SharedStage,
    outline: Arc<Outline>,
    staging: StageStaging,
    elsewhere: Arc<Mutex<Elsewhere>>,
    answer: Answer,
}

struct Job {
    attached: Attached,
    order: TierOrder,
}

impl DiskTier {
    /// Starts the thread. At most so many bytes are staged at once, of all stages together.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(store: Store, staging_bytes: u64) -> Result<Self> {
        let ((urgent, orders), (patient, later)) = (bounded(URGENT), bounded(PATIENT));
        let (skipped, ending) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (counted, ends) = (Arc::clone(&skipped), Arc::clone(&ending));
        let store = SharedStore(Arc::new(Mutex::new(store)));
        let thread = std::thread::Builder::new().name("paceline-disk".to_owned());
        let own = store.clone();
        let handle = thread.spawn(move || run(&own, &orders, &later, &counted, &ends)).map_err(Error::Thread)?;
        let (queues, staging) = (Some(Queues { urgent, patient }), Staging::new(staging_bytes));
        Ok(Self(Arc::new(Thread { queues, ending, handle: Some(handle), staging, skipped, store })))
    }

    /// What this tier keeps, for another node's; `None` if it does not have it. It may block.
    pub fn give(&self, request: Request) -> Option<Vec<u8>> {
        sharing::give(&mut self.0.store.lock(), request)
    }

    /// Attaches a stage. `others` are asked for what this node does not keep. `answer` is called on the tier's thread, or
    /// where an order is given, and must not wait.
    ///
    /// # Errors
    /// A stage that has ended.
    pub fn attach(
        &self,
        stage: &SharedStage,
        others: Option<Box<dyn Others>>,
        answer: impl Fn(TierAnswer) + Send + Sync + 'static,
    ) -> Result<StageTier> {
        let staging = self.0.staging.of_stage();
        let outline = Arc::new(stage.with(|stage| stage.attach(staging.clone()))?);
        let elsewhere = Arc::new(Mutex::new(Elsewhere::new(others, &outline.form)));
        let attached = Attached { stage: stage.clone(), outline, staging, elsewhere, answer: Arc::new(answer) };
        Ok(StageTier { tier: self.clone(), attached })
    }
}

impl StageTier {
    /// Gives an order. It is answered once, sooner or later; a [`TierTask::Drop`] is not.
    pub fn order(&self, order: TierOrder) {
        let ticket = order.ticket;
        let thread = &self.tier.0;
        let queues = thread.queues.as_ref().expect("they are there as long as the tier is");
        let queue = match order.task {
            TierTask::Drop => return self.attached.staging.drop_ticket(ticket),
            // What was to be kept before is kept before, and then forgotten.
            TierTask::Keep { .. } | TierTask::Forget { .. } => &queues.patient,
            TierTask::Fetch { .. } => {
                self.attached.staging.begin(ticket);
                &queues.urgent
            }
            TierTask::List { .. } | TierTask::Count => &queues.urgent,
        };
        if queue.try_send(Job { attached: self.attached.clone(), order }).is_err() {
            self.attached.staging.drop_ticket(ticket);
            thread.skipped.fetch_add(1, Ordering::Relaxed);
            (self.attached.answer)(TierAnswer { ticket, outcome: TierOutcome::Refused(TierRefusal::Busy) });
        }
    }
}

impl Drop for StageTier {
    fn drop(&mut self) {
        self.attached.staging.drop_all();
    }
}

fn run(store: &SharedStore, urgent: &Receiver<Job>, patient: &Receiver<Job>, skipped: &AtomicU64, ending: &AtomicBool) {
    loop {
        let job = select_biased! {
            recv(urgent) -> job => job,
            recv(patient) -> job => job,
        };
        // Both queues end together, and with them everybody who could wait for an answer.
        let Some(Job { attached, order }) = job.ok().filter(|_| !ending.load(Ordering::Relaxed)) else { break };
        let TierOrder { ticket, task } = order;
        let outcome = attached.carry_out(store, ticket, task, skipped.load(Ordering::Relaxed));
        if let TierOutcome::Refused(refusal) = &outcome {
            debug!(stage = attached.stage.place().index, ticket = ticket.0, %refusal, "the disk tier refuses an order");
            attached.staging.drop_ticket(ticket);
        }
        (attached.answer)(TierAnswer { ticket, outcome });
    }
    if let Err(error) = store.lock().note() {
        warn!(%error, "the disk tier forgets what was used last");
    }
}

/// What is done, or why not.
type Done<T> = std::result::Result<T, TierRefusal>;

impl Attached {
    fn carry_out(&self, store: &SharedStore, ticket: Ticket, task: TierTask, skipped: u64) -> TierOutcome {
        let done = match task {
            TierTask::Keep { entry, pages, state } => self.keep(store, &entry, &pages, state),
            TierTask::Fetch { path, state } => self.fetch(store, ticket, &path, state),
            TierTask::List { root, after } => self.list(store, root, after),
            TierTask::Count => Ok(TierOutcome::Counted(counts(&store.lock(), skipped))),
            TierTask::Forget { root, tokens } => {
                self.elsewhere().forget(root, &tokens);
                store.lock().forget_text(root, &tokens).map(TierOutcome::Forgotten).map_err(|error| broken(&error))
            }
            TierTask::Drop => unreachable!("it is done where it is ordered"),
        };
        done.unwrap_or_else(TierOutcome::Refused)
    }

    /// Copies what is not kept yet out of the stage, and keeps it.
    fn keep(&self, store: &SharedStore, entry: &Entry, pages: &[PageId], state: Option<Slot>) -> Done<TierOutcome> {
        let (key, form) = (entry.key(), &self.outline.form);
        let end = entry.end().ok_or_else(|| TierRefusal::Failed("this is no entry".to_owned()))?;
        let expected = pages_of(entry.start, end, self.outline.page_tokens).len();
        if pages.len() != expected {
            return Err(TierRefusal::Failed(format!("an entry of {expected} pages, {} are given", pages.len())));
        }
        let states = self.outline.recurrent().filter(|_| state.is_some());
        let wanted = self.outline.paged().chain(states);
        let wanted: Vec<&OutlineLayer> = {
            let store = store.lock();
            wanted.filter(|layer| !store.holds(key, form, [layer.layer])).collect()
        };
        let copy = |layer: &&OutlineLayer| Ok((layer.layer, layer.copy_out(&self.stage, pages, state)?));
        let copied: Vec<(u32, Vec<u8>)> =
            wanted.iter().map(copy).collect::<Result<_>>().map_err(|error| failed(&error))?;
        let parts: Vec<Part<'_>> = copied.iter().map(|(layer, bytes)| Part { layer: *layer, bytes }).collect();
        let mut store = store.lock();
        match store.put(entry, form, &parts).map_err(|error| broken(&error))? {
            Put::Kept | Put::Known => Ok(TierOutcome::Kept { evicted: store.take_evicted() }),
            Put::NoRoom => Err(TierRefusal::NoRoom),
        }
    }

    /// Reads entries that follow one another, and stages them.
    fn fetch(&self, store: &SharedStore, ticket: Ticket, path: &[EntryKey], state: bool) -> Done<TierOutcome> {
        // What is missing is told before anything is read, the first of it first: what is behind that is of no use.
        let whole = |key: &EntryKey| {
            let states = self.outline.recurrent().filter(|_| state && path.last() == Some(key));
            self.has(store, *key, self.outline.paged().chain(states))
        };
        if let Some(missing) = path.iter().find(|key| !whole(key)) {
            return Err(TierRefusal::Missing(*missing));
        }
        let (mut layers, mut pages, mut reached, mut adopted) = (Vec::new(), 0..0, None, Vec::new());
        for (index, key) in path.iter().enumerate() {
            let span = store.lock().span(*key).or_else(|| self.elsewhere().span(*key));
            let span = span.ok_or(TierRefusal::Missing(*key))?;
            if reached.is_some_and(|reached| reached != (span.parent, span.start)) {
                return Err(TierRefusal::Failed("entries that do not follow one another".to_owned()));
            }
            let own = pages_of(span.start, span.end, self.outline.page_tokens);
            pages = if index == 0 { own.clone() } else { pages.start..own.end };
            reached = Some((*key, span.end));
            store.lock().touch(*key);
            let states = self.outline.recurrent().filter(|_| state && index + 1 == path.len());
            for layer in self.outline.paged().chain(states) {
                let count = if layer.is_recurrent() { 1 } else { own.len() };
                let (bytes, is_own) = self.read(store, ticket, *key, layer, count * layer.bytes)?;
                if !is_own {
                    adopted.push(layers.len());
                }
                layers.push(StagedLayer { layer: *layer, first_page: own.start - pages.start, bytes });
            }
            self.adopt(store, *key, adopted.drain(..).map(|index| &layers[index]));
        }
        let bytes = layers.iter().map(|layer| layer.bytes.len() as u64).sum();
        let staged = Staged { pages: pages.len(), state, layers };
        if !self.staging.put(ticket, staged) {
            return Err(TierRefusal::Failed("it is no longer wanted".to_owned()));
        }
        Ok(TierOutcome::Staged { bytes })
    }

    /// A layer of an entry, and whether it was kept here.
    fn read(
        &self,
        store: &SharedStore,
        ticket: Ticket,
        key: EntryKey,
        layer: &OutlineLayer,
        expected: usize,
    ) -> Done<(Vec<u8>, bool)> {
        if !self.staging.reserve(ticket, expected as u64) {
            return Err(TierRefusal::NoRoom);
        }
        let mut bytes = Vec::new();
        let read = store.lock().read(key, &self.outline.form, layer.layer, &mut bytes);
        if read.map_err(|error| broken(&error))? && bytes.len() == expected {
            return Ok((bytes, true));
        }
        let fetched = self.elsewhere().fetch(key, layer.layer).filter(|bytes| bytes.len() == expected);
        fetched.map(|bytes| (bytes, false)).ok_or(TierRefusal::Missing(key))
    }

    /// Keeps here what came from other nodes. If there is no room it is fetched again another time.
    fn adopt<'a>(&self, store: &SharedStore, key: EntryKey, layers: impl Iterator<Item = &'a StagedLayer>) {
        let Some(entry) = self.elsewhere().entry(key) else { return };
        let parts: Vec<Part<'_>> = layers.map(|one| Part { layer: one.layer.layer, bytes: &one.bytes }).collect();
        if !parts.is_empty()
            && let Err(error) = store.lock().put(&entry, &self.outline.form, &parts)
        {
            broken(&error);
        }
    }

    /// Are all these layers of an entry here, or known to be elsewhere?
    fn has<'a>(&self, store: &SharedStore, key: EntryKey, mut layers: impl Iterator<Item = &'a OutlineLayer>) -> bool {
        let (store, elsewhere) = (store.lock(), self.elsewhere());
        layers.all(|layer| store.holds(key, &self.outline.form, [layer.layer]) || elsewhere.has(key, layer.layer))
    }

    fn list(&self, store: &SharedStore, root: EntryKey, after: Option<EntryKey>) -> Done<TierOutcome> {
        if after.is_none() {
            self.elsewhere().look(root);
        }
        let own = store.lock().entries(root, after, LISTED).map_err(|error| broken(&error))?;
        let mut found: BTreeMap<EntryKey, Entry> = own.into_iter().map(|entry| (entry.key(), entry)).collect();
        found.extend(self.elsewhere().entries(after, LISTED));
        let found: Vec<(EntryKey, Entry)> = found.into_iter().take(LISTED).collect();
        let next = found.last().filter(|_| found.len() == LISTED).map(|(key, _)| *key);
        let kept = |(key, entry): (EntryKey, Entry)| {
            let state = self.has(store, key, self.outline.recurrent());
            self.has(store, key, self.outline.paged()).then_some(KeptEntry { entry, state })
        };
        Ok(TierOutcome::Listed { entries: found.into_iter().filter_map(kept).collect(), next })
    }

    fn elsewhere(&self) -> MutexGuard<'_, Elsewhere> {
        self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pages of a session in which these tokens lie.
fn pages_of(start: u32, end: u32, page_tokens: usize) -> std::ops::Range<usize> {
    start as usize / page_tokens..(end as usize).div_ceil(page_tokens)
}

fn counts(store: &Store, skipped: u64) -> TierCounts {
    let counts = store.counts();
    TierCounts {
        entries: counts.entries,
        bytes: counts.bytes,
        budget: store.budget(),
        kept_bytes: counts.kept_bytes,
        read_bytes: counts.read_bytes,
        evicted: counts.evicted,
        refused: counts.refused,
        skipped,
    }
}

fn failed(error: &Error) -> TierRefusal {
    TierRefusal::Failed(error.to_string())
}

/// The disk's fault, which whoever runs this must hear of.
fn broken(error: &paceline_tier::Error) -> TierRefusal {
    warn!(%error, "the disk tier cannot do what it should; the service goes on without that");
    TierRefusal::Failed(error.to_string())
}
