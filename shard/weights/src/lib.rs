//! Where a shard gets its layers from: its own copy of the model, its cache, or another node.
