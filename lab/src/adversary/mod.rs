//! A permanent adversary: attacks on a running server while a well-behaved client measures.
//!
//! The adversary is written from RFC 7143, SPC-4 and SBC-3 alone and uses none of the crates that
//! speak these protocols, so that a misunderstanding of theirs cannot hide a fault. The server runs
//! in a control group with 512 MiB of memory; the adversary and the well-behaved client run outside
//! of it. No attack may end the process, pass the memory limit, lose or change data, stop the
//! client for more than 2 s, or halve its IOPS for more than 10 s compared with a benign load that
//! takes as much of the processors (see [`verdict`]).
//!
//! An [`Attack`](attack::Attack) is a value in one of the files of [`attacks`]; most are a
//! [`Flood`](flood::Flood) with a closure that queues the next PDUs of each session. To add an
//! attack: write it, add it to its file's list, run
//! `cargo run -p lunar-lab -- adversary --attack NAME`, and run all of them with `--write`, which
//! renews docs/adversary.md.

pub mod attack;
pub mod attacker;
pub mod attacks;
pub mod cdb;
pub mod command_line;
pub mod connection;
pub mod flood;
pub mod good_client;
pub mod held_connections;
pub mod login;
pub mod measurement;
pub mod memory_group;
pub mod memory_sampler;
pub mod new_sessions;
pub mod runner;
pub mod server;
pub mod session;
pub mod table;
pub mod verdict;
