//! Requests to change the row, and whoever waits for what becomes of them.

use actix::{Context, Handler, Message, ResponseFuture};
use paceline_api::{ScaleError, ScaleReport, ScaleRequest, Scaled, Scaling};
use paceline_core::membership::{Event, Outcome, Report, Ticket};
use tokio::sync::oneshot;
use tracing::{debug, info};

use super::{change, told};
use crate::coordinator::actor::{ClusterActor, ClusterHandle, say};

/// Whoever waits for the end of a change.
pub(in crate::coordinator) type Waiting = oneshot::Sender<Result<ScaleReport, ScaleError>>;

impl Scaling for ClusterHandle {
    fn scale(&self, request: ScaleRequest) -> Scaled {
        let cluster = self.0.clone();
        Box::pin(async move { cluster.send(Scale(request)).await.unwrap_or(Err(ScaleError::ShuttingDown)) })
    }
}

/// The row is to be changed.
#[derive(Message)]
#[rtype(result = "Result<ScaleReport, ScaleError>")]
struct Scale(ScaleRequest);

impl Handler<Scale> for ClusterActor {
    type Result = ResponseFuture<Result<ScaleReport, ScaleError>>;

    fn handle(&mut self, Scale(request): Scale, context: &mut Context<Self>) -> Self::Result {
        if self.ending {
            return Box::pin(async { Err(ScaleError::ShuttingDown) });
        }
        let change = match change(&request, &self.attendants) {
            Ok(change) => change,
            Err(error) => return Box::pin(async { Err(error) }),
        };
        info!(%change, nodes = ?request.nodes, "the row is to be changed");
        self.tickets += 1;
        let (waiting, ended) = oneshot::channel();
        // One at a time is under way, others are answered at once: so few wait here.
        self.waiting.insert(self.tickets, waiting);
        self.on(Event::Scale { ticket: Ticket(self.tickets), change }, context);
        Box::pin(async { ended.await.unwrap_or(Err(ScaleError::ShuttingDown)) })
    }
}

impl ClusterActor {
    /// Tells people, and whoever waits, what became of a change.
    pub(in crate::coordinator) fn report(&mut self, ticket: Option<Ticket>, report: Report) {
        if let Some(text) = summary(&report) {
            say(&text);
        }
        let waiting = ticket.and_then(|Ticket(number)| self.waiting.remove(&number));
        if waiting.is_some_and(|waiting| waiting.send(told(report, &self.attendants)).is_err()) {
            debug!("whoever asked for the change did not wait for its end");
        }
    }
}

/// What the coordinator says of it on its own terminal.
fn summary(report: &Report) -> Option<String> {
    let change = &report.change;
    Some(match &report.outcome {
        Outcome::Moved => {
            let pause = report.pause.unwrap_or_default().as_secs_f64() * 1e3;
            format!("{change}: the row was moved, answers paused for {pause:.0} ms\n")
        }
        Outcome::Replayed { reason } => format!("{change}: the row was replaced, answers were replayed: {reason}\n"),
        Outcome::RolledBack { reason } => format!("{change}: rolled back, the row is as before: {reason}\n"),
        Outcome::Lost { reason } => format!("{change}: the row broke meanwhile: {reason}\n"),
        Outcome::Unchanged | Outcome::Refused(_) => return None,
    })
}
