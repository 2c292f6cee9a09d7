//! Changes of blocks that are being moved.

use super::MigrationState;
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, Error, ErrorKind};
use lunar_pool::JoinedDevice;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Length of the zeroes that are written at a time to a device without deallocation.
const ZEROES_BYTES: u64 = 1 << 20;

/// A change of blocks.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// Writes data.
    Write { from: Bytes, durable: bool },
    /// Deallocates blocks.
    Unmap { durable: bool },
    /// Writes zeroes.
    Zero { may_unmap: bool, durable: bool },
}

impl Change {
    /// Changes blocks of a device.
    pub(crate) async fn apply(
        self,
        device: &dyn BlockDevice,
        range: BlockRange,
    ) -> Result<(), Error> {
        match (self, device.sparse()) {
            (Self::Write { from, durable }, _) => device.write(range, from, durable).await,
            (Self::Unmap { durable }, Some(sparse)) => sparse.unmap(range, durable).await,
            (Self::Zero { may_unmap, durable }, Some(sparse)) => {
                sparse.write_zeroes(range, may_unmap, durable).await
            }
            (Self::Unmap { durable } | Self::Zero { durable, .. }, None) => {
                write_zeroes(device, range, durable).await
            }
        }
    }

    /// Returns the part of a change of `range` of a disk that belongs to one extent.
    fn of_extent(&self, joined: &JoinedDevice, extent_index: usize, range: BlockRange) -> Self {
        match self {
            Self::Write { from, durable } => {
                let from = joined.data_of_extent(extent_index, range, from);
                Self::Write { from, durable: *durable }
            }
            other => other.clone(),
        }
    }

    fn with_durable(self, is_durable: bool) -> Self {
        match self {
            Self::Write { from, durable } => Self::Write { from, durable: durable && is_durable },
            Self::Unmap { durable } => Self::Unmap { durable: durable && is_durable },
            Self::Zero { may_unmap, durable } => {
                Self::Zero { may_unmap, durable: durable && is_durable }
            }
        }
    }
}

async fn write_zeroes(
    device: &dyn BlockDevice,
    range: BlockRange,
    durable: bool,
) -> Result<(), Error> {
    let block_bytes = u64::from(device.geometry().block_bytes);
    let piece_blocks = ZEROES_BYTES / block_bytes;
    let zeroes = Bytes::from(vec![0; (piece_blocks.min(range.count) * block_bytes) as usize]);
    let end = range.lba + range.count;
    for lba in (range.lba..end).step_by(piece_blocks as usize) {
        let count = piece_blocks.min(end - lba);
        let data = zeroes.slice(..(count * block_bytes) as usize);
        device.write(BlockRange::new(lba, count), data, durable).await?;
    }
    Ok(())
}

/// A change that is made at the source of an extent and at its destination. If it is dropped
/// before its end, its regions are copied again.
pub(crate) struct MigratingChange<'a> {
    state: &'a Arc<MigrationState>,
    /// The blocks of the extent.
    part: BlockRange,
    /// True if the change is also made at the destination.
    is_mirrored: bool,
    is_done: bool,
    started: Option<JoinHandle<Result<(), Error>>>,
}

impl Drop for MigratingChange<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.state.shared().uncopied.insert(self.part);
        }
    }
}

impl MigrationState {
    /// Returns the error of a change that was not made at the destination, although the record may
    /// already name it.
    fn uncertain(&self, failure: &str) -> Error {
        let what = format!("the record of the move is uncertain, and {failure}");
        Error::new(ErrorKind::Medium, self.to.device.name(), what)
    }
}

impl<'a> MigratingChange<'a> {
    /// Begins a change of blocks of the extent, in its turn in the queue.
    ///
    /// # Errors
    /// `Medium` if the change must be made at both, and the destination is not usable at
    /// present.
    pub(crate) fn begin(state: &'a Arc<MigrationState>, part: BlockRange) -> Result<Self, Error> {
        let mut shared = state.shared();
        if shared.is_uncertain && !shared.is_usable {
            return Err(state.uncertain(&shared.last_failure));
        }
        shared.uncopied.begin_change(part);
        let has_copy = !shared.uncopied.has_all(part);
        let is_mirrored = (shared.is_usable && has_copy) || shared.is_uncertain;
        if !is_mirrored {
            shared.uncopied.insert(part);
        }
        drop(shared);
        Ok(Self { state, part, is_mirrored, is_done: false, started: None })
    }

    /// Starts the change at the destination, if it is to be made there. `range` and `change` are
    /// those of the virtual disk.
    pub(crate) fn start(&mut self, joined: &JoinedDevice, range: BlockRange, change: &Change) {
        if !self.is_mirrored {
            return;
        }
        let state = self.state;
        // The destination is flushed before it is in use.
        let is_durable = state.shared().is_uncertain;
        let change = change.of_extent(joined, state.extent_index, range).with_durable(is_durable);
        let part = BlockRange::new(state.to.blocks.lba + self.part.lba, self.part.count);
        self.started =
            state.start_on_target(|device| async move { change.apply(&*device, part).await });
    }

    /// Ends the change, which had this result at the source. Returns the result for the
    /// host.
    pub(crate) async fn end<T>(mut self, result: Result<T, Error>) -> Result<T, Error> {
        if !self.is_mirrored {
            self.is_done = true; // marked already
            return result;
        }
        let wait = self.state.options.target_wait;
        let since = Instant::now();
        let failed = self.state.target_done(self.started.take(), wait).await.err();
        let failed = self.state.note_lateness(since).or(failed);
        let mut shared = self.state.shared();
        let is_uncertain = shared.is_uncertain;
        self.is_done = result.is_ok() && failed.is_none();
        if !self.is_done {
            shared.uncopied.insert(self.part);
            self.is_done = true;
        }
        drop(shared);
        if let Some(failure) = failed {
            self.state.suspend(failure.clone());
            if is_uncertain {
                return Err(self.state.uncertain(&failure));
            }
        }
        result
    }

    /// Ends a change that was not made at the source.
    pub(crate) fn end_unchanged(mut self) {
        self.is_done = true;
    }
}
