//! Links between endpoints over real sockets: frames, replies, pieces, and everybody who should not get in.

mod cluster;
mod frames;
mod pieces;
mod strangers;
