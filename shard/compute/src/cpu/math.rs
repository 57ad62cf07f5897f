//! Elementary functions over vectors.
