//! Entry points of the fuzz targets: each takes one hostile input and panics on a finding.
//!
//! `tests/it` runs them over the committed corpora and over seeded changes of those; the programs
//! in `fuzz_targets` run them under libFuzzer (`make fuzz`).
#![allow(clippy::unwrap_used, clippy::expect_used)] // a finding is a panic

pub mod cdb;
pub mod extended_copy;
pub mod framing;
pub mod full_feature;
pub mod initiator;
pub mod login;
pub mod mode_select;
pub mod osd;
pub mod osd_store;
pub mod persistent_reserve_out;
pub mod pool_label;
pub mod relay_storage;
pub mod text;
pub mod unmap_list;
