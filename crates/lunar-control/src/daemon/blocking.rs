//! Blocking waits for futures of the server.

use crate::Failure;

/// Waits for a future of the server, on a thread that may block.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime =
        runtime.map_err(|error| Failure::new(format!("cannot start a runtime: {error}")))?;
    Ok(runtime.block_on(work))
}
