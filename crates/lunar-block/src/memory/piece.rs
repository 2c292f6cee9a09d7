//! Long work of a memory disk in pieces, between which others have their turn.

use crate::IoContext;
use std::future::poll_fn;
use std::task::Poll;

/// What is done costs the core so many tenths of a microsecond, where it is dear: the kernel gives
/// a page when it is first written, and what is rarely used is in no cache.
pub(super) const NEW_PAGE_COST: u32 = 30;
pub(super) const PAGE_COST: u32 = 8;
pub(super) const CHUNK_COST: u32 = 2;
pub(super) const SEARCH_COST: u32 = 20;

/// A piece of more than that ends: 64 KiB that are allocated, 256 KiB that are there, 50 us.
pub(super) const PIECE_COST: u32 = super::CHUNK_PAGES as u32 * NEW_PAGE_COST;

/// The work that a future does in one poll.
#[derive(Debug, Default)]
pub(super) struct Piece {
    cost: u32,
}

/// The transfer was cancelled between two pieces.
#[derive(Debug, thiserror::Error)]
#[error("the transfer was cancelled")]
pub(super) struct Cancelled;

impl Piece {
    /// Counts work that was done.
    pub(super) fn count(&mut self, cost: u32) {
        self.cost += cost;
    }

    /// This poll has done a piece.
    pub(super) fn is_over(&self) -> bool {
        self.cost >= PIECE_COST
    }

    /// Waits for the next poll if this one has done a piece. What waits can be cancelled, and then
    /// must do nothing more.
    pub(super) async fn may_go_on(&mut self) -> Result<(), Cancelled> {
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

/// Is pending once. Wakes itself at once: a set of futures is left after the second that does, and
/// would poll all of them where the runtime wakes them later, as `tokio::task::yield_now` has it.
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
