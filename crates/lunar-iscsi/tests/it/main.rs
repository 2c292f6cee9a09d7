//! Integration tests of the protocol machines, in one program.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod vectors;
