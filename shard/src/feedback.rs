//! The way from the tail back to the head for sampled tokens, so that a step can be sent before the result of
//! the one before it has been to the coordinator.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use paceline_proto::{SessionId, StepId};

use crate::{Error, Result};

/// What the tail made of a session's chunk: a token, or nothing because the chunk was void.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sampled {
    session: SessionId,
    step: StepId,
    token: Option<u32>,
}

/// One end of the way back. The head keeps each session's newest token only.
#[derive(Debug)]
pub struct Feedback {
    sender: Option<Sender<Sampled>>,
    receiver: Option<Receiver<Sampled>>,
    newest: HashMap<SessionId, (StepId, Option<u32>)>,
    /// How long the head waited since it was last asked.
    waited: Duration,
}

/// Makes the way back from a tail to another stage's head; `results` is the most results under way at once:
/// credits times wanted rows of a step.
pub fn feedback(results: usize) -> (Feedback, Feedback) {
    let (sender, receiver) = crossbeam_channel::bounded(results);
    let head = Feedback { sender: None, receiver: Some(receiver), newest: HashMap::new(), waited: Duration::ZERO };
    let tail = Feedback { sender: Some(sender), receiver: None, newest: HashMap::new(), waited: Duration::ZERO };
    (head, tail)
}

impl Feedback {
    /// For a stage that is head and tail at once.
    pub fn own() -> Self {
        Self { sender: None, receiver: None, newest: HashMap::new(), waited: Duration::ZERO }
    }

    /// The tail tells what it sampled.
    pub(crate) fn tell(&mut self, session: SessionId, step: StepId, token: Option<u32>) -> Result<()> {
        let Some(sender) = &self.sender else {
            self.newest.insert(session, (step, token));
            return Ok(());
        };
        let sampled = Sampled { session, step, token };
        sender.try_send(sampled).map_err(|error| match error {
            crossbeam_channel::TrySendError::Full(_) => paceline_transport::Error::Full { frames: sender.len() },
            crossbeam_channel::TrySendError::Disconnected(_) => paceline_transport::Error::Closed,
        })?;
        Ok(())
    }

    /// The head asks for what `step` sampled, and waits for it when that step is still under way: it was sent
    /// before, so it will arrive.
    pub(crate) fn ask(&mut self, session: SessionId, step: StepId) -> Result<Option<u32>> {
        loop {
            match self.newest.get(&session) {
                Some((known, token)) if *known == step => return Ok(*token),
                _ => self.wait(session, step)?,
            }
        }
    }

    /// Takes what has arrived, so that the tail never finds the way full.
    pub(crate) fn drain(&mut self) {
        while let Some(Ok(sampled)) = self.receiver.as_ref().map(Receiver::try_recv) {
            self.newest.insert(sampled.session, (sampled.step, sampled.token));
        }
    }

    /// How long it was waited for tokens since this was last asked.
    pub(crate) fn take_waited(&mut self) -> Duration {
        std::mem::take(&mut self.waited)
    }

    /// Forgets what is known of all other sessions: a token may arrive after its session has closed.
    pub(crate) fn keep(&mut self, open: impl Fn(SessionId) -> bool) {
        self.newest.retain(|session, _| open(*session));
    }

    fn wait(&mut self, session: SessionId, step: StepId) -> Result<()> {
        let receiver = self.receiver.as_ref().ok_or(Error::NotSampled { session, step })?;
        let begun = Instant::now();
        let sampled = receiver.recv().map_err(|_| paceline_transport::Error::Closed)?;
        self.waited += begun.elapsed();
        self.newest.insert(sampled.session, (sampled.step, sampled.token));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_head_waits_for_the_step_it_asked_for() {
        let (mut head, mut tail) = feedback(4);
        let session = SessionId(Uuid::from_u128(1));
        let other = SessionId(Uuid::from_u128(2));
        tail.tell(other, StepId(3), None).expect("there is room");
        tail.tell(session, StepId(3), Some(7)).expect("there is room");
        tail.tell(session, StepId(4), Some(8)).expect("there is room");
        assert_eq!(head.ask(session, StepId(3)).expect("it was told"), Some(7));
        assert_eq!(head.ask(session, StepId(4)).expect("it was told"), Some(8));
        assert_eq!(head.ask(other, StepId(3)).expect("it was told"), None);
        drop(tail);
        assert!(head.ask(session, StepId(5)).is_err());
    }

    #[test]
    fn one_stage_asks_itself_and_never_waits() {
        let mut own = Feedback::own();
        let session = SessionId(Uuid::from_u128(1));
        own.tell(session, StepId(1), Some(5)).expect("no link");
        assert_eq!(own.ask(session, StepId(1)).expect("it was told"), Some(5));
        assert!(matches!(own.ask(session, StepId(2)), Err(Error::NotSampled { .. })));
        own.keep(|open| open == session);
        assert_eq!(own.ask(session, StepId(1)).expect("it is still open"), Some(5));
        own.keep(|_| false);
        assert!(own.ask(session, StepId(1)).is_err());
    }
}
