//! Integration tests of the block devices, in one program.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod common;
mod heap_trim;
mod host;
mod locks;
mod refused;
