//! Tests of the object store through its interface.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod basics;
mod crash;
mod damage;
mod device;
mod model;
mod random;
