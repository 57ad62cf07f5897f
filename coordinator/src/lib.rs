//! The coordinator and session actors around the pure cores.
