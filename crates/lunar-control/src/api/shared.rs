//! What handlers hold, and how they do what may block.

use super::problem::Problem;
use crate::daemon::Daemon;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Semaphore;

/// The server that the API is about.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) daemon: Arc<Daemon>,
    /// When it started, for people.
    pub(crate) started: SystemTime,
    /// The same, on a clock that nobody sets.
    pub(crate) since: Instant,
    /// Changes of what is served, one at a time: one that hangs on a disk takes one thread, and
    /// leaves the others to whoever looks, logs sessions out or recovers a disk.
    pub(crate) changes: Lane,
    /// Disks that are recovered.
    pub(crate) recoveries: Lane,
}

/// Work of one kind, so much of it at once.
#[derive(Debug)]
pub(crate) struct Lane {
    places: Arc<Semaphore>,
    /// What to say when it is full.
    full: &'static str,
}

impl Lane {
    pub(crate) fn new(places: usize, full: &'static str) -> Self {
        Self { places: Arc::new(Semaphore::new(places)), full }
    }

    /// Does work that may block, when there is a place; it is given back when the work ends,
    /// whether somebody still waits for it or not.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        served: &Shared,
        work: impl FnOnce(&Served) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let place = Arc::clone(&self.places).acquire_owned();
        let Ok(Ok(place)) = tokio::time::timeout(LANE_WAIT_MAX, place).await else {
            return Err(Problem::new(StatusCode::CONFLICT, self.full)
                .hint("ask again later; if it stays so, a disk hangs: the log says which"));
        };
        let work = move |served: &Served| {
            let done = work(served);
            drop(place);
            done
        };
        blocking(served, work).await
    }
}

/// How long a request waits for others of its kind.
const LANE_WAIT_MAX: Duration = Duration::from_secs(5);

pub(crate) type Shared = Arc<Served>;

/// Does work that may block, beside the thread that answers.
pub(crate) async fn blocking<T: Send + 'static>(
    served: &Shared,
    work: impl FnOnce(&Served) -> T + Send + 'static,
) -> Result<T, Problem> {
    let served = Arc::clone(served);
    tokio::task::spawn_blocking(move || work(&served)).await.map_err(|error| {
        tracing::error!("a request of the API failed: {error}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed by an error of ours")
            .hint("the server's log says more")
    })
}
