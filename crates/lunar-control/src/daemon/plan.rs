//! Decides which units are opened, kept, reopened, replaced or closed when another configuration is
//! applied.

use super::units::{OpenUnit, check_same_settings, configured_size, has_same_settings};
use super::waiting::{UnavailableLun, WaitingLuns};
use crate::Failure;
use crate::config::conflict::FileLocation;
use crate::config::model::{Configuration, LunConfig, TargetConfig, UnitConfig};
use crate::device_url::DeviceUrl;
use crate::difference::{ShownUnit, pair_luns};
use lunar_block::file_identity;
use lunar_target::{Catalogue, TargetOptions, Unit};
use std::sync::Arc;

/// The index of the open unit of each LUN, by target and LUN of a configuration; `None` if the unit
/// is lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout(pub(super) Vec<Vec<Option<usize>>>);

impl Layout {
    /// The layout of `running` in the served catalogue, which lacks the LUNs that wait for their
    /// storages.
    pub(super) fn of(
        running: &Configuration,
        catalogue: &Catalogue,
        entries: &[OpenUnit],
        waiting: &WaitingLuns,
    ) -> Self {
        let index = |unit: &Arc<dyn Unit>| entries.iter().position(|entry| entry.has_unit(unit));
        let targets = running.targets.iter().zip(&catalogue.targets);
        let target = |(target, served): (&TargetConfig, &Arc<TargetOptions>)| {
            let mut served = served.luns.iter();
            let mut slot_of = |lun: &LunConfig| match waiting.contains(&target.name, lun) {
                true => None,
                false => served.next().and_then(|lun| index(&lun.unit)),
            };
            target.luns.iter().map(&mut slot_of).collect()
        };
        Self(targets.map(target).collect())
    }

    /// Whether any LUN shows the unit.
    pub(super) fn shows(&self, unit: usize) -> bool {
        self.0.iter().flatten().any(|slot| *slot == Some(unit))
    }
}

/// The LUNs of `running` that wait for their storages, since they have no unit in `entries`, with
/// the failures to open them.
pub(super) fn unavailable_luns<'c>(
    running: &'c Configuration,
    entries: &[OpenUnit],
    failures: &'c [(DeviceUrl, Failure)],
) -> Vec<UnavailableLun<'c>> {
    let targets = running.targets.iter();
    let luns = targets.flat_map(|target| target.luns.iter().map(|lun| (&*target.name, lun)));
    let is_open = |lun: &LunConfig| {
        !lun.unit.may_be_unavailable()
            || entries.iter().any(|entry| entry.config.device == lun.unit.device)
    };
    let unavailable = luns.filter(|(_, lun)| !is_open(lun));
    unavailable
        .map(|(target, lun)| {
            let mut failures = failures.iter();
            let failure = failures.find(|(device, _)| *device == lun.unit.device);
            UnavailableLun { target, lun, failure: failure.map(|(_, failure)| failure) }
        })
        .collect()
}

/// Whether a LUN with the unit `shown` waits for its storage.
pub(super) fn is_unavailable(lun: &LunConfig, slot: Option<usize>) -> bool {
    slot.is_none() && lun.unit.may_be_unavailable()
}

/// A unit of the new configuration.
#[derive(Clone, Debug)]
pub(super) struct PlannedUnit {
    pub(super) config: UnitConfig,
    /// Index of the open unit, if it is open already.
    pub(super) open: Option<usize>,
    /// Whether the open unit has to be closed and opened again.
    pub(super) reopens: bool,
    /// Whether the name of the open unit now leads to another file, or the LUN to another storage.
    pub(super) replaced: bool,
    /// Whether the unit is not open because it waits for its storage, and nothing has changed.
    pub(super) waits: bool,
}

/// The unit that a LUN has shown so far.
#[derive(Clone, Copy, Debug, Default)]
struct PreviousUnit {
    /// Index of the open unit.
    open: Option<usize>,
    /// Whether the LUN keeps the unit.
    keeps_unit: bool,
    /// Whether the LUN waits for its storage, and its unit is unchanged.
    waits: bool,
    /// Whether the LUN waits for its storage, which is still the same.
    stays_unavailable: bool,
}

