//! The disk tier of a row without actors: real folders, a real thread, and a row that waits for neither.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use paceline_core::disk::ORDERS;
use paceline_proto::{TierAnswer, TierOrder, TierTask};
use paceline_shard::{DiskTier, SharedStage, StageTier};
use paceline_tier::Store;

/// Far longer than anything takes.
const WAIT: Duration = Duration::from_secs(100);
const STAGING: u64 = 64 << 20;

/// The tier of a process with all stages of a row.
pub(crate) struct Disks {
    stages: Vec<StageTier>,
    answers: Receiver<(usize, TierAnswer)>,
    /// Orders that are not answered.
    waiting: usize,
}

impl Disks {
    /// Opens the folder for these stages.
    pub(crate) fn open(folder: &Path, budget: u64, stages: &[SharedStage]) -> Self {
        let tier = DiskTier::start(Store::open(folder, budget).expect("the folder"), STAGING).expect("a thread");
        let (sender, answers) = sync_channel(ORDERS * stages.len());
        let attach = |(index, stage): (usize, &SharedStage)| {
            let sender: SyncSender<_> = sender.clone();
            // Nobody listens to a row that is over.
            tier.attach(stage, None, move |answer| drop(sender.send((index, answer)))).expect("it runs")
        };
        Self { stages: stages.iter().enumerate().map(attach).collect(), answers, waiting: 0 }
    }

    /// Gives an order to a stage's tier, as bytes.
    pub(crate) fn order(&mut self, stage: usize, order: &TierOrder) {
        self.waiting += usize::from(order.task != TierTask::Drop);
        self.stages[stage].order(TierOrder::decode(&order.encode()).expect("it survives the wire"));
    }

    /// An answer, if there is one; where `wait`, the next one there will be.
    pub(crate) fn answer(&mut self, wait: bool) -> Option<(usize, TierAnswer)> {
        let answer = match wait && self.waiting > 0 {
            true => Some(self.answers.recv_timeout(WAIT).expect("every order is answered")),
            false => self.answers.try_recv().ok(),
        };
        let (stage, answer) = answer?;
        self.waiting -= 1;
        Some((stage, TierAnswer::decode(&answer.encode()).expect("it survives the wire")))
    }
}
