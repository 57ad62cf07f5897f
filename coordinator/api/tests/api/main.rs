//! The API over real sockets, with an engine that the tests play.

#![expect(clippy::unwrap_used, reason = "a test that finds nothing to unwrap has failed")]

mod answers;
mod cache;
mod chat;
mod client;
mod completions;
mod files;
mod harness;
mod leaving;
mod messages;
mod pages;
mod protection;
mod refusals;
mod responses;
mod scaling;
