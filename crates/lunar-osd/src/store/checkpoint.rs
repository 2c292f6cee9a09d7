//! Checkpoints: changes move into the index while commands continue in the log.

use super::commit::{Committer, reply};
use super::{AccessTimes, ChangedRows, JobResult, SharedStore, StoreJob, lock};
use crate::StoreError;
use crate::format::{LogPosition, RowKey};
use crate::index::{RowEditor, RowLayers};
use crate::objects::ObjectMap;
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, TryRecvError, channel};
use tokio::sync::mpsc::WeakSender;
use tokio::sync::oneshot;

/// Length of changed rows, or of data of records, from which on a checkpoint is due.
const CHANGED_BYTES_MAX: usize = 32 << 20;

/// A checkpoint in progress.
#[derive(Debug)]
pub(super) struct RunningCheckpoint {
    result: Receiver<JobResult<()>>,
    /// Blocks that were freed before its begin.
    freed: Vec<Range<u64>>,
    /// Callers that wait for its end.
    waiting: Vec<oneshot::Sender<JobResult<()>>>,
}

/// The work of a checkpoint outside the thread of the store.
struct CheckpointWork {
    shared: Arc<SharedStore>,
    changes: Arc<ChangedRows>,
    pages: Vec<(u64, Vec<u8>)>,
    position: LogPosition,
}

impl CheckpointWork {
    fn run(self) -> JobResult<()> {
        let Self { shared, changes, pages, position } = self;
        write_deferred(&shared, &changes)?;
        let mut others = vec![(RowKey::LogPosition.encode(), position.encode().to_vec())];
        others.extend(
            pages.into_iter().map(|(page, bits)| (RowKey::BitmapPage(page).encode(), bits)),
        );
        let rows = changes.rows.iter().map(|(key, value)| (&key[..], value.as_deref()));
        let others = others.iter().map(|(key, value)| (&key[..], Some(&value[..])));
        // The first of the two flushes of the commit also makes the data durable.
        shared.index()?.apply(rows.chain(others))
    }
}

/// Writes the blobs that are only in the log.
fn write_deferred(shared: &SharedStore, changes: &ChangedRows) -> JobResult<()> {
    let is_used = |start: u64| changes.rows.contains(&RowKey::Blob(start).encode());
    let mut used: Vec<_> = changes.deferred.iter().filter(|(start, _)| is_used(**start)).collect();
    used.sort_unstable_by_key(|(start, _)| **start);
    for (start, data) in used {
        shared.io.write_blocking(*start, data.clone())?;
    }
    Ok(())
}

/// Tells the thread of the store that a checkpoint has ended. A full queue needs no more: the
/// thread looks after each job.
fn wake(queue: Option<WeakSender<StoreJob>>) {
    if let Some(queue) = queue.and_then(|queue| queue.upgrade()) {
        drop(queue.try_send(StoreJob::CheckpointDone));
    }
}

fn panicked() -> StoreError {
    StoreError::Index("a checkpoint has failed an internal check".into())
}

impl Committer {
    /// Begins a checkpoint if the log or the memory for changes fills up.
    pub(super) fn checkpoint_if_due(&mut self) {
        self.poll_checkpoint();
        let is_large = self.shared.state().active.bytes() > CHANGED_BYTES_MAX;
        if is_large {
            // The memory is bounded: commands wait if they are faster than the index. A failure
            // stops the store, and the next command reports it.
            drop(self.wait_for_checkpoint());
        }
        let freed: u64 = self.freed.iter().map(|run| run.end - run.start).sum();
        let is_short = freed > self.shared.allocator().free_blocks() / 4 + 64
            || self.shared.index_load(&self.shared.state()) > 25;
        if self.running.is_none() && (is_large || is_short || self.log.is_half_full()) {
            drop(self.begin_checkpoint());
        }
    }

    /// Waits until the longest record has room in the log.
    pub(super) fn make_room(&mut self) -> Result<(), StoreError> {
        self.check()?;
        while !self.log.has_room() {
            self.wait_for_checkpoint()?;
            if !self.log.has_room() {
                self.begin_checkpoint()?;
            }
        }
        Ok(())
    }

    /// Begins a checkpoint for a caller, or lets it wait for the next one.
    pub(super) fn request_checkpoint(&mut self, done: oneshot::Sender<JobResult<()>>) {
        self.requested.push(done);
        self.begin_requested();
    }

    fn begin_requested(&mut self) {
        if self.running.is_some() || self.requested.is_empty() {
            return;
        }
        self.release_retired();
        let begun = self.begin_if_changed();
        let waiting = std::mem::take(&mut self.requested);
        match (&mut self.running, begun) {
            (Some(running), Ok(())) => running.waiting = waiting,
            (_, result) => waiting.into_iter().for_each(|done| reply(done, result.clone())),
        }
    }

