//! The laboratory: drives foreign initiators and targets against the `lunar` binary and our tools
//! against them, attacks the target, and measures it.
//!
//! | room | contents |
//! |---|---|
//! | [`peers`] | starters, one for each program that a test or a measurement runs against |
//! | [`bench`](mod@bench), [`papers`] | measuring commands |
//! | [`conformance`] | the libiscsi suite, the RFC's rules, CONFORMANCE.md |
//! | [`adversary`] | attacks on a running server |
//! | [`powercut`], [`ledger`] | a disk that loses power; admissible contents of its blocks |
//! | [`lio`] | our initiators against the kernel's target |
//! | [`switch_peers`] | hosts and storages of a switch |
//! | [`wire`] | PDUs as bytes: a relay that cuts connections, command queues, EXTENDED COPY |
//! | [`report`] | Markdown tables, and parts of documents that runs write |
//! | [`system`] | processes, ports, files and cores of this machine |
//!
//! The code that parses the wire here (`lunar_testkit::raw`, [`wire`]) is written from RFC 7143
//! alone and shares no code with the crates that it tests.
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
pub mod ledger;
pub mod lio;
pub mod papers;
pub mod peers;
pub mod powercut;
pub mod random;
pub mod readme;
pub mod report;
pub mod state_fixtures;
pub mod switch_peers;
pub mod system;
pub mod wire;