/// The units of a configuration, each once, with the LUNs that show them.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) wanted: Vec<PlannedUnit>,
    /// Open units to resize, with the new size in bytes.
    pub(super) resizes: Vec<(usize, u64)>,
    /// Indices into `wanted`, and whether the LUN shows that unit already.
    luns: Vec<Vec<(usize, bool)>>,
    /// Open units that file names lead to.
    named: Vec<usize>,
}

impl Plan {
    /// Plans the change to `new` from the open units `entries`, which the LUNs of `running` show as
    /// in `layout`. With `keeps_names`, an unchanged LUN keeps its unit even if the name of its
    /// file now leads to another file: only a whole configuration looks up names again.
    ///
    /// # Errors
    /// Fails if two LUNs over one file disagree, or a served file no longer exists.
    pub(super) fn new(
        entries: &[OpenUnit],
        running: &Configuration,
        layout: &Layout,
        new: &Configuration,
        keeps_names: bool,
    ) -> Result<Self, Failure> {
        let mut plan = Self::default();
        let all = new.targets.iter().flat_map(|target| &target.luns);
        plan.named = all.filter_map(|lun| by_file(entries, &lun.unit)).collect();
        for target in &new.targets {
            let was = running.targets.iter().zip(&layout.0);
            let was = was.into_iter().find(|(was, _)| was.name.eq_ignore_ascii_case(&target.name));
            let (old_luns, old_slots) = match was {
                Some((target, slots)) => (&target.luns[..], &slots[..]),
                None => (&[][..], &[][..]),
            };
            let mut before = vec![PreviousUnit::default(); target.luns.len()];
            for (old_index, new_index) in pair_luns(old_luns, &target.luns) {
                if let (Some(old_index), Some(new_index)) = (old_index, new_index) {
                    let (old, new) = (&old_luns[old_index].unit, &target.luns[new_index].unit);
                    let keeps_unit =
                        keeps_names && old.device == new.device && old.uuid == new.uuid;
                    let open = old_slots.get(old_index).copied().flatten();
                    let unavailable = is_unavailable(&old_luns[old_index], open);
                    before[new_index] = PreviousUnit {
                        open,
                        keeps_unit,
                        waits: unavailable && old == new,
                        stays_unavailable: unavailable && old.device == new.device,
                    };
                }
            }
            let luns = target.luns.iter().zip(before);
            let luns = luns.map(|(lun, before)| {
                let wanted = plan.plan_unit(entries, &lun.unit, before)?;
                let shows = &plan.wanted[wanted];
                let is_same = before.open.is_some() && before.open == shows.open;
                Ok((wanted, (is_same && !shows.replaced) || before.stays_unavailable))
            });
            let luns = luns.collect::<Result<_, Failure>>()?;
            plan.luns.push(luns);
        }
        for wanted in &plan.wanted {
            if let (Some(index), Some(bytes)) = (wanted.open, configured_size(&wanted.config))
                && !wanted.replaced
                && entries[index].size_bytes() != bytes
            {
                plan.resizes.push((index, bytes));
            }
        }
        Ok(plan)
    }