    /// Makes a checkpoint of all changes, and waits for its end.
    pub(super) fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.wait_for_checkpoint()?;
        self.check()?;
        self.release_retired();
        self.begin_if_changed()?;
        self.wait_for_checkpoint()
    }

    fn begin_if_changed(&mut self) -> Result<(), StoreError> {
        match self.log.is_empty() {
            true => self.flush(),
            false => self.begin_checkpoint(),
        }
    }

    /// Makes a checkpoint even if nothing has changed.
    pub(super) fn checkpoint_always(&mut self) -> Result<(), StoreError> {
        self.wait_for_checkpoint()?;
        self.begin_checkpoint()?;
        self.wait_for_checkpoint()
    }

    /// Freezes the changes, and lets another thread move them into the index. No checkpoint is in
    /// progress, and no group is between its plan and its record: the bitmap would have its blocks.
    fn begin_checkpoint(&mut self) -> Result<(), StoreError> {
        self.check()?;
        let begun = self.try_begin_checkpoint();
        self.stop_after(begun)
    }

    fn try_begin_checkpoint(&mut self) -> Result<(), StoreError> {
        let accessed = std::mem::take(&mut *lock(&self.shared.accessed));
        let times = access_rows(&self.shared, &accessed)?;
        let freed = std::mem::take(&mut self.freed);
        // Blocks that only a reader keeps are free after a crash.
        let retired = self.retired.iter().flat_map(|(_, runs)| runs);
        let unused: Vec<_> = freed.iter().chain(retired).cloned().collect();
        let pages = self.shared.allocator().take_dirty_pages(&unused);
        let position = self.log.freeze();
        let mut state = self.shared.state_mut();
        let mut changes = std::mem::take(&mut state.active);
        times.into_iter().for_each(|(key, value)| changes.rows.put(key, Some(value)));
        let changes = Arc::new(changes);
        state.frozen = Some(Arc::clone(&changes));
        drop(state);
        let shared = Arc::clone(&self.shared);
        let work = CheckpointWork { shared, changes, pages, position };
        let (done, result) = channel();
        let queue = self.wake.clone();
        let thread = std::thread::Builder::new().name("object index".into());
        let spawned = thread.spawn(move || {
            // The result has no receiver if the store was dropped.
            drop(done.send(work.run()));
            wake(queue);
        });
        spawned.map_err(|error| StoreError::index(&error))?;
        self.running = Some(RunningCheckpoint { result, freed, waiting: Vec::new() });
        Ok(())
    }

    /// Ends the checkpoint in progress if its work is done.
    pub(super) fn poll_checkpoint(&mut self) {
        let Some(running) = &self.running else { return };
        let result = match running.result.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err(panicked()),
        };
        // A failure stops the store, and the next command reports it.
        drop(self.end_checkpoint(result));
    }

    /// Waits for the end of the checkpoint in progress.
    pub(super) fn wait_for_checkpoint(&mut self) -> Result<(), StoreError> {
        while let Some(running) = &self.running {
            let result = running.result.recv().unwrap_or_else(|RecvError| Err(panicked()));
            self.end_checkpoint(result)?;
        }
        Ok(())
    }

    fn end_checkpoint(&mut self, result: JobResult<()>) -> Result<(), StoreError> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let result = self.stop_after(result);
        if result.is_ok() {
            self.shared.state_mut().frozen = None;
            let mut readers = lock(&self.shared.readers);
            let before = std::mem::replace(&mut *readers, Arc::new(()));
            drop(readers);
            self.retired.push_back((before, running.freed));
            self.release_retired();
            self.log.release_frozen();
        }
        running.waiting.into_iter().for_each(|done| reply(done, result.clone()));
        self.begin_requested();
        result
    }

    /// Frees the blocks that no reader reads any more.
    pub(super) fn release_retired(&mut self) {
        while let Some((readers, _)) = self.retired.front() {
            if Arc::strong_count(readers) > 1 {
                break;
            }
            let Some((_, freed)) = self.retired.pop_front() else { break };
            let mut allocator = self.shared.allocator();
            freed.iter().for_each(|run| allocator.free(run.clone()));
            drop(allocator);
            self.plan_unmaps(freed);
        }
    }

    /// Makes all changes and times of access durable, and gives space back.
    pub(super) fn finish(&mut self) -> Result<(), StoreError> {
        self.checkpoint()?;
        if !lock(&self.shared.accessed).is_empty() {
            self.checkpoint_always()?;
        }
        while self.check().is_ok() && !self.unmaps.is_empty() {
            self.unmap_some();
        }
        Ok(())
    }
}

/// Returns the rows of times of access of objects that still exist.
fn access_rows(shared: &SharedStore, accessed: &AccessTimes) -> JobResult<Vec<(Bytes, Bytes)>> {
    if accessed.is_empty() {
        return Ok(Vec::new());
    }
    let (state, index) = (shared.state(), shared.index()?.rows()?);
    let map =
        ObjectMap::new(RowEditor::new(RowLayers { overlays: state.overlays(), index: &index }));
    let is_current = |(serial, (id, _)): &(&u64, &(crate::ObjectId, _))| {
        map.serial(*id).is_ok_and(|found| found == **serial)
    };
    let rows = accessed.iter().filter(is_current);
    let rows =
        rows.map(|(serial, (_, row))| (RowKey::Accessed(*serial).encode().into(), row.encode()));
    Ok(rows.collect())
}
