//! The service under a virtual clock: the real coordinator and session cores, emulated stages and links.
//!
//! Read [`Scenario`], then [`Simulation`]: a scenario and the [`StageTimes`] of a row go in, a [`Report`] comes out. One
//! seed gives one report, byte for byte, on every host. A fault of the cores is an [`Error`] that names the seed.
//! Nothing here does I/O, reads a clock or knows of threads; it must never know of shards, actors or HTTP.
//!
//! What is emulated: the time of stages ([`times`]), frames one after another on links, mailboxes as a fixed time,
//! clients who leave, faults. What is not: the processor time of the coordinator itself, and stages that share cores.

mod error;
mod events;
mod faults;
mod histogram;
mod ideal;
mod lengths;
mod link;
mod outages;
mod random;
mod render;
mod report;
mod row;
mod scenario;
mod tally;
pub mod times;
mod visits;
mod world;

pub use error::Error;
pub use faults::{Fault, FaultKind};
pub use histogram::{Histogram, Summary};
pub use ideal::Ideal;
pub use lengths::{Lengths, MOST_TOKENS};
pub use link::LOCAL;
pub use outages::Outage;
pub use random::Random;
pub use render::render;
pub use report::{LinkReport, Report, StageReport, Throughput};
pub use scenario::{Arrivals, MOST_SESSIONS, Scenario, Visit};
pub use tally::Ends;
pub use times::{Linear, LinearTimes, Measured, MeasuredStage, Planned, StageTimes, StepLoad};
pub use world::Simulation;
