//! A bounded pool of threads for system calls that block.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};

/// Jobs that run or wait in the queue of one pool; more wait, asynchronously, for their turn.
const QUEUED_JOBS_MAX: usize = 256;

/// A thread without work ends after this.
const IDLE_THREAD_LIFE: Duration = Duration::from_secs(10);

/// Closing a pool waits at most this long for what was begun.
pub(super) const CLOSING_WAIT_MAX: Duration = Duration::from_secs(1);

type Job = Box<dyn FnOnce() + Send>;

/// Threads for jobs that block. They start when there is work and end when there is none for a
/// while. Needs no runtime: whoever polls the future is woken by the thread that did the job.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    places: Arc<Semaphore>,
}

struct Shared {
    name: String,
    threads_max: usize,
    state: Mutex<State>,
    work: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

/// The job was lost: it panicked.
#[derive(Debug, thiserror::Error)]
#[error("a worker thread panicked")]
pub(crate) struct Lost;

impl Workers {
    pub(crate) fn new(name: &str, threads_max: usize) -> Self {
        let shared = Shared {
            name: name.into(),
            threads_max,
            state: Mutex::default(),
            work: Condvar::new(),
            ended: Condvar::new(),
        };
        Self { shared: Arc::new(shared), places: Arc::new(Semaphore::new(QUEUED_JOBS_MAX)) }
    }

    /// Runs `job` on a thread. When the future is dropped after the job was queued, the job is done
    /// all the same, and its result dropped.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Lost> {
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| Lost)?;
        let (done, result) = oneshot::channel();
        self.shared.submit(
            Box::new(move || {
                let value = job();
                drop(place);
                // The one who asked may be gone.
                let _ = done.send(value);
            }),
            false,
        );
        result.await.map_err(|_| Lost)
    }

    /// Queues `job` if there is a place; for hints, which nobody waits for.
    pub(crate) fn try_run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return false };
        self.shared.submit(
            Box::new(move || {
                job();
                drop(place);
            }),
            false,
        );
        true
    }

    /// Runs `job` before all others, without taking a place: for the one job of its kind that
    /// others wait for.
    pub(crate) fn run_first(&self, job: impl FnOnce() + Send + 'static) {
        self.shared.submit(Box::new(job), true);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(self: &Arc<Self>, job: Job, first: bool) {
        let mut state = self.lock();
        if first {
            state.jobs.push_front(job);
        } else {
            state.jobs.push_back(job);
        }
        if state.jobs.len() <= state.idle || state.threads >= self.threads_max {
            drop(state);
            self.work.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name(self.name.clone());
        if let Err(error) = thread.spawn(move || shared.serve()) {
            self.without_new_thread(&error);
        }
    }

    /// The system gives no thread. Others may do the work; if there are none, it is done here, late
    /// rather than never.
    fn without_new_thread(&self, error: &std::io::Error) {
        tracing::warn!(pool = self.name, %error, "no new thread for I/O");
        let mut state = self.lock();
        state.threads -= 1;
        while state.threads == 0
            && let Some(job) = state.jobs.pop_front()
        {
            drop(state);
            run(job);
            state = self.lock();
        }
    }

    /// Life of a thread.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                run(job);
                state = self.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let (back, waited) = self
                .work
                .wait_timeout(state, IDLE_THREAD_LIFE)
                .unwrap_or_else(PoisonError::into_inner);
            state = back;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.threads -= 1;
        self.ended.notify_all();
    }
}

/// A panic ends the job, not the thread; who waits for the job sees that it is lost.
fn run(job: Job) {
    let _ = catch_unwind(AssertUnwindSafe(job));
}

impl Drop for Workers {
    /// Jobs that were queued are still done, and waited for, unless they take too long.
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        self.shared.work.notify_all();
        let ended = &self.shared.ended;
        let busy = |state: &mut State| state.threads > 0;
        let _ = ended.wait_timeout_while(state, CLOSING_WAIT_MAX, busy);
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("name", &self.shared.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::tests::closes;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// More jobs than places and threads are all done, never by more threads than allowed, and
    /// no thread is left after the pool.
    #[test]
    fn bounded() {
        static NOW: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let workers = Workers::new("test", 3);
        let jobs = (0..QUEUED_JOBS_MAX * 2).map(|n| {
            workers.run(move || {
                MOST.fetch_max(NOW.fetch_add(1, SeqCst) + 1, SeqCst);
                std::thread::sleep(Duration::from_micros(100));
                NOW.fetch_sub(1, SeqCst);
                n
            })
        });
        let results = block_on(futures_util::future::join_all(jobs));
        let sum: usize = results.into_iter().map(Result::unwrap).sum();
        assert_eq!(sum, QUEUED_JOBS_MAX * (QUEUED_JOBS_MAX * 2 - 1));
        assert!((1..=3).contains(&MOST.load(SeqCst)));
        let shared = Arc::clone(&workers.shared);
        assert_eq!(workers.places.available_permits(), QUEUED_JOBS_MAX);
        closes(|| drop(workers), || shared.lock().threads == 0);
    }

    /// A job that panics is reported to its owner and harms no later one; one whose owner went
    /// away is done all the same.
    #[test]
    fn lost_and_abandoned() {
        let workers = Workers::new("test", 1);
        let panicked = block_on(workers.run(|| panic!("meant")));
        assert!(matches!(panicked, Err(Lost)));
        let done = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&done);
        block_on(async {
            let job = workers.run(move || count.fetch_add(1, SeqCst));
            tokio::select! { biased; _ = job => {}, () = std::future::ready(()) => {} }
        });
        assert_eq!(block_on(workers.run(|| 7)).unwrap(), 7);
        assert_eq!(done.load(SeqCst), 1);
    }
}
