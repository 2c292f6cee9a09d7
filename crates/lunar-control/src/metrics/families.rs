//! The table of all metrics: name, meaning, and source of the values.

use super::Scrape;
use super::points::Points;
use lunar_block::DeviceLink;
use lunar_target::{
    CacheMode, CommandErrors, LunStatistics, OperationClass, OperationStatistics, Statistics,
    TargetStatistics,
};
use prometheus_client::metrics::MetricType::{self, Counter, Gauge, Histogram, Info};
use prometheus_client::registry::Unit;
use std::fmt;

/// One metric.
pub(super) struct Family {
    /// Name without the unit and without the suffix of the type.
    pub(super) name: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) kind: MetricType,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
    pub(super) write: fn(&Scrape, &mut Points<'_>) -> fmt::Result,
}

const NONE: &[&str] = &[];
const TARGET: &[&str] = &["target"];
const LUN: &[&str] = &["target", "lun"];
const OP: &[&str] = &["target", "lun", "op"];
const RELAYED: &[&str] = &["target", "lun", "result"];
const ERRORS: &[&str] = &["target", "lun", "op", "status", "sense_key", "additional_sense"];

/// Label value instead of the number of a LUN that does not exist.
const ABSENT: &str = "none";

/// The metrics of the server and of its LUNs, in the order of a scrape.
pub(super) const FAMILIES: &[Family] = &[
    Family {
        name: "lunar_build",
        unit: None,
        kind: Info,
        labels: &["version"],
        help: "Version of the running server",
        write: |_, to| to.info(&[env!("CARGO_PKG_VERSION")]),
    },
    Family {
        name: "lunar_lun",
        unit: None,
        kind: Info,
        labels: &["target", "lun", "uuid", "io_tier", "cache"],
        help: "A LUN: UUID, I/O tier and cache mode of its unit",
        write: |all, to| {
            each_lun(all, |target, id, lun| {
                let cache = match lun.cache {
                    CacheMode::WriteThrough => "write-through",
                    CacheMode::WriteBack => "write-back",
                };
                to.info(&[target, id, &lun.uuid.to_string(), &lun.io_tier, cache])
            })
        },
    },
    Family {
        name: "lunar_lun_size",
        unit: Some(Unit::Bytes),
        kind: Gauge,
        labels: LUN,
        help: "Size of the unit",
        write: |all, to| each_lun(all, |target, id, lun| to.gauge(&[target, id], lun.size_bytes)),
    },
    Family {
        name: "lunar_lun_allocated",
        unit: Some(Unit::Bytes),
        kind: Gauge,
        labels: LUN,
        help: "Space that a thin unit in a file uses on its file system",
        write: |all, to| {
            each_lun(all, |target, id, lun| match lun.space {
                Some(space) => to.gauge(&[target, id], space.used_bytes),
                None => Ok(()),
            })
        },
    },
    Family {
        name: "lunar_lun_free",
        unit: Some(Unit::Bytes),
        kind: Gauge,
        labels: LUN,
        help: "Free space of the file system of a thin unit, which other files may use as well",
        write: |all, to| {
            each_lun(all, |target, id, lun| match lun.space {
                Some(space) => to.gauge(&[target, id], space.available_bytes),
                None => Ok(()),
            })
        },
    },
    Family {
        name: "lunar_lun_poisoned",
        unit: None,
        kind: Gauge,
        labels: LUN,
        help: "1: a sync of the unit failed, and it refuses writes until `lunar ctl recover`",
        write: |all, to| {
            each_lun(all, |target, id, lun| {
                let poisoned = lun.syncs.is_some_and(|syncs| syncs.poisoned);
                to.gauge(&[target, id], poisoned.into())
            })
        },
    },
    Family {
        name: "lunar_lun_backing_fault",
        unit: None,
        kind: Gauge,
        labels: LUN,
        help: "1: the backing file of the unit was deleted, renamed, replaced or truncated, or \
               its file system does not respond; `lunar ctl status` shows the cause",
        write: |all, to| {
            each_lun(all, |target, id, lun| to.gauge(&[target, id], lun.backing_fault.into()))
        },
    },
    Family {
        name: "lunar_lun_link",
        unit: None,
        kind: Gauge,
        labels: &["target", "lun", "state"],
        help: "1 for the state of the connection to a remote LUN: connected, waiting or failed",
        write: |all, to| {
            each_lun(all, |target, id, lun| {
                let states = DeviceLink::ALL.into_iter().filter(|_| lun.link.is_some());
                for state in states {
                    to.gauge(&[target, id, state.name()], (lun.link == Some(state)).into())?;
                }
                Ok(())
            })?;
            all.waiting.iter().try_for_each(|lun| {
                let id = lun.id.to_string();
                DeviceLink::ALL.into_iter().try_for_each(|state| {
                    let waits = state == DeviceLink::Waiting;
                    to.gauge(&[&lun.target, &id, state.name()], waits.into())
                })
            })
        },
    },
    Family {
        name: "lunar_waiting_luns",
        unit: None,
        kind: Gauge,
        labels: NONE,
        help: "LUNs that are not served yet because the storage of a remote LUN is unreachable",
        write: |all, to| to.gauge(&[], all.waiting.len() as u64),
    },
    Family {
        name: "lunar_lun_held_writes",
        unit: None,
        kind: Gauge,
        labels: LUN,
        help: "Writes of the unit that wait for free space",
        write: |all, to| each_lun(all, |target, id, lun| to.gauge(&[target, id], lun.held_writes)),
    },
    Family {
        name: "lunar_relayed_commands",
        unit: None,
        kind: Counter,
        labels: RELAYED,
        help: "READ and WRITE commands of the unit that were given to the relay of a switch: \
               relayed to the end, or taken over by the device",
        write: |all, to| {
            each_lun(all, |target, id, lun| {
                let Some(counts) = lun.relayed else { return Ok(()) };
                to.counter(&[target, id, "relayed"], counts.commands)?;
                to.counter(&[target, id, "taken_over"], counts.taken_over)
            })
        },
    },
    Family {
        name: "lunar_commands",
        unit: None,
        kind: Counter,
        labels: OP,
        help: "SCSI commands that ended, including those that failed or were aborted",
        write: |all, to| {
            each_operation(all, |labels, one| to.counter(labels, one.durations.count()))
        },
    },
    Family {
        name: "lunar_command_errors",
        unit: None,
        kind: Counter,
        labels: ERRORS,
        help: "SCSI commands that failed, by status; for check_condition also by sense key and \
               additional sense code with qualifier (hexadecimal)",
        write: |all, to| command_errors(all, to),
    },
    Family {
        name: "lunar_commands_in_flight",
        unit: None,
        kind: Gauge,
        labels: OP,
        help: "SCSI commands that have not ended: the queue depth",
        write: |all, to| each_operation(all, |labels, one| to.gauge(labels, one.in_flight)),
    },
    Family {
        name: "lunar_received",
        unit: Some(Unit::Bytes),
        kind: Counter,
        labels: OP,
        help: "Data-out of successful commands",
        write: |all, to| each_operation(all, |labels, one| to.counter(labels, one.received_bytes)),
    },
    Family {
        name: "lunar_sent",
        unit: Some(Unit::Bytes),
        kind: Counter,
        labels: OP,
        help: "Data-in of successful commands",
        write: |all, to| each_operation(all, |labels, one| to.counter(labels, one.sent_bytes)),
    },
    Family {
        name: "lunar_command_duration",
        unit: Some(Unit::Seconds),
        kind: Histogram,
        labels: OP,
        help: "Time from the receipt of a command until its response was ready, including waits \
               for its data and for rate limits, excluding the sending of the response",
        write: |all, to| each_operation(all, |labels, one| to.histogram(labels, &one.durations)),
    },
    Family {
        name: "lunar_sync_duration",
        unit: Some(Unit::Seconds),
        kind: Histogram,
        labels: LUN,
        help: "Duration of syncs of the unit's file, including failed ones; the count is the \
               number of syncs",
        write: |all, to| {
            each_lun(all, |target, id, lun| match &lun.syncs {
                Some(syncs) => to.histogram(&[target, id], &syncs.durations),
                None => Ok(()),
            })
        },
    },
    Family {
        name: "lunar_synced_requests",
        unit: None,
        kind: Counter,
        labels: LUN,
        help: "Durable writes and flushes that syncs of the unit completed: several can share one \
               sync",
        write: |all, to| {
            each_lun(all, |target, id, lun| match &lun.syncs {
                Some(syncs) => to.counter(&[target, id], syncs.requests),
                None => Ok(()),
            })
        },
    },
    Family {
        name: "lunar_sync_failures",
        unit: None,
        kind: Counter,
        labels: LUN,
        help: "Failed syncs",
        write: |all, to| {
            each_lun(all, |target, id, lun| match &lun.syncs {
                Some(syncs) => to.counter(&[target, id], syncs.failures),
                None => Ok(()),
            })
        },
    },
    Family {
        name: "lunar_sessions",
        unit: None,
        kind: Gauge,
        labels: TARGET,
        help: "Current sessions",
        write: |all, to| each_target(all, |target| to.gauge(&[&target.name], target.sessions)),
    },
    Family {
        name: "lunar_session_connections",
        unit: None,
        kind: Gauge,
        labels: TARGET,
        help: "Connections of the current sessions of the target",
        write: |all, to| each_target(all, |target| to.gauge(&[&target.name], target.connections)),
    },
    Family {
        name: "lunar_discovery_sessions",
        unit: None,
        kind: Gauge,
        labels: NONE,
        help: "Current discovery sessions",
        write: |all, to| to.gauge(&[], all.discovery_sessions),
    },
    Family {
        name: "lunar_open_connections",
        unit: None,
        kind: Gauge,
        labels: NONE,
        help: "Open connections, logged in or not",
        write: |all, to| to.gauge(&[], all.connections),
    },
    Family {
        name: "lunar_memory_limit",
        unit: Some(Unit::Bytes),
        kind: Gauge,
        labels: NONE,
        help: "Limit of the memory used on behalf of all peers: memory_bytes_max",
        write: |all, to| to.gauge(&[], all.memory.limit_bytes as u64),
    },
    Family {
        name: "lunar_memory",
        unit: Some(Unit::Bytes),
        kind: Gauge,
        labels: &["kind"],
        help: "Memory used on behalf of peers, by purpose; idle: buffers kept for reuse, and \
               released when memory is scarce",
        write: |all, to| {
            let idle = ("idle", all.memory.idle_bytes);
            let kinds = all.memory.kinds().map(|(kind, bytes)| (kind.label(), bytes));
            kinds.chain([idle]).try_for_each(|(kind, bytes)| to.gauge(&[kind], bytes as u64))
        },
    },
    Family {
        name: "lunar_memory_waiting",
        unit: None,
        kind: Gauge,
        labels: NONE,
        help: "Requests that wait for memory",
        write: |all, to| to.gauge(&[], all.memory.waiting as u64),
    },
    Family {
        name: "lunar_logins",
        unit: None,
        kind: Counter,
        labels: TARGET,
        help: "Connections that logged in",
        write: |all, to| each_target(all, |target| to.counter(&[&target.name], target.logins)),
    },
    Family {
        name: "lunar_login_failures",
        unit: None,
        kind: Counter,
        labels: &["reason"],
        help: "Refused logins",
        write: |all, to| {
            let mut failures = all.login_failures.iter();
            failures.try_for_each(|(reason, count)| to.counter(&[reason], *count))
        },
    },
    Family {
        name: "lunar_digest_errors",
        unit: None,
        kind: Counter,
        labels: &["target", "part"],
        help: "Received PDUs with a wrong digest, by the covered part: header or data",
        write: |all, to| {
            each_target(all, |target| {
                to.counter(&[&target.name, "header"], target.header_digest_errors)?;
                to.counter(&[&target.name, "data"], target.data_digest_errors)
            })
        },
    },
];

