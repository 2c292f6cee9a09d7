//! Integration tests of the laboratory, in one program.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a test may

mod adversary;
mod api;
mod backing;
mod clients;
mod container;
mod cuts;
mod failing_disk;
mod hanging_save;
mod hostile;
mod idle;
mod initiator;
mod kill;
mod killed_storages;
mod libiscsi_load;
mod login_lines;
mod login_options;
mod named_limits;
mod package;
mod papers;
mod pool_bench;
mod power_cut;
mod readme;
mod report;
mod reservations;
mod sanitize;
mod service;
mod standard_iscsi;
mod standard_scsi;
mod state_fixtures;
mod stopping;
mod suite;
mod switch_bench;
mod targets;
mod trace;
mod two_initiators;
