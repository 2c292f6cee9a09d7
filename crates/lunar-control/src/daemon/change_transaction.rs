//! Opening, closing and resizing units for a change, and undoing that.

use super::StartOptions;
use super::blocking::block_on;
use super::catalogue::catalogue;
use super::plan::{Layout, Plan, PlannedUnit, is_unavailable};
use super::remote_opening::{UnavailableStorage, open_remotes};
use super::units::{
    Created, OpenUnit, OpenedStorage, SmallerFile, UnitOpener, force_size, set_size,
};
use crate::Failure;
use crate::config::model::{Configuration, LunConfig, UnitConfig};
use crate::device_url::DeviceUrl;
use lunar_block::{FileIdentity, file_identity};
use lunar_target::{DiskUnit, Replaced, Server, Shrink};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Maximum time for closing a unit that is to be opened again: commands that hang in a device keep
/// it open.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(10);
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// A change in progress, with the data to undo it.
pub(super) struct ChangeTransaction<'d> {
    server: &'d Server,
    unit_opener: &'d UnitOpener,
    /// The running configuration; `before` has the slot of each of its LUNs.
    running: &'d Configuration,
    before: Layout,
    /// The units that were open, then those that were opened since; `None` while a unit is closed.
    slots: Vec<Option<OpenUnit>>,
    /// Number of units that were open.
    old: usize,
    created: Vec<Created>,
    /// Units that may have been resized, with their old size.
    resized: Vec<(usize, u64)>,
    /// Units that were closed, with their configuration and file.
    closed: Vec<(usize, UnitConfig, Option<FileIdentity>)>,
    /// The closed units that accepted no writes after a failed sync.
    poisoned: Vec<usize>,
    /// Remote LUNs that are not open because their storages are unreachable.
    pub(super) unavailable: Vec<(DeviceUrl, Failure)>,
    /// Warnings for the user.
    pub(super) warnings: Vec<String>,
}

/// The device of a LUN that has waited for its storage.
#[derive(Debug)]
pub(super) struct ArrivedLun {
    pub(super) unit: UnitConfig,
    pub(super) storage: OpenedStorage,
}

/// State after a change was undone.
pub(super) struct Reverted {
    /// The failure, extended by what could not be restored.
    pub(super) failure: Failure,
    /// The configuration that is now served.
    pub(super) running: Configuration,
    /// The open units.
    pub(super) entries: Vec<OpenUnit>,
    /// Remote LUNs that could not be opened again because their storages are unreachable.
    pub(super) unavailable: Vec<(DeviceUrl, Failure)>,
}

