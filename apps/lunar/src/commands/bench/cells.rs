//! What is measured: one combination of size, depth, connections and pattern, on every disk.

use super::network::{Network, Path};
use super::session::SessionArgs;
use super::{Bench, PatternName};
use crate::device_url::{self, Opened};
use crate::output::Failure;
use control::device_url::{DeviceUrl, LocalOptions};
use initiator::Url;
use load::probe::{Probe, Probed, Shape};
use load::relay::{Model, Relay};
use load::{Failed, Lane, Measured, Owner, Turns, Work};
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
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) url: String,
    /// Connections that there were; `None`: the disk is of this machine.
    pub(super) connections: Option<usize>,
    pub(super) measured: Measured,
}

/// What one combination came to.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    pub(super) cell: Cell,
    /// One for each disk.
    pub(super) rows: Vec<Row>,
    /// What raw TCP did meanwhile; `None`: no disk is behind it.
    pub(super) probed: Option<Probed>,
}

/// A disk to be opened.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want<'a> {
    pub(super) url: &'a str,
    /// Of a session; other disks have none.
    pub(super) connections: u16,
    /// It is written to.
    pub(super) writes: bool,
    /// What it is reached through.
    pub(super) model: Option<Model>,
}

/// A disk that is open.
#[derive(Debug)]
pub(super) struct Disk {
    opened: Opened,
    relay: Option<Arc<Relay>>,
    target: Option<Owner>,
}

impl Disk {
    /// Its turns, with this work.
    pub(super) fn lane(&self, work: Work) -> Lane {
        let (target, relay) = (self.target, self.relay.clone());
        Lane { device: self.opened.shared(), work, target, relay }
    }

    /// How many connections there are; `None`: it is of this machine.
    pub(super) fn connections(&self) -> Option<usize> {
        match &self.opened {
            Opened::Remote(disk) => Some(disk.connections()),
            Opened::Local(_) => None,
        }
    }
}

/// The disks that are open, by what was wanted.
#[derive(Debug, Default)]
pub(super) struct Disks {
    open: HashMap<(String, u16, Option<Model>), Disk>,
    networks: HashMap<Option<Model>, Network>,
}

impl Disks {
    /// The disk, opened when it is wanted first.
    pub(super) async fn get(
        &mut self,
        session: &SessionArgs,
        want: Want<'_>,
    ) -> Result<&Disk, Failure> {
        let mut parsed = DeviceUrl::parse(want.url)?;
        let connections = if parsed.portal().is_some() { want.connections } else { 1 };
        let key = (want.url.to_owned(), connections, want.model);
        if !self.open.contains_key(&key) {
            let mut options = session.options(parsed.portal())?;
            options.connections = connections;
            let (mut relay, mut target) = (None, None);
            let portal = parsed.portal().map(Url::portal).unwrap_or_default();
            if let DeviceUrl::Iscsi(url) = &mut parsed {
                let network = self.networks.entry(want.model).or_default();
                let path = network.path(url, want.model).await?;
                Path { url: *url, relay, target } = path;
            }
            let read_only = parsed.path().is_some() && !want.writes;
            let local = LocalOptions { read_only, ..LocalOptions::default() };
            let mut opened = device_url::open(&parsed, &local, &options).await;
            if let (Err(failure), Some(_)) = (&mut opened, &relay) {
                failure.what = format!("{}, where a relay to {portal} is", failure.what);
            }
            let opened = opened?;
            self.open.insert(key.clone(), Disk { opened, relay, target });
        }
        self.open.get(&key).ok_or_else(|| Failure::new(format!("{} is not open", want.url)))
    }

    /// Logs out everywhere.
    pub(super) async fn close(self) -> Result<(), Failure> {
        for (_, disk) in self.open {
            disk.opened.close().await?;
        }
        Ok(())
    }
}

/// Measures a combination on every disk, which take turns.
pub(super) async fn measure(
    args: &Bench,
    cell: &Cell,
    disks: &mut Disks,
    probe: Option<&Arc<Probe>>,
) -> Result<Measurement, Failure> {
    let work = args.work(cell)?;
    let (mut lanes, mut names) = (Vec::new(), Vec::new());
    for url in &args.urls {
        let want = Want {
            url,
            connections: cell.connections,
            writes: args.pattern.iter().any(|name| name.pattern().writes()),
            model: args.network.model(),
        };
        let disk = disks.get(&args.session, want).await?;
        lanes.push(disk.lane(work));
        names.push((url.clone(), disk.connections()));
    }
    let shape = Shape {
        writes: work.pattern.writes(),
        io_bytes: work.io_bytes,
        depth: cell.depth,
        connections: cell.connections,
    };
    let (measured, probed) = in_rounds(lanes, args.rounds, probe, shape).await?;
    let rows = names.into_iter().zip(measured);
    let rows = rows.map(|((url, connections), measured)| Row { url, connections, measured });
    Ok(Measurement { cell: *cell, rows: rows.collect(), probed })
}

/// So many rounds of all lanes, with one of the probe in each.
pub(super) async fn in_rounds(
    lanes: Vec<Lane>,
    rounds: u16,
    probe: Option<&Arc<Probe>>,
    shape: Shape,
) -> Result<(Vec<Measured>, Option<Probed>), Failure> {
    let time = lanes.first().map_or(Duration::ZERO, |lane| lane.work.time);
    let mut turns = Turns::new(lanes);
    let mut probed = probe.map(|_| Probed::default());
    for _ in 0..rounds {
        turns.round().await.map_err(failure)?;
        if let (Some(probe), Some(so_far)) = (probe, probed.take()) {
            probed = Some(probe_round(Arc::clone(probe), shape, time, so_far).await?);
        }
    }
    Ok((turns.measured(), probed))
}

/// One round of the probe, on a thread of its own.
async fn probe_round(
    probe: Arc<Probe>,
    shape: Shape,
    time: Duration,
    mut probed: Probed,
) -> Result<Probed, Failure> {
    let round = move || probe.round(shape, time, &mut probed).map(|()| probed);
    let told = tokio::task::spawn_blocking(round).await;
    told.unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
        .map_err(|error| Failure::new(format!("the probe of raw TCP failed: {error}")))
}

/// What kept a disk from being measured.
pub(super) fn failure(failed: Failed) -> Failure {
    match failed {
        Failed::Work(wrong) => Failure::usage(wrong.to_string()),
        Failed::Disk(error) => error.into(),
    }
}

impl Bench {
    /// What a combination asks of each disk.
    fn work(&self, cell: &Cell) -> Result<Work, Failure> {
        let io_bytes = u32::try_from(cell.io_bytes)
            .map_err(|_| Failure::usage("a request has less than 4 GiB"))?;
        let (warm_up, time) = self.times();
        Ok(Work {
            pattern: cell.pattern.pattern(),
            io_bytes,
            range_bytes: self.size,
            depth: cell.depth.into(),
            pace: self.pace(),
            warm_up,
            time,
            seed: self.seed,
        })
    }
}
