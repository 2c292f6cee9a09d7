//! Hostile input for mode parameter lists.
//! The same entry is run by `crates/lunar-scsi/tests/hostile.rs`.
#![no_main]
#![allow(clippy::unwrap_used)] // a finding is a panic

#[path = "../../crates/lunar-scsi/tests/hostile/mode_select.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|input: &[u8]| entry::run(input));
