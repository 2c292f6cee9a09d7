//! Pools that are open because a LUN serves them.

mod absent;
mod scrub_job;

use crate::Failure;
use absent::AbsentMembers;
use lunar_block::{BlockDevice, StateLock};
use lunar_pool::{Pool, ScrubOptions};
use scrub_job::ScrubJob;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::Notify;

pub use absent::{AbsentDevice, AbsentMember};
pub use scrub_job::ScrubEnd;

/// Maximum time for which the members of a closed pool are waited for: operations that hang in a
/// member keep it open.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(10);
const RELEASE_POLL: Duration = Duration::from_millis(5);

/// An open pool. When the last clone is dropped, the pool is closed, and its members can be opened
/// again.
#[derive(Clone, Debug)]
pub struct OpenPool(Arc<PoolCloser>);

#[derive(Debug)]
struct PoolCloser {
    /// `None` while it is being closed.
    pool: Option<Arc<Pool>>,
    work: Arc<PoolWork>,
    /// Dropped when the pool is closed.
    _lock: Option<StateLock>,
}

/// The work with an open pool, besides that of its users.
#[derive(Debug)]
struct PoolWork {
    /// Runs the tasks of the pool.
    runtime: Handle,
    /// The devices that were members and are no pools.
    devices: Mutex<Vec<Weak<dyn BlockDevice>>>,
    /// The members that are pools: closed after this one.
    nested: Mutex<Vec<OpenPool>>,
    /// Configured devices that the pool was opened without.
    absent: AbsentMembers,
    scrub: ScrubJob,
}

/// The devices of a pool that was opened.
#[derive(Debug, Default)]
pub struct PoolDevices {
    /// The members and spare devices that are no pools.
    pub leaves: Vec<Weak<dyn BlockDevice>>,
    /// The members that are pools.
    pub nested: Vec<OpenPool>,
    /// Configured devices that the pool was opened without.
    pub absent: Vec<AbsentDevice>,
    /// The right to own the members, until the pool is closed.
    pub lock: Option<StateLock>,
}

/// A pool that is served. This handle does not keep it open.
#[derive(Clone, Debug)]
pub struct ServedPool {
    pool: Arc<Pool>,
    work: Arc<PoolWork>,
}

/// A pool that may be closed.
#[derive(Clone, Debug)]
struct PoolReference {
    pool: Weak<Pool>,
    work: Arc<PoolWork>,
}

impl PoolReference {
    /// The pool; `None` if it is closed.
    fn upgrade(&self) -> Option<ServedPool> {
        Some(ServedPool { pool: self.pool.upgrade()?, work: Arc::clone(&self.work) })
    }
}

/// The pools that are served.
#[derive(Debug, Default)]
pub struct ServedPools {
    list: Mutex<Vec<PoolReference>>,
    /// Notified when other pools are served.
    pub(crate) changed: Notify,
}

impl ServedPools {
    /// All pools; one inside another comes before that.
    pub fn all(&self) -> Vec<ServedPool> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().filter_map(PoolReference::upgrade).collect()
    }

    /// Sets the pools, each with those inside it.
    pub(crate) fn set<'p>(&self, pools: impl Iterator<Item = &'p OpenPool>) {
        let all = pools.flat_map(OpenPool::all).collect();
        *self.list.lock().unwrap_or_else(PoisonError::into_inner) = all;
        self.changed.notify_one();
    }

    /// Adds a pool that has become a member of a served one.
    pub(crate) fn add_inside(&self, pool: &ServedPool, inner: OpenPool) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.splice(..0, inner.all());
        drop(list);
        pool.add_nested(inner);
        self.changed.notify_one();
    }
}

impl OpenPool {
    /// Takes over a pool, whose tasks run in `runtime`.
    pub fn new(pool: Arc<Pool>, runtime: Handle, devices: PoolDevices) -> Self {
        let PoolDevices { leaves, nested, absent, lock } = devices;
        let work = Arc::new(PoolWork {
            runtime,
            devices: Mutex::new(leaves),
            nested: Mutex::new(nested),
            absent: AbsentMembers::new(absent),
            scrub: ScrubJob::default(),
        });
        Self(Arc::new(PoolCloser { pool: Some(pool), work, _lock: lock }))
    }

