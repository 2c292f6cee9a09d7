//! The log: a ring of blocks with one record for each group of commands.

use crate::StoreError;
use crate::block_io::{BLOCK_BYTES, BlockIo};
use crate::format::{LogGroup, RECORD_HEADER_BYTES, RecordHeader, StoreLayout};
use bytes::{Bytes, BytesMut};

/// Maximum length of a record, if the log is long enough.
const RECORD_BYTES_MAX: usize = 4 << 20;

/// The end of the log, where the next record goes.
#[derive(Debug)]
pub(super) struct LogRing {
    io: BlockIo,
    layout: StoreLayout,
    /// Fields of the next record.
    pub(super) next: RecordHeader,
    /// The block of the log where the next record begins.
    pub(super) head: u64,
    /// Number of blocks of the records that a replay needs.
    used: u64,
}

impl LogRing {
    pub(super) fn new(io: BlockIo, layout: StoreLayout, next: RecordHeader, head: u64) -> Self {
        Self { io, layout, next, head, used: 0 }
    }

    /// Returns the maximum length of the contents of a record.
    pub(super) fn payload_bytes_max(&self) -> usize {
        let quarter = (self.layout.log_blocks * BLOCK_BYTES / 4) as usize;
        quarter.min(RECORD_BYTES_MAX) - RECORD_HEADER_BYTES
    }

    pub(super) fn encode(&self, group: &LogGroup) -> Bytes {
        self.next.encode(group)
    }

    pub(super) fn has_room(&self, record: &Bytes) -> bool {
        record.len() as u64 / BLOCK_BYTES <= self.layout.log_blocks - self.used
    }

    /// Returns true if a checkpoint should make room.
    pub(super) fn is_half_full(&self) -> bool {
        self.used > self.layout.log_blocks / 2
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Frees all records: a checkpoint contains their changes.
    pub(super) fn clear(&mut self) {
        self.used = 0;
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
    pub(super) fn append(&mut self, mut record: Bytes) -> Result<(), StoreError> {
        let count = record.len() as u64 / BLOCK_BYTES;
        for (start, count) in self.parts(count).into_iter().filter(|(_, count)| *count > 0) {
            let part = record.split_to((count * BLOCK_BYTES) as usize);
            self.io.write_blocking(start, part)?;
        }
        self.advance(count);
        Ok(())
    }

    /// Returns the next record of the log and its number of blocks; `None` at its end.
    pub(super) fn read_next(&self) -> Result<Option<(LogGroup, u64)>, StoreError> {
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
    pub(super) fn pass(&mut self, count: u64) {
        self.advance(count);
    }
}
