//! Requests that wait while others are served, and of which one run serves all.

use crate::lock::lock;
use crate::visit_pace::Visitor;
use futures_util::future::{Either, select};
use lunar_net::OwnerId;
use lunar_scsi::plan::NexusId;
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

/// Requests for a reset of one unit or of one target, by the nexuses that sent them.
pub(crate) type ResetQueue = RequestQueue<NexusId>;

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

#[cfg(test)]
mod tests {
    use super::*;
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
        assert!(
            (&mut others).now_or_never().is_none(),
            "these requests came after the first run had begun"
        );
        may_end.add_permits(1);
        assert!(first.now_or_never().is_some());
        assert!((&mut others).now_or_never().is_none(), "their own run has not ended");
        may_end.add_permits(1);
        assert!(others.now_or_never().is_some());
        assert_eq!(*runs.borrow(), [vec![0], (1..REQUESTS).collect()]);
        let mut later = Box::pin(serve(REQUESTS));
        assert!((&mut later).now_or_never().is_none(), "a later request has a run of its own");
        may_end.add_permits(1);
        assert!(later.now_or_never().is_some());
        assert_eq!(runs.borrow().len(), 3);
    }

    /// Goal: a run that is dropped half-way leaves the queue usable.
    #[test]
    fn a_dropped_run_blocks_no_later_request() {
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
}
