//! What handlers hold, and how they do what may block.

use super::problem::Problem;
use crate::daemon::Daemon;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

/// The server that the API is about.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) daemon: Arc<Daemon>,
    /// When it started, for people.
    pub(crate) started: SystemTime,
    /// The same, on a clock that nobody sets.
    pub(crate) since: Instant,
}

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
