//! `lunar_fuzz::mode_select` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::mode_select::run(input));
