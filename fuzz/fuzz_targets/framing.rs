//! `lunar_fuzz::framing` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::framing::run(input));
