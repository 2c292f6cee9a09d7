//! Opens the pools that a server serves: their members, joined to one device.

use crate::device_url::ServedDevices;
use crate::output::Failure;
use lunar_block::BlockDevice;
use lunar_control::OpenPool;
use lunar_control::config::model::PoolConfig;
use lunar_pool::{MirrorOptions, OpenOptions, Pool, PoolError};
use std::sync::Arc;
use tokio::runtime::{Builder, Handle, Runtime};

/// Starts the thread that runs the tasks of mirrors.
///
/// # Errors
/// Fails if the system cannot start a thread or a runtime.
pub fn start_runtime() -> Result<Runtime, Failure> {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).thread_name("lunar-pool").enable_time().build();
    runtime.map_err(|error| Failure::new(format!("cannot start a thread for pools: {error}")))
}

/// Opens a pool and its members. A mirror may lack members that cannot be opened, if it permits.
///
/// # Errors
/// The members that are missing or do not belong to the pool.
pub fn open(
    config: &PoolConfig,
    devices: &ServedDevices,
    runtime: &Handle,
) -> Result<OpenPool, Failure> {
    let (mut members, mut nested, mut failures) = (Vec::new(), Vec::new(), Vec::new());
    let mut leaves = Vec::new();
    for member in &config.members {
        let opened = match &member.options.pool {
            Some(inner) => open(inner, devices, runtime).map(|inner| {
                let device = inner.pool().map(|pool| Arc::clone(pool) as Arc<dyn BlockDevice>);
                nested.push(inner);
                device
            }),
            None => devices.open_member(&member.device, &member.options).map(|device| {
                leaves.push(Arc::downgrade(&device));
                Some(device)
            }),
        };
        match opened {
            Ok(device) => members.extend(device),
            Err(failure) => failures.push((&member.device, failure)),
        }
    }
    if members.is_empty() && !failures.is_empty() {
        let failures = failures.iter().map(|(device, failure)| format!("; {device}: {failure}"));
        let what = format!("the pool {}: no member can be opened", config.name);
        return Err(Failure::new(what + &failures.collect::<String>()));
    }
    let pool = runtime.block_on(Pool::open(&config.name, members, options(config)));
    let pool = pool.map_err(|error| describe(config, &error, &failures))?;
    for (device, failure) in &failures {
        tracing::warn!("the pool {} is served without {device}: {failure}", config.name);
    }
    Ok(OpenPool::new(pool, runtime.clone(), leaves, nested))
}

fn options(config: &PoolConfig) -> OpenOptions {
    let default = MirrorOptions::default();
    let busy_rate = config.resync_bytes_per_second;
    OpenOptions {
        is_degraded: config.degraded,
        spares: Vec::new(),
        mirror: MirrorOptions {
            member_wait: config.member_wait.unwrap_or(default.member_wait),
            resync_busy_bytes_per_second_max: busy_rate
                .or(default.resync_busy_bytes_per_second_max),
            ..default
        },
    }
}

/// The reason why a pool was not opened, with the failures of its members and what to do.
fn describe(
    config: &PoolConfig,
    error: &PoolError,
    failures: &[(&lunar_control::device_url::DeviceUrl, Failure)],
) -> Failure {
    let name = &config.name;
    let mut what = format!("the pool {name}: {error}");
    for (device, failure) in failures {
        what.push_str(&format!("; {device}: {}", failure.what));
    }
    let failure = Failure::new(what);
    match error {
        PoolError::Missing { .. } if config.degraded => {
            failure.hint("make the missing members available: a stripe needs all of them")
        }
        PoolError::Missing { .. } => failure.hint(format!(
            "make the missing members available; or serve a mirror without them: degraded = true \
             in the [[pool]] {name}"
        )),
        PoolError::NotAMember { .. } => {
            failure.hint(format!("create the pool first: lunar pool create {name} --kind KIND …"))
        }
        PoolError::Split(_) => failure.hint("keep the members of one side only"),
        _ => failure.hint(format!("correct the members of the [[pool]] {name}")),
    }
}
