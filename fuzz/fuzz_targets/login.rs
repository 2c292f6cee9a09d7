//! Hostile input for the login: the entry that `crates/lunar-iscsi/tests/hostile.rs` runs too.
#![no_main]

#[path = "../../crates/lunar-iscsi/tests/hostile/login.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|input: &[u8]| entry::run(input));
