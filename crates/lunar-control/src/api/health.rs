//! Faults of the served units, each with a remedy.

use super::pools::PoolReport;
use crate::config::model::{Configuration, PoolConfig, SkippedTarget};
use crate::daemon::WaitingLun;
use crate::device_url::DeviceUrl;
use crate::time::rfc3339;
use lunar_block::DeviceLink;
use lunar_pool::{MemberState, PoolHealth};
use lunar_target::{Catalogue, DiskUnit, LunOptions, TargetOptions};
use serde::{Deserialize, Serialize};
use std::ptr;
use std::sync::Arc;
use utoipa::ToSchema;

/// Overall health of the units.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// No unit has a fault.
    Good,
    /// At least one unit has a fault.
    Degraded,
}

/// A fault of a unit.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct UnitFault {
    /// The iSCSI name of the first target that shows the unit.
    pub target: String,
    /// The LUN's number at that target.
    pub lun: u16,
    /// The fault, in one line.
    pub error: String,
    /// The remedy.
    pub hint: String,
}

impl UnitFault {
    /// All faults of the units of `catalogue`, each unit once.
    pub(super) fn all(catalogue: &Catalogue) -> Vec<Self> {
        let units = catalogue.disks();
        units.iter().flat_map(|unit| Self::of(catalogue, unit)).collect()
    }

    /// The fault of a LUN that waits for its storage.
    pub(super) fn of_waiting(lun: &WaitingLun) -> Self {
        Self {
            target: lun.target.clone(),
            lun: lun.id,
            error: format!(
                "{} waits for its storage since {} (attempts: {}): {}",
                lun.device(),
                rfc3339(lun.since),
                lun.attempts,
                lun.error
            ),
            hint: match lun.device() {
                DeviceUrl::Pool(_) => {
                    "check the targets of its members, and the network: the pool is served as soon \
                     as it can be opened"
                }
                _ => {
                    "check the target of that LUN, and the network: the LUN is served as soon as \
                     it can be opened"
                }
            }
            .to_owned(),
        }
    }

    /// The fault of a target that is not served, because a file does not exist.
    pub(super) fn of_skipped(target: &SkippedTarget) -> Self {
        Self {
            target: target.name.clone(),
            lun: target.lun,
            error: target.error(),
            hint: target.hint(),
        }
    }

    /// The fault of a pool, at the first LUN that serves it.
    pub(super) fn of_pool(pool: &PoolReport, running: &Configuration) -> Option<Self> {
        if pool.health == PoolHealth::Healthy.name() {
            return None;
        }
        let luns = running.targets.iter().flat_map(|target| {
            target.luns.iter().map(move |lun| (target, lun, lun.unit.options.pool.as_ref()))
        });
        let serves = |served: Option<&Arc<PoolConfig>>| {
            served.is_some_and(|served| served.is_or_contains(&pool.name))
        };
        let (target, lun, _) = luns.into_iter().find(|(.., served)| serves(*served))?;
        let current = MemberState::Current.name();
        let good = pool.members.iter().filter(|member| member.state == current).count();
        Some(Self {
            target: target.name.clone(),
            lun: lun.id,
            error: format!(
                "pool:{} is {}: {good} of {} members are current",
                pool.name,
                pool.health,
                pool.members.len()
            ),
            hint: pool.next_step.clone().unwrap_or_else(|| "see `lunar pool status`".to_owned()),
        })
    }

    fn of(catalogue: &Catalogue, unit: &Arc<DiskUnit>) -> Vec<Self> {
        let mut shown = catalogue.targets.iter().flat_map(|target| {
            let shows = |lun: &&LunOptions| lun.disk().is_some_and(|disk| ptr::eq(disk, &**unit));
            let luns = target.luns.iter().filter(shows);
            luns.map(move |lun| (target, lun))
        });
        let Some((target, lun)) = shown.next() else { return Vec::new() };
        let fault = |(error, hint): (String, String)| Self {
            target: target.name.clone(),
            lun: lun.id,
            error,
            hint,
        };
        let recover = recover_command(catalogue, target, lun, unit);
        let room = out_of_space(unit).or_else(|| below_threshold(unit));
        let all = [poison(unit, &recover), disconnected(unit), hanging(unit), room];
        let backing = super::backing::troubles(unit, &recover);
        all.into_iter().flatten().chain(backing).map(fault).collect()
    }
}

/// The command that recovers a unit.
fn recover_command(
    catalogue: &Catalogue,
    target: &TargetOptions,
    lun: &LunOptions,
    unit: &DiskUnit,
) -> String {
    let device = unit.options().device.name();
    let several = target.luns.iter().filter(|other| other.id == lun.id).count() > 1;
    let mut command = format!("lunar ctl recover {} --accept-loss", lun.id);
    if catalogue.targets.len() > 1 {
        command.push_str(&format!(" --target {}", target.name));
    }
    if several {
        command.push_str(&format!(" --device {device}"));
    }
    command
}

/// The fault of a unit whose sync has failed.
fn poison(unit: &DiskUnit, recover: &str) -> Option<(String, String)> {
    if !unit.is_poisoned() {
        return None;
    }
    let device = unit.options().device.name();
    Some((
        format!(
            "{device} refuses writes: a sync failed, and data written since the last successful \
             sync may be lost"
        ),
        format!("fix the cause, notify the users of the disk, then run: {recover}"),
    ))
}

fn disconnected(unit: &DiskUnit) -> Option<(String, String)> {
    let device = unit.options().device.name();
    match unit.options().device.link()? {
        DeviceLink::Connected => None,
        DeviceLink::Waiting => Some((
            format!("{device} is not reached; its commands wait"),
            "check the target of that LUN, and the network: the login is repeated".to_owned(),
        )),
        DeviceLink::Failed => Some((
            format!("{device} refuses the login, or is another disk than before"),
            "check the credentials, the access list and the LUN at that target: the login is \
             repeated twice a minute"
                .to_owned(),
        )),
    }
}

fn hanging(unit: &DiskUnit) -> Option<(String, String)> {
    let count = unit.detached_write_count();
    (count > 0).then(|| {
        let device = unit.options().device.name();
        (
            format!("{device} is not responding: {count} aborted writes are still pending"),
            "check the disk: I/O to the blocks of these writes waits".to_owned(),
        )
    })
}

fn out_of_space(unit: &DiskUnit) -> Option<(String, String)> {
    let device = unit.options().device.name();
    let error = match (unit.held_writes(), unit.lacks_space()) {
        (0, false) => return None,
        (0, true) => format!("{device} is out of space: writes fail"),
        (count, _) => format!("{device} is out of space: {count} writes are waiting"),
    };
    Some((error, "free space on the file system of the disk".to_owned()))
}

fn below_threshold(unit: &DiskUnit) -> Option<(String, String)> {
    let percent = unit.options().thin_threshold_percent?;
    let free_bytes = unit.space_usage()?.available_bytes;
    unit.is_below_threshold().then(|| {
        let device = unit.options().device.name();
        (
            format!(
                "{device} is short of space: {} MiB are free, its threshold of {percent} % is \
                 reached",
                free_bytes >> 20
            ),
            "free space on the file system of the disk before writes fail".to_owned(),
        )
    })
}
