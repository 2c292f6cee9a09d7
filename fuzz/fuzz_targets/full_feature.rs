//! `lunar_fuzz::full_feature` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::full_feature::run(input));
