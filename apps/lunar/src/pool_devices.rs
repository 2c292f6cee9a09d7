//! Opens the pools that a server serves: their members, joined to one device.

use crate::commands::default_initiator_name;
use crate::device_url::ServedDevices;
use crate::output::{Failure, FailureKind};
use crate::pool_owner::{self, PoolOwner};
use lunar_block::BlockDevice;
use lunar_control::config::model::{PoolConfig, PoolMemberConfig};
use lunar_control::device_url::{Opener, REMOTE_OPEN_TIME_MAX};
use lunar_control::{AbsentDevice, OpenPool, PoolDevices};
use lunar_pool::format::LEASE_TIME_MAX;
use lunar_pool::{LeftOutMember, MirrorOptions, OpenOptions, Pool, PoolError};
use std::sync::Arc;
use std::sync::mpsc::{self, SendError};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};

/// Number of steps of an opening that wait for members: labels, ownership and write-intent log.
const OPENING_STEPS: u32 = 3;

/// Starts the thread that runs the tasks of mirrors.
///
/// # Errors
/// Fails if the system cannot start a thread or a runtime.
pub fn start_runtime() -> Result<Runtime, Failure> {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).thread_name("lunar-pool").enable_time().build();
    runtime.map_err(|error| Failure::new(format!("cannot start a thread for pools: {error}")))
}

/// The devices of a pool, as far as they could be opened.
#[derive(Debug, Default)]
struct OpenedDevices {
    members: Vec<(PoolMemberConfig, Arc<dyn BlockDevice>)>,
    spares: Vec<Arc<dyn BlockDevice>>,
    /// All devices of the pool, for [`OpenPool`].
    all: PoolDevices,
}

impl OpenedDevices {
    /// Closes a member that the pool could not acquire: it may return later.
    fn leave_out(&mut self, left_out: &LeftOutMember) {
        let is_left_out = |device: &Arc<dyn BlockDevice>| Arc::ptr_eq(device, &left_out.device);
        self.all.leaves.retain(|leaf| !leaf.upgrade().is_some_and(|leaf| is_left_out(&leaf)));
        if let Some(at) = self.members.iter().position(|(_, device)| is_left_out(device)) {
            let (config, _) = self.members.remove(at);
            let failure = Failure::new(left_out.error.to_string());
            self.all.absent.push(AbsentDevice { config, failure, lacks_label: false });
        }
    }
}

/// Opens a pool and its members. A mirror may lack members that cannot be opened if `degraded` is
/// set, or if their data is not current. Waits for each remote member at most for
/// `member_time_max`.
///
/// # Errors
/// Fails if members are missing or do not belong to the pool.
pub fn open(
    config: &PoolConfig,
    devices: &ServedDevices,
    runtime: &Handle,
    member_time_max: Duration,
) -> Result<OpenPool, Failure> {
    let mut owner = PoolOwner::take(config)?;
    let recorded = owner.as_ref().and_then(PoolOwner::recorded_label);
    let mut opened = open_devices(config, devices, member_time_max);
    if opened.members.is_empty() {
        return Err(no_member_failure(config, &opened.all.absent));
    }
    let pool = loop {
        let members = opened.members.iter().map(|(_, device)| Arc::clone(device)).collect();
        let options = OpenOptions {
            owner_key: owner.as_ref().map(|owner| owner.key),
            take_over: devices.takes_over(&config.name),
            recorded: recorded.clone(),
            ..options(config, opened.spares.clone())
        };
        let name = config.name.clone();
        let open = async move { Pool::open(&name, members, options).await };
        let time_max = time_max(member_time_max);
        let error = match open_in_time(open, &mut owner, runtime, time_max) {
            Some(Ok(pool)) => {
                devices.record_opened(&config.name);
                break pool;
            }
            Some(Err(error)) => error,
            None => return Err(is_late(config, time_max)),
        };
        // A device that is to become a member later has no label yet.
        let without_label = match &error {
            PoolError::NotAMember { device } => Some((device, true)),
            PoolError::Unusable { device, .. } if recorded.is_some() => Some((device, false)),
            _ => None,
        };
        let found = without_label.filter(|_| opened.members.len() > 1);
        let found = found.and_then(|(device, lacks_label)| {
            let at = opened.members.iter().position(|(_, member)| member.name() == device)?;
            Some((at, lacks_label))
        });
        let Some((at, lacks_label)) = found else {
            return Err(describe(config, &error, &opened.all.absent));
        };
        let failure = Failure::new(error.to_string());
        let (config, _) = opened.members.remove(at);
        opened.all.absent.push(AbsentDevice { config, failure, lacks_label });
    };
    if let Some(owner) = &owner {
        owner.record_labels(&pool, runtime);
    }
    for left_out in pool.take_left_out() {
        opened.leave_out(&left_out);
    }
    for AbsentDevice { config: device, failure, .. } in &opened.all.absent {
        let device = &device.device;
        tracing::warn!("the pool {} is served without {device}: {failure}", config.name);
    }
    if owner.is_none() && pool_owner::is_shared(config) {
        tracing::warn!(
            "the pool {} has members on other machines and no state directory: after a crash it \
             opens only with --take-over; set `state` in the configuration",
            config.name
        );
    }
    opened.all.lock = owner.map(|owner| owner.lock);
    Ok(OpenPool::new(pool, runtime.clone(), opened.all))
}

