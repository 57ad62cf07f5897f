//! Operations that follow one another, as one with fewer barriers.
//!
//! Fusing changes who computes what and when, never the order inside one element: results are the bits of the
//! operations run one by one, which stay the reference (and are what observers see). Two things save barriers:
//! with few rows every member prepares an input for itself, which costs less than waiting for the others; and a
//! member goes on with what it has computed itself.

mod delta_net;
mod mixture;
mod products;

pub(super) use delta_net::DeltaNet;
pub(super) use mixture::RoutedExperts;
pub(super) use products::{Products, Then};
