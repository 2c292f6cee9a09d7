//! `lunar_fuzz::unmap_list` under libFuzzer.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| lunar_fuzz::unmap_list::run(input));
