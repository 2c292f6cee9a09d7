//! Resets that reach other sessions: one at a time for each unit, and for each target.
//!
//! A reset visits the sessions that the unit has attached. Requests that arrive while one runs
//! wait, and a single run serves all of them: the work grows with the sessions, not with their
//! product with the requests. Runs for several units take turns with their visits
//! ([`crate::visit_pace`]).

use crate::manage::{ABORT_BYTES, abort_visited};
use crate::server::{Shared, lock};
use crate::session::{AbortedTasks, Session, SessionKey};
use crate::unit::LogicalUnit;
use crate::view::View;
use crate::visit_pace::VISITS_AT_ONCE;
use lunar_block::MemoryCharge;
use lunar_net::OwnerId;
use lunar_scsi::plan::NexusId;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Requests of one kind that are served together.
pub(crate) struct RequestQueue<T> {
    requests: Mutex<Requests<T>>,
    /// Held by the current run.
    running: tokio::sync::Mutex<()>,
}

/// Requests for a reset of one unit or of one target, by the sessions that sent them.
pub(crate) type ResetQueue = RequestQueue<Arc<Session>>;

struct Requests<T> {
    /// Number of runs that have begun.
    runs: u64,
    /// Requests for the next run.
    waiting: Vec<T>,
}

impl<T> Default for RequestQueue<T> {
    fn default() -> Self {
        let requests = Mutex::new(Requests { runs: 0, waiting: Vec::new() });
        Self { requests, running: tokio::sync::Mutex::default() }
    }
}

impl<T> fmt::Debug for RequestQueue<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requests = lock(&self.requests);
        let mut fields = formatter.debug_struct("RequestQueue");
        fields.field("runs", &requests.runs).field("waiting", &requests.waiting.len()).finish()
    }
}

impl<T> RequestQueue<T> {
    /// Returns once a run that began after this call has ended. The first of the waiting requests
    /// serves them all with its `run`.
    pub(crate) async fn serve(&self, request: T, run: impl AsyncFnOnce(Vec<T>)) {
        let runs_before = {
            let mut requests = lock(&self.requests);
            requests.waiting.push(request);
            requests.runs
        };
        let _running = self.running.lock().await;
        let together = {
            let mut requests = lock(&self.requests);
            if requests.runs != runs_before {
                return; // served with earlier requests
            }
            requests.runs += 1;
            std::mem::take(&mut requests.waiting)
        };
        run(together).await;
    }
}

/// The queues of targets that are being reset.
#[derive(Debug, Default)]
pub(crate) struct TargetResets {
    by_target: Mutex<HashMap<String, Arc<ResetQueue>>>,
    /// Initiators that last requested a TARGET COLD RESET, by target name, until they log in again.
    returning: Mutex<HashMap<String, Returning>>,
}

#[derive(Debug)]
struct Returning {
    initiator_name: String,
    /// Nexus of the session that requested the reset and was ended by it.
    nexus: NexusId,
}

impl TargetResets {
    fn of(&self, target: &str) -> Arc<ResetQueue> {
        Arc::clone(lock(&self.by_target).entry(target.to_owned()).or_default())
    }

    /// Called when a session has requested a TARGET COLD RESET, which ends it.
    pub(crate) fn expect_return(&self, session: &Session) {
        let Some(target) = session.key.target_name.clone() else { return };
        let initiator_name = session.key.initiator_name.clone();
        let returning = Returning { initiator_name, nexus: session.nexus };
        lock(&self.returning).insert(target, returning);
    }

    /// The nexus of the initiator's last session, for the first login after that session was ended
    /// by the reset that it had requested.
    pub(crate) fn take_returning(&self, key: &SessionKey) -> Option<NexusId> {
        let target = key.target_name.as_ref()?;
        let mut returning = lock(&self.returning);
        returning.get(target).filter(|who| who.initiator_name == key.initiator_name)?;
        returning.remove(target).map(|who| who.nexus)
    }

    fn remove_unused(&self, target: &str) {
        let mut by_target = lock(&self.by_target);
        if by_target.get(target).is_some_and(|queue| Arc::strong_count(queue) == 1) {
            by_target.remove(target);
        }
    }
}

/// Number of units added to [`UnitResets`] that take as long as a visit.
const UNITS_ADDED: usize = 16;

