//! Our initiator in this process, made of the parts of `lunar bench`.

use super::CommandTurn;
use crate::bench::INITIATOR;
use crate::bench::target::cells::DISK_BYTES;
use crate::bench::target::results::Sample;
use crate::system::cores::{self, CLIENT_CORE, on_a_thread};
use anyhow::Result;
use lunar_block::BlockDevice;
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use lunar_iscsi::text::Digest;
use lunar_load::{Latency, LoadResult, Pace, Workload};
use std::sync::Arc;
use std::time::Instant;

/// Runs one turn with one thread for all sessions and connections, on the client's core, or where
/// the scheduler puts it if the cores are shared. With a second thread the client would be
/// measured, whose threads then compete for cores that the target needs.
///
/// # Errors
/// The target refuses a login or a request.
pub fn turn(turn: &CommandTurn<'_>) -> Result<Sample> {
    on_a_thread(|| {
        if !turn.cell.is_shared {
            cores::pin(CLIENT_CORE)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(ask(turn))
    })
}

async fn ask(turn: &CommandTurn<'_>) -> Result<Sample> {
    let url: Url = turn.portal.url.parse()?;
    let mut options = SessionOptions::new(INITIATOR);
    options.connections = turn.setup.connections;
    // A lost connection is an error here, not a delay.
    options.recovery_seconds = 0;
    if turn.setup.digests {
        options.header_digest = vec![Digest::Crc32c];
        options.data_digest = vec![Digest::Crc32c];
    }
    let mut disks = Vec::new();
    for _ in 0..turn.setup.sessions {
        disks.push(Arc::new(RemoteDisk::connect(&url, &options).await?));
    }
    let before = lunar_load::processor_time();
    let begun = Instant::now();
    let mut sessions = tokio::task::JoinSet::new();
    for (number, disk) in disks.iter().enumerate() {
        let work = work(turn, number as u64);
        let device: Arc<dyn BlockDevice> = Arc::clone(disk) as _;
        sessions.spawn(async move { lunar_load::run(&device, work).await });
    }
    let mut outcomes = Vec::new();
    while let Some(outcome) = sessions.join_next().await {
        outcomes.push(outcome??);
    }
    let spent = lunar_load::processor_time().saturating_sub(before);
    let busy = spent.as_secs_f64() / begun.elapsed().as_secs_f64();
    for disk in disks {
        disk.unit().initiator().log_out().await?;
    }
    Ok(Sample { client_busy: Some(busy), ..together(&outcomes) })
}

fn work(turn: &CommandTurn<'_>, session: u64) -> Workload {
    Workload {
        pattern: turn.cell.pattern,
        io_bytes: turn.cell.io_bytes,
        range_bytes: Some(DISK_BYTES),
        depth: turn.cell.depth.into(),
        pace: Pace::Closed,
        warm_up: turn.times.warm_up,
        time: turn.times.measured,
        seed: turn.seed + (session << 32),
        durable: false,
    }
}

fn together(outcomes: &[LoadResult]) -> Sample {
    let mut latency = Latency::default();
    outcomes.iter().for_each(|outcome| latency.add(&outcome.latency));
    let iops = outcomes.iter().map(LoadResult::requests_per_second).sum();
    Sample::of(&latency, iops, outcomes.iter().map(LoadResult::bytes_per_second).sum())
}
