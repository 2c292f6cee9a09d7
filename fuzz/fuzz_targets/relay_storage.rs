//! `lunar_fuzz::relay_storage` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::relay_storage::run(input));
