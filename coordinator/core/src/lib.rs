//! Planner, scheduler, sessions and pages: pure state machines.
//!
//! Read [`coordinator::Coordinator`] and [`session::Session`]: events and the time go in, actions come out.
//! Nothing here does I/O, reads a clock, or knows of actors, devices, threads or HTTP; so a whole service with
//! thousands of sessions runs in a test in milliseconds. What must always hold is in [`invariants`].

pub mod coordinator;
pub mod disk;
pub mod drafts;
pub mod fleet;
pub mod invariants;
pub mod limits;
pub mod membership;
pub mod pages;
pub mod planner;
pub mod prefix;
pub mod reuse;
pub mod session;
mod slots;

pub use coordinator::{Coordinator, Input, Loss, Refusal, Wish};
pub use limits::Limits;
pub use reuse::{Missed, Reuse, Tier};
pub use session::Session;
