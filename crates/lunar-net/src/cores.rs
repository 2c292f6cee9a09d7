//! Threads of the data plane: one `current_thread` runtime each; a connection stays on its core.

use crate::busy_poll::poll_while_busy;
use crate::owner_turns::{OwnerId, OwnerTurns, end_round};
use crate::placement::Placement;
use crate::turn::take_moved;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::ready;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

/// Options of the data plane's threads.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CoreOptions {
    /// Number of threads; 0: as many as the process may use.
    pub count: usize,
    /// True to let a core that was just busy poll its sockets for a while before it sleeps.
    pub latency_mode: bool,
}

/// A future that runs on a core.
pub type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Wraps all that runs on a core, from its first job to its last, to hold state of the thread,
/// such as a ring.
pub type CoreWrapper = fn(LocalFuture) -> LocalFuture;

/// Interval at which a core that shuts down checks whether its tasks have ended.
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(1);

type Job = Box<dyn FnOnce() -> LocalFuture + Send>;

/// Threads that run connections. Dropping it lets each thread end after its last job.
#[derive(Debug)]
pub struct Cores {
    cores: Vec<Core>,
    placement: Arc<Placement>,
}

#[derive(Debug)]
struct Core {
    jobs: Option<UnboundedSender<Job>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Cores {
    /// Starts the threads. All jobs run inside `around`.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be created.
    pub fn start(options: CoreOptions, around: CoreWrapper) -> io::Result<Self> {
        let count = match options.count {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let start = |index| Core::start(index, options.latency_mode, around);
        let cores = (0..count).map(start).collect::<io::Result<_>>()?;
        Ok(Self { cores, placement: Placement::new(count) })
    }

    /// Runs the future of `job` on the core with the fewest owners and jobs. The caller limits the
    /// number of jobs.
    pub fn spawn<F, J>(&self, job: J)
    where
        J: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        self.spawn_on_core(None, job);
    }

    /// Runs the future of `job` on the core with the fewest jobs of this owner; only jobs that were
    /// spawned with this function count. The caller limits the number of jobs, by its limit of
    /// connections.
    pub fn spawn_for<F, J>(&self, owner: OwnerId, job: J)
    where
        J: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        self.spawn_on_core(Some(owner), job);
    }

    fn spawn_on_core<F, J>(&self, owner: Option<OwnerId>, job: J)
    where
        J: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let Some(placed) = self.placement.place(owner) else { return };
        let Some(core) = self.cores.get(placed.core) else { return };
        let job: Job = Box::new(move || {
            // Boxed separately: a future that awaits another one reserves space for it twice.
            let work = Box::pin(job());
            Box::pin(async move {
                work.await;
                drop(placed);
            })
        });
        if let Some(jobs) = &core.jobs {
            let _ = jobs.send(job); // the thread lives as long as the sender
        }
    }
}