/// Opens a pool in a task, which holds `owner` meanwhile. Returns `None` after `time_max`: the task
/// continues, because commands to the members may be in flight, and closes the pool once it is
/// open.
fn open_in_time(
    open: impl Future<Output = Result<Arc<Pool>, PoolError>> + Send + 'static,
    owner: &mut Option<PoolOwner>,
    runtime: &Handle,
    time_max: Duration,
) -> Option<Result<Arc<Pool>, PoolError>> {
    let (send, receive) = mpsc::channel();
    let held = owner.take();
    runtime.spawn(async move {
        let opened = open.await;
        if let Err(SendError((Ok(pool), _owner))) = send.send((opened, held)) {
            let _ = pool.close().await; // nothing was written to it
        }
    });
    let (opened, held) = receive.recv_timeout(time_max).ok()?;
    *owner = held;
    Some(opened)
}

/// Returns the time after which the opening of a pool fails because its members do not answer. A
/// server that starts does not wait for the leases of other hosts.
fn time_max(member_time_max: Duration) -> Duration {
    let lease = match member_time_max < REMOTE_OPEN_TIME_MAX {
        true => Duration::ZERO,
        false => LEASE_TIME_MAX,
    };
    OPENING_STEPS * member_time_max + lease
}

fn is_late(config: &PoolConfig, time_max: Duration) -> Failure {
    let (name, seconds) = (&config.name, time_max.as_secs());
    let what = format!("the pool {name}: its members did not answer within {seconds} s");
    Failure { kind: FailureKind::Unavailable, ..Failure::new(what) }
        .hint(format!("make the members of the [[pool]] {name} available"))
}

/// Opens the members and spare devices, all at the same time if one is remote.
fn open_devices(config: &PoolConfig, devices: &ServedDevices, time_max: Duration) -> OpenedDevices {
    let open_one = |member: &PoolMemberConfig| devices.open_any_member(member, time_max);
    let listed: Vec<_> = config.members.iter().chain(&config.spares).collect();
    let results: Vec<Result<_, Failure>> = match config.has_remote() {
        false => listed.iter().map(|member| open_one(member)).collect(),
        true => std::thread::scope(|scope| {
            let start = |member: &&PoolMemberConfig| {
                let member = (*member).clone();
                let thread = std::thread::Builder::new().name("open".to_owned());
                thread.spawn_scoped(scope, move || open_one(&member))
            };
            let threads: Vec<_> = listed.iter().map(start).collect();
            let panicked =
                || Failure::new("an internal error occurred while the device was opened");
            let end = |thread: std::io::Result<std::thread::ScopedJoinHandle<'_, _>>| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|_| Err(panicked())),
                Err(error) => Err(Failure::new(format!("cannot start a thread: {error}"))),
            };
            threads.into_iter().map(end).collect()
        }),
    };
    let mut opened = OpenedDevices::default();
    for (at, (member, result)) in listed.into_iter().zip(results).enumerate() {
        let config_of = || member.clone();
        match result {
            Err(failure) => {
                let absent = AbsentDevice { config: config_of(), failure, lacks_label: false };
                opened.all.absent.push(absent);
            }
            Ok((device, inner)) => {
                match inner {
                    Some(inner) => opened.all.nested.push(inner),
                    None => opened.all.leaves.push(Arc::downgrade(&device)),
                }
                match at < config.members.len() {
                    true => opened.members.push((config_of(), device)),
                    false => opened.spares.push(device),
                }
            }
        }
    }
    opened
}

