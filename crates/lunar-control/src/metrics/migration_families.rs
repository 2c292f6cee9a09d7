//! The metrics of moves of extents.

use super::Scrape;
use super::families::Family;
use crate::api::migrations::MigrationReport;
use prometheus_client::metrics::MetricType::Gauge;
use prometheus_client::registry::Unit;
use std::fmt;

const LUN: &[&str] = &["target", "lun"];
const STATE: &[&str] = &["target", "lun", "state"];

/// The metrics of moves that run, in the order of a scrape.
pub(super) const MIGRATION_FAMILIES: &[Family] = &[
    Family {
        name: "lunar_migration",
        unit: None,
        kind: Gauge,
        labels: STATE,
        help: "1: an extent of the LUN is being moved; the state is waiting, starting, copying, \
               paused or ending",
        write: |all, to| each(all, |[target, lun], one| to.gauge(&[target, lun, &one.state], 1)),
    },
    Family {
        name: "lunar_migration_missing",
        unit: Some(Unit::Bytes),
        kind: Gauge,
        labels: LUN,
        help: "Data of an extent of the LUN to copy before the destination has all data",
        write: |all, to| each(all, |lun, one| to.gauge(&lun, one.missing_bytes)),
    },
    Family {
        name: "lunar_migration_copied",
        unit: Some(Unit::Bytes),
        kind: Gauge,
        labels: LUN,
        help: "Data of an extent of the LUN that was copied to the destination",
        write: |all, to| each(all, |lun, one| to.gauge(&lun, one.copied_bytes)),
    },
];

fn each(
    all: &Scrape,
    mut write: impl FnMut([&str; 2], &MigrationReport) -> fmt::Result,
) -> fmt::Result {
    let mut moves = all.migrations.iter();
    moves.try_for_each(|one| write([&one.target, &one.lun.to_string()], one))
}
