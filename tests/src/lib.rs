//! Whole-system tests: golden data, exactness, clients, bad inputs.
//!
//! The tests are in `tests/`; this library is what they share. [`model_run::ModelRun`] runs a model on any split of
//! its layers, [`models`] finds or draws the models, [`golden`] reads the reference's results and compares.

pub mod chaos;
mod disks;
pub mod drafting;
pub mod exactness;
pub mod golden;
pub mod hand_row;
pub mod load;
pub mod model_run;
pub mod models;
pub mod npy;
pub mod random;
pub mod row;
pub mod schemas;
pub mod warm;
