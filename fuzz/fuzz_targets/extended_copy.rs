//! `lunar_fuzz::extended_copy` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::extended_copy::run(input));