fn no_member_failure(config: &PoolConfig, absent: &[AbsentDevice]) -> Failure {
    let what = format!("the pool {}: no member can be opened{}", config.name, causes(absent));
    Failure { kind: kind_of(absent), ..Failure::new(what) }
}

/// Returns the failures of absent devices as text.
fn causes(absent: &[AbsentDevice]) -> String {
    let cause = |one: &AbsentDevice| format!("; {}: {}", one.config.device, one.failure.what);
    absent.iter().map(cause).collect()
}

/// A pool whose members are unreachable may be opened later.
fn kind_of(absent: &[AbsentDevice]) -> FailureKind {
    match absent.iter().any(|absent| absent.failure.is_temporary()) {
        true => FailureKind::Unavailable,
        false => FailureKind::Failed,
    }
}

fn options(config: &PoolConfig, spares: Vec<Arc<dyn BlockDevice>>) -> OpenOptions {
    let default = MirrorOptions::default();
    let busy_rate = config.resync_bytes_per_second;
    OpenOptions {
        is_degraded: config.degraded,
        spares,
        mirror: MirrorOptions {
            member_wait: config.member_wait.unwrap_or(default.member_wait),
            resync_busy_bytes_per_second_max: busy_rate
                .or(default.resync_busy_bytes_per_second_max),
            ..default
        },
        owner_name: default_initiator_name(),
        lease_time: config.lease,
        ..OpenOptions::default()
    }
}

/// The reason why a pool was not opened, with the failures of its members and what to do.
fn describe(config: &PoolConfig, error: &PoolError, absent: &[AbsentDevice]) -> Failure {
    let name = &config.name;
    let failure = Failure::new(format!("the pool {name}: {error}{}", causes(absent)));
    let kind = match error {
        PoolError::Missing { .. } | PoolError::NoneCurrent { .. } => kind_of(absent),
        // The owner may release it; a device may answer later.
        PoolError::OwnedElsewhere { .. } | PoolError::Device(_) => FailureKind::Unavailable,
        // No member has a label: the pool was not created yet.
        PoolError::NotAMember { .. } => FailureKind::Failed,
        // Invalid content of a remote member must not end the server.
        _ if config.has_remote() => FailureKind::Unavailable,
        _ => FailureKind::Failed,
    };
    let failure = Failure { kind, ..failure };
    match error {
        PoolError::Missing { .. } if config.degraded => {
            failure.hint("make the missing members available: a stripe needs all of them")
        }
        PoolError::Missing { .. } => failure.hint(format!(
            "make the missing members available; or serve a mirror without them: degraded = true \
             in the [[pool]] {name}"
        )),
        PoolError::NotAMember { .. } => {
            failure.hint(match config.is_of_virtual_lun() {
                // The name of such a pool is that of its LUN.
                true => "create the mirror first: lunar switch create-mirror TARGET LUN --config \
                         FILE"
                    .to_owned(),
                false => format!("create the pool first: lunar pool create {name} --kind KIND …"),
            })
        }
        PoolError::OwnedElsewhere { .. } => failure.hint(format!(
            "stop the server that has the pool; or, if it is gone or must not write any more, take \
             the pool over: lunar target --config FILE --take-over {name}"
        )),
        PoolError::Split(_) => failure.hint(format!(
            "keep the data of one side: lunar pool resolve {name} --config FILE --keep MEMBER"
        )),
        _ => failure.hint(format!("correct the members of the [[pool]] {name}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fault: a member that answered the login but no READ kept the server from listening. Goal:
    /// the server waits for the opening of a pool for a limited time, and the opening holds the
    /// pool's owner until it ends.
    #[test]
    fn an_opening_that_does_not_end_is_not_waited_for() {
        let runtime = start_runtime().unwrap();
        let time_max = Duration::from_millis(1);
        let late = open_in_time(std::future::pending(), &mut None, runtime.handle(), time_max);
        assert!(late.is_none());
        let error = async { Err(PoolError::MemberCount(0)) };
        let ended = open_in_time(error, &mut None, runtime.handle(), Duration::MAX);
        assert!(matches!(ended, Some(Err(PoolError::MemberCount(0)))));
        runtime.shutdown_background();
    }
}
