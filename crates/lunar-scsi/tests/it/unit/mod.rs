//! Tests of a block unit as a target uses it: CDBs in, plans and refusals out.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod absent;
mod again;
mod atomic;
mod blocks;
mod buffers;
mod conflicts;
mod copy;
mod diagnose;
mod dispatch;
mod format;
mod late;
mod medium;
mod nexus;
mod ports;
mod properties;
mod provisioning;
mod report;
mod reserve;
mod rights;
mod sanitize;
mod support;
mod threshold;
