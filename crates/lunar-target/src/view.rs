//! The units that one session sees, and their changes while it runs.
//!
//! A session may see hundreds of units and use few of them. The state of the session at a unit, and
//! of the unit for the session, begins with its first command there: the cost of a login does not
//! depend on the number of visible units. See docs/decisions/099.

use crate::catalogue::distinct;
use crate::lock::lock;
use crate::pieces::Pieces;
use crate::server::Shared;
use crate::session::{AbortedTasks, ItlNexus, Session};
use crate::unit::LogicalUnit;
use lunar_scsi::attention::LogicalTime;
use lunar_wire::{Lun, LunForm};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock};

/// Units of work that locking the SCSI state of a unit counts as.
pub(crate) const REACHED_UNITS: usize = 4;

/// Units by LUN number.
pub(crate) type Luns = BTreeMap<u16, Arc<LogicalUnit>>;

/// The LUNs that an initiator sees. Sessions share the table of a target whose LUNs have no access
/// lists.
#[derive(Debug, Default)]
pub(crate) struct LunTable {
    /// Indexes of the units.
    by_id: BTreeMap<u16, usize>,
    /// Each unit once, however many numbers it has.
    units: Vec<Arc<LogicalUnit>>,
    /// List for REPORT LUNS.
    list: Vec<Lun>,
    /// Indexes of the units by their addresses.
    by_address: HashMap<usize, usize>,
}

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

/// The place of one unit in a view.
#[derive(Debug)]
struct Slot {
    /// Time since when the session sees the unit.
    seen_since: LogicalTime,
    /// Set from the first command on.
    nexus: OnceLock<Arc<ItlNexus>>,
}

/// Units of one session that commands or other functions have reached; shared by all its views.
#[derive(Debug, Default)]
pub(crate) struct ItlNexuses(Mutex<Reached>);

#[derive(Debug, Default)]
struct Reached {
    /// True when the session is over.
    is_over: bool,
    /// Nexuses by the addresses of the units.
    by_address: HashMap<usize, Arc<ItlNexus>>,
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

    /// LUN numbers, in ascending order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u16> {
        self.by_id.keys().copied()
    }

    fn at(&self, lun: Lun) -> Option<usize> {
        match lun.form() {
            LunForm::Unit(id) => self.by_id.get(&id).copied(),
            _ => None,
        }
    }

    fn unit_of(&self, id: u16) -> Option<&Arc<LogicalUnit>> {
        self.units.get(*self.by_id.get(&id)?)
    }

    fn index_of(&self, unit: &Arc<LogicalUnit>) -> Option<usize> {
        self.by_address.get(&Arc::as_ptr(unit).addr()).copied()
    }

    /// True when both tables have the same units under the same numbers.
    fn shows_same(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || self.len() == other.len()
                && self.by_id.keys().all(|id| match (self.unit_of(*id), other.unit_of(*id)) {
                    (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                    _ => false,
                })
    }
}

impl ItlNexuses {
    /// The nexus of `unit`, which is created if the unit was not reached before.
    fn reach(&self, unit: &Arc<LogicalUnit>, seen_since: LogicalTime) -> Arc<ItlNexus> {
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
    fn take(&self, unit: &Arc<LogicalUnit>) -> Option<Arc<ItlNexus>> {
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
        Self { slots: luns.units.iter().map(slot).collect(), luns, nexuses: Arc::default(), since }
    }

    /// The view that follows `old` in the same session.
    fn after(old: &Self, luns: Arc<LunTable>) -> Self {
        let since = LogicalTime::next();
        let slot = |unit| match old.slot(unit) {
            Some(Slot { seen_since, nexus }) => {
                Slot { seen_since: *seen_since, nexus: nexus.clone() }
            }
            None => Slot { seen_since: since, nexus: OnceLock::new() },
        };
        let slots = luns.units.iter().map(slot).collect();
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
        &self.luns.list
    }

    /// LUN numbers as in the configuration, in ascending order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u16> {
        self.luns.ids()
    }

    /// Each unit once, however many numbers it has in the view.
    pub(crate) fn units(&self) -> &[Arc<LogicalUnit>] {
        &self.luns.units
    }

    /// The unit of a LUN field.
    pub(crate) fn unit(&self, lun: Lun) -> Option<&Arc<LogicalUnit>> {
        self.luns.units.get(self.luns.at(lun)?)
    }

    /// The I_T_L nexus of the unit of a LUN field.
    pub(crate) fn nexus(&self, lun: Lun) -> Option<&Arc<ItlNexus>> {
        self.nexus_at(self.luns.at(lun)?)
    }

    /// The I_T_L nexus of `unit`, if the session sees it.
    pub(crate) fn nexus_of(&self, unit: &Arc<LogicalUnit>) -> Option<&Arc<ItlNexus>> {
        self.nexus_at(self.luns.index_of(unit)?)
    }

    fn nexus_at(&self, at: usize) -> Option<&Arc<ItlNexus>> {
        let (slot, unit) = (self.slots.get(at)?, self.luns.units.get(at)?);
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

    pub(crate) fn has(&self, unit: &Arc<LogicalUnit>) -> bool {
        self.luns.index_of(unit).is_some()
    }

    fn slot(&self, unit: &Arc<LogicalUnit>) -> Option<&Slot> {
        self.slots.get(self.luns.index_of(unit)?)
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
}

/// Gives `session` other LUNs from now on. Returns its tasks on LUNs that it no longer sees, which
/// are aborted; once they are quiet, [`end_show`] is to be called.
pub(crate) fn begin_show(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    change: &LunChange,
) -> Vec<AbortedTasks> {
    session.charge_units(change.new.len());
    session.set_view(View::after(&session.view(), Arc::clone(&change.new)));
    session.abort_on_luns(shared, |id| change.gone.contains(&id))
}

/// Detaches the session's nexus from units that it no longer sees. The other attached units report
/// the change of LUNs to it, and those attached later will. SAM-5 §5.14, SPC-4 §6.33.
pub(crate) async fn end_show(session: &Session, pieces: &mut Pieces) {
    session.set_luns_changed();
    let view = Arc::clone(&session.view());
    for nexus in view.nexuses.all() {
        pieces.count(REACHED_UNITS).await;
        if view.has(&nexus.unit) {
            session.raise_luns_changed(&nexus, view.since);
        } else if let Some(nexus) = view.nexuses.take(&nexus.unit) {
            session.detach(&nexus);
        }
    }
    // Set again: a report of the LUNs in between has cleared it, and left the rest to the next one.
    session.set_luns_changed();
}
