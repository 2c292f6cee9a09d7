//! `lunar_fuzz::pool_label` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::pool_label::run(input));
