//! What the API can be asked for, whoever does it.

use super::problem::Problem;
use super::sessions::Session;
use super::status::Status;
use super::targets::Target;
use axum::http::StatusCode;
use std::sync::Arc;

/// A running server, as the API sees it. Its functions may block: each is called on a thread where
/// that disturbs nobody.
pub trait Operator: Send + Sync + 'static {
    /// How it goes.
    fn status(&self) -> Status;
    /// What is served, in the order of the configuration.
    fn targets(&self) -> Vec<Target>;
    /// Who uses it, ordered by the sessions' handles.
    fn sessions(&self) -> Vec<Session>;
}

/// What handlers hold.
pub(crate) type Shared = Arc<dyn Operator>;

/// Does work that may block, beside the thread that answers.
pub(crate) async fn blocking<T: Send + 'static>(
    operator: &Shared,
    work: impl FnOnce(&dyn Operator) -> T + Send + 'static,
) -> Result<T, Problem> {
    let operator = Arc::clone(operator);
    tokio::task::spawn_blocking(move || work(operator.as_ref())).await.map_err(|error| {
        tracing::error!("a request of the API failed: {error}");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "the request failed by an error of ours")
            .hint("the server's log says more")
    })
}
