//! Resets that reach other sessions: one at a time for each unit, and for each target.
//!
//! A reset visits the sessions that the unit has attached. Requests that arrive while one runs
//! wait, and a single run serves all of them: the work grows with the sessions, not with their
//! product with the requests. Runs for several units take turns with their visits ([`VisitPace`]).

use crate::server::{Shared, lock};
use crate::session::{AbortedTasks, Session, SessionKey};
use crate::unit::LogicalUnit;
use lunar_scsi::plan::NexusId;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Number of visits, and of tasks aborted in them, before other work of the core has its turn. Each
/// task makes work for its connection, which is done out of turn.
const VISITS_AT_ONCE: usize = 64;

/// Paces functions that visit other sessions: they visit one session after the other, and yield to
/// other work of the core in between. Many functions do no more at once than one.
#[derive(Debug, Default)]
pub(crate) struct VisitPace {
    /// Visits since other work had its turn.
    visited: tokio::sync::Mutex<usize>,
}

impl VisitPace {
    /// Makes one visit, which returns its result and the number of tasks it aborted. Waiting visits
    /// are made in the order of the calls.
    pub(crate) async fn visit<T>(&self, visit: impl FnOnce() -> (T, usize)) -> T {
        let mut visited = self.visited.lock().await;
        if *visited >= VISITS_AT_ONCE {
            tokio::task::yield_now().await;
            *visited = 0;
        }
        let (result, tasks) = visit();
        *visited += 1 + tasks;
        result
    }

    /// Aborts the tasks of a nexus on a unit on behalf of another nexus. Returns `None` if its
    /// session is over.
    pub(crate) async fn abort(
        &self,
        shared: &Arc<Shared>,
        nexus: NexusId,
        unit: &Arc<LogicalUnit>,
    ) -> Option<(Arc<Session>, Vec<AbortedTasks>)> {
        let visit = || {
            let session = shared.sessions().of_nexus(nexus);
            let Some(session) = session else { return (None, 0) };
            let begun = session.abort_on_unit(shared, unit);
            (Some((session, begun.ended)), begun.tasks)
        };
        self.visit(visit).await
    }
}

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

/// Units to be reset, each with the requesting session if there is only one: its own tasks are
/// quiet already, and it gets no unit attention for its own reset.
struct UnitResets<'a>(HashMap<*const LogicalUnit, (Arc<LogicalUnit>, Option<&'a Session>)>);

impl<'a> UnitResets<'a> {
    fn new(asked: impl Iterator<Item = (Arc<LogicalUnit>, &'a Session)>) -> Self {
        let mut units = HashMap::new();
        for (unit, session) in asked {
            let (_, by) = units.entry(Arc::as_ptr(&unit)).or_insert((unit, Some(session)));
            *by = by.filter(|by: &&Session| by.nexus == session.nexus);
        }
        Self(units)
    }

    /// Aborts the tasks of other nexuses, then resets the units.
    async fn run(self, shared: &Arc<Shared>) {
        let mut aborts = Vec::new();
        for (unit, by) in self.0.values() {
            abort_on_unit(shared, unit, *by, &mut aborts).await;
        }
        for abort in aborts {
            let _ = abort.await; // an error if the session is over
        }
        for (unit, by) in self.0.values() {
            let reset = || match by {
                Some(session) => (session.scsi_of(unit).reset(Some(session.nexus)), 0),
                None => (unit.scsi().reset(None), 0),
            };
            shared.visits.visit(reset).await;
        }
    }
}

/// Aborts the tasks that all nexuses except that of `by` have on `unit`. A unit has each nexus
/// attached that has sent it a command (decision 099); a nexus attached meanwhile comes after the
/// reset.
async fn abort_on_unit(
    shared: &Arc<Shared>,
    unit: &Arc<LogicalUnit>,
    by: Option<&Session>,
    aborts: &mut Vec<AbortedTasks>,
) {
    let mut first = NexusId(0);
    let Some(last) = shared.visits.visit(|| (unit.scsi().last_nexus(), 0)).await else { return };
    while first <= last {
        let known =
            shared.visits.visit(|| (unit.scsi().nexuses_from(first, VISITS_AT_ONCE), 0)).await;
        let Some(next) = known.last() else { return };
        first = NexusId(next.0 + 1);
        for nexus in known.into_iter().filter(|nexus| *nexus <= last) {
            if by.is_some_and(|by| by.nexus == nexus) {
                continue;
            }
            if let Some((_, begun)) = shared.visits.abort(shared, nexus, unit).await {
                aborts.extend(begun);
            }
        }
    }
}

/// Runs a LOGICAL UNIT RESET for a session.
pub(crate) async fn reset_unit(shared: &Arc<Shared>, by: &Arc<Session>, unit: &Arc<LogicalUnit>) {
    let run = async |requesters: Vec<Arc<Session>>| {
        let asked = requesters.iter().map(|session| (Arc::clone(unit), &**session));
        UnitResets::new(asked).run(shared).await;
    };
    unit.resets.serve(Arc::clone(by), run).await;
}

/// Runs a TARGET WARM RESET or TARGET COLD RESET for a session, on the units that it sees.
pub(crate) async fn reset_target(shared: &Arc<Shared>, by: &Arc<Session>) {
    let target = by.key.target_name.as_deref().unwrap_or_default();
    let run = async |requesters: Vec<Arc<Session>>| {
        let views: Vec<_> = requesters.iter().map(|session| session.view()).collect();
        let asked = requesters.iter().zip(&views).flat_map(|(session, view)| {
            view.units().iter().map(|unit| (Arc::clone(unit), &**session))
        });
        let resets = UnitResets::new(asked);
        drop(views);
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
}
