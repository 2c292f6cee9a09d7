//! The log: a ring of blocks with one record for each group of commands.

use crate::StoreError;
use crate::block_io::{BLOCK_BYTES, BlockIo, blocks_of};
use crate::format::{LogGroup, LogPosition, RECORD_HEADER_BYTES, RecordHeader, StoreLayout};
use bytes::{Bytes, BytesMut};

/// Maximum length of a record, if the log is long enough.
const RECORD_BYTES_MAX: usize = 4 << 20;

/// The end of the log, where the next record goes.
#[derive(Clone, Debug)]
pub(crate) struct LogRing {
    io: BlockIo,
    layout: StoreLayout,
    /// Fields of the next record.
    pub(crate) next: RecordHeader,
    /// The block of the log where the next record begins.
    pub(crate) head: u64,
    /// Number of blocks of the records that a replay needs.
    used: u64,
    /// Number of those whose changes a checkpoint is moving into the index.
    frozen: u64,
}

impl LogRing {
    pub(crate) fn new(io: BlockIo, layout: StoreLayout, next: RecordHeader, head: u64) -> Self {
        Self { io, layout, next, head, used: 0, frozen: 0 }
    }

    /// Returns the maximum length of the contents of a record.
    pub(crate) fn payload_bytes_max(&self) -> usize {
        let quarter = (self.layout.log_blocks * BLOCK_BYTES / 4) as usize;
        quarter.min(RECORD_BYTES_MAX) - RECORD_HEADER_BYTES
    }

    pub(crate) fn encode(&self, group: &LogGroup) -> Bytes {
        self.next.encode(group)
    }

    /// Returns true if the longest record has room.
    pub(crate) fn has_room(&self) -> bool {
        let record = blocks_of((RECORD_HEADER_BYTES + self.payload_bytes_max()) as u64);
        record <= self.layout.log_blocks - self.used
    }

    /// Returns true if a checkpoint should make room.
    pub(crate) fn is_half_full(&self) -> bool {
        self.used > self.layout.log_blocks / 2
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the position after all records, whose changes a checkpoint begins to move.
    pub(crate) fn freeze(&mut self) -> LogPosition {
        self.frozen = self.used;
        LogPosition { number: self.next.number, block: self.head, opening: self.next.opening }
    }

    /// Frees the records up to the last [`freeze`](Self::freeze).
    pub(crate) fn release_frozen(&mut self) {
        self.used -= std::mem::take(&mut self.frozen);
    }

    /// Returns the first blocks on the device, and their numbers, of `count` blocks from the head.
    fn parts(&self, count: u64) -> [(u64, u64); 2] {
        let first = count.min(self.layout.log_blocks - self.head);
        let start = self.layout.log().start;
        [(start + self.head, first), (start, count - first)]
    }

    fn advance(&mut self, count: u64) {
        self.head = (self.head + count) % self.layout.log_blocks;
        self.used += count;
        self.next.number += 1;
    }

    /// Writes the next record, without a flush.
    pub(crate) fn append(&mut self, mut record: Bytes) -> Result<(), StoreError> {
        let count = record.len() as u64 / BLOCK_BYTES;
        for (start, count) in self.parts(count).into_iter().filter(|(_, count)| *count > 0) {
            let part = record.split_to((count * BLOCK_BYTES) as usize);
            self.io.write_blocking(start, part)?;
        }
        self.advance(count);
        Ok(())
    }

    /// Returns the next record of the log and its number of blocks; `None` at its end.
    pub(crate) fn read_next(&self) -> Result<Option<(LogGroup, u64)>, StoreError> {
        let first = self.io.read_blocking(self.layout.log().start + self.head, 1)?;
        let room = self.layout.log_blocks - self.used;
        let Some(found) = self.next.find(&first, room) else { return Ok(None) };
        let count = found.block_count();
        let mut record = BytesMut::with_capacity((count * BLOCK_BYTES) as usize);
        for (start, count) in self.parts(count).into_iter().filter(|(_, count)| *count > 0) {
            record.extend_from_slice(&self.io.read_blocking(start, count)?);
        }
        Ok(LogGroup::decode(found, &record).map(|group| (group, count)))
    }

    /// Passes a record that was read and applied.
    pub(crate) fn pass(&mut self, count: u64) {
        self.advance(count);
    }
}
