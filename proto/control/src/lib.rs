//! What shards and the coordinator say to each other besides frames: joining, loading, linking, and heartbeats.
//!
//! Everything here is generated from `proto/control.proto`, which is the place to read. Messages arrive over
//! mutually authenticated connections only; whoever takes one in still checks every field.

#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::too_many_lines,
    reason = "generated code; the .proto file has the words"
)]

tonic::include_proto!("paceline.control.v1");
