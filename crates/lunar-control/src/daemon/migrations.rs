//! Moves of extents of virtual LUNs to other blocks, while the LUNs are in use.

mod job;

use super::{ConfigOrigin, Daemon, LunSelector, OpenUnit, find, lun_index};
use crate::Failure;
use crate::config::load_to_serve;
use crate::config::model::{Configuration, LunConfig};
use crate::config::moved_extents::{MovedExtents, MovedExtentsUse, MovedLun, cannot_store};
use crate::config::virtual_lun::{ExtentConfig, VirtualDiskConfig};
use crate::device_url::{DeviceUrl, REMOTE_OPEN_TIME_MAX};
use lunar_switch::{Migration, MigrationOptions};
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

pub use job::{MigrationJob, MigrationJobState};

/// Maximum number of moves at the same time.
const JOBS_MAX: usize = 16;
/// Maximum number of ended moves that are shown.
const ENDED_MAX: usize = 32;

/// A request to move an extent.
#[derive(Clone, Debug)]
pub struct MigrationRequest {
    /// Position of the extent in the LUN; `None`: its only one.
    pub extent: Option<usize>,
    /// Name of the storage that gets the extent.
    pub storage: String,
    /// First byte there.
    pub start_bytes: u64,
    /// Maximum rate of the copy while hosts use the LUN; `None`: the configured one.
    pub bytes_per_second: Option<u64>,
}

/// The moves of a server, and their record.
#[derive(Debug, Default)]
pub struct Migrations {
    state: Option<PathBuf>,
    moved: Mutex<MovedExtents>,
    /// Moves that run, and the last ones that have ended.
    jobs: Mutex<Vec<Arc<MigrationJob>>>,
}

impl Migrations {
    /// Reads the record of moves.
    ///
    /// # Errors
    /// The record cannot be read.
    pub(super) fn open(configuration: &Configuration) -> Result<Self, Failure> {
        let state = configuration.state.clone();
        let moved = match &state {
            Some(state) if !configuration.storages.is_empty() => {
                MovedExtents::load(state).map_err(Failure::new)?
            }
            _ => MovedExtents::default(),
        };
        Ok(Self { state, moved: Mutex::new(moved), jobs: Mutex::default() })
    }

    /// All moves, also the last ones that have ended; the latest one last.
    pub fn all(&self) -> Vec<Arc<MigrationJob>> {
        self.jobs().clone()
    }

    fn running(&self) -> Vec<Arc<MigrationJob>> {
        self.jobs().iter().filter(|job| !job.has_ended()).cloned().collect()
    }

    fn jobs(&self) -> MutexGuard<'_, Vec<Arc<MigrationJob>>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, job: &Arc<MigrationJob>) {
        let mut jobs = self.jobs();
        // A LUN shows its last move.
        jobs.retain(|other| other.lun != job.lun || !other.has_ended());
        let ended = jobs.iter().filter(|job| job.has_ended()).count();
        if ended >= ENDED_MAX
            && let Some(first) = jobs.iter().position(|job| job.has_ended())
        {
            jobs.remove(first);
        }
        jobs.push(Arc::clone(job));
    }

    /// Changes the record durably; nothing changes if that fails.
    fn record(&self, change: impl FnOnce(&mut MovedExtents)) -> io::Result<()> {
        let Some(state) = &self.state else { return Err(io::ErrorKind::NotFound.into()) };
        let mut moved = self.moved.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = moved.clone();
        change(&mut next);
        next.save(state)?;
        *moved = next;
        Ok(())
    }

    /// Stores the record again as it was before a change that failed.
    fn restore_record(&self) -> io::Result<()> {
        self.record(|_| {})
    }

    /// Ends all moves before the server stops. Their record stays: the next start begins them
    /// again.
    pub(super) fn stop(&self) {
        self.jobs().iter().for_each(|job| job.stop());
    }

    /// Refuses a configuration that changes a LUN with a running move, or uses its blocks.
    pub(super) fn check(
        &self,
        running: &Configuration,
        wanted: &Configuration,
    ) -> Result<(), Failure> {
        for job in self.running() {
            let (current, next) = (find_virtual(running, &job.lun), find_virtual(wanted, &job.lun));
            let unit = |lun: Option<&LunConfig>| lun.map(|lun| lun.unit.clone());
            let to = &job.to.storage;
            if unit(current) != unit(next) || !wanted.storages.contains(to) {
                let what = format!("LUN {} of {} cannot be changed now", job.id, job.target);
                return Err(Failure::conflict(format!("{what}: {} is being moved", job.from))
                    .hint(format!("wait for its end, or cancel it: {}", job.cancel_command())));
            }
            let mut used = extents(wanted);
            let moving = |(lun, extent): &(&LunConfig, &ExtentConfig)| {
                let is_own = lun.unit.device == DeviceUrl::Virtual(job.lun.clone());
                extent.overlaps(&job.to) || (!is_own && extent.overlaps(&job.from))
            };
            // An extent that has reached its destination is in the configuration, until the job has
            // ended.
            let moved = |(_, extent): &(&LunConfig, &ExtentConfig)| **extent != job.to;
            if let Some((_, extent)) = used.find(|used| moving(used) && moved(used)) {
                let what = format!("the extent {extent} overlaps blocks of a running move");
                let hint = format!("{} is being moved to {}: use others", job.from, job.to);
                return Err(Failure::conflict(what).hint(hint));
            }
        }
        Ok(())
    }
}

