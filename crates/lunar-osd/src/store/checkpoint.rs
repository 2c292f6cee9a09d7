//! Checkpoints: the changes since the last one move into the index.

use super::CommittedState;
use super::commit::Committer;
use crate::StoreError;
use crate::format::{LogPosition, RowKey};
use std::sync::{Arc, PoisonError};

/// Length of changed rows, or of data of records, from which on a checkpoint is due.
const CHANGED_BYTES_MAX: usize = 32 << 20;

impl Committer {
    /// Makes a checkpoint if the log or the memory for changes fills up.
    pub(super) fn checkpoint_if_due(&mut self) {
        let state = self.shared.state();
        let is_large = state.rows.bytes().max(state.deferred_bytes) > CHANGED_BYTES_MAX;
        drop(state);
        let freed: u64 = self.freed.iter().map(|run| run.end - run.start).sum();
        let is_full = freed > self.shared.allocator().free_blocks() / 4 + 64;
        if is_large || is_full || self.log.is_half_full() {
            // A failure stops the store, and the next command reports it.
            drop(self.checkpoint());
        }
    }

    /// Makes everything durable, and frees the log.
    pub(super) fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.check()?;
        self.release_retired();
        match self.log.is_empty() {
            true => self.flush(),
            false => self.checkpoint_always(),
        }
    }

    /// Makes a checkpoint even if nothing has changed.
    pub(super) fn checkpoint_always(&mut self) -> Result<(), StoreError> {
        let result = self.try_checkpoint();
        self.stop_after(result)
    }

    fn try_checkpoint(&mut self) -> Result<(), StoreError> {
        let state = self.shared.state();
        self.write_deferred(&state)?;
        let freed = std::mem::take(&mut self.freed);
        let pages = self.shared.allocator().dirty_pages(&freed);
        let next = &self.log.next;
        let position =
            LogPosition { number: next.number, block: self.log.head, opening: next.opening };
        let mut others = vec![(RowKey::LogPosition.encode(), position.encode().to_vec())];
        others.extend(
            pages.into_iter().map(|(page, bits)| (RowKey::BitmapPage(page).encode(), bits)),
        );
        let changes = state.rows.iter().map(|(key, value)| (&key[..], value.as_deref()));
        let others = others.iter().map(|(key, value)| (&key[..], Some(&value[..])));
        // The first of the two flushes of the commit also makes the data durable.
        self.shared.index()?.apply(changes.chain(others))?;
        drop(state);
        *self.shared.state_mut() = CommittedState::default();
        self.shared.allocator().clear_dirty();
        let mut readers = self.shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *readers, Arc::new(()));
        drop(readers);
        self.retired.push_back((before, freed));
        self.release_retired();
        self.log.clear();
        self.is_flushed = true;
        Ok(())
    }

    /// Writes the blobs that are only in the log.
    fn write_deferred(&self, state: &CommittedState) -> Result<(), StoreError> {
        let is_used = |start: u64| state.rows.contains(&RowKey::Blob(start).encode());
        let mut used: Vec<_> =
            state.deferred.iter().filter(|(start, _)| is_used(**start)).collect();
        used.sort_unstable_by_key(|(start, _)| **start);
        for (start, data) in used {
            self.shared.io.write_blocking(*start, data.clone())?;
        }
        Ok(())
    }

    /// Frees the blocks that no reader reads any more.
    fn release_retired(&mut self) {
        while let Some((readers, _)) = self.retired.front() {
            if Arc::strong_count(readers) > 1 {
                break;
            }
            let Some((_, freed)) = self.retired.pop_front() else { break };
            let mut allocator = self.shared.allocator();
            freed.into_iter().for_each(|run| allocator.free(run));
        }
    }
}
