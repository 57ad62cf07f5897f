//! The stage's thread: receives a frame, runs it, sends it on. It ends when the link before it closes, or with
//! the first failure, of which it tells the coordinator.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;

use paceline_proto::Reply;
use paceline_transport::{FrameReceiver, FrameSender, ReplySender};
use tracing::{debug, error, trace_span};

use crate::stage::{Passed, Stage};
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

/// Starts the thread of a stage.
///
/// # Errors
/// When the system has no thread left.
pub fn start(stage: Stage, links: Links) -> Result<JoinHandle<()>> {
    let name = format!("paceline-stage-{}", stage.place().index);
    std::thread::Builder::new().name(name).spawn(move || run(stage, links)).map_err(Error::Thread)
}

fn run(mut stage: Stage, mut links: Links) {
    let index = stage.place().index;
    // A panic in a kernel must reach the coordinator as a failure of this stage, not as silence.
    let ended = catch_unwind(AssertUnwindSafe(|| run_until_closed(&mut stage, &mut links)));
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

fn run_until_closed(stage: &mut Stage, links: &mut Links) -> Result<()> {
    while let Ok(frame) = links.from.receive() {
        let span = trace_span!("step", id = frame.step.id.0, stage = stage.place().index);
        let _entered = span.enter();
        match (stage.run(frame)?, &mut links.to) {
            (Passed::On(frame), Some(next)) => next.send(frame)?,
            (Passed::Done(done), _) => links.replies.reply(Reply::Done(done))?,
            (Passed::On(_), None) => unreachable!("only the tail has no next stage"),
        }
        stage.sent();
    }
    Ok(())
}
