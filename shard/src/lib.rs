//! The shard actor and its stage loop.