impl<'d> ChangeTransaction<'d> {
    /// Starts a change. `entries` are the open units; [`finish`](Self::finish) and
    /// [`take_back`](Self::take_back) return them.
    pub(super) fn new(
        server: &'d Server,
        unit_opener: &'d UnitOpener,
        running: &'d Configuration,
        before: Layout,
        entries: Vec<OpenUnit>,
    ) -> Self {
        Self {
            server,
            unit_opener,
            running,
            before,
            old: entries.len(),
            slots: entries.into_iter().map(Some).collect(),
            created: Vec::new(),
            resized: Vec::new(),
            closed: Vec::new(),
            poisoned: Vec::new(),
            unavailable: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Opens new units, and reopens those whose settings changed; returns the slot of each wanted
    /// unit, except of those that wait for their storages. `arrived` is the device of one that has
    /// waited so far.
    pub(super) fn units(
        &mut self,
        plan: &Plan,
        start: StartOptions,
        arrived: Option<ArrivedLun>,
    ) -> Result<Vec<Option<usize>>, Failure> {
        let StartOptions { storage, smaller } = start;
        let mut arrived = arrived;
        let is_new = |wanted: &&PlannedUnit| {
            wanted.open.is_none() && !wanted.waits && wanted.config.may_be_unavailable()
        };
        let new: Vec<_> = plan.wanted.iter().filter(is_new).map(|wanted| &wanted.config).collect();
        let mut remotes = open_remotes(&**self.unit_opener.opener(), &new, storage).into_iter();
        let mut slots = Vec::new();
        for wanted in &plan.wanted {
            let remote = match wanted.config.may_be_unavailable() {
                _ if wanted.open.is_some() => None,
                _ if wanted.waits => {
                    match arrived.take_if(|arrived| arrived.unit == wanted.config) {
                        Some(arrived) => Some(arrived.storage),
                        None => {
                            slots.push(None);
                            continue;
                        }
                    }
                }
                true => match remotes.next() {
                    Some(Err(failure)) if storage.lets_wait(&failure) => {
                        self.unavailable.push((wanted.config.device.clone(), failure));
                        slots.push(None);
                        continue;
                    }
                    remote => remote.transpose()?,
                },
                false => None,
            };
            slots.push(match wanted.open {
                Some(slot) => Some(slot),
                None => {
                    let (opener, others) = (self.unit_opener, self.open());
                    let opened = opener.open_over(&wanted.config, smaller, remote, others);
                    let (entry, created) = opened?;
                    self.created.push(created);
                    self.slots.push(Some(entry));
                    Some(self.slots.len() - 1)
                }
            });
        }
        let reopened = plan.wanted.iter().filter(|wanted| wanted.reopens);
        let reopened: Vec<_> = reopened.filter_map(|w| Some((w.open?, w))).collect();
        if !reopened.is_empty() {
            self.reopen(&reopened)?;
        }
        Ok(slots)
    }

    /// Enlarges units. This is not undone by a later failure: initiators use the space at once.
    pub(super) fn grow(&mut self, plan: &Plan) -> Result<(), Failure> {
        let kept = || plan.wanted.iter().filter(|wanted| !wanted.reopens);
        let opener = self.unit_opener.opener();
        for wanted in kept() {
            if let Some(entry) = wanted.open.and_then(|slot| self.slots[slot].as_ref()) {
                entry.prepare_growth(&wanted.config, &**opener)?;
            }
        }
        self.resize(plan, Shrink::Refused, |is, wanted| wanted > is)?;
        for wanted in kept() {
            if let Some(entry) = wanted.open.and_then(|slot| self.slots[slot].as_mut()) {
                let disk = &wanted.config.options.virtual_disk;
                entry.config.options.virtual_disk.clone_from(disk);
            }
        }
        Ok(())
    }

    /// Shrinks units, after everything else that can fail: the data there is lost.
    pub(super) fn shrink(&mut self, plan: &Plan, allowed: bool) -> Result<(), Failure> {
        let shrink = if allowed { Shrink::Allowed } else { Shrink::Refused };
        self.resize(plan, shrink, |is, wanted| wanted < is)
    }

    fn resize(
        &mut self,
        plan: &Plan,
        shrink: Shrink,
        is_selected: fn(u64, u64) -> bool,
    ) -> Result<(), Failure> {
        for (slot, bytes) in &plan.resizes {
            let Some(entry) = &mut self.slots[*slot] else { continue };
            let before = entry.size_bytes();
            if is_selected(before, *bytes) {
                // A resize that fails may still have changed the size.
                self.resized.push((*slot, before));
                entry.resize(*bytes, shrink)?;
            }
        }
        Ok(())
    }

    /// The unit in a slot.
    pub(super) fn unit(&self, slot: usize) -> Option<Arc<DiskUnit>> {
        self.slots.get(slot)?.as_ref().map(|entry| Arc::clone(&entry.unit))
    }

    fn size_bytes(&self, slot: usize) -> Option<u64> {
        self.slots.get(slot)?.as_ref().map(OpenUnit::size_bytes)
    }

    fn open(&self) -> impl Iterator<Item = &OpenUnit> {
        self.slots.iter().flatten()
    }

    fn reopen(&mut self, units: &[(usize, &PlannedUnit)]) -> Result<(), Failure> {
        // Sessions lose these units first, so that nothing keeps them open.
        let without: Vec<_> = units.iter().map(|(slot, _)| *slot).collect();
        self.show_before(&without)?;
        let sizes: Vec<_> = units.iter().map(|(slot, _)| self.size_bytes(*slot)).collect();
        for (slot, _) in units {
            self.close(*slot)?;
        }
        for ((slot, wanted), size) in units.iter().zip(sizes) {
            // The unit is resized later.
            let mut config = wanted.config.clone();
            size.filter(|_| !wanted.replaced)
                .into_iter()
                .for_each(|bytes| set_size(&mut config, bytes));
            let (entry, created) =
                self.unit_opener.open(&config, SmallerFile::Keeps, self.open())?;
            self.created.push(created);
            self.put(*slot, entry);
        }
        Ok(())
    }

    /// Shows the previous configuration, without some slots.
    fn show_before(&mut self, without: &[usize]) -> Result<(), Failure> {
        let unit = |slot: usize| self.unit(slot).filter(|_| !without.contains(&slot));
        let catalogue = catalogue(self.running, &self.before, &unit);
        let replaced = block_on(self.server.replace(catalogue))??;
        self.warnings.extend(failed_syncs(&replaced));
        Ok(())
    }

    fn close(&mut self, slot: usize) -> Result<(), Failure> {
        let Some(entry) = self.slots[slot].take() else { return Ok(()) };
        let OpenUnit { config, file, unit, pool } = entry;
        if unit.is_poisoned() {
            self.poisoned.push(slot);
        }
        let weak = Arc::downgrade(&unit);
        drop(unit);
        let gone = is_gone(&weak);
        // The last holder may have released the unit between the two checks.
        let Some(unit) = weak.upgrade().filter(|_| !gone) else {
            self.closed.push((slot, config, file));
            return Ok(());
        };
        let device = config.device.to_string();
        self.slots[slot] = Some(OpenUnit { config, file, unit, pool });
        Err(Failure::new(format!("{device} cannot be closed: commands are still running on it"))
            .hint("the device may not be responding: see the log of the server"))
    }

    /// Puts a reopened unit into its slot. Reopening is no consent to accept writes, even if the
    /// state directory could not store the failed sync.
    fn put(&mut self, slot: usize, entry: OpenUnit) {
        if self.poisoned.contains(&slot) && !entry.unit.is_poisoned() {
            entry.unit.poison();
        }
        self.slots[slot] = Some(entry);
    }

    /// Switches to the new configuration. Units that are no longer shown are closed when this is
    /// dropped.
    pub(super) fn switch(
        &mut self,
        served: &Configuration,
        layout: &Layout,
    ) -> Result<Replaced, Failure> {
        let catalogue = catalogue(served, layout, &|slot| self.unit(slot));
        let replaced = block_on(self.server.replace(catalogue))??;
        self.warnings.extend(failed_syncs(&replaced));
        Ok(replaced)
    }

    /// The units that remain open.
    pub(super) fn into_entries(self, layout: &Layout) -> Vec<OpenUnit> {
        let slots = self.slots.into_iter().enumerate();
        slots.filter(|(slot, _)| layout.shows(*slot)).filter_map(|(_, entry)| entry).collect()
    }

    /// Undoes the change because of `failure`.
    pub(super) fn take_back(mut self, failure: Failure) -> Reverted {
        let mut lost = Vec::new();
        // New LUNs that would wait are not in the previous configuration.
        self.unavailable.clear();
        self.slots.truncate(self.old);
        self.open().for_each(|entry| entry.forget_growth(&**self.unit_opener.opener()));
        let closed = std::mem::take(&mut self.closed);
        for (slot, ..) in &closed {
            let unit = self.slots[*slot].take().map(|entry| Arc::downgrade(&entry.unit));
            if unit.is_some_and(|unit| !is_gone(&unit)) {
                tracing::warn!(
                    "a unit is still in use after a failed change: reopening it may fail"
                );
            }
        }
        for created in std::mem::take(&mut self.created) {
            created.undo();
        }
        for (slot, config, file) in &closed {
            if config.device.path().is_some_and(|path| file_identity(path).ok() != *file) {
                let what = "is no longer served: its path leads to a different file or to none";
                lost.push(format!("{} {what}", config.device));
                continue;
            }
            match self.unit_opener.open(config, SmallerFile::Keeps, self.open()) {
                Ok((entry, _)) => self.put(*slot, entry),
                Err(error) if UnavailableStorage::Waits.lets_wait(&error) => {
                    lost.push(format!("{} waits for its storage: {error}", config.device));
                    self.unavailable.push((config.device.clone(), error));
                }
                Err(error) => lost.push(format!("{} is no longer served: {error}", config.device)),
            }
        }
        let mut resized = Vec::new();
        for (slot, before) in std::mem::take(&mut self.resized) {
            if let Some(entry) = &self.slots[slot]
                && entry.size_bytes() != before
            {
                let (device, is) = (&entry.config.device, entry.size_bytes());
                lost.push(format!("{device} keeps its new size, {is} bytes"));
                resized.push((slot, is));
            }
        }
        if let Err(error) = self.show_before(&[]) {
            lost.push(error.to_string());
        }
        let what = match lost.is_empty() {
            true => failure.what,
            false => format!(
                "{}; the previous state could not be restored completely: {}",
                failure.what,
                lost.join("; ")
            ),
        };
        let running = self.restored_running(&resized);
        let failure = Failure { what, ..failure };
        Reverted {
            failure,
            running,
            entries: self.slots.into_iter().flatten().collect(),
            unavailable: self.unavailable,
        }
    }

    /// The configuration that is served after the change was undone. `resized` has the units that
    /// keep their new sizes.
    fn restored_running(&self, resized: &[(usize, u64)]) -> Configuration {
        let mut running = self.running.clone();
        for (target, slots) in running.targets.iter_mut().zip(&self.before.0) {
            for (lun, slot) in target.luns.iter_mut().zip(slots) {
                if let Some((_, size_bytes)) =
                    resized.iter().find(|(resized_slot, _)| *slot == Some(*resized_slot))
                {
                    force_size(&mut lun.unit, *size_bytes);
                }
            }
        }
        for (target, slots) in running.targets.iter_mut().zip(&self.before.0) {
            let mut slots = slots.iter();
            let is_open = |slot: Option<usize>| slot.is_some_and(|slot| self.slots[slot].is_some());
            let waits = |lun: &LunConfig| {
                self.unavailable.iter().any(|(device, _)| *device == lun.unit.device)
            };
            target.luns.retain(|lun| {
                let slot = slots.next().copied().flatten();
                is_open(slot) || is_unavailable(lun, slot) || waits(lun)
            });
        }
        running
    }
}

fn failed_syncs(replaced: &Replaced) -> impl Iterator<Item = String> {
    let failed = replaced.failed_syncs.iter();
    failed.map(|(unit, why)| format!("the last sync of {unit} failed: {why}"))
}

/// Whether the unit is closed, waiting for a limited time.
fn is_gone(unit: &Weak<DiskUnit>) -> bool {
    let until = Instant::now() + CLOSE_TIME_MAX;
    while unit.strong_count() > 0 {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(CLOSE_POLL);
    }
    true
}
