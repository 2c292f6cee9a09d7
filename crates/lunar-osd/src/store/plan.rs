//! A command as changes of rows and as data, without effect until it is committed.

use super::{ATTRIBUTE_BYTES_MAX, CommittedState, ObjectCommand, ObjectCommandResult, SharedStore};
use crate::block_io::{BLOCK_BYTES, blocks_of};
use crate::format::{BLOB_BLOCKS_MAX, BlobRow, RowKey};
use crate::index::{IndexRows, RowEditor, RowLayers, RowOverlay};
use crate::object_map::{MappedExtent, OBJECT_BYTES_MAX, ObjectMap};
use crate::{ObjectId, StoreError};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::ops::Range;

/// Maximum length of data that a record contains; longer data goes to its blobs at once.
const RECORD_DATA_BYTES_MAX: usize = 64 << 10;

/// Changes that are ready for the log.
#[derive(Debug, Default)]
pub(super) struct PlannedChanges {
    pub(super) rows: RowOverlay,
    /// New blobs that the record contains, in whole blocks, with the length before their zeroes.
    pub(super) deferred: HashMap<u64, (Bytes, usize)>,
    /// Blocks of blobs that nothing uses after the changes.
    pub(super) freed: Vec<Range<u64>>,
    /// Blocks of new blobs.
    pub(super) allocated: Vec<Range<u64>>,
    /// Length of the record.
    pub(super) bytes: usize,
}

impl PlannedChanges {
    /// Adds the changes of a later command.
    pub(super) fn merge(&mut self, other: Self) {
        self.rows.merge(other.rows);
        self.deferred.extend(other.deferred);
        self.freed.extend(other.freed);
        self.allocated.extend(other.allocated);
        self.bytes += other.bytes;
    }

    /// Gives the blocks of new blobs back: the changes will not be committed.
    pub(super) fn discard(self, shared: &SharedStore) {
        let mut allocator = shared.allocator();
        self.allocated.into_iter().for_each(|run| allocator.free(run));
    }
}

/// Commands that are being planned.
pub(super) struct CommandPlanner<'a> {
    shared: &'a SharedStore,
    state: &'a CommittedState,
    /// Earlier commands of the group.
    group: &'a PlannedChanges,
    map: ObjectMap<'a>,
    deferred: HashMap<u64, (Bytes, usize)>,
    allocated: Vec<Range<u64>>,
    bytes_max: usize,
}

impl<'a> CommandPlanner<'a> {
    pub(super) fn new(
        shared: &'a SharedStore,
        state: &'a CommittedState,
        group: &'a PlannedChanges,
        index: &'a IndexRows,
        bytes_max: usize,
    ) -> Self {
        let layers = RowLayers { overlays: vec![&group.rows, &state.rows], index };
        let map = ObjectMap::new(RowEditor::new(layers));
        let (deferred, allocated) = (HashMap::new(), Vec::new());
        Self { shared, state, group, map, deferred, allocated, bytes_max }
    }

