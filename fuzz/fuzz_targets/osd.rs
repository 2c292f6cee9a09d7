//! `lunar_fuzz::osd` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::osd::run(input));
