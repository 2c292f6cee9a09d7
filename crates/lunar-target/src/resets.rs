//! Resets that reach other sessions: one at a time for each unit, and for each set of units that
//! sessions see of a target.
//!
//! A reset visits the sessions that the unit has attached. Requests that arrive while one runs
//! wait, and a single run serves all of them: the work grows with the sessions, not with their
//! product with the requests. Runs for several units take turns with their visits
//! ([`crate::visit_pace`]). A run uses the turns of each owner that waits for it, and resets only
//! units that all of them wait for: requests for different units have different runs.

use crate::lock::lock;
use crate::request_queue::ResetQueue;
use crate::session::{AbortedTasks, Session, SessionKey};
use crate::session_table::{ABORT_BYTES, SessionTable};
use crate::unit::Unit;
use crate::view::View;
use crate::visit_pace::{VISITS_AT_ONCE, Visitor};
use lunar_scsi::plan::NexusId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The queues of targets that are being reset.
#[derive(Debug, Default)]
pub(crate) struct TargetResets {
    /// The queues by the addresses of the units that the sessions see. A session with few units
    /// does not wait for those of others.
    by_units: Mutex<HashMap<Vec<usize>, Arc<ResetQueue>>>,
    /// Initiators that last requested a TARGET COLD RESET, by target name, until they log in again.
    awaited_logins: Mutex<HashMap<String, ReturningInitiator>>,
}

#[derive(Debug)]
struct ReturningInitiator {
    initiator_name: String,
    /// Nexus of the session that requested the reset and was ended by it.
    nexus: NexusId,
}

impl TargetResets {
    /// The queue for the units of `view`, which the caller keeps until it has called
    /// [`Self::remove_unused`].
    fn of(&self, view: &View) -> Arc<ResetQueue> {
        Arc::clone(lock(&self.by_units).entry(addresses_of(view)).or_default())
    }

    /// Called when a session has requested a TARGET COLD RESET, which ends it.
    pub(crate) fn expect_login_after_reset(&self, session: &Session) {
        let Some(target) = session.key.target_name.clone() else { return };
        let initiator_name = session.key.initiator_name.clone();
        let returning = ReturningInitiator { initiator_name, nexus: session.nexus };
        lock(&self.awaited_logins).insert(target, returning);
    }

    /// The nexus of the initiator's last session, for the first login after that session was ended
    /// by the reset that it had requested.
    pub(crate) fn take_awaited_login(&self, key: &SessionKey) -> Option<NexusId> {
        let target = key.target_name.as_ref()?;
        let mut awaited_logins = lock(&self.awaited_logins);
        awaited_logins
            .get(target)
            .filter(|awaited| awaited.initiator_name == key.initiator_name)?;
        awaited_logins.remove(target).map(|awaited| awaited.nexus)
    }

    fn remove_unused(&self, view: &View) {
        let units = addresses_of(view);
        let mut by_units = lock(&self.by_units);
        if by_units.get(&units).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            by_units.remove(&units);
        }
    }
}

fn addresses_of(view: &View) -> Vec<usize> {
    view.units().iter().map(|unit| Arc::as_ptr(unit).addr()).collect()
}

