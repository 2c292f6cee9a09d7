//! The units that one session sees.
//!
//! A session may see hundreds of units and use few of them. The state of the session at a unit, and
//! of the unit for the session, begins with its first command there: the cost of a login does not
//! depend on the number of visible units. See docs/decisions/099.

use crate::itl_nexus::ItlNexus;
use crate::lock::lock;
use crate::lun_table::LunTable;
use crate::unit::Unit;
use lunar_scsi::attention::LogicalTime;
use lunar_wire::Lun;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

/// View of a session at one time.
#[derive(Debug)]
pub(crate) struct View {
    luns: Arc<LunTable>,
    /// Slots, one for each unit of the table.
    slots: Box<[Slot]>,
    nexuses: Arc<ItlNexuses>,
    /// Time since when this is the session's view.
    since: LogicalTime,
}

/// The entry of one unit in a view.
#[derive(Debug)]
struct Slot {
    /// Time since when the session sees the unit.
    seen_since: LogicalTime,
    /// Set from the first command on.
    nexus: OnceLock<Arc<ItlNexus>>,
}

/// Units of one session that commands or other functions have reached; shared by all its views.
#[derive(Debug, Default)]
pub(crate) struct ItlNexuses(Mutex<ReachedUnits>);

#[derive(Debug, Default)]
struct ReachedUnits {
    /// True when the session is over.
    is_over: bool,
    /// Nexuses by the addresses of the units.
    by_address: HashMap<usize, Arc<ItlNexus>>,
}

impl ItlNexuses {
    /// The nexus of `unit`, which is created if the unit was not reached before.
    fn reach(&self, unit: &Arc<dyn Unit>, seen_since: LogicalTime) -> Arc<ItlNexus> {
        let mut reached = lock(&self.0);
        if reached.is_over {
            return Arc::new(ItlNexus::of_ended_session(Arc::clone(unit)));
        }
        let address = Arc::as_ptr(unit).addr();
        let new = || Arc::new(ItlNexus::new(Arc::clone(unit), seen_since));
        Arc::clone(reached.by_address.entry(address).or_insert_with(new))
    }

    /// All nexuses that were reached.
    pub(crate) fn all(&self) -> Vec<Arc<ItlNexus>> {
        lock(&self.0).by_address.values().cloned().collect()
    }

    /// Removes the nexus of `unit`, which the session no longer sees.
    pub(crate) fn take(&self, unit: &Arc<dyn Unit>) -> Option<Arc<ItlNexus>> {
        lock(&self.0).by_address.remove(&Arc::as_ptr(unit).addr())
    }

    /// Removes all nexuses when the session ends; no more are created.
    pub(crate) fn end(&self) -> Vec<Arc<ItlNexus>> {
        let mut reached = lock(&self.0);
        reached.is_over = true;
        std::mem::take(&mut reached.by_address).into_values().collect()
    }
}

impl View {
    /// The first view of a session.
    pub(crate) fn new(luns: Arc<LunTable>) -> Self {
        let since = LogicalTime::next();
        let slot = |_| Slot { seen_since: since, nexus: OnceLock::new() };
        Self {
            slots: luns.units().iter().map(slot).collect(),
            luns,
            nexuses: Arc::default(),
            since,
        }
    }

    /// The view that follows `old` in the same session.
    pub(crate) fn after(old: &Self, luns: Arc<LunTable>) -> Self {
        let since = LogicalTime::next();
        let slot = |unit| match old.slot(unit) {
            Some(Slot { seen_since, nexus }) => {
                Slot { seen_since: *seen_since, nexus: nexus.clone() }
            }
            None => Slot { seen_since: since, nexus: OnceLock::new() },
        };
        let slots = luns.units().iter().map(slot).collect();
        Self { slots, luns, nexuses: Arc::clone(&old.nexuses), since }
    }

    /// Time since when this is the session's view: units that the session has seen for longer were
    /// also in the previous view.
    pub(crate) fn since(&self) -> LogicalTime {
        self.since
    }

    /// The LUNs of the view.
    pub(crate) fn luns(&self) -> &Arc<LunTable> {
        &self.luns
    }

    /// LUN fields of the view, in ascending order.
    pub(crate) fn list(&self) -> &[Lun] {
        self.luns.list()
    }

    /// LUN numbers as in the configuration, in ascending order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u16> {
        self.luns.ids()
    }

    /// Each unit once, however many numbers it has in the view.
    pub(crate) fn units(&self) -> &[Arc<dyn Unit>] {
        self.luns.units()
    }

    /// The unit of a LUN field.
    pub(crate) fn unit(&self, lun: Lun) -> Option<&Arc<dyn Unit>> {
        self.luns.units().get(self.luns.at(lun)?)
    }

    /// The I_T_L nexus of the unit of a LUN field.
    #[inline]
    pub(crate) fn nexus(&self, lun: Lun) -> Option<&Arc<ItlNexus>> {
        self.nexus_at(self.luns.at(lun)?)
    }

    /// The I_T_L nexus of `unit`, if the session sees it.
    pub(crate) fn nexus_of<U: ?Sized>(&self, unit: &Arc<U>) -> Option<&Arc<ItlNexus>> {
        self.nexus_at(self.luns.index_of(unit)?)
    }

    #[inline]
    fn nexus_at(&self, at: usize) -> Option<&Arc<ItlNexus>> {
        let (slot, unit) = (self.slots.get(at)?, self.luns.units().get(at)?);
        Some(slot.nexus.get_or_init(|| self.nexuses.reach(unit, slot.seen_since)))
    }

    /// The I_T_L nexuses of the units that the session has reached.
    pub(crate) fn nexuses(&self) -> &ItlNexuses {
        &self.nexuses
    }

    /// True when the view has the same units under the same numbers.
    pub(crate) fn shows(&self, luns: &LunTable) -> bool {
        self.luns.shows_same(luns)
    }

    /// True if `other` shows only units that this view shows.
    pub(crate) fn shows_all_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.luns, &other.luns) || other.units().iter().all(|unit| self.has(unit))
    }

    pub(crate) fn has(&self, unit: &Arc<dyn Unit>) -> bool {
        self.luns.index_of(unit).is_some()
    }

    fn slot(&self, unit: &Arc<dyn Unit>) -> Option<&Slot> {
        self.slots.get(self.luns.index_of(unit)?)
    }
}
