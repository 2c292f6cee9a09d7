//! Measurement of one combination of size, depth, connections and pattern, on every disk.

use super::compared::ComparedDisks;
use super::session::SessionArgs;
use super::{BenchCommand, PatternName};
use crate::device_url::{self, OpenedDevice};
use crate::output::Failure;
use lunar_block::BlockDevice;
use lunar_control::device_url::DeviceUrl;
use lunar_iscsi::login::initiator::Established;
use lunar_load::probe::{Probe, ProbeResults, ProbeShape};
use lunar_load::relay::Model;
use lunar_load::remote::{RemoteError, RemoteSubject, RemoteSubjects};
use lunar_load::{LoadError, Measured, Subject, Workload, measure_in_rounds};
use std::collections::HashMap;
use std::sync::Arc;

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
        self.measured.no_figures_reason().or(self.lost.then_some(
            "a connection was lost during this measurement: the maximum latency includes the time \
             until recovery",
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
    pub(super) probed: Option<ProbeResults>,
}

/// A disk to open.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskToOpen<'a> {
    pub(super) url: &'a str,
    /// Number of connections of the session; ignored for other disks.
    pub(super) connections: u16,
    /// Whether the disk is written to.
    pub(super) writes: bool,
    /// Network model of the relay to the target.
    pub(super) model: Option<Model>,
}

/// An open disk.
#[derive(Clone, Debug)]
pub(super) enum Disk {
    Local(Arc<dyn BlockDevice>),
    Remote(RemoteSubject),
}

impl Disk {
    fn device(&self) -> &dyn BlockDevice {
        match self {
            Self::Local(device) => device.as_ref(),
            Self::Remote(remote) => remote.disk.as_ref(),
        }
    }

    /// Combines the disk with this workload.
    fn subject(&self, work: Workload) -> Subject {
        match self {
            Self::Local(device) => {
                Subject { device: Arc::clone(device), work, target: None, relay: None }
            }
            Self::Remote(remote) => remote.subject(work),
        }
    }

    /// The current session; `None`: a local disk.
    fn session(&self) -> Option<Arc<Established>> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(remote.disk.unit().initiator().established()),
        }
    }

    /// Number of connections; `None`: a local disk.
    fn connections(&self) -> Option<usize> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(remote.disk.connections()),
        }
    }
}

/// Open disks: local ones by URL, LUNs of targets also by connections and network.
#[derive(Debug, Default)]
pub(super) struct Disks {
    local: HashMap<String, OpenedDevice>,
    remote: RemoteSubjects,
}

impl Disks {
    /// Returns the disk, opening it on first use.
    async fn get(
        &mut self,
        session: &SessionArgs,
        disk_to_open: DiskToOpen<'_>,
    ) -> Result<Disk, Failure> {
        let url = DeviceUrl::parse(disk_to_open.url)?;
        let mut options = session.options(url.portal())?;
        if let DeviceUrl::Iscsi(url) = &url {
            options.connections = disk_to_open.connections;
            let opened = self.remote.open(url, &options, disk_to_open.model).await;
            return opened.map(Disk::Remote).map_err(|error| self.with_portal_names(remote(error)));
        }
        if let Some(device) = self.local.get(disk_to_open.url) {
            return Ok(Disk::Local(device.shared()));
        }
        let local = session.local_options(&url, disk_to_open.writes)?;
        let opened = device_url::open(&url, &local, &options).await?;
        let device = opened.shared();
        self.local.insert(disk_to_open.url.to_owned(), opened);
        Ok(Disk::Local(device))
    }

    /// Replaces addresses of relays in a failure by the portals that the user named.
    fn with_portal_names(&self, mut failure: Failure) -> Failure {
        failure.what = self.remote.with_portal_names(&failure.what);
        failure.hint = failure.hint.map(|hint| self.remote.with_portal_names(&hint));
        failure
    }

    /// Closes all disks, which ends their sessions. No `Disk` may be left.
    pub(super) async fn close(mut self) -> Result<(), Failure> {
        for (_, opened) in self.local.drain() {
            opened.close().await?;
        }
        let closed = self.remote.close().await;
        closed.map_err(|error| self.with_portal_names(remote(error)))
    }
}

