//! The program as its users meet it: a process, real sockets, real clients.

mod answers;
mod bad_files;
mod bad_requests;
mod cache;
mod chaos;
mod clients;
mod cluster;
mod commands;
mod deployment;
mod disk;
mod drafts;
mod ending;
mod exactness;
mod hanging;
mod http;
mod leaving;
mod logs;
mod page;
mod pausing;
mod program;
mod restarts;
mod scaling;
mod status;
mod strangers;
mod structures;
mod supervised;
