//! The units that one session sees, and how that changes while it runs.

use crate::catalogue::distinct;
use crate::options::TargetOptions;
use crate::server::Shared;
use crate::session::Session;
use crate::tasks::TaskSet;
use crate::unit::LogicalUnit;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use wire::{Lun, LunForm};

/// REPORTED LUNS DATA HAS CHANGED.
const LUNS_CHANGED: u16 = 0x3f0e;

/// The units under their numbers.
pub(crate) type Luns = BTreeMap<u16, Arc<LogicalUnit>>;

/// A unit as one session reaches it: SAM-5's I_T_L nexus, with the task set of its own
/// that TST 001b of the control mode page announces (decision 087).
#[derive(Clone, Debug)]
pub(crate) struct ItlNexus {
    pub(crate) unit: Arc<LogicalUnit>,
    /// The same under all numbers that the unit has in the session, and in all of its views.
    pub(crate) task_set: TaskSet,
}

/// What a session sees at one moment.
#[derive(Debug)]
pub(crate) struct View {
    luns: BTreeMap<u16, ItlNexus>,
    /// For REPORT LUNS.
    list: Vec<Lun>,
}

impl View {
    /// The first view of a session.
    pub(crate) fn new(luns: Luns) -> Self {
        Self::after(&Self { luns: BTreeMap::new(), list: Vec::new() }, luns)
    }

    /// The view that follows `old` in the same session.
    fn after(old: &Self, luns: Luns) -> Self {
        let list = luns.keys().map(|id| Lun::new(*id)).collect();
        let known = old.luns.values().map(|nexus| (Arc::as_ptr(&nexus.unit), &nexus.task_set));
        let mut task_sets: HashMap<_, TaskSet> = known.map(|(at, set)| (at, set.clone())).collect();
        let nexus = |(id, unit): (u16, Arc<LogicalUnit>)| {
            let task_set = task_sets.entry(Arc::as_ptr(&unit)).or_default().clone();
            (id, ItlNexus { unit, task_set })
        };
        Self { luns: luns.into_iter().map(nexus).collect(), list }
    }

    /// Their numbers, in ascending order.
    pub(crate) fn list(&self) -> &[Lun] {
        &self.list
    }

    /// The numbers as they stand in a configuration, in ascending order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u16> {
        self.luns.keys().copied()
    }

    /// Each unit once, however many numbers it has here.
    pub(crate) fn units(&self) -> Vec<Arc<LogicalUnit>> {
        distinct(self.luns.values().map(|nexus| &nexus.unit))
    }

    /// The unit a LUN field names.
    pub(crate) fn unit(&self, lun: Lun) -> Option<&ItlNexus> {
        match lun.form() {
            LunForm::Unit(id) => self.luns.get(&id),
            _ => None,
        }
    }

    /// The numbers under which `unit` is seen here.
    pub(crate) fn luns_of(&self, unit: &Arc<LogicalUnit>) -> Vec<Lun> {
        let same = self.luns.iter().filter(|(_, other)| Arc::ptr_eq(&other.unit, unit));
        same.map(|(id, _)| Lun::new(*id)).collect()
    }

    /// The same units under the same numbers.
    pub(crate) fn shows(&self, luns: &Luns) -> bool {
        let same = |((a, nexus), (b, other)): ((_, &ItlNexus), (_, _))| {
            a == b && Arc::ptr_eq(&nexus.unit, other)
        };
        self.luns.len() == luns.len() && self.luns.iter().zip(luns).all(same)
    }

    pub(crate) fn has(&self, unit: &Arc<LogicalUnit>) -> bool {
        self.luns.values().any(|other| Arc::ptr_eq(&other.unit, unit))
    }
}

/// From now on `session` sees `luns` of `target`. Its tasks on what it sees no more are aborted,
/// and quiet when this is done; of the rest it is told that there is something new. SAM-5 §5.14,
/// SPC-4 §6.33.
pub(crate) async fn show(
    shared: &Arc<Shared>,
    session: &Arc<Session>,
    target: &TargetOptions,
    luns: Luns,
) {
    let old = Arc::clone(&session.view());
    let new = View::after(&old, luns);
    // Under which numbers another unit, or none, is seen now.
    let gone: Vec<Lun> = old
        .luns
        .iter()
        .filter(|(id, old)| new.luns.get(id).is_none_or(|now| !Arc::ptr_eq(&now.unit, &old.unit)))
        .map(|(id, _)| Lun::new(*id))
        .collect();
    session.charge_units(new.luns.len());
    let new = session.set_view(new, target);
    for lun in gone {
        if let Some(aborted) = session.abort_on(shared, lun) {
            let _ = aborted.await; // the session may be over
        }
    }
    for unit in old.units().iter().filter(|unit| !new.has(unit)) {
        unit.scsi().detach(session.nexus);
    }
    for unit in new.units().iter().filter(|unit| old.has(unit)) {
        unit.scsi().raise_for(LUNS_CHANGED, session.nexus);
    }
}