impl Core {
    fn start(index: usize, latency_mode: bool, around: CoreWrapper) -> io::Result<Self> {
        let (jobs, inbox) = unbounded_channel();
        let (started, start) = std::sync::mpsc::sync_channel(1);
        let thread =
            std::thread::Builder::new().name(format!("core-{index}")).spawn(move || {
                let mut builder = tokio::runtime::Builder::new_current_thread();
                builder.on_thread_unpark(end_round);
                match builder.enable_all().build_local(tokio::runtime::LocalOptions::default()) {
                    Ok(runtime) => {
                        let _ = started.send(Ok(()));
                        runtime.block_on(around(Box::pin(run(inbox, latency_mode))));
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            })?;
        start.recv().map_err(io::Error::other)??;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }
}

async fn run(mut inbox: UnboundedReceiver<Job>, latency_mode: bool) {
    let poller = latency_mode.then(|| tokio::task::spawn_local(poll_while_busy()));
    while let Some(job) = inbox.recv().await {
        spawn_local(job());
    }
    // The sender is dropped: there are no new jobs, but running tasks may end.
    poller.inspect(JoinHandle::abort);
    while RUNNING.get() > 0 {
        tokio::time::sleep(SHUTDOWN_POLL_INTERVAL).await;
    }
}

thread_local! {
    /// Number of tasks on this core that its end waits for.
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

/// Spawns a local task on the caller's core. A core that shuts down waits for it, but not for tasks
/// of `tokio::spawn`.
///
/// # Panics
/// Outside of a core, or of another runtime that supports local tasks.
pub fn spawn_local<F>(work: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let running = Running::enter();
    tokio::task::spawn_local(async move {
        let _running = running;
        work.await
    })
}

/// Spawns a local task as [`spawn_local`] does, and charges its time to an owner, like the time of
/// the owner's connections. The task itself does not wait for the owner's turn; the owner's
/// connections wait longer instead.
///
/// # Panics
/// Outside of a core, or of another runtime that supports local tasks.
pub fn spawn_local_for<F>(owner: OwnerId, work: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    spawn_local(async move {
        let mut work = pin!(work);
        poll_fn(|context| {
            let began = Instant::now();
            let polled = work.as_mut().poll(context);
            OwnerTurns::of(owner).count(began.elapsed(), take_moved());
            polled
        })
        .await
    })
}

/// Polls `work` in turns of an owner only. The owner need not have any connections; the time of
/// each poll counts like time of theirs. This is for work that takes long in all, such as an
/// operation on a whole disk: a poll of it should take no longer than a turn.
pub async fn in_turns_of<F: Future>(owner: OwnerId, work: F) -> F::Output {
    let turns = OwnerTurns::of(owner);
    let (mut turn, mut work) = (pin!(turns.wait()), pin!(work));
    poll_fn(|context| {
        ready!(turn.as_mut().poll(context));
        let began = Instant::now();
        let polled = work.as_mut().poll(context);
        turns.count(began.elapsed(), take_moved());
        turn.set(turns.wait());
        polled
    })
    .await
}

/// Counts a running task until it ends, in whatever way.
struct Running;

impl Running {
    fn enter() -> Self {
        RUNNING.set(RUNNING.get() + 1);
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(RUNNING.get() - 1);
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.cores.iter_mut().for_each(|core| drop(core.jobs.take()));
        for thread in self.cores.iter_mut().filter_map(|core| core.thread.take()) {
            if thread.join().is_err() {
                tracing::error!("a data-plane thread panicked");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Goal: jobs are spread over the cores, and dropping waits for them, in either mode.
    #[test]
    fn jobs_spread_and_end() {
        for latency_mode in [false, true] {
            spread_and_end(CoreOptions { count: 2, latency_mode });
        }
    }

    /// Goal: jobs are spread by owner. Method: of two cores, the first has a job of one owner and
    /// the second one of another; the next job of the first owner runs on the second core.
    #[test]
    fn jobs_spread_by_owner() {
        let cores = Cores::start(CoreOptions { count: 2, latency_mode: false }, |core| core);
        let cores = cores.unwrap();
        let (report, runs) = std::sync::mpsc::channel();
        let held = Arc::new(tokio::sync::Semaphore::new(0));
        let threads = [1, 2, 1, 1].map(|owner| {
            let (report, held) = (report.clone(), Arc::clone(&held));
            cores.spawn_for(OwnerId(owner), move || async move {
                report.send(std::thread::current().id()).unwrap();
                drop(held.acquire().await);
            });
            runs.recv().unwrap()
        });
        held.close();
        let on_first = threads.map(|thread| thread == threads[0]);
        assert_eq!(on_first, [true, false, false, true]);
    }

    /// Goal: the end of a core waits for local tasks that its jobs left running, and for no others.
    #[test]
    fn the_end_waits_for_local_tasks_only() {
        let ended = Arc::new(AtomicUsize::new(0));
        let local = Arc::clone(&ended);
        let cores = Cores::start(CoreOptions { count: 1, latency_mode: false }, |core| core);
        let cores = cores.unwrap();
        cores.spawn(move || async move {
            tokio::spawn(std::future::pending::<()>());
            spawn_local(std::future::pending::<()>()).abort();
            spawn_local(async move {
                tokio::time::sleep(SHUTDOWN_POLL_INTERVAL * 20).await;
                local.fetch_add(1, Ordering::Relaxed);
            });
        });
        drop(cores);
        assert_eq!(ended.load(Ordering::Relaxed), 1);
    }

    /// Goal: time of a task that runs for an owner, alongside its connections, counts as the
    /// owner's. Fault: task management ran in tasks of its own whose time no owner was charged for.
    #[test]
    fn time_of_tasks_counts_for_their_owner() {
        let turns = [1, 2, 3].map(|owner| OwnerTurns::of(OwnerId(owner)));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let take_time = || async {
            let began = Instant::now();
            while began.elapsed() < Duration::from_millis(1) {}
        };
        tokio::task::LocalSet::new().block_on(&runtime, async {
            spawn_local(take_time()).await.unwrap();
            spawn_local_for(OwnerId(2), take_time()).await.unwrap();
        });
        assert_eq!(turns.each_ref().map(OwnerTurns::may_run), [true, false, true]);
    }

    /// Fault: long operations ran in tasks of their own, each with a piece of work in each pass of
    /// the core's queue. During SANITIZE at each of 64 units, another host got one turn for 64
    /// pieces of work.
    #[test]
    fn work_in_turns_waits_for_its_owner() {
        const WORKS: usize = 64;
        const OTHER: usize = usize::MAX;
        let log = Rc::new(RefCell::new(Vec::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let turns = Rc::clone(&log);
        local.spawn_local(in_turns_of(OwnerId(2), async move {
            while turns.borrow().iter().filter(|who| **who != OTHER).count() < 2 * WORKS {
                turns.borrow_mut().push(OTHER);
                tokio::task::yield_now().await;
            }
        }));
        for number in 0..WORKS {
            let log = Rc::clone(&log);
            local.spawn_local(in_turns_of(OwnerId(1), async move {
                for _ in 0..2 {
                    let began = Instant::now();
                    while began.elapsed() < Duration::from_micros(300) {}
                    log.borrow_mut().push(number);
                    tokio::task::yield_now().await;
                }
            }));
        }
        runtime.block_on(local);
        let log = log.borrow();
        let longest = log.split(|who| *who == OTHER).map(<[usize]>::len).max();
        assert!(longest <= Some(2), "{log:?}");
        for number in 0..WORKS {
            assert_eq!(log.iter().filter(|who| **who == number).count(), 2, "{number}: {log:?}");
        }
    }

    fn spread_and_end(options: CoreOptions) {
        let done = Arc::new(AtomicUsize::new(0));
        let threads = Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
        let cores = Cores::start(options, |core| core).unwrap();
        for _ in 0..4 {
            let (done, threads) = (Arc::clone(&done), Arc::clone(&threads));
            cores.spawn(move || async move {
                threads.lock().unwrap().insert(std::thread::current().id());
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        drop(cores);
        assert_eq!(done.load(Ordering::Relaxed), 4);
        assert_eq!(threads.lock().unwrap().len(), 2);
    }
}