/// The LUN with the virtual disk of this name.
fn find_virtual<'c>(configuration: &'c Configuration, name: &str) -> Option<&'c LunConfig> {
    let mut luns = configuration.targets.iter().flat_map(|target| &target.luns);
    luns.find(|lun| matches!(&lun.unit.device, DeviceUrl::Virtual(other) if other == name))
}

/// All extents of a configuration, and their LUNs.
fn extents(configuration: &Configuration) -> impl Iterator<Item = (&LunConfig, &ExtentConfig)> {
    let luns = configuration.targets.iter().flat_map(|target| &target.luns);
    luns.flat_map(|lun| {
        let disk = lun.unit.options.virtual_disk.iter().flat_map(|disk| &disk.extents);
        let pool = lun.unit.options.pool.iter().flat_map(|pool| &pool.members);
        let members = pool.filter_map(|member| match &member.device {
            DeviceUrl::Extent(extent) => Some(extent),
            _ => None,
        });
        disk.chain(members).map(move |extent| (lun, extent))
    })
}

/// The extents of a disk, one of which is elsewhere.
fn with_extent(
    disk: &VirtualDiskConfig,
    extent_index: usize,
    to: &ExtentConfig,
) -> VirtualDiskConfig {
    let mut disk = disk.clone();
    if let Some(extent) = disk.extents.get_mut(extent_index) {
        *extent = to.clone();
    }
    disk
}

/// Returns the configuration of the file, if it has former locations of extents that were moved.
pub(super) fn written(
    configuration: &Configuration,
    origin: &ConfigOrigin,
) -> Option<Configuration> {
    let ConfigOrigin::File { path, .. } = origin else { return None };
    if configuration.storages.is_empty() || configuration.state.is_none() {
        return None;
    }
    let mut read = load_to_serve(path, MovedExtentsUse::Ignore).ok()?;
    let disk = |lun: &LunConfig| lun.unit.options.virtual_disk.clone();
    let disks = |all: &Configuration| -> Vec<_> {
        all.targets.iter().flat_map(|target| target.luns.iter().map(disk)).collect()
    };
    let kept = configuration.targets.iter().filter(|target| target.is_persisted);
    read.targets.extend(kept.cloned());
    (disks(&read) != disks(configuration))
        .then(|| Configuration { targets: read.targets, ..configuration.clone() })
}

impl Daemon {
    /// The moves of extents.
    pub fn migrations(&self) -> &Arc<Migrations> {
        &self.migrations
    }

    /// Begins to move an extent of a virtual LUN.
    ///
    /// # Errors
    /// Fails if there is no such LUN, extent or storage, the blocks are in use or do not fit, or
    /// the move cannot be recorded.
    pub fn migrate(
        daemon: &Arc<Self>,
        at: &LunSelector<'_>,
        request: &MigrationRequest,
        by: &dyn fmt::Display,
    ) -> Result<Arc<MigrationJob>, Failure> {
        let entries = daemon.begin_change()?;
        let job = Arc::new(daemon.migration_job(at, request)?);
        let all = &daemon.migrations;
        if all.running().len() >= JOBS_MAX {
            return Err(Failure::conflict(format!("{JOBS_MAX} moves are running already")));
        }
        let migration = daemon.open_migration(&entries, &job)?;
        let rate = request.bytes_per_second;
        all.record(|moved| moved.begin(&job.lun, job.extent, &job.to, rate))
            .map_err(|error| cannot_store(&error))?;
        all.add(&job);
        let (target, lun, from, to) = (&job.target, job.id, &job.from, &job.to);
        tracing::info!(target: "audit", %by, target, lun, %from, %to, "move of an extent begun");
        drop(entries);
        job::start(daemon, &job, Some(migration))?;
        Ok(job)
    }

