//! The metrics of pools.

use super::Scrape;
use super::families::Family;
use lunar_pool::{MemberState, PoolHealth, PoolStatus, ScrubProgress};
use prometheus_client::metrics::MetricType::{Counter, Gauge};
use prometheus_client::registry::Unit;
use std::fmt;

const POOL: &[&str] = &["pool"];
const STATE: &[&str] = &["pool", "state"];
const MEMBER: &[&str] = &["pool", "slot"];

const HEALTHS: [PoolHealth; 4] =
    [PoolHealth::Healthy, PoolHealth::Degraded, PoolHealth::Failed, PoolHealth::Fenced];
const STATES: [MemberState; 4] =
    [MemberState::Current, MemberState::Syncing, MemberState::Stale, MemberState::Missing];

/// The metrics of pools, in the order of a scrape.
pub(super) const POOL_FAMILIES: &[Family] = &[
    Family {
        name: "lunar_pool_health",
        unit: None,
        kind: Gauge,
        labels: STATE,
        help: "1 for the health of the pool: healthy, degraded, failed or fenced",
        write: |all, to| {
            each_pool(all, |pool, status| {
                HEALTHS.into_iter().try_for_each(|health| {
                    to.gauge(&[pool, health.name()], (status.health == health).into())
                })
            })
        },
    },
    Family {
        name: "lunar_pool_members",
        unit: None,
        kind: Gauge,
        labels: STATE,
        help: "Members of the pool in a state: current, syncing, stale or missing",
        write: |all, to| {
            each_pool(all, |pool, status| {
                STATES.into_iter().try_for_each(|state| {
                    let members = status.members.iter().filter(|member| member.state == state);
                    to.gauge(&[pool, state.name()], members.count() as u64)
                })
            })
        },
    },
    Family {
        name: "lunar_pool_member_missing",
        unit: Some(Unit::Bytes),
        kind: Gauge,
        labels: MEMBER,
        help: "Data that is to be copied to the member before it has all data",
        write: |all, to| {
            each_pool(all, |pool, status| {
                status.members.iter().try_for_each(|member| {
                    to.gauge(&[pool, &member.slot.to_string()], member.missing_bytes)
                })
            })
        },
    },
    Family {
        name: "lunar_pool_copied",
        unit: Some(Unit::Bytes),
        kind: Counter,
        labels: POOL,
        help: "Data that was copied to members since the pool was opened",
        write: |all, to| each_pool(all, |pool, status| to.counter(&[pool], status.copied_bytes)),
    },
    Family {
        name: "lunar_pool_repairs",
        unit: None,
        kind: Counter,
        labels: POOL,
        help: "Repairs of blocks that a member could not read",
        write: |all, to| each_pool(all, |pool, status| to.counter(&[pool], status.repairs)),
    },
    Family {
        name: "lunar_pool_losses",
        unit: None,
        kind: Counter,
        labels: POOL,
        help: "Times that acknowledged writes may have been lost",
        write: |all, to| each_pool(all, |pool, status| to.counter(&[pool], status.losses)),
    },
    Family {
        name: "lunar_pool_scrub_running",
        unit: None,
        kind: Gauge,
        labels: POOL,
        help: "1: a scrub of the pool is running",
        write: |all, to| each_scrub(all, |pool, scrub| to.gauge(&[pool], scrub.is_running.into())),
    },
    Family {
        name: "lunar_pool_scrub_done",
        unit: Some(Unit::Bytes),
        kind: Gauge,
        labels: POOL,
        help: "Progress of the last scrub, of the size of the pool",
        write: |all, to| {
            each_scrub(all, |pool, scrub| {
                to.gauge(&[pool], scrub.report.checked_bytes + scrub.report.skipped_bytes)
            })
        },
    },
    Family {
        name: "lunar_pool_scrub_different_blocks",
        unit: None,
        kind: Gauge,
        labels: POOL,
        help: "Blocks in which members differed in the last scrub",
        write: |all, to| {
            each_scrub(all, |pool, scrub| to.gauge(&[pool], scrub.report.different_blocks))
        },
    },
    Family {
        name: "lunar_pool_scrub_unreadable_blocks",
        unit: None,
        kind: Gauge,
        labels: POOL,
        help: "Blocks that no member could read in the last scrub",
        write: |all, to| {
            each_scrub(all, |pool, scrub| to.gauge(&[pool], scrub.report.unreadable_blocks))
        },
    },
];

fn each_pool(all: &Scrape, mut write: impl FnMut(&str, &PoolStatus) -> fmt::Result) -> fmt::Result {
    all.pools.iter().try_for_each(|(name, status)| write(name, status))
}

/// The pools that were scrubbed.
fn each_scrub(
    all: &Scrape,
    mut write: impl FnMut(&str, &ScrubProgress) -> fmt::Result,
) -> fmt::Result {
    let scrubs = all.pools.iter().filter_map(|(name, status)| Some((name, status.scrub.as_ref()?)));
    scrubs.into_iter().try_for_each(|(name, scrub)| write(name, scrub))
}
