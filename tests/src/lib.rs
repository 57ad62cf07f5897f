//! Whole-system tests: golden data, exactness, clients, bad inputs.