    /// Cancels the move of an extent of a LUN.
    ///
    /// # Errors
    /// Fails if none runs, or its end has begun.
    pub fn cancel_migration(
        &self,
        at: &LunSelector<'_>,
        by: &dyn fmt::Display,
    ) -> Result<Arc<MigrationJob>, Failure> {
        let name = self.virtual_lun(at)?.2;
        let job = self.migrations.running().into_iter().find(|job| job.lun == name);
        let job = job.ok_or_else(|| {
            Failure::conflict(format!("no extent of LUN {} of {} is being moved", at.id, at.target))
                .hint("see `lunar ctl status`")
        })?;
        if !job.cancel() {
            return Err(Failure::conflict(format!(
                "{} has reached its destination already",
                job.from
            )));
        }
        let (target, lun, from) = (&job.target, job.id, &job.from);
        tracing::info!(target: "audit", %by, target, lun, %from, "move of an extent cancelled");
        Ok(job)
    }

    /// Continues the moves that were running when the server ended.
    pub fn resume_migrations(daemon: &Arc<Self>) {
        let moved = daemon.migrations.moved.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for lun in moved.luns().iter().filter(|lun| lun.pending.is_some()) {
            match daemon.resumed_job(lun) {
                Ok(job) => {
                    let job = Arc::new(job);
                    tracing::info!("the move of {} to {} begins again", job.from, job.to);
                    daemon.migrations.add(&job);
                    if let Err(failure) = job::start(daemon, &job, None) {
                        tracing::error!("{failure}");
                    }
                }
                Err(failure) => {
                    tracing::warn!("the move of an extent of {} is cancelled: {failure}", lun.name);
                    let cancelled = daemon.migrations.record(|moved| moved.cancel(&lun.name));
                    if let Err(error) = cancelled {
                        tracing::error!("{}", cannot_store(&error));
                    }
                }
            }
        }
    }

    fn resumed_job(&self, lun: &MovedLun) -> Result<MigrationJob, Failure> {
        let running = self.running();
        let pending = lun.pending.as_ref().ok_or_else(Failure::stopping)?;
        let not_found = |what: &str| Failure::new(format!("the configuration has no such {what}"));
        let to = pending.to.on(&running.storages).ok_or_else(|| not_found("storage"))?;
        let mut targets = running.targets.iter();
        let target = targets.find(|target| {
            let is_lun_of_disk =
                |one: &&LunConfig| one.unit.device == DeviceUrl::Virtual(lun.name.clone());
            target.luns.iter().any(|lun| is_lun_of_disk(&lun))
        });
        let target = target.ok_or_else(|| not_found("LUN"))?;
        let found = find_virtual(&running, &lun.name).ok_or_else(|| not_found("LUN"))?;
        let request = MigrationRequest {
            extent: Some(pending.extent),
            storage: to.storage.name.clone(),
            start_bytes: to.start_bytes,
            bytes_per_second: pending.bytes_per_second,
        };
        let at = LunSelector { target: &target.name, id: found.id, device: None };
        self.migration_job(&at, &request)
    }

    /// The configuration of a virtual LUN without labels, its target's name, and its own name.
    fn virtual_lun(&self, at: &LunSelector<'_>) -> Result<(LunConfig, String, String), Failure> {
        let mut running = self.running();
        let target = find(&mut running, at.target)?;
        let lun = &target.luns[lun_index(&target.luns, at)?];
        match &lun.unit.device {
            DeviceUrl::Virtual(name) => Ok((lun.clone(), target.name.clone(), name.clone())),
            device => {
                let what = format!("LUN {} of {} has no extents: it is {device}", at.id, at.target);
                Err(Failure::conflict(what).hint("only LUNs with extents or a stripe are moved"))
            }
        }
    }

    /// Checks a request.
    fn migration_job(
        &self,
        at: &LunSelector<'_>,
        request: &MigrationRequest,
    ) -> Result<MigrationJob, Failure> {
        let (lun, target, name) = self.virtual_lun(at)?;
        let running = self.running();
        let Some(disk) = &lun.unit.options.virtual_disk else {
            let what = format!("LUN {} of {target} is a mirror, whose copies are replaced", at.id);
            return Err(Failure::conflict(what).hint(format!(
                "write the new extent into `mirror` of the LUN, instead of the old one; then: \
                 lunar pool replace {name} SLOT extent:{}:START+LENGTH",
                request.storage
            )));
        };
        if running.state.is_none() {
            let what = "the configuration has no `state` directory, which records moves";
            return Err(Failure::conflict(what).hint("add state = \"DIR\", and restart the server"));
        }
        let count = disk.extents.len();
        let extent_index = match request.extent {
            Some(index) => index,
            None if count == 1 => 0,
            None => {
                return Err(Failure::usage(format!("the LUN has {count} extents"))
                    .hint("select one by --extent N, from 0"));
            }
        };
        let Some(from) = disk.extents.get(extent_index).cloned() else {
            return Err(Failure::not_found(format!("the LUN has no extent {extent_index}"))
                .hint(format!("it has {count} extents, counted from 0")));
        };
        let storage = running.storages.iter().find(|one| one.name == request.storage);
        let storage = storage.ok_or_else(|| {
            let names: Vec<_> = running.storages.iter().map(|one| &*one.name).collect();
            Failure::not_found(format!("there is no storage {}", request.storage)).hint(format!(
                "the storages are {}; add another [[storage]] by `lunar apply`",
                names.join(", ")
            ))
        })?;
        let to = ExtentConfig {
            storage: Arc::clone(storage),
            start_bytes: request.start_bytes,
            length_bytes: from.length_bytes,
        };
        self.check_free(&running, &to, &name)?;
        Ok(MigrationJob {
            lun: name,
            target,
            id: lun.id,
            extent: extent_index,
            from,
            to,
            bytes_per_second: request.bytes_per_second,
            begun: SystemTime::now(),
            control: job::JobControl::default(),
        })
    }

