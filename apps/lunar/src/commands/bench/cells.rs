//! Measurement of one combination of size, depth, connections and pattern, on every disk.

use super::network::{Network, Path};
use super::session::SessionArgs;
use super::{BenchCommand, PatternName};
use crate::device_url::{self, OpenedDevice};
use crate::output::Failure;
use lunar_control::device_url::{DeviceUrl, LocalOptions};
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use lunar_iscsi::login::initiator::Established;
use lunar_load::probe::{Probe, ProbeShape, Probed};
use lunar_load::relay::{Model, Relay};
use lunar_load::{Failed, ListeningProcess, Measured, Subject, Turns, Workload};
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

/// Results of one disk over all rounds.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) url: String,
    /// Number of connections; `None`: a local disk.
    pub(super) connections: Option<usize>,
    pub(super) measured: Measured,
    /// Whether the session was lost and re-established during the measurement.
    pub(super) lost: bool,
}

impl Row {
    /// A warning if the figures are not reliable.
    pub(super) fn warning(&self) -> Option<&'static str> {
        self.measured.nothing().or(self.lost.then_some(
            "a connection was lost while this was measured: the longest latency says for how long",
        ))
    }
}

/// Results of one combination.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    pub(super) cell: Cell,
    /// One row for each disk.
    pub(super) rows: Vec<Row>,
    /// Results of raw TCP in the same rounds; `None`: no disk is remote.
    pub(super) probed: Option<Probed>,
}

/// A disk to open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Want<'a> {
    pub(super) url: &'a str,
    /// Number of connections of the session; ignored for other disks.
    pub(super) connections: u16,
    /// Whether the disk is written to.
    pub(super) writes: bool,
    /// Network model of the relay to the target.
    pub(super) model: Option<Model>,
}

/// An open disk.
#[derive(Debug)]
pub(super) struct Disk {
    opened: OpenedDevice,
    relay: Option<Arc<Relay>>,
    target: Option<ListeningProcess>,
}

impl Disk {
    /// Combines the disk with this workload.
    pub(super) fn lane(&self, work: Workload) -> Subject {
        let (target, relay) = (self.target, self.relay.clone());
        Subject { device: self.opened.shared(), work, target, relay }
    }

    /// The current session; `None`: a local disk.
    fn session(&self) -> Option<Arc<Established>> {
        match &self.opened {
            OpenedDevice::Remote(disk) => Some(disk.unit().initiator().established()),
            OpenedDevice::Local(_) => None,
        }
    }

    /// Number of connections; `None`: a local disk.
    pub(super) fn connections(&self) -> Option<usize> {
        match &self.opened {
            OpenedDevice::Remote(disk) => Some(disk.connections()),
            OpenedDevice::Local(_) => None,
        }
    }
}

/// Open disks by URL, connections and network.
#[derive(Debug, Default)]
pub(super) struct Disks {
    open: HashMap<(String, u16, Option<Model>), Disk>,
    networks: HashMap<Option<Model>, Network>,
    /// Addresses of relays, and the portals that they stand for.
    relayed: Vec<(String, String)>,
}

impl Disks {
    /// Returns the disk, opening it on first use.
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
            if let DeviceUrl::Iscsi(url) = &mut parsed {
                if want.model.is_some() {
                    check_reachable(url, &options).await?;
                }
                let network = self.networks.entry(want.model).or_default();
                let path = network.path(url, want.model).await?;
                if let Some(relay) = &path.relay {
                    self.relayed.push((relay.address().to_string(), url.portal()));
                }
                Path { url: *url, relay, target } = path;
            }
            let read_only = parsed.path().is_some() && !want.writes;
            let local = LocalOptions { read_only, ..LocalOptions::default() };
            let opened = device_url::open(&parsed, &local, &options).await;
            let opened = opened.map_err(|failure| self.as_named(failure))?;
            if let (OpenedDevice::Remote(disk), Some(_)) = (&opened, &relay) {
                check_not_redirected(want.url, disk, parsed.portal())?;
            }
            self.open.insert(key.clone(), Disk { opened, relay, target });
        }
        self.open.get(&key).ok_or_else(|| Failure::new(format!("{} is not open", want.url)))
    }

    /// Replaces addresses of relays in a failure by the portals that the user named.
    pub(super) fn as_named(&self, mut failure: Failure) -> Failure {
        for (relay, portal) in &self.relayed {
            failure.what = failure.what.replace(relay, portal);
            failure.hint = failure.hint.map(|hint| hint.replace(relay, portal));
        }
        failure
    }

    /// Closes all disks, which ends their sessions.
    pub(super) async fn close(mut self) -> Result<(), Failure> {
        for (_, disk) in std::mem::take(&mut self.open) {
            disk.opened.close().await.map_err(|failure| self.as_named(failure))?;
        }
        Ok(())
    }
}

