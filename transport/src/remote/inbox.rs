//! What a link's reader does with the bytes that it reads.

use std::sync::Arc;

use bytes::Bytes;
use crossbeam_channel::Sender;
use paceline_proto::frame::Header;
use paceline_proto::{Epoch, Frame, Reply};
use tokio::sync::{mpsc, oneshot};

use super::Terms;
use crate::{Error, LinkCounters, Result};

/// Takes whole messages, checks them and hands them on without ever waiting.
pub(super) struct Inbox {
    pub(super) sink: Sink,
    pub(super) terms: Terms,
    pub(super) counters: Arc<LinkCounters>,
}

/// Who gets the messages.
pub(super) enum Sink {
    /// A stage thread.
    Frames { sender: Sender<Result<Frame>>, most: usize },
    /// The coordinator. That the reader still runs is known by `_reading`.
    Replies { sender: mpsc::Sender<Reply>, _reading: oneshot::Sender<()> },
}

impl Inbox {
    /// Bytes that follow this header.
    pub(super) fn announced(&self, header: &[u8]) -> Result<usize> {
        let header = Header::read(header, self.terms.settings.frame_bytes)?;
        usize::try_from(header.body_bytes()).map_err(|_| Error::Closed)
    }

    /// A whole message.
    pub(super) fn deliver(&self, bytes: &Bytes) -> Result<()> {
        match &self.sink {
            Sink::Frames { sender, most } => {
                let frame = Frame::decode(bytes)?;
                self.same_epoch(frame.step.epoch)?;
                if sender.len() >= *most {
                    return Err(Error::Full { frames: *most });
                }
                sender.try_send(Ok(frame)).map_err(|_| Error::Closed)?;
            }
            Sink::Replies { sender, .. } => {
                let reply = Reply::decode(bytes)?;
                if let Reply::Done(done) = &reply {
                    self.same_epoch(done.epoch)?;
                }
                sender.try_send(reply).map_err(|error| match error {
                    mpsc::error::TrySendError::Full(_) => Error::Full { frames: sender.max_capacity() },
                    mpsc::error::TrySendError::Closed(_) => Error::Closed,
                })?;
            }
        }
        self.counters.count(bytes.len());
        Ok(())
    }

    /// The link is over. What went wrong is told to the stage, after all frames before it.
    pub(super) fn end(&self, result: Result<()>) {
        let Err(error) = result else { return };
        if error == Error::Closed {
            tracing::debug!(link = self.terms.link, epoch = %self.terms.epoch, "the link's sender is gone");
            return;
        }
        tracing::warn!(link = self.terms.link, epoch = %self.terms.epoch, %error, "the link is closed");
        if let Sink::Frames { sender, .. } = &self.sink {
            // There is a place for it; if the stage is gone, nobody is left to tell.
            let _ = sender.try_send(Err(error));
        }
    }

    fn same_epoch(&self, found: Epoch) -> Result<()> {
        let expected = self.terms.epoch;
        if found == expected { Ok(()) } else { Err(Error::Epoch { found: found.0, expected: expected.0 }) }
    }
}
