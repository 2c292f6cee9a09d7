//! Integration tests of pools, in one program.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod common;
mod contracts;
mod fixtures;
mod growth;
mod joined;
mod leases;
mod losses;
mod mirror;
mod opening;
mod ownership;
