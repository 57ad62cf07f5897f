//! How two nodes reach each other: a Unix socket where they share a host, QUIC else.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::LazyLock;

use anyhow::{Context, Result, anyhow, bail};
use paceline_proto::NodeId;
use paceline_transport::{Endpoint, LinkKey, LinkReport, LinkSender, LinkSettings, Route, Target};
use tracing::warn;

use crate::cli::LinkChoice;

/// Names the kernel that this process runs on, and changes when it boots. Empty where the system does not say, which
/// no other process is equal to.
pub(crate) fn boot() -> &'static str {
    static BOOT: LazyLock<String> = LazyLock::new(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().to_owned()
    });
    &BOOT
}

/// The other end's Unix socket, if it is to be tried.
pub(crate) fn unix_of(path: &str, same_boot: bool, choice: LinkChoice) -> Option<String> {
    let wanted = choice != LinkChoice::Quic && same_boot && !path.is_empty() && !boot().is_empty();
    wanted.then(|| path.to_owned())
}

/// The ways to a data endpoint, best first.
pub(crate) fn routes(data: &[String], unix: Option<&str>, choice: LinkChoice) -> Result<Vec<Route>> {
    let mut routes: Vec<Route> =
        unix.into_iter().filter(|path| !path.is_empty()).map(|path| Route::Unix(PathBuf::from(path))).collect();
    if choice != LinkChoice::Unix {
        for address in data {
            let address: SocketAddr = address.parse().with_context(|| format!("{address} is not an address"))?;
            routes.push(Route::Quic(address));
        }
    }
    if routes.is_empty() {
        bail!("the other end has no data endpoint that --link {} allows", carrier_name(choice));
    }
    Ok(routes)
}

/// Connects by the first way that works.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    node: NodeId,
    routes: &[Route],
    key: LinkKey,
    settings: LinkSettings,
) -> Result<(LinkSender, LinkReport)> {
    let mut failed = Vec::new();
    for route in routes {
        let target = Target { node, route: route.clone() };
        match endpoint.connect(&target, key, settings).await {
            Ok(linked) => return Ok(linked),
            Err(error) => {
                if routes.len() > 1 {
                    warn!(?route, %error, "this way to the next stage does not work, trying another");
                }
                failed.push(format!("{route:?}: {error}"));
            }
        }
    }
    Err(anyhow!("node {node} cannot be reached: {}", failed.join("; ")))
}

/// As the flag names it.
pub(crate) fn carrier_name(choice: LinkChoice) -> &'static str {
    match choice {
        LinkChoice::Auto => "auto",
        LinkChoice::Quic => "quic",
        LinkChoice::Unix => "unix",
    }
}

/// As the control plane names it.
pub(crate) fn carrier_from(name: &str) -> Result<LinkChoice> {
    [LinkChoice::Auto, LinkChoice::Quic, LinkChoice::Unix]
        .into_iter()
        .find(|choice| carrier_name(*choice) == name)
        .with_context(|| format!("{name} carries no links: it must be auto, quic or unix"))
}
