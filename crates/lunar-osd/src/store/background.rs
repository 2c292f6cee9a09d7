//! Work of the thread while it has no commands: removed objects, and space for the device.

use super::commit::Committer;
use super::{CommittedState, ObjectCommand, SharedStore, StoreJob};
use crate::StoreError;
use crate::block_io::BLOCK_BYTES;
use crate::objects::SharedRows;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::mpsc::{Receiver, error::TryRecvError};

/// Maximum number of runs of blocks that one step gives back to the device.
const UNMAP_RUNS_MAX: usize = 16;
/// Maximum number of blocks that one request gives back.
const UNMAP_BLOCKS_MAX: u64 = 16 << 10;
/// Number of rows that one record of a copy has.
const COPY_ROWS_MAX: usize = 1000;

impl SharedStore {
    /// Returns the part of the space for the index that the active changes may need, in percent.
    pub(super) fn index_load(&self, state: &CommittedState) -> u64 {
        let room = self.allocator().metadata_blocks(self.layout.chunk_blocks) * BLOCK_BYTES;
        state.active.rows.index_bytes().saturating_mul(100) / room.max(1)
    }

    /// Refuses commands that add rows when the index could not store them. Half of the space is
    /// for commands that remove rows.
    pub(super) fn check_space(&self, state: &CommittedState) -> Result<(), StoreError> {
        let reserve = self.layout.reserve();
        let room = self.allocator().metadata_blocks(self.layout.chunk_blocks);
        match room < (reserve.end - reserve.start) / 2 || self.index_load(state) > 50 {
            true => Err(StoreError::NoSpace),
            false => Ok(()),
        }
    }
}

impl Committer {
    /// Waits for a job; meanwhile does some of the work in the background.
    pub(super) fn next_job(&mut self, queue: &mut Receiver<StoreJob>) -> Option<StoreJob> {
        while self.stopped.is_none() && (self.has_removed || !self.unmaps.is_empty()) {
            match queue.try_recv() {
                Ok(job) => return Some(job),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if self.has_removed => self.reclaim(),
                Err(TryRecvError::Empty) => self.unmap_some(),
            }
        }
        queue.blocking_recv()
    }

    /// Refuses copies when the index could not store them.
    pub(super) fn check_space(&mut self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let is_full = shared.check_space(&shared.state()).is_err();
        if is_full {
            self.checkpoint()?;
        }
        let state = shared.state();
        shared.check_space(&state)
    }

    /// Removes some rows of removed objects.
    pub(super) fn reclaim(&mut self) {
        let mut cursor = self.reclaim_cursor;
        let found = self.apply(None, false, |map| map.reclaim(&mut cursor));
        if found.is_ok() {
            self.reclaim_cursor = cursor;
        }
        // A failure stops the store, and the next command reports it.
        self.has_removed = found.unwrap_or(false);
    }

    /// Removes some rows of removed objects if commands may soon need their space.
    pub(super) fn reclaim_if_short(&mut self) {
        let is_short =
            |shared: &SharedStore| shared.allocator().free_blocks() < shared.layout.block_count / 8;
        if self.has_removed && self.stopped.is_none() && is_short(&self.shared) {
            self.reclaim();
        }
    }

    /// Frees all that removed objects have left.
    pub(super) fn make_space(&mut self) {
        while self.has_removed && self.stopped.is_none() {
            self.reclaim();
        }
        // A failure stops the store, and the next command reports it.
        drop(self.checkpoint());
    }

    /// Notes blocks that are free now, for the device.
    pub(super) fn plan_unmaps(&mut self, mut freed: Vec<Range<u64>>) {
        if !self.shared.io.can_unmap() {
            return;
        }
        freed.sort_unstable_by_key(|run| run.start);
        for run in freed {
            match self.unmaps.back_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => self.unmaps.push_back(run),
            }
        }
    }

    /// Gives the space of some free blocks back to the device.
    pub(super) fn unmap_some(&mut self) {
        for _ in 0..UNMAP_RUNS_MAX {
            let Some(mut run) = self.unmaps.pop_front() else { break };
            let now = run.start..run.end.min(run.start + UNMAP_BLOCKS_MAX);
            run.start = now.end;
            if !run.is_empty() {
                self.unmaps.push_front(run);
            }
            let free = self.shared.allocator().free_runs(now);
            for run in free {
                // A checkpoint may take a block for the index meanwhile.
                if !self.shared.allocator().claim(run.clone()) {
                    continue;
                }
                let unmapped = self.shared.io.unmap_blocking(&run);
                self.shared.allocator().free(run);
                if unmapped.is_err() {
                    // Nothing depends on it; a device that fails here reports writes too.
                    self.unmaps.clear();
                    return;
                }
            }
        }
    }

    /// Gives copies of shared rows to the objects that `commands` change, in several records: in
    /// one they were too large.
    pub(super) fn copy_shared_rows(&mut self, commands: &[ObjectCommand]) {
        for id in commands.iter().filter_map(ObjectCommand::changed_object) {
            for rows in [SharedRows::Attributes, SharedRows::Data] {
                // The command itself reports an error.
                drop(self.copy_rows(id, rows));
            }
        }
    }

    fn copy_rows(&mut self, id: crate::ObjectId, rows: SharedRows) -> Result<(), StoreError> {
        self.check_space()?;
        let Some(mut copy) = self.apply(None, false, |map| map.begin_object_copy(id, rows))? else {
            return Ok(());
        };
        loop {
            self.check_space()?;
            let (next, has_more) = self.apply(None, false, |map| {
                let mut next = copy;
                let has_more = map.continue_copy(&mut next, COPY_ROWS_MAX)?;
                Ok((next, has_more))
            })?;
            copy = next;
            if !has_more {
                break;
            }
        }
        self.apply(None, false, |map| map.end_object_copy(id, copy))
    }
}
