//! What a link is to the stage threads at its ends: ordered, bounded, and never a place where anyone waits to
//! send. The coordinator's credits bound how many steps are under way, and every link holds at least that many.

use paceline_proto::{Frame, Reply};

use crate::Result;

/// The sending end of a link between two stages, or from the coordinator to the first.
pub trait FrameSender: Send {
    /// Sends a frame without waiting.
    ///
    /// # Errors
    /// [`Closed`](crate::Error::Closed) when the other end is gone, [`Full`](crate::Error::Full) when credits
    /// were ignored.
    fn send(&mut self, frame: Frame) -> Result<()>;
}

/// The receiving end of a link.
pub trait FrameReceiver: Send {
    /// Waits for the next frame.
    ///
    /// # Errors
    /// [`Closed`](crate::Error::Closed) when the other end is gone and every frame has been received.
    fn receive(&mut self) -> Result<Frame>;
}

/// The way back from any stage to the coordinator.
pub trait ReplySender: Send {
    /// Sends a reply without waiting.
    ///
    /// # Errors
    /// As [`FrameSender::send`].
    fn reply(&mut self, reply: Reply) -> Result<()>;
}
