//! Hostile parameter lists of PERSISTENT RESERVE OUT.
//! The same entry is run by `crates/lunar-scsi/tests/hostile.rs`.
#![no_main]
#![allow(clippy::unwrap_used, clippy::expect_used)] // a finding is a panic

#[path = "../../crates/lunar-scsi/tests/hostile/persistent_reserve_out.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|input: &[u8]| entry::run(input));