    /// Plans the unit of a LUN; returns its index in `wanted`. `before` is the unit that the LUN
    /// has shown so far.
    fn plan_unit(
        &mut self,
        entries: &[OpenUnit],
        config: &UnitConfig,
        before: PreviousUnit,
    ) -> Result<usize, Failure> {
        let found = match before.open.filter(|_| before.keeps_unit) {
            Some(index) => Some(index),
            None => find(entries, config, before.open),
        };
        let is_other_storage =
            |index: &usize| entries[*index].config.device.portal() != config.device.portal();
        let replaced = match found {
            Some(index) => Some(index).filter(is_other_storage),
            None => self.replaced(entries, config)?,
        };
        let open = found.or(replaced);
        let same = |other: &&PlannedUnit| match (open, config.device.path()) {
            (Some(index), _) => other.open == Some(index),
            (None, Some(path)) => {
                let other = other.config.device.path().map(FileLocation::of);
                other.is_some_and(|other| other == FileLocation::of(path))
            }
            (None, None) => false,
        };
        if let Some(index) = self.wanted.iter().position(|other| same(&other)) {
            return check_same_settings(config, &self.wanted[index].config).map(|()| index);
        }
        let other = |index: usize| !has_same_settings(config, &entries[index].config);
        let (replaced, reopens) = (replaced.is_some(), open.is_some_and(other));
        let reopens = reopens || replaced;
        let waits = before.waits && open.is_none();
        self.wanted.push(PlannedUnit { config: config.clone(), open, reopens, replaced, waits });
        Ok(self.wanted.len() - 1)
    }

    /// The open unit whose file has lost its name to another file.
    ///
    /// # Errors
    /// Fails if the name leads to no file: a new one would be created in place of a file in use.
    fn replaced(
        &self,
        entries: &[OpenUnit],
        config: &UnitConfig,
    ) -> Result<Option<usize>, Failure> {
        let Some(path) = config.device.path() else { return Ok(None) };
        let named = |entry: &OpenUnit| entry.config.device == config.device;
        let Some(index) = entries.iter().position(named) else { return Ok(None) };
        if path.try_exists().is_ok_and(|exists| !exists) {
            return Err(Failure::conflict(format!(
                "the file of {} was renamed or deleted while it is served",
                path.display()
            ))
            .hint(
                "move a renamed file back; a deleted file exists until the server closes it: \
                 `lunar ctl status` shows the command that saves it",
            ));
        }
        // If another name still leads to the unit's file, the unit stays under that name.
        Ok(Some(index).filter(|index| !self.named.contains(index)))
    }

    /// Returns the known facts about the disk of a LUN of `new`, the configuration of this plan.
    pub(super) fn shown(
        &self,
        entries: &[OpenUnit],
        new: &Configuration,
        lun: &LunConfig,
    ) -> ShownUnit {
        let targets = new.targets.iter().zip(&self.luns);
        let mut luns = targets.flat_map(|(target, luns)| target.luns.iter().zip(luns));
        let Some((_, (wanted, same))) = luns.find(|(other, _)| std::ptr::eq(*other, lun)) else {
            return ShownUnit::default();
        };
        let wanted = &self.wanted[*wanted];
        let entry = wanted.open.and_then(|index| entries.get(index));
        let size_bytes = entry.filter(|_| !wanted.replaced).map(OpenUnit::size_bytes);
        ShownUnit { same: *same, size_bytes, reopens: wanted.reopens }
    }

    /// Returns the layout of the new configuration; `slots` has the slot of each wanted unit,
    /// except of those that wait.
    pub(super) fn layout(&self, slots: &[Option<usize>]) -> Layout {
        let slot = |wanted: usize| slots.get(wanted).copied().flatten();
        let luns = self.luns.iter();
        Layout(luns.map(|luns| luns.iter().map(|(wanted, _)| slot(*wanted)).collect()).collect())
    }
}

/// The open unit over the file that `config` names.
fn by_file(entries: &[OpenUnit], config: &UnitConfig) -> Option<usize> {
    let file = file_identity(config.device.path()?).ok()?;
    entries.iter().position(|entry| entry.file == Some(file))
}

/// The open unit that `config` names: a file is identified by itself, memory by its UUID or by the
/// LUN that shows it.
fn find(entries: &[OpenUnit], config: &UnitConfig, before: Option<usize>) -> Option<usize> {
    if config.device.path().is_some() {
        return by_file(entries, config);
    }
    let memory = |entry: &OpenUnit| entry.file.is_none();
    match config.uuid {
        Some(_) => {
            entries.iter().position(|entry| memory(entry) && entry.config.uuid == config.uuid)
        }
        None => before.filter(|index| {
            let entry = &entries[*index];
            memory(entry) && entry.config.uuid.is_none()
        }),
    }
}
