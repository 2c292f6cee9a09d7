//! A unit as used by one session.

use crate::quota::UnitQuota;
use crate::task_set::TaskSet;
use crate::unit::Unit;
use lunar_scsi::attention::LogicalTime;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The nexus is not attached to the unit yet.
const UNKNOWN: u8 = 0;
const ATTACHED: u8 = 1;
/// The session is over, or no longer sees the unit.
const DETACHED: u8 = 2;

/// A unit as used by one session: SAM-5's I_T_L nexus, with a task set of its own as TST 001b of
/// the control mode page announces (decision 087). It is the same under all numbers that the unit
/// has in the session, and in all of its views.
#[derive(Debug)]
pub(crate) struct ItlNexus {
    pub(crate) unit: Arc<dyn Unit>,
    pub(crate) task_set: TaskSet,
    /// The limits of the unit.
    pub(crate) quota: Arc<UnitQuota>,
    seen_since: LogicalTime,
    /// Changes under the lock of the unit's SCSI state.
    state: AtomicU8,
}

impl ItlNexus {
    pub(crate) fn new(unit: Arc<dyn Unit>, seen_since: LogicalTime) -> Self {
        Self::with_state(unit, seen_since, UNKNOWN)
    }

    /// Creates a nexus that cannot be attached any more.
    pub(crate) fn of_ended_session(unit: Arc<dyn Unit>) -> Self {
        Self::with_state(unit, LogicalTime::default(), DETACHED)
    }

    fn with_state(unit: Arc<dyn Unit>, seen_since: LogicalTime, state: u8) -> Self {
        let (quota, state) = (Arc::clone(unit.quota()), AtomicU8::new(state));
        Self { unit, task_set: TaskSet::default(), quota, seen_since, state }
    }

    /// Time since when the session sees the unit.
    pub(crate) fn seen_since(&self) -> LogicalTime {
        self.seen_since
    }

    /// True when the unit has state for the nexus.
    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        self.state.load(Relaxed) == ATTACHED
    }

    /// True when the nexus was neither attached nor detached yet.
    pub(crate) fn is_unknown(&self) -> bool {
        self.state.load(Relaxed) == UNKNOWN
    }

    /// Called when the unit has got state for the nexus.
    pub(crate) fn set_attached(&self) {
        self.state.store(ATTACHED, Relaxed);
    }

    /// Called when the unit is to drop its state for the nexus. Returns `false` if it has none.
    pub(crate) fn set_detached(&self) -> bool {
        self.state.swap(DETACHED, Relaxed) == ATTACHED
    }
}
