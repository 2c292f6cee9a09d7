//! Real peers: drives libiscsi, QEMU and tgt against the `lunar` binary, and our tools against
//! them. Shares no code with the crates it tests.
//!
//! Everything runs on loopback, on free ports, in a folder of its own, under a time limit, and
//! leaves nothing behind.

pub mod conformance;
pub mod dialogue;
pub mod document;
pub mod extended_copy;
pub mod faults;
pub mod ledger;
pub mod lunar;
pub mod musts;
pub mod own_tests;
pub mod powercut;
pub mod process;
pub mod profiles;
pub mod raw;
pub mod raw_queue;
pub mod readme;
pub mod scratch;
pub mod state;
pub mod suite;
pub mod tgt;
