//! What is measured: one combination of size, depth, connections and pattern, on every disk.

use super::{Bench, PatternName};
use crate::device_url::{self, Opened};
use crate::output::Failure;
use block::BlockDevice;
use control::device_url::{DeviceUrl, LocalOptions};
use load::{Latency, Outcome, Spread, Work};
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// One combination.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) pattern: PatternName,
    pub(super) io_bytes: u64,
    pub(super) depth: u16,
    pub(super) connections: u16,
}

/// What one disk came to in all rounds.
#[derive(Clone, Debug, Default)]
pub(super) struct Measured {
    pub(super) url: String,
    /// Connections that there were; `None`: the disk is of this machine.
    pub(super) connections: Option<usize>,
    pub(super) requests_per_second: Spread,
    pub(super) bytes_per_second: Spread,
    /// Of all rounds.
    pub(super) latency: Latency,
    /// Of this process, for each request, in microseconds.
    pub(super) cpu_micros: Spread,
}

/// The disks that are open, by URL and connections.
#[derive(Debug, Default)]
pub(super) struct Disks {
    open: HashMap<(String, u16), Opened>,
}

impl Disks {
    /// The disk, opened when it is wanted first; `writes`: it will be written to.
    async fn get(&mut self, args: &Bench, url: &str, cell: &Cell) -> Result<&Opened, Failure> {
        let parsed = DeviceUrl::parse(url)?;
        let connections = if parsed.portal().is_some() { cell.connections } else { 1 };
        let key = (url.to_owned(), connections);
        if !self.open.contains_key(&key) {
            let mut options = args.session.options(parsed.portal())?;
            options.connections = connections;
            let writes = args.pattern.iter().any(|name| name.pattern().writes());
            let read_only = parsed.path().is_some() && !writes;
            let local = LocalOptions { read_only, ..LocalOptions::default() };
            let opened = device_url::open(&parsed, &local, &options).await?;
            self.open.insert(key.clone(), opened);
        }
        self.open.get(&key).ok_or_else(|| Failure::new(format!("{url} is not open")))
    }

    /// Logs out everywhere.
    pub(super) async fn close(self) -> Result<(), Failure> {
        for (_, opened) in self.open {
            opened.close().await?;
        }
        Ok(())
    }
}

/// Measures a combination on every disk, which take turns.
pub(super) async fn measure(
    args: &Bench,
    cell: &Cell,
    disks: &mut Disks,
) -> Result<Vec<Measured>, Failure> {
    let mut rounds: Vec<Vec<(Outcome, f64)>> = vec![Vec::new(); args.urls.len()];
    let mut all: Vec<Measured> = Vec::new();
    for round in 0..args.rounds {
        for (url, outcomes) in args.urls.iter().zip(&mut rounds) {
            let opened = disks.get(args, url, cell).await?;
            if round == 0 {
                let connections = match opened {
                    Opened::Remote(disk) => Some(disk.connections()),
                    Opened::Local(_) => None,
                };
                all.push(Measured { url: url.clone(), connections, ..Measured::default() });
            }
            outcomes.push(once(args, cell, &opened.shared(), round).await?);
        }
    }
    for (measured, outcomes) in all.iter_mut().zip(&rounds) {
        let of = |figure: fn(&(Outcome, f64)) -> f64| Spread::of(outcomes.iter().map(figure));
        measured.requests_per_second = of(|(outcome, _)| outcome.requests_per_second());
        measured.bytes_per_second = of(|(outcome, _)| outcome.bytes_per_second());
        measured.cpu_micros = of(|(_, micros)| *micros);
        outcomes.iter().for_each(|(outcome, _)| measured.latency.add(&outcome.latency));
    }
    Ok(all)
}

/// One disk in one round; also the processor time of each request in microseconds.
async fn once(
    args: &Bench,
    cell: &Cell,
    device: &Arc<dyn BlockDevice>,
    round: u16,
) -> Result<(Outcome, f64), Failure> {
    let io_bytes = u32::try_from(cell.io_bytes)
        .map_err(|_| Failure::usage("a request has less than 4 GiB"))?;
    let (warm_up, time) = args.times();
    let work = Work {
        pattern: cell.pattern.pattern(),
        io_bytes,
        range_bytes: args.size,
        depth: cell.depth.into(),
        pace: args.pace(),
        warm_up,
        time,
        seed: args.seed.wrapping_add(round.into()),
    };
    let begun = processor_time();
    let outcome = load::run(device, work).await.map_err(|failed| match failed {
        load::Failed::Work(wrong) => Failure::usage(format!("{}: {wrong}", device.name())),
        load::Failed::Disk(error) => error.into(),
    })?;
    // Of the warm-up too, so that requests are counted for all of it.
    let spent = processor_time().saturating_sub(begun).as_secs_f64();
    let whole = (warm_up + time).as_secs_f64() / time.as_secs_f64();
    let requests = (outcome.requests as f64 * whole).max(1.0);
    Ok((outcome, spent * 1e6 / requests))
}

/// What this process has had so far.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}
