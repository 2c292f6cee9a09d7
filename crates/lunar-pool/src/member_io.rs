//! Transfers of several members on behalf of one transfer of the pool.

use futures_util::FutureExt;
use futures_util::future::{Either, join_all};
use lunar_block::{BlockRange, Error, IoContext};

/// Runs a part of a transfer in a context of its own, with the same owner and waiters. A context
/// belongs to one transfer: otherwise a member that waits would let the caller cancel the parts of
/// other members.
pub(crate) fn in_own_context<T>(part: impl Future<Output = T>) -> impl Future<Output = T> {
    match IoContext::current() {
        None => Either::Left(part),
        Some(context) => {
            let own = context.part();
            Either::Right(async move { own.scope(part).await }.fuse())
        }
    }
}

/// Does a change by parts, all of which end, so that nothing is changed behind a result. While all
/// parts wait, the change can be cancelled.
pub(crate) async fn join_changes<E>(
    parts: Vec<impl Future<Output = Result<(), E>>>,
) -> Result<(), E> {
    let ended = match IoContext::current() {
        None => join_all(parts).await,
        Some(context) => context.join_parts(parts).await,
    };
    ended.into_iter().collect()
}

/// Returns the error of a pool for an error of its member.
pub(crate) fn member_failed(pool: &str, range: Option<BlockRange>, error: Error) -> Error {
    let failed = Error::new(error.kind, pool, format!("a member failed: {error}"));
    Error { range, ..failed }.because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Debug)]
    struct AlwaysWaiting;

    impl lunar_block::ForeignWaiters for AlwaysWaiting {
        fn are_waiting(&self) -> bool {
            true
        }
    }

    /// Goal: a part that waits does not make the transfer of the pool one that can be cancelled.
    /// The owner stays, and so do those who wait for the transfer.
    #[tokio::test]
    async fn parts_have_contexts_of_their_own() {
        let waiters = Arc::new(AlwaysWaiting);
        let outer = IoContext::with_foreign_waiters(&Arc::default(), Some(waiters));
        let inner = outer.scope(async { in_own_context(async { IoContext::current() }).await });
        let inner = inner.await.unwrap();
        assert!(!Arc::ptr_eq(&inner, &outer));
        assert!(Arc::ptr_eq(inner.owner(), outer.owner()));
        assert!(inner.has_foreign_waiters());
        inner.allow_cancel();
        assert!(inner.cancel() && !outer.cancel());
        assert!(in_own_context(async { IoContext::current() }).await.is_none());
    }
}
