//! Real peers: drives libiscsi, QEMU, tgt and istgt against the `lunar` binary, and our tools
//! against them. The modules that parse the wire here (`lunar_testkit::raw`, `cutter`) are written
//! from RFC 7143 alone and share no code with the crates that they test.
//!
//! Tests of the initiator as a library (`cuts`, `login_options`, `kill` in `tests/it`) use its
//! public API as any program would. The first two also run our target in their own process: over a
//! disk that records the commands it executes, and with options that no command line sets.
//!
//! Everything runs on loopback, on free ports, in a folder of its own, under a time limit, and
//! leaves nothing behind.

pub mod adversary;
pub mod bench;
pub mod conformance;
pub mod cutter;
pub mod dialogue;
pub mod document;
pub mod extended_copy;
pub mod faults;
pub mod istgt;
pub mod ledger;
pub mod lio;
pub mod lunar;
pub mod markdown;
pub mod own_tests;
pub mod papers;
pub mod ports;
pub mod powercut;
pub mod process;
pub mod profiles;
pub mod raw_queue;
pub mod readme;
pub mod rfc_requirements;
pub mod scratch;
pub mod state;
pub mod suite;
pub mod tgt;
