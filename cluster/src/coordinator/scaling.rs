//! What people ask to be changed about the row, in the words of the API and in those of the membership.

pub(super) mod actor;

use std::collections::BTreeSet;

use paceline_api::{ScaleAction, ScaleError, ScaleOutcome, ScaleReport, ScaleRequest, StageShare};
use paceline_core::membership::{Change, Outcome, Refusal, Report, Share};
use paceline_proto::NodeId;

use super::making::Attendants;

/// What a request means, now that these nodes are here.
fn change(request: &ScaleRequest, attendants: &Attendants) -> Result<Change, ScaleError> {
    let mut nodes = BTreeSet::new();
    for name in &request.nodes {
        nodes.extend(named(name, attendants)?);
    }
    let nodes = nodes.into_iter().collect();
    Ok(match request.action {
        ScaleAction::Add => Change::Add { nodes },
        ScaleAction::Drain => Change::Drain { nodes },
        ScaleAction::Remove => Change::Remove { nodes },
        ScaleAction::Rebalance => Change::Rebalance,
    })
}

/// All nodes of a host, or the one whose id begins so.
fn named(name: &str, attendants: &Attendants) -> Result<Vec<NodeId>, ScaleError> {
    let of_host: Vec<NodeId> =
        attendants.iter().filter(|(_, one)| one.hello.host == name).map(|(node, _)| *node).collect();
    if !of_host.is_empty() {
        return Ok(of_host);
    }
    let begins = |node: &&NodeId| !name.is_empty() && node.to_string().starts_with(name);
    let nodes: Vec<NodeId> = attendants.keys().filter(begins).copied().collect();
    match nodes.len() {
        0 => Err(ScaleError::UnknownNode { name: name.to_owned() }),
        1 => Ok(nodes),
        count => Err(ScaleError::Ambiguous { name: name.to_owned(), count }),
    }
}

/// The membership's report as people get it.
fn told(report: Report, attendants: &Attendants) -> Result<ScaleReport, ScaleError> {
    let (outcome, reason) = match report.outcome {
        Outcome::Moved => (ScaleOutcome::Moved, None),
        Outcome::Unchanged => (ScaleOutcome::Unchanged, None),
        Outcome::Replayed { reason } => (ScaleOutcome::Replayed, Some(reason)),
        Outcome::RolledBack { reason } => (ScaleOutcome::RolledBack, Some(reason)),
        Outcome::Lost { reason } => (ScaleOutcome::Lost, Some(reason)),
        Outcome::Refused(refusal) => return Err(refused(&refusal)),
    };
    let shares = |shares: Vec<Share>| shares.into_iter().map(|one| share(one, attendants)).collect();
    Ok(ScaleReport {
        action: match report.change {
            Change::Add { .. } => ScaleAction::Add,
            Change::Drain { .. } => ScaleAction::Drain,
            Change::Remove { .. } => ScaleAction::Remove,
            Change::Rebalance => ScaleAction::Rebalance,
        },
        outcome,
        reason,
        epochs: report.epochs.map(|(before, after)| [before.0, after.0]),
        before: shares(report.before),
        after: shares(report.after),
        bytes_fetched: report.fetched,
        bytes_copied: report.copied,
        pause_millis: report.pause.map(|pause| pause.as_secs_f64() * 1e3),
    })
}

fn share(share: Share, attendants: &Attendants) -> StageShare {
    let host = attendants.get(&share.node).map(|one| one.hello.host.clone()).unwrap_or_default();
    StageShare { node: share.node.to_string(), host, layers: share.layers }
}

fn refused(refusal: &Refusal) -> ScaleError {
    let reason = refusal.to_string();
    match refusal {
        Refusal::Busy { .. } | Refusal::NotServing { .. } | Refusal::NotFree { .. } => ScaleError::NotNow(reason),
        Refusal::UnknownNode { node } => ScaleError::UnknownNode { name: node.to_string() },
        Refusal::NoNames | Refusal::NobodyFree | Refusal::NobodyLeft | Refusal::DoesNotFit { .. } => {
            ScaleError::Impossible(reason)
        }
    }
}