    /// Closes the pool, if this is its last handle. Blocks.
    ///
    /// # Errors
    /// Data that may be lost: the last flush has failed, or a member has reported a loss.
    pub fn close(self) -> Result<(), Failure> {
        let Some(pool) = self.pool() else { return Ok(()) };
        Ok(self.0.work.runtime.block_on(pool.close())?)
    }

    /// Closes the pool and those inside it, at the end of the process: units may still hold them.
    pub(crate) fn close_at_exit(&self) {
        self.0.close();
        self.0.work.nested().iter().for_each(Self::close_at_exit);
    }

    /// This pool and the pools inside it, without keeping them open; the inner ones first.
    fn all(&self) -> Vec<PoolReference> {
        let mut all: Vec<_> = self.0.work.nested().iter().flat_map(Self::all).collect();
        let reference =
            |pool| PoolReference { pool: Arc::downgrade(pool), work: Arc::clone(&self.0.work) };
        all.extend(self.pool().map(reference));
        all
    }

    /// The pool; `None` while it is being closed.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.0.pool.as_ref()
    }
}

impl ServedPool {
    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// The name of the pool in the configuration.
    pub fn name(&self) -> &str {
        self.pool.name()
    }

    /// Runs work with the pool in its runtime. Blocks.
    pub(crate) fn run<F: Future>(&self, work: impl FnOnce(Arc<Pool>) -> F) -> F::Output {
        self.work.runtime.block_on(work(Arc::clone(&self.pool)))
    }

    /// Records a member that is a pool: it is closed after this one.
    fn add_nested(&self, inner: OpenPool) {
        self.work.nested().push(inner);
    }

    /// Records a device that becomes a member: it is waited for when the pool is closed.
    pub(crate) fn add_device(&self, device: &Arc<dyn BlockDevice>) {
        let mut devices = self.work.devices();
        devices.retain(|device| device.strong_count() > 0);
        devices.push(Arc::downgrade(device));
    }

    /// The configured devices that the pool was opened without, and that have not returned.
    pub(crate) fn absent(&self) -> &AbsentMembers {
        &self.work.absent
    }

    /// Starts a scrub, which runs until it ends, is stopped, or the pool is closed. Blocks until it
    /// has begun.
    pub(crate) fn start_scrub(&self, options: ScrubOptions) -> Result<(), Failure> {
        self.work.scrub.start(&self.work.runtime, Arc::clone(&self.pool), options)
    }

    /// Stops the scrub. Returns false if none runs.
    pub(crate) fn stop_scrub(&self) -> bool {
        self.work.scrub.stop()
    }

    /// The way in which the last scrub has ended; `None` while one runs, or if there was none.
    pub(crate) fn scrub_end(&self) -> Option<ScrubEnd> {
        self.work.scrub.end()
    }
}

impl PoolWork {
    fn nested(&self) -> MutexGuard<'_, Vec<OpenPool>> {
        self.nested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Weak<dyn BlockDevice>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolCloser {
    /// Closes the pool, so that its next opening does not find it as after a crash. Blocks.
    fn close(&self) {
        self.work.scrub.stop();
        let Some(pool) = &self.pool else { return };
        if let Err(error) = self.work.runtime.block_on(pool.close()) {
            tracing::warn!("the pool {} was not closed cleanly: {error}", pool.name());
        }
    }
}

impl Drop for PoolCloser {
    fn drop(&mut self) {
        self.close();
        let Some(pool) = self.pool.take() else { return };
        let name = pool.name().to_owned();
        drop(pool);
        let nested = std::mem::take(&mut *self.work.nested());
        drop(nested);
        let until = Instant::now() + RELEASE_TIME_MAX;
        while self.work.devices().iter().any(|device| device.strong_count() > 0) {
            if Instant::now() >= until {
                tracing::warn!("members of the closed pool {name} are still in use");
                return;
            }
            std::thread::sleep(RELEASE_POLL);
        }
    }
}