fn each_target(
    all: &Statistics,
    write: impl FnMut(&TargetStatistics) -> fmt::Result,
) -> fmt::Result {
    all.targets.iter().try_for_each(write)
}

fn each_lun(
    all: &Statistics,
    mut write: impl FnMut(&str, &str, &LunStatistics) -> fmt::Result,
) -> fmt::Result {
    each_target(all, |target| {
        let mut luns = target.luns.iter();
        luns.try_for_each(|lun| write(&target.name, &lun.id.to_string(), lun))
    })
}

/// The operations that each LUN has received. Reading, writing and syncing are always present, so
/// that their first commands count for a rate.
fn each_operation(
    all: &Statistics,
    mut write: impl FnMut(&[&str], &OperationStatistics) -> fmt::Result,
) -> fmt::Result {
    each_target(all, |target| {
        let mut of = |lun: &str, operations: &[OperationStatistics], always: &[OperationClass]| {
            let came = |one: &&OperationStatistics| {
                always.contains(&one.operation) || one.in_flight > 0 || one.durations.count() > 0
            };
            let mut operations = operations.iter().filter(came);
            operations.try_for_each(|one| write(&[&target.name, lun, one.operation.label()], one))
        };
        for lun in &target.luns {
            let always = [OperationClass::Read, OperationClass::Write, OperationClass::Flush];
            of(&lun.id.to_string(), &lun.operations, &always)?;
        }
        of(ABSENT, &target.absent_luns, &[])
    })
}

