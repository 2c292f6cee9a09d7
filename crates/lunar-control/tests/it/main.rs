//! Integration tests of the control plane, in one program.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod api;
mod changes;
mod common;
mod daemon;
mod hanging_changes;
mod health;
mod hostile;
mod long_answers;
mod metrics;
mod renewal;
mod returning;
mod rig;
mod waiting;
