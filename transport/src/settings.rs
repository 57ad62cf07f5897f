//! What the coordinator tells the two ends of a link, and what they report.

use std::fmt::{self, Display, Formatter};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use paceline_proto::{Activations, Epoch, NodeId, frame};

use crate::{Error, Result};

/// The most frames that a link may hold.
pub const FRAMES_LIMIT: usize = 4096;

/// How to reach an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Route {
    /// Over the network.
    Quic(SocketAddr),
    /// Within a host.
    Unix(PathBuf),
}

impl Display for Route {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quic(address) => write!(formatter, "{address}"),
            Self::Unix(path) => write!(formatter, "{}", path.display()),
        }
    }
}

/// Another process's data endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Target {
    /// Who must be there.
    pub node: NodeId,
    /// How to reach it.
    pub route: Route,
}

impl Display for Target {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "node {} at {}", self.node, self.route)
    }
}

/// What both ends of a link have from the coordinator, and nobody else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LinkKey {
    /// The placement that the link belongs to.
    pub epoch: Epoch,
    /// Its number in the row.
    pub link: u32,
    /// Known to its two ends and the coordinator only.
    pub secret: [u8; 16],
}

impl fmt::Debug for LinkKey {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "LinkKey(link {} of epoch {}, ..)", self.link, self.epoch)
    }
}

/// How a link is made; the same at both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkSettings {
    /// The most frames under way: at least the number of credits in the row.
    pub frames: usize,
    /// The most bytes of one frame after its header.
    pub frame_bytes: u64,
    /// How activations travel.
    pub activations: Activations,
}

impl LinkSettings {
    /// Whether a link can be made so. The numbers come from another process.
    pub(crate) fn check(&self) -> Result<()> {
        let settings =
            [("frames", self.frames as u64, FRAMES_LIMIT as u64), ("frame bytes", self.frame_bytes, frame::LIMIT)];
        let wrong = settings.into_iter().find(|(_, found, most)| !(1..=*most).contains(found));
        wrong.map_or(Ok(()), |(what, found, most)| Err(Error::Settings { what, found, most }))
    }
}

/// A link that another node is about to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Which.
    pub key: LinkKey,
    /// Who makes it.
    pub from: NodeId,
    /// How.
    pub settings: LinkSettings,
}

/// What carries a link's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Carrier {
    /// QUIC with certificates on both sides.
    Quic,
    /// A Unix socket of the same user.
    Unix,
}

impl Display for Carrier {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Quic => "quic",
            Self::Unix => "unix",
        })
    }
}

/// What was measured before the first frame.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkReport {
    /// The median of a few small messages there and back.
    pub round_trip: Duration,
    /// Of the largest burst that was sent.
    pub bytes_per_second: f64,
    /// What the link goes over.
    pub carrier: Carrier,
}

/// What went over a link so far.
#[derive(Debug, Default)]
pub struct LinkCounters {
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl LinkCounters {
    /// Frames, or replies.
    pub fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Bytes with headers.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, bytes: usize) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}