    /// Refuses blocks that are in use.
    fn check_free(
        &self,
        running: &Configuration,
        to: &ExtentConfig,
        name: &str,
    ) -> Result<(), Failure> {
        if let Some((lun, used)) = extents(running).find(|(_, used)| used.overlaps(to)) {
            let what = format!("{to} overlaps {used}, an extent of {}", lun.unit.device);
            return Err(Failure::conflict(what).hint("use other blocks"));
        }
        for job in self.migrations.running() {
            if job.lun == name {
                let what = format!("an extent of LUN {} of {} is being moved", job.id, job.target);
                let hint = format!("wait for its end, or cancel it: {}", job.cancel_command());
                return Err(Failure::conflict(what).hint(hint));
            }
            if job.to.overlaps(to) || job.from.overlaps(to) {
                let what =
                    format!("{to} overlaps blocks of the move of {} to {}", job.from, job.to);
                return Err(Failure::conflict(what).hint("use other blocks, or wait for its end"));
            }
        }
        Ok(())
    }

    /// Prepares the move of an extent of a LUN that is open.
    fn open_migration(
        &self,
        entries: &[OpenUnit],
        job: &MigrationJob,
    ) -> Result<Migration, Failure> {
        let device = DeviceUrl::Virtual(job.lun.clone());
        let entry = entries.iter().find(|entry| entry.config.device == device);
        let entry = entry.ok_or_else(|| {
            Failure::conflict(format!("LUN {} of {} waits for its storage", job.id, job.target))
                .hint("it can be moved when it is served: see `lunar ctl status`")
        })?;
        let configured = self.running().limits.migration_bytes_per_second;
        let options = options_at(job.bytes_per_second, configured);
        let device = &entry.unit.options().device;
        let opener = self.unit_opener.opener();
        opener.open_migration(device, job.extent, &job.to, options, REMOTE_OPEN_TIME_MAX)
    }

    /// Records that an extent has reached its destination, and changes the
    /// configuration. Returns `None` while another change is running.
    fn commit_migration(&self, job: &MigrationJob) -> Option<io::Result<()>> {
        let mut entries = self.entries.try_lock().ok()?;
        if self.is_stopping() {
            return None;
        }
        let running = self.running();
        let lun = find_virtual(&running, &job.lun)?;
        let disk = lun.unit.options.virtual_disk.as_ref()?;
        let disk = Arc::new(with_extent(disk, job.extent, &job.to));
        let recorded =
            self.migrations.record(|moved| moved.commit(&job.lun, &disk, (job.extent, &job.from)));
        if recorded.is_ok() {
            let name = DeviceUrl::Virtual(job.lun.clone());
            let units = entries.iter_mut().map(|entry| &mut entry.config);
            for unit in units.filter(|unit| unit.device == name) {
                unit.options.virtual_disk = Some(Arc::clone(&disk));
            }
            let mut configurations = self.configurations();
            let luns = configurations.running.targets.iter_mut().flat_map(|one| &mut one.luns);
            for lun in luns.filter(|lun| lun.unit.device == name) {
                lun.unit.options.virtual_disk = Some(Arc::clone(&disk));
            }
        }
        Some(recorded)
    }
}

/// Returns the options of a move with the rate that was asked for, if any; otherwise the
/// configured one holds, while hosts use the LUN.
fn options_at(rate: Option<u64>, configured: u64) -> MigrationOptions {
    MigrationOptions {
        busy_bytes_per_second_max: NonZeroU64::new(rate.unwrap_or(configured)),
        bytes_per_second_max: rate.and_then(NonZeroU64::new),
        ..MigrationOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the configured rate holds for a LUN in use only, a rate that was asked for always.
    #[test]
    fn rates() {
        let rates_of = |rate, configured| {
            let options = options_at(rate, configured);
            let rates = [options.busy_bytes_per_second_max, options.bytes_per_second_max];
            rates.map(|rate| rate.map(NonZeroU64::get))
        };
        assert_eq!(rates_of(None, 7), [Some(7), None]);
        assert_eq!(rates_of(Some(9), 7), [Some(9), Some(9)]);
    }
}