/// Units to be reset.
struct UnitResets<'a> {
    /// The units by their addresses, each with the requesting session if there is only one: its own
    /// tasks are quiet already, and it gets no unit attention for its own reset.
    units: HashMap<*const LogicalUnit, (Arc<LogicalUnit>, Option<&'a Session>)>,
    /// Owner of the run.
    owner: OwnerId,
    /// Charge for the memory of the run.
    charge: MemoryCharge,
}

impl<'a> UnitResets<'a> {
    /// Creates a run without units, for the first of its requesters.
    fn of(requester: &Session) -> Self {
        let (owner, charge) = (requester.time_owner, requester.function_charge());
        Self { units: HashMap::new(), owner, charge }
    }

    fn add(&mut self, unit: &Arc<LogicalUnit>, session: &'a Session) {
        let added = || (Arc::clone(unit), Some(session));
        let (_, by) = self.units.entry(Arc::as_ptr(unit)).or_insert_with(added);
        *by = by.filter(|by| by.nexus == session.nexus);
    }

    /// Adds the units that these sessions see. There may be thousands of sessions with hundreds of
    /// units each.
    async fn add_all_of(&mut self, shared: &Arc<Shared>, sessions: &'a [Arc<Session>]) {
        let owner = self.owner;
        let steps = sessions.iter().flat_map(|session| {
            let view = Arc::clone(&session.view());
            (0..view.units().len())
                .step_by(UNITS_ADDED)
                .map(move |at| (session, Arc::clone(&view), at))
        });
        let add = |(session, view, at): (&'a Arc<Session>, Arc<View>, usize)| {
            let units = view.units()[at..].iter().take(UNITS_ADDED);
            units.for_each(|unit| self.add(unit, session));
            0
        };
        shared.visits.visit_all(owner, steps, add).await;
    }

    /// Aborts the tasks of other nexuses, then resets the units.
    async fn run(mut self, shared: &Arc<Shared>) {
        let mut aborts: Vec<AbortedTasks> = Vec::new();
        let units_bytes = self.units.capacity() * size_of::<(usize, (usize, usize))>();
        self.charge.set(units_bytes);
        let visits = self.units.values().flat_map(|(unit, by)| {
            let others = nexuses_of(unit);
            let others = others.filter(|nexus| by.is_none_or(|by| by.nexus != *nexus));
            others.map(Some).chain([None]).map(move |nexus| (unit, nexus))
        });
        let visit = |(unit, nexus): (&Arc<LogicalUnit>, Option<NexusId>)| {
            let visited = nexus.and_then(|nexus| abort_visited(shared, nexus, unit));
            let Some((_, begun)) = visited else { return 0 };
            if !begun.ended.is_empty() {
                aborts.extend(begun.ended);
                self.charge.set(units_bytes + aborts.len() * ABORT_BYTES);
            }
            begun.tasks
        };
        shared.visits.visit_all(self.owner, visits, visit).await;
        for abort in aborts {
            let _ = abort.await; // an error if the session is over
        }
        let reset = |(unit, by): &(Arc<LogicalUnit>, Option<&Session>)| {
            match by {
                Some(session) => session.scsi_of(unit).reset(Some(session.nexus)),
                None => unit.scsi().reset(None),
            }
            0
        };
        shared.visits.visit_all(self.owner, self.units.values(), reset).await;
    }
}

/// The nexuses attached to `unit`: those that have sent it a command (decision 099). The iterator
/// ends at the last one of the time of its first step; a nexus attached meanwhile comes after the
/// reset.
fn nexuses_of(unit: &Arc<LogicalUnit>) -> impl Iterator<Item = NexusId> {
    let (mut first, mut last) = (NexusId(0), None);
    let mut known = Vec::new().into_iter();
    std::iter::from_fn(move || {
        let last = (*last.get_or_insert_with(|| unit.scsi().last_nexus()))?;
        if known.len() == 0 && first <= last {
            known = unit.scsi().nexuses_from(first, VISITS_AT_ONCE).into_iter();
        }
        let next = known.next().filter(|next| *next <= last)?;
        first = NexusId(next.0 + 1);
        Some(next)
    })
}

