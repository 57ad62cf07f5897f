//! Every kernel, run on the CPU, against the CPU device: the same bits for the same inputs, however rows are cut into chunks
//! and whoever else is in a step, and in whatever order threads run.

mod attention;
mod harness;
mod memories;
mod products;
mod recurrent;
mod rows;
