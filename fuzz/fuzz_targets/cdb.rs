//! `lunar_fuzz::cdb` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::cdb::run(input));
