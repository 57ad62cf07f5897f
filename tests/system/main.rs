//! The program as its users meet it: a process, real sockets, real clients.

mod answers;
mod bad_files;
mod bad_requests;
mod clients;
mod commands;
mod http;
mod leaving;
mod program;
