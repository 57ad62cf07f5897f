//! The program as its users meet it: a process, real sockets, real clients.

mod answers;
mod bad_files;
mod bad_requests;
mod chaos;
mod clients;
mod cluster;
mod commands;
mod exactness;
mod http;
mod leaving;
mod program;
mod status;
mod strangers;
