//! What becomes of each unit when another configuration is to be served.

use super::units::{Entry, agree, same_settings, wanted_size};
use crate::Failure;
use crate::config::conflict::Place;
use crate::config::model::{Configuration, LunConfig, UnitConfig};
use crate::difference::{Shown, pair_luns};
use block::file_identity;
use target::Catalogue;

/// Which unit each LUN shows, by target and LUN of a configuration; `None`: the unit is lost.
#[derive(Clone, Debug, Default)]
pub(super) struct Layout(pub(super) Vec<Vec<Option<usize>>>);

impl Layout {
    /// Of what is served.
    pub(super) fn of(catalogue: &Catalogue, entries: &[Entry]) -> Self {
        let index = |unit: &_| entries.iter().position(|entry| entry.is(unit));
        let targets = catalogue.targets.iter();
        Self(targets.map(|t| t.luns.iter().map(|lun| index(&lun.unit)).collect()).collect())
    }

    /// Whether some LUN shows the unit.
    pub(super) fn shows(&self, unit: usize) -> bool {
        self.0.iter().flatten().any(|shown| *shown == Some(unit))
    }
}

/// A unit that the new configuration wants.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) config: UnitConfig,
    /// Which of the open units it is.
    pub(super) open: Option<usize>,
    /// Whether that has to be closed and opened again.
    pub(super) reopens: bool,
}

/// The units of a configuration, each once, and which LUN shows which.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) wanted: Vec<Wanted>,
    /// Open units that get another size, and that size in bytes.
    pub(super) resizes: Vec<(usize, u64)>,
    /// Indices into `wanted`, and whether the LUN shows that unit already.
    luns: Vec<Vec<(usize, bool)>>,
}

impl Plan {
    /// What becomes of `entries`, which the LUNs of `running` show as in `layout`, when `new` is to
    /// be served.
    ///
    /// # Errors
    /// Two LUNs over one file that do not agree.
    pub(super) fn new(
        entries: &[Entry],
        running: &Configuration,
        layout: &Layout,
        new: &Configuration,
    ) -> Result<Self, Failure> {
        let mut plan = Self::default();
        for target in &new.targets {
            let was = running.targets.iter().zip(&layout.0);
            let was = was.into_iter().find(|(was, _)| was.name.eq_ignore_ascii_case(&target.name));
            let (old_luns, shown) = match was {
                Some((target, shown)) => (&target.luns[..], &shown[..]),
                None => (&[][..], &[][..]),
            };
            let mut before = vec![None; target.luns.len()];
            for (was, is) in pair_luns(old_luns, &target.luns) {
                if let (Some(was), Some(is)) = (was, is) {
                    before[is] = shown.get(was).copied().flatten();
                }
            }
            let luns = target.luns.iter().zip(before);
            let luns = luns.map(|(lun, before)| {
                let wanted = plan.want(entries, &lun.unit, before)?;
                Ok((wanted, before.is_some() && before == plan.wanted[wanted].open))
            });
            let luns = luns.collect::<Result<_, Failure>>()?;
            plan.luns.push(luns);
        }
        for wanted in &plan.wanted {
            if let (Some(index), Some(bytes)) = (wanted.open, wanted_size(&wanted.config))
                && entries[index].size_bytes() != bytes
            {
                plan.resizes.push((index, bytes));
            }
        }
        Ok(plan)
    }

    /// `before` is what the same LUN showed so far.
    fn want(
        &mut self,
        entries: &[Entry],
        config: &UnitConfig,
        before: Option<usize>,
    ) -> Result<usize, Failure> {
        let open = find(entries, config, before);
        let same = |other: &&Wanted| match (open, config.device.path()) {
            (Some(index), _) => other.open == Some(index),
            (None, Some(path)) => {
                let other = other.config.device.path().map(Place::of);
                other.is_some_and(|other| other == Place::of(path))
            }
            (None, None) => false,
        };
        if let Some(index) = self.wanted.iter().position(|other| same(&other)) {
            return agree(config, &self.wanted[index].config).map(|()| index);
        }
        let reopens = open.is_some_and(|index| !same_settings(config, &entries[index].config));
        self.wanted.push(Wanted { config: config.clone(), open, reopens });
        Ok(self.wanted.len() - 1)
    }

    /// What is known of the disk that a LUN of `new`, the configuration it was made for, shows.
    pub(super) fn shown(&self, entries: &[Entry], new: &Configuration, lun: &LunConfig) -> Shown {
        let targets = new.targets.iter().zip(&self.luns);
        let mut luns = targets.flat_map(|(target, luns)| target.luns.iter().zip(luns));
        let Some((_, (wanted, same))) = luns.find(|(other, _)| std::ptr::eq(*other, lun)) else {
            return Shown::default();
        };
        let wanted = &self.wanted[*wanted];
        let entry = wanted.open.and_then(|index| entries.get(index));
        let size_bytes = entry.map(Entry::size_bytes);
        Shown { same: *same, size_bytes, reopens: wanted.reopens }
    }

    /// With the place of each wanted unit.
    pub(super) fn layout(&self, places: &[usize]) -> Layout {
        let luns = self.luns.iter();
        Layout(
            luns.map(|luns| luns.iter().map(|(wanted, _)| places.get(*wanted).copied()).collect())
                .collect(),
        )
    }
}

/// The open unit that `config` names: a file is known by itself, memory by its UUID or by the LUN
/// that shows it.
fn find(entries: &[Entry], config: &UnitConfig, before: Option<usize>) -> Option<usize> {
    if let Some(path) = config.device.path() {
        let file = file_identity(path).ok()?;
        return entries.iter().position(|entry| entry.file == Some(file));
    }
    let memory = |entry: &Entry| entry.file.is_none();
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
