//! The stage's thread: receives a frame, runs it, sends it on. It ends when the link before it closes, or with
//! the first failure, of which it tells the coordinator.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use paceline_proto::Reply;
use paceline_transport::{FrameReceiver, FrameSender, ReplySender};
use tracing::{debug, error, trace_span};

use crate::stage::{Passed, SharedStage};
use crate::{Error, Result};

/// The links around a stage.
pub struct Links {
    /// Frames from the stage before, or from the coordinator.
    pub from: Box<dyn FrameReceiver>,
    /// Frames to the stage behind; the tail has none.
    pub to: Option<Box<dyn FrameSender>>,
    /// Results and failures to the coordinator.
    pub replies: Box<dyn ReplySender>,
}

/// Starts the thread of a stage. It has the stage while it runs a frame, leaves it to others in between, and closes it
/// when it ends.
///
/// # Errors
/// When the system has no thread left.
pub fn start(stage: SharedStage, links: Links) -> Result<JoinHandle<()>> {
    let index = stage.place().index;
    let thread = std::thread::Builder::new().name(format!("paceline-stage-{index}"));
    thread.spawn(move || run(index, &stage, links)).map_err(Error::Thread)
}

fn run(index: usize, stage: &SharedStage, mut links: Links) {
    // A panic in a kernel must reach the coordinator as a failure of this stage, not as silence.
    let ended = catch_unwind(AssertUnwindSafe(|| run_until_closed(index, stage, &mut links)));
    stage.close();
    let reason = match ended {
        // Links close when the row is taken down, from the head to the tail or from the coordinator's side.
        Ok(Ok(()) | Err(Error::Link(paceline_transport::Error::Closed))) => {
            return debug!(stage = index, "stage ended");
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the stage's thread panicked".to_owned(),
    };
    error!(stage = index, reason, "stage failed");
    if links.replies.reply(Reply::Failed { stage: index, reason }).is_err() {
        debug!(stage = index, "nobody is left to hear of it");
    }
}

fn run_until_closed(index: usize, stage: &SharedStage, links: &mut Links) -> Result<()> {
    while let Ok(frame) = links.from.receive() {
        let span = trace_span!("step", id = frame.step.id.0, stage = index);
        let _entered = span.enter();
        let passed = stage.with(|stage| stage.run(frame))?;
        match (passed, &mut links.to) {
            (Passed::On(frame), Some(next)) => next.send(frame)?,
            (Passed::Done(done), _) => links.replies.reply(Reply::Done(done))?,
            (Passed::On(_), None) => unreachable!("only the tail has no next stage"),
        }
        stage.with(|stage| {
            stage.sent();
            Ok(())
        })?;
    }
    Ok(())
}
