//! Tests of the object store through its interface.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod basics;
mod checkpoints;
mod checks;
mod concurrency;
mod crash;
mod damage;
mod device;
mod fixtures;
mod kinds;
mod losses;
mod model;
mod random;
mod sharing;
mod space;
mod stores;
