//! Splits long work of a memory disk into pieces, so that other tasks run in between.

use crate::IoContext;
use std::future::poll_fn;
use std::task::Poll;

/// Cost of an operation in tenths of a microsecond, in the worst case: the kernel provides a page
/// on its first write, and rarely used memory is in no cache.
pub(super) const NEW_PAGE_COST: u32 = 30;
pub(super) const PAGE_COST: u32 = 8;
pub(super) const CHUNK_COST: u32 = 2;
pub(super) const SEARCH_COST: u32 = 20;

/// Cost at which a piece ends: 64 KiB of new pages, 256 KiB of existing pages, or 50 us.
pub(super) const PIECE_COST: u32 = super::CHUNK_PAGES as u32 * NEW_PAGE_COST;

/// Counts the work that a future does in one poll.
#[derive(Debug, Default)]
pub(super) struct Piece {
    cost: u32,
}

/// An error: the transfer was cancelled between two pieces.
#[derive(Debug, thiserror::Error)]
#[error("the transfer was cancelled")]
pub(super) struct Cancelled;

impl Piece {
    /// Counts work that was done.
    pub(super) fn count(&mut self, cost: u32) {
        self.cost += cost;
    }

    /// Returns true when this poll has done a whole piece.
    pub(super) fn is_over(&self) -> bool {
        self.cost >= PIECE_COST
    }

    /// Waits for the next poll if this poll has done a whole piece. The transfer can be cancelled
    /// while it waits, and must then do nothing more.
    pub(super) async fn yield_after_piece(&mut self) -> Result<(), Cancelled> {
        if !self.is_over() {
            return Ok(());
        }
        self.cost = 0;
        let context = IoContext::current();
        if let Some(context) = &context {
            context.allow_cancel();
        }
        yield_now().await;
        if let Some(context) = &context {
            if !context.begin() {
                return Err(Cancelled);
            }
            context.end();
        }
        Ok(())
    }
}

/// Is pending once, and wakes itself immediately. A set of futures stops after the second future
/// that does so. With `tokio::task::yield_now` the runtime wakes later, and the set would poll all
/// of its futures.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
