//! Opening, closing and resizing units for a change, and taking that back.

use super::plan::{Layout, Plan, Wanted};
use super::units::{Created, Entry, Opening, say_size, set_size};
use super::{block_on, catalogue};
use crate::Failure;
use crate::config::model::{Configuration, UnitConfig};
use lunar_block::{FileIdentity, file_identity};
use lunar_target::{LogicalUnit, Replaced, Server, Shrink};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a unit that is to be opened again may take to close: commands that a device keeps
/// hold it open.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(10);
const CLOSE_POLL: Duration = Duration::from_millis(5);

/// A change that is being made, with what is needed to take it back.
pub(super) struct Work<'d> {
    server: &'d Server,
    opening: &'d Opening,
    /// What is served, and which slot each of its LUNs shows.
    running: &'d Configuration,
    before: Layout,
    /// The units that were open, then those that were opened; `None` while one is closed.
    slots: Vec<Option<Entry>>,
    /// How many were open.
    old: usize,
    created: Vec<Created>,
    /// Units that may have got another size, and the one they had.
    resized: Vec<(usize, u64)>,
    /// Units that were closed, and what they were.
    closed: Vec<(usize, UnitConfig, Option<FileIdentity>)>,
    /// Those of them that took no writes after a failed sync.
    poisoned: Vec<usize>,
    /// What somebody should know.
    pub(super) warnings: Vec<String>,
}

