//! Answers that are as long as the configuration: status, configuration. Each is encoded whole.

use super::problem::Problem;
use super::shared::{ApiState, Served, WorkLimit};
use super::streamed;
use crate::Caller;
use crate::http::IsCharged;
use axum::BoxError;
use axum::response::Response;
use bytes::Bytes;
use lunar_block::{BufferPool, MemoryCharge};
use serde::Serialize;

/// Size up to which a document is short: it is sent in one piece, and never refused.
const SHORT_BYTES_MAX: usize = 60 << 10;

/// Divisor for the memory of long documents that are being sent: 1/16 of `memory_bytes_max`. One
/// document alone may take more.
const MEMORY_PART: usize = 16;

/// Limits on documents. One at a time is made, and those that are being sent hold a small part of
/// the memory.
#[derive(Debug)]
pub(crate) struct Documents {
    making: WorkLimit,
    /// The account of long documents.
    account: BufferPool,
}

impl Documents {
    pub(crate) fn new(account: BufferPool) -> Self {
        Self { making: WorkLimit::new(1, busy), account }
    }

    /// Charges a long document; `None` if others leave no room for it. Users of the unix socket,
    /// who may change everything, are not refused for the sake of other readers.
    fn charge(&self, bytes: usize, by: &Caller) -> Option<MemoryCharge> {
        if matches!(by, Caller::User { .. }) {
            return Some(self.account.charge(bytes));
        }
        let held_bytes = self.account.held_bytes();
        let bytes_max = self.account.budget().limit_bytes() / MEMORY_PART;
        let has_room = held_bytes == 0 || held_bytes.saturating_add(bytes) <= bytes_max;
        has_room.then(|| self.account.try_charge(bytes)).flatten()
    }
}

/// Answers with the JSON of a document.
pub(super) async fn document<T: Serialize>(
    served: &ApiState,
    by: Caller,
    make: impl FnOnce(&Served) -> T + Send + 'static,
) -> Result<Response, Problem> {
    let make = move |served: &Served| {
        let text = serde_json::to_vec(&make(served)).map(Vec::into_boxed_slice)?;
        if text.len() <= SHORT_BYTES_MAX {
            return Ok(Some(streamed::response(Bytes::from(text).into())));
        }
        let Some(charge) = served.documents.charge(text.len(), &by) else { return Ok(None) };
        let mut response = streamed::response(charge.attach(text).into());
        response.extensions_mut().insert(IsCharged);
        Ok::<_, BoxError>(Some(response))
    };
    let made = served.documents.making.blocking(served, make).await?;
    made.map_err(streamed::failed)?.ok_or_else(busy)
}

fn busy() -> Problem {
    Problem::busy("too many long responses are being sent")
        .hint("try again when other clients have read their responses")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::{MemoryBudget, MemoryKind};

    const LIMIT: usize = 64 << 20;

    /// Goal: long documents of readers hold 1/16 of the memory, or one document holds more if the
    /// budget has room for it; a user of the unix socket is not refused.
    #[test]
    fn documents_hold_a_part_of_the_memory() {
        let pool = BufferPool::with_budget(&MemoryBudget::new(LIMIT));
        let documents = Documents::new(pool.sibling(MemoryKind::Api));
        let reader = Caller::Anybody { address: "127.0.0.1:1".parse().unwrap() };
        let large = documents.charge(LIMIT / 4, &reader).unwrap();
        assert!(documents.charge(100_000, &reader).is_none(), "not beside a large one");
        assert!(documents.charge(100_000, &Caller::User { uid: 0 }).is_some());
        drop(large);
        let half = documents.charge(LIMIT / 32, &reader).unwrap();
        let other = documents.charge(LIMIT / 32, &reader).unwrap();
        assert!(documents.charge(1, &reader).is_none());
        drop((half, other));
        let _rest = pool.charge(LIMIT / 8 * 7);
        assert!(documents.charge(LIMIT / 4, &reader).is_none(), "memory is in use");
        assert!(documents.charge(LIMIT / 4, &Caller::User { uid: 0 }).is_some());
    }
}
