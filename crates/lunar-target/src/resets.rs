//! Resets that reach other sessions: one at a time for each unit, and for each set of units that
//! sessions see of a target.
//!
//! A reset visits the sessions that the unit has attached. Requests that arrive while one runs
//! wait, and a single run serves all of them: the work grows with the sessions, not with their
//! product with the requests. Runs for several units take turns with their visits
//! ([`crate::visit_pace`]). A run has turns of each owner that waits for it, and it does only what
//! all of them wait for: requests for different units have different runs.

use crate::lock::lock;
use crate::manage::{ABORT_BYTES, abort_visited};
use crate::server::Shared;
use crate::session::{AbortedTasks, Session, SessionKey};
use crate::unit::LogicalUnit;
use crate::view::View;
use crate::visit_pace::{VISITS_AT_ONCE, Visitor};
use futures_util::future::{Either, select};
use lunar_net::OwnerId;
use lunar_scsi::plan::NexusId;
use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::watch;

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
    /// The next run, for the owners of these requests.
    next: Arc<Visitor>,
    /// Dropped at the end of the next run.
    next_ends: watch::Sender<()>,
    /// The current run. Owners of requests for the next one wait for it, too.
    current: Weak<Visitor>,
}

impl<T> Default for RequestQueue<T> {
    fn default() -> Self {
        let requests = Mutex::new(Requests {
            runs: 0,
            waiting: Vec::new(),
            next: Arc::default(),
            next_ends: watch::Sender::default(),
            current: Weak::new(),
        });
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
    /// serves them all with its `run`, which visits in turns of each owner that waits for it.
    pub(crate) async fn serve(
        &self,
        owner: OwnerId,
        request: T,
        run: impl AsyncFnOnce(Vec<T>, &Arc<Visitor>),
    ) {
        let (runs_before, mut ends) = {
            let mut requests = lock(&self.requests);
            requests.waiting.push(request);
            requests.next.add(owner);
            if let Some(current) = requests.current.upgrade() {
                current.add(owner);
            }
            (requests.runs, requests.next_ends.subscribe())
        };
        // At the end of a run all that it has served are woken at once. If each waited for the lock
        // instead, the next run would begin behind a task switch for each of them.
        let _running = match select(pin!(self.running.lock()), pin!(ends.changed())).await {
            Either::Left((running, _)) => running,
            Either::Right(_) => return, // served with earlier requests
        };
        let (together, visitor, _ends) = {
            let mut requests = lock(&self.requests);
            if requests.runs != runs_before {
                return; // served with earlier requests
            }
            requests.runs += 1;
            let visitor = std::mem::take(&mut requests.next);
            requests.current = Arc::downgrade(&visitor);
            let ends = std::mem::take(&mut requests.next_ends);
            (std::mem::take(&mut requests.waiting), visitor, ends)
        };
        run(together, &visitor).await;
    }
}

/// The queues of targets that are being reset.
#[derive(Debug, Default)]
pub(crate) struct TargetResets {
    /// The queues by the addresses of the units that the sessions see. A session with few units
    /// does not wait for those of others.
    by_units: Mutex<HashMap<Vec<usize>, Arc<ResetQueue>>>,
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
    /// The queue for the units of `view`, which the caller keeps until it has called
    /// [`Self::remove_unused`].
    fn of(&self, view: &View) -> Arc<ResetQueue> {
        Arc::clone(lock(&self.by_units).entry(addresses_of(view)).or_default())
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
/// its own tasks are quiet already, and it gets no unit attention for its own reset.
async fn reset(
    shared: &Arc<Shared>,
    by: &Arc<Session>,
    by_one: bool,
    units: &[Arc<LogicalUnit>],
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
    let visit = |(unit, nexus): (&Arc<LogicalUnit>, Option<NexusId>)| {
        let visited = nexus.and_then(|nexus| abort_visited(shared, nexus, unit));
        let Some((_, begun)) = visited else { return 0 };
        if !begun.ended.is_empty() {
            aborts.extend(begun.ended);
            charge.set(aborts.len() * ABORT_BYTES);
        }
        begun.tasks
    };
    shared.visits.visit_all_as(visitor, visits, visit).await;
    for abort in aborts {
        let _ = abort.await; // an error if the session is over
    }
    let reset = |unit: &Arc<LogicalUnit>| {
        match by {
            Some(session) => session.scsi_of(unit).reset(Some(session.nexus)),
            None => unit.scsi().reset(None),
        }
        0
    };
    shared.visits.visit_all_as(visitor, units, reset).await;
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
    reset_with(shared, by, std::slice::from_ref(unit), &unit.resets).await;
}

/// Runs a TARGET WARM RESET or TARGET COLD RESET for a session, on the units that it sees.
pub(crate) async fn reset_target(shared: &Arc<Shared>, by: &Arc<Session>) {
    let view = Arc::clone(&by.view());
    let queue = shared.target_resets.of(&view);
    reset_with(shared, by, view.units(), &queue).await;
    drop(queue);
    shared.target_resets.remove_unused(&view);
}

/// Resets the units for a session. The requests of `queue` are all for these units.
async fn reset_with(
    shared: &Arc<Shared>,
    by: &Arc<Session>,
    units: &[Arc<LogicalUnit>],
    queue: &ResetQueue,
) {
    let run = async |requesters: Vec<Arc<Session>>, visitor: &Arc<Visitor>| {
        let by_one = requesters.iter().all(|requester| requester.nexus == by.nexus);
        reset(shared, by, by_one, units, visitor).await;
    };
    queue.serve(by.time_owner, Arc::clone(by), run).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lun_table::LunTable;
    use crate::session::tests::Rig;
    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use std::cell::{Cell, RefCell};
    use tokio::sync::Semaphore;

    const OWNER: OwnerId = OwnerId(1);

    /// Goal: requests that arrive while one is served are served together by one further run, and
    /// none returns before that run has ended.
    #[test]
    fn requests_that_wait_share_one_run() {
        const REQUESTS: u32 = 1000;
        let (queue, runs, may_end) =
            (RequestQueue::default(), RefCell::new(Vec::new()), Semaphore::new(0));
        let serve = |request: u32| {
            let (queue, runs, may_end) = (&queue, &runs, &may_end);
            queue.serve(OWNER, request, async move |together, _| {
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
        let mut dropped =
            Box::pin(queue.serve(OWNER, 1, async |_, _| std::future::pending().await));
        assert!((&mut dropped).now_or_never().is_none());
        drop(dropped);
        let mut served = Vec::new();
        assert!(
            queue.serve(OWNER, 2, async |together, _| served = together).now_or_never().is_some()
        );
        assert_eq!(served, [2]);
    }

    /// Fault: the requests that a run had served passed the lock on one after the other. The next
    /// run began behind a task switch for each of them.
    #[test]
    fn the_requests_of_a_run_return_at_once() {
        let (queue, runs, may_end) = (RequestQueue::default(), Cell::new(0), Semaphore::new(0));
        let serve = |request: u32| {
            let (queue, runs, may_end) = (&queue, &runs, &may_end);
            Box::pin(queue.serve(OWNER, request, async move |_, _| {
                runs.set(runs.get() + 1);
                may_end.acquire().await.unwrap().forget();
            }))
        };
        let mut first = serve(0);
        assert!((&mut first).now_or_never().is_none());
        let mut served: Vec<_> = (1..100).map(serve).collect();
        assert!(served.iter_mut().all(|request| request.now_or_never().is_none()));
        may_end.add_permits(1);
        assert!(first.now_or_never().is_some());
        let mut runner = served.remove(0);
        assert!((&mut runner).now_or_never().is_none() && runs.get() == 2);
        let mut later = serve(100);
        assert!((&mut later).now_or_never().is_none());
        may_end.add_permits(1);
        assert!(runner.now_or_never().is_some());
        let in_reverse = served.into_iter().rev();
        assert_eq!(in_reverse.filter_map(|request| request.now_or_never()).count(), 98);
        assert!(later.now_or_never().is_none() && runs.get() == 3);
    }

    /// Fault: one run reset the units that any of the requesting sessions saw. A session that saw
    /// one unit waited for hundreds of others.
    #[test]
    fn target_resets_of_different_units_have_different_runs() {
        let rig = Rig::new();
        let view = |units: usize| {
            let luns = (0..).zip(rig.units.iter().take(units).cloned()).collect();
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
