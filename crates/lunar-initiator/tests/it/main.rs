//! Integration tests of the initiator, in one program.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod clear;
mod compare_and_write;
mod deviating_target;
mod lost_writes;
mod odd_targets;
mod ownership;
mod relay;
mod retries;
mod server;
mod warnings;
