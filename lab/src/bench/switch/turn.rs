//! One turn of a path: hosts send requests for a time, and the processor time of the switch is
//! measured.

use super::cells::{CellLoad, SwitchPath};
use super::results::TurnFigures;
use super::scene::Scene;
use crate::bench::INITIATOR;
use crate::system::cores::{self, CLIENT_CORE, on_a_thread};
use anyhow::{Result, ensure};
use lunar_block::BlockDevice;
use lunar_initiator::{RemoteDisk, SessionOptions};
use lunar_load::{Latency, LoadResult, Pace, Workload};
use std::sync::Arc;
use std::time::Duration;

/// Least share of the commands that the fast path must relay: its first commands take the slow
/// path, while it logs in to the storages.
const RELAYED_MIN: f64 = 0.5;

/// Length of a turn, and the seed of its random offsets.
#[derive(Clone, Copy, Debug)]
pub struct TurnLength {
    pub warm_up: Duration,
    pub measured: Duration,
    pub range_bytes: u64,
    pub seed: u64,
}

/// Runs one turn with new sessions, one for each host, on the core of the clients.
///
/// # Errors
/// A login or a request fails, or the switch took another path than it should.
pub fn turn(
    scene: &Scene,
    path: SwitchPath,
    load: CellLoad,
    length: TurnLength,
) -> Result<TurnFigures> {
    let (urls, site) = (scene.urls(path)?, &scene.site);
    let (relayed_before, time_before) = (scene.relayed(path)?, scene.switch_time(path)?);
    let results = on_a_thread(|| {
        site.enter_host()?;
        cores::pin(CLIENT_CORE)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(requests(&urls, load, length))
    })?;
    let spent = scene.switch_time(path)?.saturating_sub(time_before);
    let relayed = scene.relayed(path)? - relayed_before;
    let mut latency = Latency::default();
    results.iter().for_each(|result| latency.add(&result.latency));
    let per_second: f64 = results.iter().map(LoadResult::requests_per_second).sum();
    // The processor time includes the warm-up, so requests are extrapolated to it.
    let all = per_second * (length.warm_up + length.measured).as_secs_f64();
    ensure!(all > 0.0, "{}: no request ended: use a longer time (--seconds)", path.name());
    let relayed_share = (relayed as f64 / all).min(1.0);
    let is_right = match path {
        SwitchPath::Fast => relayed_share >= RELAYED_MIN,
        _ => relayed == 0,
    };
    let (name, cell) = (path.name(), load.name());
    ensure!(is_right, "{name}, {cell}: {relayed} of {all:.0} commands were relayed");
    Ok(TurnFigures {
        requests_per_second: per_second,
        bytes_per_second: results.iter().map(LoadResult::bytes_per_second).sum(),
        p50_us: latency.percentile(50.0).as_nanos() as f64 / 1e3,
        switch_cpu_us: spent.as_secs_f64() * 1e6 / all,
        relayed_share,
    })
}

async fn requests(urls: &[String], load: CellLoad, length: TurnLength) -> Result<Vec<LoadResult>> {
    let mut options = SessionOptions::new(INITIATOR);
    // A lost connection is an error here, not a delay.
    options.recovery_seconds = 0;
    let mut disks = Vec::new();
    for url in urls {
        disks.push(Arc::new(RemoteDisk::connect(&url.parse()?, &options).await?));
    }
    let mut hosts = tokio::task::JoinSet::new();
    for (number, disk) in disks.iter().enumerate() {
        let work = Workload {
            pattern: load.pattern,
            io_bytes: load.io_bytes,
            range_bytes: Some(length.range_bytes),
            depth: load.depth,
            pace: Pace::Closed,
            warm_up: length.warm_up,
            time: length.measured,
            seed: length.seed + ((number as u64) << 32),
            durable: false,
        };
        let device: Arc<dyn BlockDevice> = Arc::clone(disk) as _;
        hosts.spawn(async move { lunar_load::run(&device, work).await });
    }
    let mut results = Vec::new();
    while let Some(result) = hosts.join_next().await {
        results.push(result??);
    }
    for disk in disks {
        disk.unit().initiator().log_out().await?;
    }
    Ok(results)
}
