//! `lunar_fuzz::initiator` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::initiator::run(input));
