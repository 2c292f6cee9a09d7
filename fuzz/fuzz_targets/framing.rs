//! Hostile input for the framing of a stream.
//! The same entry is run by `crates/lunar-iscsi/tests/hostile.rs`.
#![no_main]
#![allow(clippy::unwrap_used)] // a finding is a panic

#[path = "../../crates/lunar-iscsi/tests/hostile/framing.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|input: &[u8]| entry::run(input));
