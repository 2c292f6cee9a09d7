//! The LUNs that an initiator sees of a target, and the difference between two such tables.

use crate::unit::LogicalUnit;
use lunar_wire::{Lun, LunForm};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Units by LUN number.
pub(crate) type Luns = BTreeMap<u16, Arc<LogicalUnit>>;

/// The LUNs that an initiator sees. Sessions share the table of a target whose LUNs have no access
/// lists.
#[derive(Debug, Default)]
pub(crate) struct LunTable {
    /// LUN numbers in ascending order, with the indexes of their units.
    by_id: Vec<(u16, usize)>,
    /// Each unit once, however many numbers it has.
    units: Vec<Arc<LogicalUnit>>,
    /// List for REPORT LUNS.
    list: Vec<Lun>,
    /// Indexes of the units by their addresses.
    by_address: HashMap<usize, usize>,
}

impl LunTable {
    pub(crate) fn new(luns: &Luns) -> Self {
        let units = distinct(luns.values());
        let by_address = index(&units);
        let by_id = luns.iter().filter_map(|(id, unit)| {
            let index = by_address.get(&Arc::as_ptr(unit).addr())?;
            Some((*id, *index))
        });
        Self {
            by_id: by_id.collect(),
            list: luns.keys().map(|id| Lun::new(*id)).collect(),
            by_address,
            units,
        }
    }

    /// Number of LUNs.
    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Each unit once, however many numbers it has.
    pub(crate) fn units(&self) -> &[Arc<LogicalUnit>] {
        &self.units
    }

    /// LUN fields, in ascending order.
    pub(crate) fn list(&self) -> &[Lun] {
        &self.list
    }

    /// LUN numbers, in ascending order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u16> {
        self.by_id.iter().map(|(id, _)| *id)
    }

    /// Index of the unit of a LUN field.
    #[inline]
    pub(crate) fn at(&self, lun: Lun) -> Option<usize> {
        match lun.form() {
            LunForm::Unit(id) => self.index_at(id),
            _ => None,
        }
    }

    /// Index of the unit of a LUN number.
    #[inline]
    fn index_at(&self, id: u16) -> Option<usize> {
        // LUNs numbered from 0 without gaps are found at once.
        match self.by_id.get(usize::from(id)) {
            Some((found, index)) if *found == id => Some(*index),
            _ => {
                let at = self.by_id.binary_search_by_key(&id, |(id, _)| *id).ok()?;
                self.by_id.get(at).map(|(_, index)| *index)
            }
        }
    }

    fn unit_of(&self, id: u16) -> Option<&Arc<LogicalUnit>> {
        self.units.get(self.index_at(id)?)
    }

    /// Index of `unit`, if it is in the table.
    pub(crate) fn index_of(&self, unit: &Arc<LogicalUnit>) -> Option<usize> {
        self.by_address.get(&Arc::as_ptr(unit).addr()).copied()
    }

    /// True when both tables have the same units under the same numbers.
    pub(crate) fn shows_same(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || self.len() == other.len()
                && self.ids().all(|id| match (self.unit_of(id), other.unit_of(id)) {
                    (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                    _ => false,
                })
    }
}

fn index(units: &[Arc<LogicalUnit>]) -> HashMap<usize, usize> {
    units.iter().enumerate().map(|(at, unit)| (Arc::as_ptr(unit).addr(), at)).collect()
}

/// Difference between two tables of LUNs, for the sessions that change from one to the other.
#[derive(Debug)]
pub(crate) struct LunChange {
    new: Arc<LunTable>,
    /// True when both have the same units under the same numbers.
    pub(crate) is_none: bool,
    /// Numbers under which another unit, or none, is seen now.
    gone: HashSet<u16>,
}

impl LunChange {
    pub(crate) fn new(old: &LunTable, new: Arc<LunTable>) -> Self {
        if old.shows_same(&new) {
            return Self { new, is_none: true, gone: HashSet::new() };
        }
        let is_gone = |id: &u16| match (old.unit_of(*id), new.unit_of(*id)) {
            (Some(old), Some(now)) => !Arc::ptr_eq(old, now),
            _ => true,
        };
        Self { gone: old.ids().filter(is_gone).collect(), new, is_none: false }
    }

    /// The table that sessions change to.
    pub(crate) fn new_luns(&self) -> &Arc<LunTable> {
        &self.new
    }

    /// True when another unit, or none, is seen under this number now.
    pub(crate) fn is_gone(&self, id: u16) -> bool {
        self.gone.contains(&id)
    }
}

/// Each unit once, in the order of first occurrence.
pub(crate) fn distinct<'a>(
    units: impl Iterator<Item = &'a Arc<LogicalUnit>>,
) -> Vec<Arc<LogicalUnit>> {
    let mut known = HashSet::new();
    units.filter(|unit| known.insert(Arc::as_ptr(unit))).cloned().collect()
}
