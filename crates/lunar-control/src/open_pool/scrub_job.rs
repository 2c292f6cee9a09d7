//! A scrub that runs alongside the users of a pool.

use crate::Failure;
use lunar_pool::{Pool, PoolError, ScrubOptions};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
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
    /// The scrub has failed; the text is the reason.
    Failed(String),
}

/// The scrub of a pool: at most one runs.
#[derive(Debug, Default)]
pub(super) struct ScrubJob(Mutex<JobState>);

#[derive(Debug, Default)]
struct JobState {
    /// The last scrub.
    task: Option<JoinHandle<()>>,
    /// The end of the last scrub, set once: by its task or by a stop. Empty while it runs. Each
    /// scrub has one of its own, so that a late end of an earlier scrub is not that of the next.
    end: Arc<OnceLock<ScrubEnd>>,
}

impl JobState {
    fn is_running(&self) -> bool {
        self.end.get().is_none() && self.task.as_ref().is_some_and(|task| !task.is_finished())
    }
}

impl ScrubJob {
    fn state(&self) -> MutexGuard<'_, JobState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        let ended = Arc::<OnceLock<ScrubEnd>>::default();
        state.end = Arc::clone(&ended);
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
            // An earlier stop counts.
            let _ = ended.set(end);
        });
        state.task = Some(task);
        drop(state);
        // An error: the sender was dropped.
        let _ = runtime.block_on(has_begun);
        Ok(())
    }

    /// Stops the scrub. Returns false if none runs.
    pub(super) fn stop(&self) -> bool {
        let state = self.state();
        let Some(task) = state.task.as_ref().filter(|_| state.is_running()) else { return false };
        task.abort();
        state.end.set(ScrubEnd::Stopped).is_ok()
    }

    pub(super) fn end(&self) -> Option<ScrubEnd> {
        self.state().end.get().cloned()
    }
}
