//! Integration tests of the program, in one program.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod api;
mod apply;
mod away;
mod backing;
mod bench;
mod bench_network;
mod blocking;
mod check;
mod common;
mod connections;
mod copy;
mod ctl;
mod daemon;
mod failed_logins;
mod full_disk;
mod identity;
mod in_process_server;
mod io_uring;
mod limits;
mod metrics;
mod nexus;
mod notify;
mod open_files;
mod pages;
mod paths;
mod planted;
mod pool;
mod pool_away;
mod pool_members;
mod recovery;
mod remote_disk;
mod served_identity;
mod served_luns;
mod sessions;
mod usage;