/// Aborts the tasks of other nexuses, then resets the units. If one session alone has requested it,
/// its own tasks have ended before, and it gets no unit attention for the reset.
async fn reset(
    sessions: &SessionTable,
    by: &Arc<Session>,
    by_one: bool,
    units: &[Arc<dyn Unit>],
    visitor: &Arc<Visitor>,
) {
    let mut charge = by.function_charge();
    let by = Some(by).filter(|_| by_one);
    let mut aborts: Vec<AbortedTasks> = Vec::new();
    let visits = units.iter().flat_map(|unit| {
        let others = nexuses_of(unit);
        let others = others.filter(|nexus| by.is_none_or(|by| by.nexus != *nexus));
        others.map(Some).chain([None]).map(move |nexus| (unit, nexus))
    });
    let visit = |(unit, nexus): (&Arc<dyn Unit>, Option<NexusId>)| {
        let visited = nexus.and_then(|nexus| sessions.abort_tasks(nexus, unit));
        let Some((_, begun)) = visited else { return 0 };
        if !begun.ended.is_empty() {
            aborts.extend(begun.ended);
            charge.set(aborts.len() * ABORT_BYTES);
        }
        begun.tasks
    };
    sessions.visits.visit_all_as(visitor, visits, visit).await;
    for abort in aborts {
        let _ = abort.await; // an error if the session is over
    }
    let reset = |unit: &Arc<dyn Unit>| {
        match by {
            Some(session) => {
                session.nexuses_of(unit, |nexuses| nexuses.reset(Some(session.nexus)));
            }
            None => unit.nexuses(|nexuses| nexuses.reset(None)),
        }
        0
    };
    sessions.visits.visit_all_as(visitor, units, reset).await;
}

/// The nexuses attached to `unit`: those that have sent it a command (decision 099). The iterator
/// ends at the last one of the time of its first step; a nexus attached meanwhile comes after the
/// reset.
fn nexuses_of(unit: &Arc<dyn Unit>) -> impl Iterator<Item = NexusId> {
    let (mut first, mut last) = (NexusId(0), None);
    let mut known = Vec::new().into_iter();
    std::iter::from_fn(move || {
        let last = (*last.get_or_insert_with(|| unit.nexuses(|nexuses| nexuses.last_nexus())))?;
        if known.len() == 0 && first <= last {
            let next = unit.nexuses(|nexuses| nexuses.nexuses_from(first, VISITS_AT_ONCE));
            known = next.into_iter();
        }
        let next = known.next().filter(|next| *next <= last)?;
        first = NexusId(next.0 + 1);
        Some(next)
    })
}

/// Runs a LOGICAL UNIT RESET for a session.
pub(crate) async fn reset_unit(sessions: &SessionTable, by: &Arc<Session>, unit: &Arc<dyn Unit>) {
    reset_with(sessions, by, std::slice::from_ref(unit), &unit.common().resets).await;
}

/// Runs a TARGET WARM RESET or TARGET COLD RESET for a session, on the units that it sees.
pub(crate) async fn reset_target(
    sessions: &SessionTable,
    resets: &TargetResets,
    by: &Arc<Session>,
) {
    let view = Arc::clone(&by.view());
    let queue = resets.of(&view);
    reset_with(sessions, by, view.units(), &queue).await;
    drop(queue);
    resets.remove_unused(&view);
}

/// Resets the units for a session. The requests of `queue` are all for these units.
async fn reset_with(
    sessions: &SessionTable,
    by: &Arc<Session>,
    units: &[Arc<dyn Unit>],
    queue: &ResetQueue,
) {
    let run = async |requesters: Vec<NexusId>, visitor: &Arc<Visitor>| {
        let by_one = requesters.iter().all(|requester| *requester == by.nexus);
        reset(sessions, by, by_one, units, visitor).await;
    };
    queue.serve(by.time_owner, by.nexus, run).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lun_table::LunTable;
    use crate::session::tests::Rig;

    /// Fault: one run reset the units that any of the requesting sessions saw. A session that saw
    /// one unit waited for hundreds of others.
    #[test]
    fn target_resets_of_different_units_have_different_runs() {
        let rig = Rig::new();
        let view = |units: usize| {
            let luns = (0..units).map(|at| (at as u16, rig.shown(at))).collect();
            View::new(Arc::new(LunTable::new(&luns)))
        };
        let views = [view(256), view(256), view(1)];
        let resets = TargetResets::default();
        let queues = views.each_ref().map(|view| resets.of(view));
        assert!(Arc::ptr_eq(&queues[0], &queues[1]));
        assert!(!Arc::ptr_eq(&queues[0], &queues[2]));
        drop(queues);
        views.iter().for_each(|view| resets.remove_unused(view));
        assert!(lock(&resets.by_units).is_empty());
        drop(views);
        rig.end();
    }
}
