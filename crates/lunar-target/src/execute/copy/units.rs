//! The units that the CSCD descriptors of a copy list name. Hundreds of segments may name the same
//! few, so each is looked for once in a command.
//!
//! What the list costs counts in the turn of its connection as data that is moved: a list that is
//! refused for its last segment moves none.

use super::{Copy, Run, Step, unreachable_unit};
use crate::long_operation::Generation;
use crate::unit::LogicalUnit;
use lunar_scsi::copy::{CopyList, Party};
use lunar_scsi::unit::UnitOptions;
use std::sync::{Arc, Mutex};

/// To judge a segment takes about as long as to move so many bytes.
const SEGMENT_COST_BYTES: usize = 4096;
/// As [`SEGMENT_COST_BYTES`], to compare a designator with those of a unit.
const UNIT_COST_BYTES: usize = 1024;

/// The units that a list names, by the number of the CSCD descriptor; `None`: not looked for yet.
pub(super) struct NamedUnits(Vec<Option<NamedUnit>>);

/// A unit that a CSCD descriptor names.
pub(super) struct NamedUnit {
    unit: Arc<LogicalUnit>,
    /// From before it is judged: a SANITIZE that begins later overtakes the copy.
    generation: Generation,
    /// As the segments are judged by.
    pub(super) options: UnitOptions,
    /// It was seen that this nexus may use it as copy source, and as copy destination.
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

    /// What `copy` does its work at each unit with, by the number of the CSCD descriptor.
    pub(super) fn runs<'a>(&'a self, copy: &Copy<'_>) -> Vec<Option<Run<'a>>> {
        let run = |named: &'a NamedUnit| Run {
            unit: &named.unit,
            generation: named.generation,
            block_bytes: named.options.block_bytes.into(),
            nexus: copy.nexus,
            abort: copy.abort.clone(),
            dues: copy.dues.clone(),
            memory: copy.memory.clone(),
            entry: None,
            held: Mutex::default(),
        };
        self.0.iter().map(|named| named.as_ref().map(run)).collect()
    }
}

impl Copy<'_> {
    /// Looks for the units of segment `number`, and whether this nexus may use them.
    pub(super) async fn name_units(
        &self,
        list: &CopyList,
        number: u16,
        named: &mut NamedUnits,
    ) -> Step<()> {
        self.abort.may_move().await?;
        lunar_net::count_moved(SEGMENT_COST_BYTES);
        self.abort.check()?;
        let unreachable = || unreachable_unit(number);
        let segment = list.segments.get(usize::from(number)).ok_or_else(unreachable)?;
        for cscd in [segment.source, segment.destination] {
            self.name_unit(list, cscd, named).await.ok_or_else(unreachable)?;
        }
        for (cscd, party) in
            [(segment.source, Party::Source), (segment.destination, Party::Destination)]
        {
            let slot = named.0.get_mut(usize::from(cscd)).and_then(Option::as_mut);
            let unit = slot.ok_or_else(unreachable)?;
            let is_checked = match party {
                Party::Source => &mut unit.is_source,
                Party::Destination => &mut unit.is_destination,
            };
            if !*is_checked {
                self.check(number, &unit.unit, party)?;
                *is_checked = true;
            }
        }
        Ok(())
    }

    async fn name_unit(&self, list: &CopyList, cscd: u16, named: &mut NamedUnits) -> Option<()> {
        let slot = named.0.get_mut(usize::from(cscd))?;
        if slot.is_none() {
            self.abort.may_move().await.ok()?;
            let unit = self.resolve(list, cscd)?;
            (self.attach)(&unit);
            let generation = unit.generation();
            let options = unit.scsi().options().clone();
            let (is_source, is_destination) = (false, false);
            *slot = Some(NamedUnit { unit, generation, options, is_source, is_destination });
        }
        Some(())
    }

    /// The unit of a CSCD descriptor. A designator that fits more than one names none.
    fn resolve(&self, list: &CopyList, cscd: u16) -> Option<Arc<LogicalUnit>> {
        let cscd = list.cscds.get(usize::from(cscd))?;
        let fits = |unit: &&Arc<LogicalUnit>| {
            #[cfg(test)]
            COMPARISONS.with(|count| count.set(count.get() + 1));
            cscd.designates(unit.options().uuid.as_bytes())
        };
        let mut found = None;
        (self.with_units)(&mut |units| {
            lunar_net::count_moved(UNIT_COST_BYTES * units.len());
            let mut fitting = units.iter().filter(fits);
            let unit = fitting.next();
            found = if fitting.next().is_some() { None } else { unit.cloned() };
        });
        found
    }
}

#[cfg(test)]
thread_local! {
    /// How often a descriptor was compared with a unit in this thread.
    pub(super) static COMPARISONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
