//! Links between endpoints over real sockets: frames, replies, pieces, memories, and everybody who should not get in.

mod cluster;
mod frames;
mod memories;
mod pieces;
mod strangers;
