//! A scrub that runs beside the users of a pool.

use crate::Failure;
use lunar_pool::{Pool, PoolError, ScrubOptions};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// The way in which a scrub has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ScrubEnd {
    /// All blocks were compared.
    Complete,
    /// An administrator has stopped it, or the pool was closed.
    Stopped,
    /// It has failed, with the reason.
    Failed(String),
}

/// The scrub of a pool: at most one runs.
#[derive(Debug, Default)]
pub(super) struct ScrubJob(Arc<Mutex<JobState>>);

#[derive(Debug, Default)]
struct JobState {
    /// The last scrub.
    task: Option<JoinHandle<()>>,
    /// The end of the last scrub; `None` while it runs.
    end: Option<ScrubEnd>,
}

impl JobState {
    fn is_running(&self) -> bool {
        self.end.is_none() && self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}

impl ScrubJob {
    fn state(&self) -> MutexGuard<'_, JobState> {
        lock(&self.0)
    }

    pub(super) fn start(
        &self,
        runtime: &Handle,
        pool: Arc<Pool>,
        options: ScrubOptions,
    ) -> Result<(), Failure> {
        let mut state = self.state();
        if state.is_running() {
            return Err(Failure::conflict(PoolError::ScrubRuns.to_string())
                .hint("see `lunar pool status` for its progress"));
        }
        let ended = Arc::clone(&self.0);
        let stopped = state.task.take();
        let (begun, has_begun) = tokio::sync::oneshot::channel::<()>();
        let task = runtime.spawn(async move {
            // A scrub that was stopped ends with its piece.
            if let Some(stopped) = stopped {
                let _ = stopped.await;
            }
            let mut scrub = pin!(pool.scrub(options));
            let first = poll_fn(|context| Poll::Ready(scrub.as_mut().poll(context))).await;
            // The status shows the scrub from here on.
            drop(begun);
            let result = match first {
                Poll::Ready(result) => result,
                Poll::Pending => scrub.await,
            };
            let end = match result {
                Ok(_) => ScrubEnd::Complete,
                Err(error) => ScrubEnd::Failed(error.to_string()),
            };
            lock(&ended).end.get_or_insert(end);
        });
        state.end = None;
        state.task = Some(task);
        drop(state);
        // An error: the sender was dropped.
        let _ = runtime.block_on(has_begun);
        Ok(())
    }

    /// Stops the scrub. Returns false if none runs.
    pub(super) fn stop(&self) -> bool {
        let mut state = self.state();
        let Some(task) = state.task.as_ref().filter(|_| state.is_running()) else { return false };
        task.abort();
        state.end = Some(ScrubEnd::Stopped);
        true
    }

    pub(super) fn end(&self) -> Option<ScrubEnd> {
        self.state().end.clone()
    }
}

fn lock(state: &Mutex<JobState>) -> MutexGuard<'_, JobState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