/// Runs a LOGICAL UNIT RESET for a session.
pub(crate) async fn reset_unit(shared: &Arc<Shared>, by: &Arc<Session>, unit: &Arc<LogicalUnit>) {
    let run = async |requesters: Vec<Arc<Session>>| {
        let mut resets = UnitResets::of(by);
        requesters.iter().for_each(|session| resets.add(unit, session));
        resets.run(shared).await;
    };
    unit.resets.serve(Arc::clone(by), run).await;
}

/// Runs a TARGET WARM RESET or TARGET COLD RESET for a session, on the units that it sees.
pub(crate) async fn reset_target(shared: &Arc<Shared>, by: &Arc<Session>) {
    let target = by.key.target_name.as_deref().unwrap_or_default();
    let run = async |requesters: Vec<Arc<Session>>| {
        let mut resets = UnitResets::of(by);
        resets.add_all_of(shared, &requesters).await;
        resets.run(shared).await;
    };
    let queue = shared.target_resets.of(target);
    queue.serve(Arc::clone(by), run).await;
    drop(queue);
    shared.target_resets.remove_unused(target);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::tests::Rig;
    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use std::cell::RefCell;
    use tokio::sync::Semaphore;

    /// Goal: requests that arrive while one is served are served together by one further run, and
    /// none returns before that run has ended.
    #[test]
    fn requests_that_wait_share_one_run() {
        const REQUESTS: u32 = 1000;
        let (queue, runs, may_end) =
            (RequestQueue::default(), RefCell::new(Vec::new()), Semaphore::new(0));
        let serve = |request: u32| {
            let (queue, runs, may_end) = (&queue, &runs, &may_end);
            queue.serve(request, async move |together| {
                runs.borrow_mut().push(together);
                may_end.acquire().await.unwrap().forget();
            })
        };
        let mut first = Box::pin(serve(0));
        assert!((&mut first).now_or_never().is_none());
        let mut others = Box::pin(join_all((1..REQUESTS).map(serve)));
        assert!((&mut others).now_or_never().is_none(), "they came after the first had begun");
        may_end.add_permits(1);
        assert!(first.now_or_never().is_some());
        assert!((&mut others).now_or_never().is_none(), "their own run has not ended");
        may_end.add_permits(1);
        assert!(others.now_or_never().is_some());
        assert_eq!(*runs.borrow(), [vec![0], (1..REQUESTS).collect()]);
        let mut later = Box::pin(serve(REQUESTS));
        assert!((&mut later).now_or_never().is_none(), "one that comes later has a run of its own");
        may_end.add_permits(1);
        assert!(later.now_or_never().is_some());
        assert_eq!(runs.borrow().len(), 3);
    }

    /// Goal: a run that is dropped half-way leaves the queue usable.
    #[test]
    fn a_run_that_is_dropped_blocks_nobody() {
        let queue = RequestQueue::default();
        let mut dropped = Box::pin(queue.serve(1, async |_| std::future::pending().await));
        assert!((&mut dropped).now_or_never().is_none());
        drop(dropped);
        let mut served = Vec::new();
        assert!(queue.serve(2, async |together| served = together).now_or_never().is_some());
        assert_eq!(served, [2]);
    }

    /// Fault: the units of a target's reset were collected in one piece, however many sessions had
    /// requested it.
    #[test]
    fn units_of_a_target_reset_are_collected_in_steps() {
        let rig = Rig::new();
        let sessions: Vec<_> = (0..40).map(|number| rig.log_in(number)).collect();
        let polls = |requesters: &[Arc<Session>]| {
            let mut resets = UnitResets::of(&requesters[0]);
            let mut adding = Box::pin(resets.add_all_of(rig.shared(), requesters));
            let polls = (1..).find(|_| (&mut adding).now_or_never().is_some()).unwrap();
            drop(adding);
            let is_of_one = requesters.len() == 1;
            assert_eq!(resets.units.len(), rig.units.len());
            assert!(resets.units.values().all(|(_, by)| by.is_some() == is_of_one));
            polls
        };
        polls(&sessions[..1]);
        let steps = sessions.len() * rig.units.len() / UNITS_ADDED;
        assert!(polls(&sessions) >= steps / VISITS_AT_ONCE);
        sessions.iter().for_each(|session| rig.lose(session));
        rig.end();
    }
}
