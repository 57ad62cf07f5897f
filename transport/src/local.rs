//! Links inside one process: bounded channels that move frames as values.

use crossbeam_channel::{Receiver, Sender, TrySendError};
use paceline_proto::{Frame, Reply};
use tokio::sync::mpsc;

use crate::link::{FrameReceiver, FrameSender, ReplySender};
use crate::{Error, Result};

/// Makes a link that holds up to `frames` frames; `frames` is at least the number of credits in the row.
pub fn link(frames: usize) -> (LocalSender, LocalReceiver) {
    let (sender, receiver) = crossbeam_channel::bounded(frames);
    (LocalSender(sender), LocalReceiver(receiver))
}

/// Makes the way back to the coordinator. The receiving end belongs to an asynchronous task.
pub fn replies(replies: usize) -> (LocalReplies, mpsc::Receiver<Reply>) {
    let (sender, receiver) = mpsc::channel(replies);
    (LocalReplies(sender), receiver)
}

/// Sends frames within the process.
#[derive(Debug)]
pub struct LocalSender(Sender<Frame>);

/// Receives frames within the process.
#[derive(Debug)]
pub struct LocalReceiver(Receiver<Frame>);

/// Sends replies within the process; every stage has a clone, to say when it fails.
#[derive(Debug, Clone)]
pub struct LocalReplies(mpsc::Sender<Reply>);

impl FrameSender for LocalSender {
    fn send(&mut self, frame: Frame) -> Result<()> {
        self.0.try_send(frame).map_err(|error| match error {
            TrySendError::Full(_) => Error::Full { frames: self.0.len() },
            TrySendError::Disconnected(_) => Error::Closed,
        })
    }
}

impl FrameReceiver for LocalReceiver {
    fn receive(&mut self) -> Result<Frame> {
        self.0.recv().map_err(|_| Error::Closed)
    }
}

impl ReplySender for LocalReplies {
    fn reply(&mut self, reply: Reply) -> Result<()> {
        self.0.try_send(reply).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Error::Full { frames: self.0.max_capacity() },
            mpsc::error::TrySendError::Closed(_) => Error::Closed,
        })
    }
}

#[cfg(test)]
mod tests {
    use paceline_proto::{Epoch, Payload, Step, StepId};

    use super::*;

    fn frame(id: u64) -> Frame {
        let step = Step { epoch: Epoch(1), id: StepId(id), operations: vec![], chunks: vec![] };
        Frame { step, payload: Payload::empty(), times: vec![] }
    }

    #[test]
    fn frames_arrive_in_order_until_the_sender_is_gone() {
        let (mut sender, mut receiver) = link(3);
        for id in 0..3 {
            sender.send(frame(id)).expect("there is room");
        }
        drop(sender);
        for id in 0..3 {
            assert_eq!(receiver.receive(), Ok(frame(id)));
        }
        assert_eq!(receiver.receive(), Err(Error::Closed));
    }

    #[test]
    fn a_full_link_refuses_instead_of_waiting() {
        let (mut sender, receiver) = link(1);
        sender.send(frame(0)).expect("there is room");
        assert_eq!(sender.send(frame(1)), Err(Error::Full { frames: 1 }));
        drop(receiver);
        assert_eq!(sender.send(frame(2)), Err(Error::Closed));
    }

    #[test]
    fn replies_are_bounded_and_end_with_the_coordinator() {
        let (mut sender, receiver) = replies(1);
        let failed = Reply::Failed { stage: 0, reason: "test".into() };
        sender.reply(failed.clone()).expect("there is room");
        assert_eq!(sender.reply(failed.clone()), Err(Error::Full { frames: 1 }));
        drop(receiver);
        assert_eq!(sender.reply(failed), Err(Error::Closed));
    }
}