/// Logs in without the relay first: the relay accepts all connections, so the reason of a target's
/// refusal would be lost.
async fn check_reachable(url: &Url, session: &SessionOptions) -> Result<(), Failure> {
    let (url, local) = (DeviceUrl::Iscsi(url.clone()), LocalOptions::default());
    let session = SessionOptions { connections: 1, ..session.clone() };
    device_url::open(&url, &local, &session).await?.close().await
}

/// Refuses to measure a target that redirects past the relay, as the network would not be
/// simulated.
fn check_not_redirected(name: &str, disk: &RemoteDisk, relay: Option<&Url>) -> Result<(), Failure> {
    let there = disk.unit().initiator().portal();
    if relay.is_some_and(|relay| relay.portal() == there) {
        return Ok(());
    }
    Err(Failure::new(format!("{name} redirects to {there}, past the relay that is the network"))
        .hint(format!("measure {there} itself, or leave --delay, --rate and --window out")))
}

/// Opens the disks that a combination needs, and refuses options that do not suit them.
pub(super) async fn check(
    args: &BenchCommand,
    cell: &Cell,
    disks: &mut Disks,
) -> Result<(), Failure> {
    let work = args.work(cell)?;
    for url in &args.urls {
        let disk = disks.get(&args.session, args.want(url, cell)).await?;
        let places = work.places(&disk.opened.device().geometry());
        places.map_err(|wrong| Failure::usage(format!("{url}: {wrong}")))?;
    }
    Ok(())
}

/// Measures a combination on every disk; the disks take turns.
pub(super) async fn measure(
    args: &BenchCommand,
    cell: &Cell,
    disks: &mut Disks,
    probe: Option<&Arc<Probe>>,
) -> Result<Measurement, Failure> {
    let work = args.work(cell)?;
    let (mut lanes, mut names, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for url in &args.urls {
        let disk = disks.get(&args.session, args.want(url, cell)).await?;
        lanes.push(disk.lane(work));
        names.push((url.clone(), disk.connections()));
        sessions.push(disk.session());
    }
    let shape = ProbeShape {
        writes: work.pattern.writes(),
        io_bytes: work.io_bytes,
        depth: cell.depth,
        connections: cell.connections,
    };
    let told = in_rounds(lanes, args.rounds, probe, shape).await;
    let (measured, probed) = told.map_err(|failure| disks.as_named(failure))?;
    let mut rows = Vec::new();
    for (((url, connections), measured), before) in names.into_iter().zip(measured).zip(sessions) {
        let now = disks.get(&args.session, args.want(&url, cell)).await?.session();
        let lost = before.zip(now).is_some_and(|(before, now)| !Arc::ptr_eq(&before, &now));
        rows.push(Row { url, connections, measured, lost });
    }
    Ok(Measurement { cell: *cell, rows, probed })
}

/// Runs `rounds` rounds of all lanes, with one round of the probe in each.
pub(super) async fn in_rounds(
    lanes: Vec<Subject>,
    rounds: u16,
    probe: Option<&Arc<Probe>>,
    shape: ProbeShape,
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

/// Runs one round of the probe, on its own thread.
async fn probe_round(
    probe: Arc<Probe>,
    shape: ProbeShape,
    time: Duration,
    mut probed: Probed,
) -> Result<Probed, Failure> {
    let round = move || probe.round(shape, time, &mut probed).map(|()| probed);
    let told = tokio::task::spawn_blocking(round).await;
    told.unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
        .map_err(|error| Failure::new(format!("the probe of raw TCP failed: {error}")))
}

/// Converts the reason why a disk could not be measured.
pub(super) fn failure(failed: Failed) -> Failure {
    match failed {
        Failed::Work(wrong) => Failure::usage(wrong.to_string()),
        Failed::Disk(error) => error.into(),
    }
}

impl BenchCommand {
    /// The disk and the options to open it with.
    fn want<'a>(&self, url: &'a str, cell: &Cell) -> Want<'a> {
        Want {
            url,
            connections: cell.connections,
            writes: self.pattern.iter().any(|name| name.pattern().writes()),
            model: self.network.model(),
        }
    }

    /// The workload of a combination.
    fn work(&self, cell: &Cell) -> Result<Workload, Failure> {
        let io_bytes = u32::try_from(cell.io_bytes)
            .map_err(|_| Failure::usage("a request has less than 4 GiB"))?;
        let (warm_up, time) = self.times();
        Ok(Workload {
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
