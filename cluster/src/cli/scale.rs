//! Flags of the commands that change a running row.

use clap::{Args, ValueEnum};
use paceline_api::ScaleAction;

use super::ServerArgs;

/// `paceline scale`.
#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: Verb,
    /// Ids of nodes, or their first letters, or names of hosts, as `paceline status` shows them. Without any, add takes
    /// all nodes that are free.
    #[arg(value_name = "NODE", required_if_eq_any = [("action", "drain"), ("action", "remove")])]
    pub(crate) nodes: Vec<String>,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

/// How to change the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verb {
    /// Let nodes take part.
    Add,
    /// Take the work of nodes to others, and leave them without any until they are added again.
    Drain,
    /// Drain nodes, and let them end.
    Remove,
}

impl Verb {
    /// As the service knows it.
    pub(crate) fn action(self) -> ScaleAction {
        match self {
            Self::Add => ScaleAction::Add,
            Self::Drain => ScaleAction::Drain,
            Self::Remove => ScaleAction::Remove,
        }
    }
}

/// `paceline drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Ids of nodes, or their first letters, or names of hosts, as `paceline status` shows them.
    #[arg(value_name = "NODE", required = true)]
    pub(crate) nodes: Vec<String>,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

/// `paceline rebalance`.
#[derive(Debug, Args)]
pub(crate) struct RebalanceArgs {
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

/// Which service, and how to tell.
#[derive(Debug, Args)]
pub(crate) struct ServiceArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}
