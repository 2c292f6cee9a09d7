//! State shared by the handlers, and blocking work outside of the thread that answers.

use super::bodies::RequestBodies;
use super::documents::Documents;
use super::problem::Problem;
use crate::daemon::Daemon;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Semaphore;

/// The server that the API controls.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) daemon: Arc<Daemon>,
    /// Start time of the server, as wall-clock time.
    pub(crate) started: SystemTime,
    /// Start time of the server on the monotonic clock.
    pub(crate) since: Instant,
    /// Changes of the configuration, one at a time: a change that hangs on a disk occupies one
    /// thread and leaves the others free for reading, logging out sessions and recovering disks.
    pub(crate) changes: WorkLimit,
    /// Recoveries of disks.
    pub(crate) recoveries: WorkLimit,
    /// Bodies of requests.
    pub(crate) bodies: RequestBodies,
    /// Answers that are encoded as a whole.
    pub(crate) documents: Documents,
}

/// Limit on concurrent work of one kind.
#[derive(Debug)]
pub(crate) struct WorkLimit {
    permits: Arc<Semaphore>,
    /// Makes the answer to a request that finds no free permit.
    full: fn() -> Problem,
}

impl WorkLimit {
    pub(crate) fn new(permits: usize, full: fn() -> Problem) -> Self {
        Self { permits: Arc::new(Semaphore::new(permits)), full }
    }

    /// Runs blocking work when there is a free permit. The permit is released when the work ends,
    /// even if no caller waits for it any more.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        served: &ApiState,
        work: impl FnOnce(&Served) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        let Ok(Ok(permit)) = tokio::time::timeout(LANE_WAIT_MAX, permit).await else {
            return Err((self.full)());
        };
        let work = move |served: &Served| {
            let done = work(served);
            drop(permit);
            done
        };
        blocking(served, work).await
    }
}

/// The answer to a request for work with disks that finds no free permit.
pub(crate) fn disks_are_busy(what: &str) -> Problem {
    Problem::new(StatusCode::CONFLICT, what)
        .hint("try again later; if the error persists, a disk is not responding: see the log")
}

/// Maximum time that a request waits for a free permit.
const LANE_WAIT_MAX: Duration = Duration::from_secs(5);

pub(crate) type ApiState = Arc<Served>;

/// Runs blocking work on another thread than the one that answers.
pub(crate) async fn blocking<T: Send + 'static>(
    served: &ApiState,
    work: impl FnOnce(&Served) -> T + Send + 'static,
) -> Result<T, Problem> {
    let served = Arc::clone(served);
    tokio::task::spawn_blocking(move || work(&served)).await.map_err(|error| {
        tracing::error!("API request failed by an internal error: {error}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed by an internal error")
            .hint("see the log of the server")
    })
}
