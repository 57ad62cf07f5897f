//! The API over real sockets, with an engine that the tests play.

mod chat;
mod client;
mod completions;
mod harness;
mod leaving;
mod pages;
mod refusals;