/// Converts the reason why a LUN could not be opened.
fn remote(error: RemoteError) -> Failure {
    let failure = Failure::new(error.to_string());
    match error {
        RemoteError::Address(_) => failure.hint("check the host name, or use the IP address"),
        RemoteError::Relay(_) => failure,
        RemoteError::Target(error) => error.into(),
        RemoteError::Redirected { portal, .. } => {
            failure.hint(format!("use {portal} in the URL, or remove --delay, --rate and --window"))
        }
    }
}

/// Opens the disks that a combination needs, and refuses options that do not suit them.
pub(super) async fn check(
    args: &BenchCommand,
    cell: &Cell,
    disks: &mut Disks,
) -> Result<(), Failure> {
    let work = args.work(cell)?;
    for url in &args.urls {
        let disk = disks.get(&args.session, args.disk_to_open(url, cell)).await?;
        let offsets = work.offset_count(&disk.device().geometry());
        offsets.map_err(|wrong| Failure::usage(format!("{url}: {wrong}")))?;
    }
    Ok(())
}

/// Describes the disks of a run; those that are not open are opened.
pub(super) async fn describe(
    args: &BenchCommand,
    cell: &Cell,
    disks: &mut Disks,
) -> Result<ComparedDisks, Failure> {
    let mut compared = ComparedDisks::default();
    for url in &args.urls {
        let disk = disks.get(&args.session, args.disk_to_open(url, cell)).await?;
        compared.add(url, &disk, args.durable)?;
    }
    Ok(compared)
}

/// Measures a combination on every disk; the disks take turns.
pub(super) async fn measure(
    args: &BenchCommand,
    cell: &Cell,
    disks: &mut Disks,
    probe: Option<&Arc<Probe>>,
) -> Result<Measurement, Failure> {
    let work = args.work(cell)?;
    let (mut subjects, mut names, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for url in &args.urls {
        let disk = disks.get(&args.session, args.disk_to_open(url, cell)).await?;
        subjects.push(disk.subject(work));
        names.push((url.clone(), disk.connections()));
        sessions.push(disk.session());
    }
    let shape = ProbeShape {
        writes: work.pattern.writes(),
        io_bytes: work.io_bytes,
        depth: cell.depth,
        connections: cell.connections,
    };
    let result = measure_in_rounds(subjects, args.rounds, probe, shape).await;
    let (measured, probed) = result.map_err(|failed| disks.with_portal_names(failure(failed)))?;
    let mut rows = Vec::new();
    for (((url, connections), measured), before) in names.into_iter().zip(measured).zip(sessions) {
        let now = disks.get(&args.session, args.disk_to_open(&url, cell)).await?.session();
        let lost = before.zip(now).is_some_and(|(before, now)| !Arc::ptr_eq(&before, &now));
        rows.push(Row { url, connections, measured, lost });
    }
    Ok(Measurement { cell: *cell, rows, probed })
}

/// Converts the reason why a disk could not be measured.
fn failure(failed: LoadError) -> Failure {
    match failed {
        LoadError::Workload(wrong) => Failure::usage(wrong.to_string()),
        LoadError::Disk(error) => error.into(),
        LoadError::Probe(_) => Failure::new(failed.to_string()),
    }
}

impl BenchCommand {
    /// The disk and the options to open it with.
    fn disk_to_open<'a>(&self, url: &'a str, cell: &Cell) -> DiskToOpen<'a> {
        DiskToOpen {
            url,
            connections: cell.connections,
            writes: self.pattern.iter().any(|name| name.pattern().writes()),
            model: self.network.model(),
        }
    }

    /// The workload of a combination.
    fn work(&self, cell: &Cell) -> Result<Workload, Failure> {
        let io_bytes = u32::try_from(cell.io_bytes)
            .map_err(|_| Failure::usage("--io-size must be less than 4 GiB"))?;
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
            durable: self.durable,
        })
    }
}
