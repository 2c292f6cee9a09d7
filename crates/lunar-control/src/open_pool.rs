//! Pools that are open because a LUN serves them.

use lunar_block::BlockDevice;
use lunar_pool::Pool;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// Maximum time for which the members of a closed pool are waited for: operations that hang in a
/// member keep it open.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(10);
const RELEASE_POLL: Duration = Duration::from_millis(5);

/// An open pool. When the last handle is dropped, the pool is closed, and its members can be opened
/// again.
#[derive(Clone, Debug)]
pub struct OpenPool(Arc<PoolCloser>);

#[derive(Debug)]
struct PoolCloser {
    /// `None` while it is being closed.
    pool: Option<Arc<Pool>>,
    /// Runs the tasks of the pool.
    runtime: Handle,
    /// The members that are no pools.
    members: Vec<Weak<dyn BlockDevice>>,
    /// The members that are pools: closed after this one.
    nested: Vec<OpenPool>,
}

/// A pool that may be closed.
#[derive(Clone, Debug)]
pub(crate) struct PoolReference(Weak<PoolCloser>);

impl PoolReference {
    /// The pool, which stays open as long as the handle; `None` if it is closed.
    pub(crate) fn upgrade(&self) -> Option<OpenPool> {
        self.0.upgrade().map(OpenPool)
    }
}

impl OpenPool {
    /// Takes over a pool, whose tasks run in `runtime`. `members` are those that are no pools,
    /// `nested` those that are.
    pub fn new(
        pool: Arc<Pool>,
        runtime: Handle,
        members: Vec<Weak<dyn BlockDevice>>,
        nested: Vec<Self>,
    ) -> Self {
        Self(Arc::new(PoolCloser { pool: Some(pool), runtime, members, nested }))
    }

    /// Closes the pool and those inside it, at the end of the process: units may still hold them.
    pub(crate) fn close_at_exit(&self) {
        self.0.close();
        self.0.nested.iter().for_each(Self::close_at_exit);
    }

    /// This pool and the pools inside it, without keeping them open; the inner ones first.
    pub(crate) fn all(&self) -> Vec<PoolReference> {
        let mut all: Vec<_> = self.0.nested.iter().flat_map(Self::all).collect();
        all.push(PoolReference(Arc::downgrade(&self.0)));
        all
    }

    /// The pool; `None` while it is being closed.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        self.0.pool.as_ref()
    }
}

impl PoolCloser {
    /// Closes the pool, so that its next opening does not find it as after a crash. Blocks.
    fn close(&self) {
        let Some(pool) = &self.pool else { return };
        if let Err(error) = self.runtime.block_on(pool.close()) {
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
        let until = Instant::now() + RELEASE_TIME_MAX;
        while self.members.iter().any(|member| member.strong_count() > 0) {
            if Instant::now() >= until {
                tracing::warn!("members of the closed pool {name} are still in use");
                return;
            }
            std::thread::sleep(RELEASE_POLL);
        }
    }
}