    /// Returns the changes if `work` succeeds and they fit a record; otherwise gives the blocks of
    /// new blobs back.
    pub(super) fn plan<T>(
        mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<(T, PlannedChanges), StoreError> {
        let result = work(&mut self);
        let (shared, bytes_max, deferred) = (self.shared, self.bytes_max, self.deferred);
        let (rows, freed) = self.map.into_parts();
        let rows = rows.into_changes();
        // Each of these blobs has a header of 12 bytes.
        let data: usize = deferred.values().map(|(_, used)| used + 12).sum();
        let bytes = rows.bytes() + data;
        let changes = PlannedChanges { rows, deferred, freed, allocated: self.allocated, bytes };
        match result {
            Ok(result) if bytes <= bytes_max => Ok((result, changes)),
            Ok(_) => {
                changes.discard(shared);
                Err(StoreError::CommandTooLarge(bytes))
            }
            Err(error) => {
                changes.discard(shared);
                Err(error)
            }
        }
    }

    /// Removes some rows of removed objects. Returns false if there is none.
    pub(super) fn reclaim(&mut self) -> Result<bool, StoreError> {
        self.map.reclaim()
    }

    pub(super) fn execute(
        &mut self,
        command: &ObjectCommand,
    ) -> Result<ObjectCommandResult, StoreError> {
        match command {
            ObjectCommand::CreatePartition(id) => {
                return Ok(ObjectCommandResult::Partition(self.map.create_partition(*id)?));
            }
            ObjectCommand::Create { partition, id } => {
                let object = self.map.create(*partition, *id)?;
                return Ok(ObjectCommandResult::Object(ObjectId::new(*partition, object)));
            }
            ObjectCommand::Append { object, data } => {
                let offset = self.map.object(*object)?.length;
                self.write(*object, offset, data)?;
                return Ok(ObjectCommandResult::Offset(offset));
            }
            ObjectCommand::RemovePartition(id) => self.map.remove_partition(*id)?,
            ObjectCommand::Remove(object) => self.map.remove(*object)?,
            ObjectCommand::Write { object, offset, data } => self.write(*object, *offset, data)?,
            ObjectCommand::Clear { object, offset, len } => self.clear(*object, *offset, *len)?,
            ObjectCommand::Punch { object, offset, len } => self.punch(*object, *offset, *len)?,
            ObjectCommand::SetLength { object, length } => self.set_length(*object, *length)?,
            ObjectCommand::SetAttribute { owner, id, value } => {
                if let Some(value) = value.as_ref().filter(|v| v.len() > ATTRIBUTE_BYTES_MAX) {
                    return Err(StoreError::AttributeTooLong(value.len()));
                }
                let serial = self.map.serial(*owner)?;
                self.map.rows_mut().put(RowKey::Attribute(serial, *id), value.clone());
            }
        }
        Ok(ObjectCommandResult::Done)
    }

    fn write(&mut self, object: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        let mut row = self.map.object(object)?;
        let range = range_of(offset, data.len() as u64)?;
        if range.is_empty() {
            return Ok(());
        }
        // Blobs begin and end where blocks of the object do, so that small writes side by side
        // share a block.
        let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
        let block_end = range.end.next_multiple_of(BLOCK_BYTES);
        let end = range.end.max(row.length.min(block_end));
        let mut bytes = BytesMut::zeroed((end - start) as usize);
        self.read(row.serial, start..range.start, &mut bytes)?;
        let (head, tail) = bytes.split_at_mut((range.end - start) as usize);
        self.read(row.serial, range.end..end, tail)?;
        head[(range.start - start) as usize..].copy_from_slice(data);
        self.map.unmap(row.serial, start..end, self.bytes_max)?;
        let is_deferred = data.len() <= RECORD_DATA_BYTES_MAX;
        self.write_blobs(row.serial, start, bytes, is_deferred)?;
        row.length = row.length.max(range.end);
        self.map.put_object(object, row);
        Ok(())
    }

    /// Puts `bytes` into new blobs, from byte `offset` of the object on.
    fn write_blobs(
        &mut self,
        serial: u64,
        mut offset: u64,
        mut bytes: BytesMut,
        is_deferred: bool,
    ) -> Result<(), StoreError> {
        while !bytes.is_empty() {
            let wanted = blocks_of(bytes.len() as u64).min(BLOB_BLOCKS_MAX);
            let run = self.shared.allocator().allocate(wanted).ok_or(StoreError::NoSpace)?;
            self.allocated.push(run.clone());
            let room = ((run.end - run.start) * BLOCK_BYTES) as usize;
            let mut data = bytes.split_to(bytes.len().min(room));
            let used = data.len();
            data.resize(used.next_multiple_of(BLOCK_BYTES as usize), 0);
            let (data, start) = (data.freeze(), run.start);
            self.map.map_blob(serial, offset, used as u32, start, &BlobRow::of(&data));
            match is_deferred {
                true => drop(self.deferred.insert(start, (data, used))),
                false => self.shared.io.write_blocking(start, data)?,
            }
            offset += used as u64;
        }
        Ok(())
    }

    /// Reads bytes of an object into the first bytes of `into`, which are zero.
    fn read(&self, serial: u64, range: Range<u64>, into: &mut [u8]) -> Result<(), StoreError> {
        let start = range.start;
        self.map.extents(serial, range, |extent| {
            let into = &mut into[(extent.offset - start) as usize..][..extent.row.len as usize];
            self.read_extent(&extent, into)
        })
    }

    fn read_extent(&self, extent: &MappedExtent, into: &mut [u8]) -> Result<(), StoreError> {
        let start = extent.row.blob;
        let planned = self.deferred.get(&start).or_else(|| self.group.deferred.get(&start));
        let data = planned.map(|(data, _)| data).or_else(|| self.state.deferred.get(&start));
        if let Some(bytes) = data.and_then(|data| data.get(extent.row.start as usize..)) {
            let bytes = bytes.get(..into.len());
            into.copy_from_slice(bytes.ok_or_else(|| StoreError::damaged("a blob is too short"))?);
            return Ok(());
        }
        let (blob, blocks) = (self.map.blob(&extent.row)?, extent.row.blocks());
        let first = start.saturating_add(blocks.start);
        let data = self.shared.io.read_blocking(first, blocks.end - blocks.start)?;
        super::read::verify(&data, &blob.checksums[blocks.start as usize..])?;
        let skipped = u64::from(extent.row.start) - blocks.start * BLOCK_BYTES;
        into.copy_from_slice(&data[skipped as usize..][..into.len()]);
        Ok(())
    }

    fn clear(&mut self, object: ObjectId, offset: u64, len: u64) -> Result<(), StoreError> {
        let mut row = self.map.object(object)?;
        let range = range_of(offset, len)?;
        self.map.unmap(row.serial, range.clone(), self.bytes_max)?;
        if !range.is_empty() {
            row.length = row.length.max(range.end);
            self.map.put_object(object, row);
        }
        Ok(())
    }

    fn punch(&mut self, object: ObjectId, offset: u64, len: u64) -> Result<(), StoreError> {
        let mut row = self.map.object(object)?;
        if offset > row.length {
            return Err(StoreError::OutOfRange { offset, len });
        }
        let end = offset.saturating_add(len).min(row.length);
        self.map.unmap(row.serial, offset..end, self.bytes_max)?;
        let distance = end - offset;
        if distance > 0 {
            self.map.shift(row.serial, end, distance, self.bytes_max)?;
            row.length -= distance;
            self.map.put_object(object, row);
        }
        Ok(())
    }

    fn set_length(&mut self, object: ObjectId, length: u64) -> Result<(), StoreError> {
        let mut row = self.map.object(object)?;
        range_of(length, 0)?;
        self.map.unmap(row.serial, length..row.length.max(length), self.bytes_max)?;
        row.length = length;
        self.map.put_object(object, row);
        Ok(())
    }
}

fn range_of(offset: u64, len: u64) -> Result<Range<u64>, StoreError> {
    let end = offset.checked_add(len).filter(|end| *end <= OBJECT_BYTES_MAX);
    end.map(|end| offset..end).ok_or(StoreError::OutOfRange { offset, len })
}
