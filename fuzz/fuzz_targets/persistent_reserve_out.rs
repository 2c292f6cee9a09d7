//! `lunar_fuzz::persistent_reserve_out` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::persistent_reserve_out::run(input));