impl<'d> Work<'d> {
    /// `entries` are what is open, and come back from [`finish`](Self::finish) or
    /// [`take_back`](Self::take_back).
    pub(super) fn new(
        server: &'d Server,
        opening: &'d Opening,
        running: &'d Configuration,
        before: Layout,
        entries: Vec<Entry>,
    ) -> Self {
        Self {
            server,
            opening,
            running,
            before,
            old: entries.len(),
            slots: entries.into_iter().map(Some).collect(),
            created: Vec::new(),
            resized: Vec::new(),
            closed: Vec::new(),
            poisoned: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Opens what is new, and what needs other settings again; returns the slot of each wanted
    /// unit.
    pub(super) fn units(&mut self, plan: &Plan) -> Result<Vec<usize>, Failure> {
        let mut slots = Vec::new();
        for wanted in &plan.wanted {
            slots.push(match wanted.open {
                Some(slot) => slot,
                None => {
                    let (entry, created) = self.opening.open(&wanted.config, self.open())?;
                    self.created.push(created);
                    self.slots.push(Some(entry));
                    self.slots.len() - 1
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

    /// Gives units more room. It stays, whatever fails after: initiators use it at once.
    pub(super) fn grow(&mut self, plan: &Plan) -> Result<(), Failure> {
        self.resize(plan, Shrink::Refused, |is, wanted| wanted > is)
    }

    /// Takes room away from units, after everything else that can fail: what is there is lost.
    pub(super) fn shrink(&mut self, plan: &Plan, allowed: bool) -> Result<(), Failure> {
        let shrink = if allowed { Shrink::Allowed } else { Shrink::Refused };
        self.resize(plan, shrink, |is, wanted| wanted < is)
    }

    fn resize(
        &mut self,
        plan: &Plan,
        shrink: Shrink,
        which: fn(u64, u64) -> bool,
    ) -> Result<(), Failure> {
        for (slot, bytes) in &plan.resizes {
            let Some(entry) = &mut self.slots[*slot] else { continue };
            let before = entry.size_bytes();
            if which(before, *bytes) {
                // One that fails may have changed it.
                self.resized.push((*slot, before));
                entry.resize(*bytes, shrink)?;
            }
        }
        Ok(())
    }

    /// The unit in a slot.
    pub(super) fn unit(&self, slot: usize) -> Option<Arc<LogicalUnit>> {
        self.slots.get(slot)?.as_ref().map(|entry| Arc::clone(&entry.unit))
    }

    fn size_bytes(&self, slot: usize) -> Option<u64> {
        self.slots.get(slot)?.as_ref().map(Entry::size_bytes)
    }

    fn open(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().flatten()
    }

    fn reopen(&mut self, units: &[(usize, &Wanted)]) -> Result<(), Failure> {
        // Who sees them loses them, so that nothing holds them open.
        let without: Vec<_> = units.iter().map(|(slot, _)| *slot).collect();
        self.show_before(&without)?;
        let sizes: Vec<_> = units.iter().map(|(slot, _)| self.size_bytes(*slot)).collect();
        for (slot, _) in units {
            self.close(*slot)?;
        }
        for ((slot, wanted), size) in units.iter().zip(sizes) {
            // Another size is given to it later.
            let mut config = wanted.config.clone();
            size.filter(|_| !wanted.replaced)
                .into_iter()
                .for_each(|bytes| set_size(&mut config, bytes));
            let (entry, created) = self.opening.open(&config, self.open())?;
            self.created.push(created);
            self.put(*slot, entry);
        }
        Ok(())
    }

    /// Shows what was shown before, but for some slots.
    fn show_before(&mut self, without: &[usize]) -> Result<(), Failure> {
        let unit = |slot: usize| self.unit(slot).filter(|_| !without.contains(&slot));
        let catalogue = catalogue(self.running, &self.before, &unit);
        let replaced = block_on(self.server.replace(catalogue))??;
        self.warnings.extend(failed_syncs(&replaced));
        Ok(())
    }

    fn close(&mut self, slot: usize) -> Result<(), Failure> {
        let Some(entry) = self.slots[slot].take() else { return Ok(()) };
        let Entry { config, file, unit } = entry;
        if unit.is_poisoned() {
            self.poisoned.push(slot);
        }
        let weak = Arc::downgrade(&unit);
        drop(unit);
        let gone = is_gone(&weak);
        // It may go between the last look and this one.
        let Some(unit) = weak.upgrade().filter(|_| !gone) else {
            self.closed.push((slot, config, file));
            return Ok(());
        };
        let device = config.device.to_string();
        self.slots[slot] = Some(Entry { config, file, unit });
        Err(Failure::new(format!("{device} cannot be closed: commands still run on it"))
            .hint("its device may hang: the log may say more"))
    }

    /// Puts a unit that was opened again into its slot. That it was opened is no consent to take
    /// writes, also where its state directory could not keep that it takes none.
    fn put(&mut self, slot: usize, entry: Entry) {
        if self.poisoned.contains(&slot) && !entry.unit.is_poisoned() {
            entry.unit.poison();
        }
        self.slots[slot] = Some(entry);
    }

    /// Serves the new configuration. What it shows no more is closed when this is dropped.
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

    /// What is open then.
    pub(super) fn into_entries(self, layout: &Layout) -> Vec<Entry> {
        let slots = self.slots.into_iter().enumerate();
        slots.filter(|(slot, _)| layout.shows(*slot)).filter_map(|(_, entry)| entry).collect()
    }

    /// Everything as it was, because of `failure`; returns that, with what could not be put back,
    /// what is served, and what is open.
    pub(super) fn take_back(mut self, failure: Failure) -> (Failure, Configuration, Vec<Entry>) {
        let mut lost = Vec::new();
        self.slots.truncate(self.old);
        let closed = std::mem::take(&mut self.closed);
        for (slot, ..) in &closed {
            let unit = self.slots[*slot].take().map(|entry| Arc::downgrade(&entry.unit));
            if unit.is_some_and(|unit| !is_gone(&unit)) {
                tracing::warn!("a unit is still in use: opening it again may fail");
            }
        }
        for created in std::mem::take(&mut self.created) {
            created.undo();
        }
        for (slot, config, file) in &closed {
            if config.device.path().is_some_and(|path| file_identity(path).ok() != *file) {
                let what = "is not served: another file has its name, or none";
                lost.push(format!("{} {what}", config.device));
                continue;
            }
            match self.opening.open(config, self.open()) {
                Ok((entry, _)) => self.put(*slot, entry),
                Err(error) => lost.push(format!("{} is not served: {error}", config.device)),
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
            false => format!("{}; and not all was put back: {}", failure.what, lost.join("; ")),
        };
        let mut running = self.running.clone();
        for (target, shown) in running.targets.iter_mut().zip(&self.before.0) {
            for (lun, shown) in target.luns.iter_mut().zip(shown) {
                if let Some((_, is)) = resized.iter().find(|(slot, _)| *shown == Some(*slot)) {
                    say_size(&mut lun.unit, *is);
                }
            }
        }
        for (target, shown) in running.targets.iter_mut().zip(&self.before.0) {
            let mut shown = shown.iter();
            let there = |slot: Option<usize>| slot.is_some_and(|slot| self.slots[slot].is_some());
            target.luns.retain(|_| there(shown.next().copied().flatten()));
        }
        (Failure { what, ..failure }, running, self.slots.into_iter().flatten().collect())
    }
}

fn failed_syncs(replaced: &Replaced) -> impl Iterator<Item = String> {
    let failed = replaced.failed_syncs.iter();
    failed.map(|(unit, why)| format!("the last sync of {unit} failed: {why}"))
}

/// Whether nobody holds the unit any more, after a while at most.
fn is_gone(unit: &Weak<LogicalUnit>) -> bool {
    let until = Instant::now() + CLOSE_TIME_MAX;
    while unit.strong_count() > 0 {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(CLOSE_POLL);
    }
    true
}
