//! The actors around a row that is played by the test. Nothing here waits for time to pass: a test goes on when the
//! service has nothing left to do.

mod played;
mod replacing;
mod sessions;
mod switching;
