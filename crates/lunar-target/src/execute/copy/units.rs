//! The units that the CSCD descriptors of a copy list (EXTENDED COPY) name. Hundreds of segments
//! may name the same few units, so each unit is looked up once in a command.
//!
//! The time that checking takes counts as moved data in the connection's time slice, because a list
//! that is refused for its last segment moves no data.

use super::{Run, RunningCopy, Step, unreachable_unit};
use crate::disk_unit::DiskUnit;
use crate::long_operation::Generation;
use crate::unit::Unit;
use lunar_scsi::copy::{CopyList, SegmentRole};
use lunar_scsi::unit::UnitOptions;
use std::sync::{Arc, Mutex};

/// Bytes of moved data that take about as long as checking a segment.
const SEGMENT_COST_BYTES: usize = 4096;
/// Bytes of moved data that take about as long as comparing a designator with those of a unit.
const UNIT_COST_BYTES: usize = 1024;

/// The units that a list names, by the number of the CSCD descriptor; `None` if not looked up yet.
pub(super) struct NamedUnits(Vec<Option<NamedUnit>>);

/// A unit that a CSCD descriptor names.
pub(super) struct NamedUnit {
    unit: Arc<DiskUnit>,
    /// Generation from before the checks: a SANITIZE that begins later makes the copy fail.
    generation: Generation,
    /// Options against which the segments are checked.
    pub(super) options: UnitOptions,
    /// True after a check that this nexus may use the unit as copy source, and as copy destination.
    is_source: bool,
    is_destination: bool,
}

impl NamedUnits {
    pub(super) fn new(list: &CopyList) -> Self {
        Self(list.cscds.iter().map(|_| None).collect())
    }

    pub(super) fn get(&self, cscd: u16) -> Option<&NamedUnit> {
        self.0.get(usize::from(cscd))?.as_ref()
    }

    /// Executors of `copy` at each unit, by the number of the CSCD descriptor.
    pub(super) fn runs<'a>(&'a self, copy: &RunningCopy<'_>) -> Vec<Option<Run<'a>>> {
        let run = |named: &'a NamedUnit| Run {
            unit: &named.unit,
            generation: named.generation,
            block_bytes: named.options.block_bytes.into(),
            nexus: copy.nexus,
            abort: copy.abort.clone(),
            quota_charge: copy.quota_charge.clone(),
            memory: copy.memory.clone(),
            entry: None,
            held: Mutex::default(),
        };
        self.0.iter().map(|named| named.as_ref().map(run)).collect()
    }
}

impl RunningCopy<'_> {
    /// Looks up the units of segment `number`, and checks whether this nexus may use them.
    ///
    /// # Errors
    /// An abort, or COPY TARGET DEVICE NOT REACHABLE for the segment.
    pub(super) async fn look_up_segment(
        &self,
        list: &CopyList,
        number: u16,
        named: &mut NamedUnits,
    ) -> Step<()> {
        self.abort.wait_to_move().await?;
        lunar_net::count_moved(SEGMENT_COST_BYTES);
        self.abort.check()?;
        let unreachable = || unreachable_unit(number);
        let segment = list.segments.get(usize::from(number)).ok_or_else(unreachable)?;
        for cscd in [segment.source, segment.destination] {
            self.look_up_unit(list, cscd, named).await.ok_or_else(unreachable)?;
        }
        for (cscd, party) in
            [(segment.source, SegmentRole::Source), (segment.destination, SegmentRole::Destination)]
        {
            let slot = named.0.get_mut(usize::from(cscd)).and_then(Option::as_mut);
            let unit = slot.ok_or_else(unreachable)?;
            let is_checked = match party {
                SegmentRole::Source => &mut unit.is_source,
                SegmentRole::Destination => &mut unit.is_destination,
            };
            if !*is_checked {
                self.check(number, &unit.unit, party)?;
                *is_checked = true;
            }
        }
        Ok(())
    }

    async fn look_up_unit(&self, list: &CopyList, cscd: u16, named: &mut NamedUnits) -> Option<()> {
        let slot = named.0.get_mut(usize::from(cscd))?;
        if slot.is_none() {
            self.abort.wait_to_move().await.ok()?;
            let unit = self.resolve(list, cscd)?;
            let shown: Arc<dyn Unit> = Arc::<DiskUnit>::clone(&unit);
            (self.attach)(&shown);
            let generation = unit.generation();
            let options = unit.scsi().options().clone();
            let (is_source, is_destination) = (false, false);
            *slot = Some(NamedUnit { unit, generation, options, is_source, is_destination });
        }
        Some(())
    }

    /// The disk of a CSCD descriptor; `None` if its designator matches no unit, or several, or one
    /// that is no disk.
    fn resolve(&self, list: &CopyList, cscd: u16) -> Option<Arc<DiskUnit>> {
        let cscd = list.cscds.get(usize::from(cscd))?;
        let matches = |unit: &&Arc<dyn Unit>| {
            #[cfg(test)]
            COMPARISONS.with(|count| count.set(count.get() + 1));
            cscd.designates(unit.uuid().as_bytes(), unit.reported_identity())
        };
        let mut found = None;
        (self.with_units)(&mut |units| {
            lunar_net::count_moved(UNIT_COST_BYTES * units.len());
            let mut matching = units.iter().filter(matches);
            let unit = matching.next();
            found = if matching.next().is_some() { None } else { unit.and_then(DiskUnit::of) };
        });
        found
    }
}

#[cfg(test)]
thread_local! {
    /// Number of comparisons of a descriptor with a unit in this thread.
    pub(super) static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
