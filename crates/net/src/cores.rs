//! The data plane's threads: one `current_thread` runtime each; a connection stays on its core.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;
type Job = Box<dyn FnOnce() -> LocalFuture + Send>;

/// Threads that run connections. Dropping it lets each thread end once its last job has.
#[derive(Debug)]
pub struct Cores {
    cores: Vec<Core>,
}

#[derive(Debug)]
struct Core {
    jobs: Option<UnboundedSender<Job>>,
    load: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Cores {
    /// Starts `count` threads; 0: as many as the process may use.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be made.
    pub fn start(count: usize) -> io::Result<Self> {
        let count = match count {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let cores = (0..count).map(Core::start).collect::<io::Result<_>>()?;
        Ok(Self { cores })
    }

    /// Runs what `job` makes on the core with the least to do. The number of jobs is bounded by
    /// whoever calls: the limit of connections.
    pub fn spawn<F, J>(&self, job: J)
    where
        J: FnOnce() -> F + Send + 'static,
        F: Future<Output = ()> + 'static,
    {
        let Some(core) = self.cores.iter().min_by_key(|core| core.load.load(Ordering::Relaxed))
        else {
            return;
        };
        let load = Leave::enter(&core.load);
        let job: Job = Box::new(move || {
            let work = job();
            Box::pin(async move {
                work.await;
                drop(load);
            })
        });
        if let Some(jobs) = &core.jobs {
            let _ = jobs.send(job); // its thread lives as long as the sender
        }
    }
}

impl Core {
    fn start(index: usize) -> io::Result<Self> {
        let (jobs, inbox) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::Builder::new()
            .name(format!("core-{index}"))
            .spawn(move || run(&runtime, inbox))?;
        Ok(Self { jobs: Some(jobs), load: Arc::default(), thread: Some(thread) })
    }
}

fn run(runtime: &tokio::runtime::Runtime, mut inbox: UnboundedReceiver<Job>) {
    let local = tokio::task::LocalSet::new();
    local.block_on(runtime, async {
        while let Some(job) = inbox.recv().await {
            tokio::task::spawn_local(job());
        }
    });
    // The sender is gone: no new work, but what runs may end.
    runtime.block_on(local);
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

/// Counts a job for as long as it lives, however it ends.
struct Leave(Arc<AtomicUsize>);

impl Leave {
    fn enter(load: &Arc<AtomicUsize>) -> Self {
        load.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(load))
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: jobs spread over the cores, and dropping waits for them.
    #[test]
    fn jobs_spread_and_end() {
        let done = Arc::new(AtomicUsize::new(0));
        let threads = Arc::new(std::sync::Mutex::new(std::collections::HashSet::new()));
        let cores = Cores::start(2).unwrap();
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
