//! Hostile input for a session in full feature phase.
//! The same entry is run by `crates/lunar-iscsi/tests/hostile.rs`.
#![no_main]
#![allow(clippy::unwrap_used)] // a finding is a panic

#[path = "../../crates/lunar-iscsi/tests/hostile/full_feature.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|input: &[u8]| entry::run(input));