fn command_errors(all: &Statistics, to: &mut Points<'_>) -> fmt::Result {
    each_target(all, |target| {
        let mut of = |lun: &str, errors: &[CommandErrors]| {
            errors.iter().try_for_each(|one| {
                let status = one.status.map_or("aborted".to_owned(), status_name);
                let key = one.sense.map_or_else(String::new, |(key, _)| sense_key_name(key));
                let code = one.sense.map_or_else(String::new, |(_, code)| format!("{code:04x}"));
                let op = one.operation.label();
                to.counter(&[&target.name, lun, op, &status, &key, &code], one.count)
            })
        };
        for lun in &target.luns {
            of(&lun.id.to_string(), &lun.errors)?;
        }
        of(ABSENT, &target.absent_lun_errors)
    })
}

/// Name of a SCSI status, SAM-5 §5.3.1.
fn status_name(status: u8) -> String {
    match status {
        0x02 => "check_condition".to_owned(),
        0x08 => "busy".to_owned(),
        0x18 => "reservation_conflict".to_owned(),
        0x28 => "task_set_full".to_owned(),
        other => format!("{other:02x}"),
    }
}

/// Name of a sense key, SPC-4 §4.5.6.
fn sense_key_name(key: u8) -> String {
    const NAMES: [&str; 16] = [
        "no_sense",
        "recovered_error",
        "not_ready",
        "medium_error",
        "hardware_error",
        "illegal_request",
        "unit_attention",
        "data_protect",
        "blank_check",
        "vendor_specific",
        "copy_aborted",
        "aborted_command",
        "reserved",
        "volume_overflow",
        "miscompare",
        "completed",
    ];
    NAMES[usize::from(key & 0x0f)].to_owned()
}
