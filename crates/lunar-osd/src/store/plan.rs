//! A command as changes of rows and as data, without effect until it is committed.

use super::{ATTRIBUTE_BYTES_MAX, CommittedState, ObjectCommand, ObjectCommandResult, SharedStore};
use crate::block_io::{BLOCK_BYTES, blocks_of};
use crate::format::{BLOB_BLOCKS_MAX, BlobRow};
use crate::index::{IndexRows, RowEditor, RowLayers, RowOverlay};
use crate::objects::{MappedExtent, OBJECT_BYTES_MAX, ObjectMap, OpenObject};
use crate::{ObjectId, ObjectKind, StoreError};
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

/// The rows and data below commands that are planned.
pub(super) struct PlanBase<'a> {
    pub(super) shared: &'a SharedStore,
    pub(super) state: &'a CommittedState,
    pub(super) index: &'a IndexRows,
    /// Maximum length of a record.
    pub(super) bytes_max: usize,
}

/// Commands that are being planned.
pub(super) struct CommandPlanner<'a> {
    base: &'a PlanBase<'a>,
    /// Earlier commands of the group.
    group: &'a PlannedChanges,
    pub(super) map: ObjectMap<'a>,
    deferred: HashMap<u64, (Bytes, usize)>,
    allocated: Vec<Range<u64>>,
}

impl<'a> CommandPlanner<'a> {
    pub(super) fn new(
        base: &'a PlanBase<'a>,
        group: &'a PlannedChanges,
        time: Option<u64>,
    ) -> Self {
        let mut overlays = vec![&group.rows];
        overlays.extend(base.state.overlays());
        let rows = RowEditor::new(RowLayers { overlays, index: base.index });
        let map = ObjectMap::for_changes(rows, base.bytes_max, time);
        Self { base, group, map, deferred: HashMap::new(), allocated: Vec::new() }
    }

    /// Returns the changes if `work` succeeds and they fit a record; otherwise gives the blocks of
    /// new blobs back.
    pub(super) fn plan<T>(
        mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StoreError>,
    ) -> Result<(T, PlannedChanges), StoreError> {
        let result = work(&mut self);
        let PlanBase { shared, bytes_max, .. } = *self.base;
        let deferred = self.deferred;
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

    pub(super) fn execute(
        &mut self,
        command: &ObjectCommand,
    ) -> Result<ObjectCommandResult, StoreError> {
        if !command.works_when_full() {
            self.base.shared.check_space(self.base.state)?;
        }
        let created = |partition, id| Ok(ObjectCommandResult::Object(ObjectId::new(partition, id)));
        match command {
            ObjectCommand::CreatePartition(id) => {
                return Ok(ObjectCommandResult::Partition(self.map.create_partition(*id)?));
            }
            ObjectCommand::Create { partition, id } => {
                return created(*partition, self.map.create(*partition, *id, ObjectKind::User)?);
            }
            ObjectCommand::CreateCollection { partition, id } => {
                let id = self.map.create(*partition, *id, ObjectKind::Collection)?;
                return created(*partition, id);
            }
            ObjectCommand::Copy { source, partition, id, with_attributes } => {
                let id = self.map.copy_object(*source, *partition, *id, *with_attributes)?;
                return created(*partition, id);
            }
            ObjectCommand::Append { object, data } => {
                let offset = self.map.user_object(*object)?.length;
                self.write(*object, offset, data)?;
                return Ok(ObjectCommandResult::Offset(offset));
            }
            other => self.change(other)?,
        }
        Ok(ObjectCommandResult::Done)
    }

    /// Executes a command without a result.
    fn change(&mut self, command: &ObjectCommand) -> Result<(), StoreError> {
        match command {
            ObjectCommand::RemoveAll => self.map.remove_all(),
            ObjectCommand::RemovePartition { id, with_contents } => {
                self.map.remove_partition(*id, *with_contents)
            }
            ObjectCommand::Remove(object) => self.map.remove(*object),
            ObjectCommand::RemoveCollection { id, with_members } => {
                self.map.remove_collection(*id, *with_members)
            }
            ObjectCommand::SetMembership { object, number, collection } => {
                self.map.set_membership(*object, *number, *collection)
            }
            ObjectCommand::SetQuota { owner, quota, limit } => {
                self.map.set_quota(*owner, *quota, *limit)
            }
            ObjectCommand::DetachClone(id) => self.map.detach_clone(*id),
            ObjectCommand::Write { object, offset, data } => self.write(*object, *offset, data),
            ObjectCommand::Clear { object, offset, len } => self.clear(*object, *offset, *len),
            ObjectCommand::Punch { object, offset, len } => self.punch(*object, *offset, *len),
            ObjectCommand::SetLength { object, length } => self.set_length(*object, *length),
            ObjectCommand::SetAttribute { owner, id, value } => match value {
                Some(value) if value.len() > ATTRIBUTE_BYTES_MAX => {
                    Err(StoreError::AttributeTooLong(value.len()))
                }
                value => self.map.set_attribute(*owner, *id, value.clone()),
            },
            // These have results.
            ObjectCommand::CreatePartition(_)
            | ObjectCommand::Create { .. }
            | ObjectCommand::CreateCollection { .. }
            | ObjectCommand::Copy { .. }
            | ObjectCommand::Append { .. } => Ok(()),
        }
    }

    fn write(&mut self, id: ObjectId, offset: u64, data: &[u8]) -> Result<(), StoreError> {
        let mut object = self.map.open_data(id)?;
        let range = range_of(offset, data.len() as u64)?;
        if range.is_empty() {
            return self.map.save_data(object);
        }
        let (map, length) = (object.row.data, object.row.length);
        object.row.length = length.max(range.end);
        object.check_growth()?;
        // Blobs begin and end where blocks of the object do, so that small writes side by side
        // share a block.
        let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
        let block_end = range.end.next_multiple_of(BLOCK_BYTES);
        let end = range.end.max(length.min(block_end));
        let mut bytes = BytesMut::zeroed((end - start) as usize);
        self.read(map, start..range.start, &mut bytes)?;
        let (head, tail) = bytes.split_at_mut((range.end - start) as usize);
        self.read(map, range.end..end, tail)?;
        head[(range.start - start) as usize..].copy_from_slice(data);
        self.map.unmap(&mut object, start..end)?;
        let is_deferred = data.len() <= RECORD_DATA_BYTES_MAX;
        self.write_blobs(&mut object, start, bytes, is_deferred)?;
        self.map.save_data(object)
    }

    /// Puts `bytes` into new blobs, from byte `offset` of the object on.
    fn write_blobs(
        &mut self,
        object: &mut OpenObject,
        mut offset: u64,
        mut bytes: BytesMut,
        is_deferred: bool,
    ) -> Result<(), StoreError> {
        let shared = self.base.shared;
        while !bytes.is_empty() {
            let wanted = blocks_of(bytes.len() as u64).min(BLOB_BLOCKS_MAX);
            let run = shared.allocator().allocate(wanted).ok_or(StoreError::NoSpace)?;
            self.allocated.push(run.clone());
            let room = ((run.end - run.start) * BLOCK_BYTES) as usize;
            let mut data = bytes.split_to(bytes.len().min(room));
            let used = data.len();
            data.resize(used.next_multiple_of(BLOCK_BYTES as usize), 0);
            let (data, start) = (data.freeze(), run.start);
            self.map.map_blob(object, offset, used as u32, start, &BlobRow::of(&data));
            match is_deferred {
                true => drop(self.deferred.insert(start, (data, used))),
                false => shared.io.write_blocking(start, data)?,
            }
            offset += used as u64;
        }
        Ok(())
    }

    /// Reads bytes of an extent map into the first bytes of `into`, which are zero.
    fn read(&self, map: u64, range: Range<u64>, into: &mut [u8]) -> Result<(), StoreError> {
        let start = range.start;
        self.map.extents(map, range, |extent| {
            let into = &mut into[(extent.offset - start) as usize..][..extent.row.len as usize];
            self.read_extent(&extent, into)
        })
    }

    fn read_extent(&self, extent: &MappedExtent, into: &mut [u8]) -> Result<(), StoreError> {
        let start = extent.row.blob;
        let planned = self.deferred.get(&start).or_else(|| self.group.deferred.get(&start));
        let data = planned.map(|(data, _)| data).or_else(|| self.base.state.deferred(start));
        if let Some(bytes) = data.and_then(|data| data.get(extent.row.start as usize..)) {
            let bytes = bytes.get(..into.len());
            into.copy_from_slice(bytes.ok_or_else(|| StoreError::damaged("a blob is too short"))?);
            return Ok(());
        }
        let (blob, blocks) = (self.map.blob(&extent.row)?, extent.row.blocks());
        let first = start.saturating_add(blocks.start);
        let data = self.base.shared.io.read_blocking(first, blocks.end - blocks.start)?;
        super::read::verify(&data, &blob.checksums[blocks.start as usize..])?;
        let skipped = u64::from(extent.row.start) - blocks.start * BLOCK_BYTES;
        into.copy_from_slice(&data[skipped as usize..][..into.len()]);
        Ok(())
    }

    fn clear(&mut self, id: ObjectId, offset: u64, len: u64) -> Result<(), StoreError> {
        let mut object = self.map.open_data(id)?;
        let range = range_of(offset, len)?;
        self.map.unmap(&mut object, range.clone())?;
        if !range.is_empty() {
            object.row.length = object.row.length.max(range.end);
        }
        self.map.save_data(object)
    }

    fn punch(&mut self, id: ObjectId, offset: u64, len: u64) -> Result<(), StoreError> {
        let mut object = self.map.open_data(id)?;
        let length = object.row.length;
        if offset > length {
            return Err(StoreError::OutOfRange { offset, len });
        }
        let end = offset.saturating_add(len).min(length);
        self.map.unmap(&mut object, offset..end)?;
        let distance = end - offset;
        if distance > 0 {
            self.map.shift(&object, end, distance)?;
            object.row.length -= distance;
        }
        self.map.save_data(object)
    }

    fn set_length(&mut self, id: ObjectId, length: u64) -> Result<(), StoreError> {
        range_of(length, 0)?;
        if length == 0 {
            return self.map.empty(id);
        }
        let mut object = self.map.open_data(id)?;
        let end = object.row.length.max(length);
        self.map.unmap(&mut object, length..end)?;
        object.row.length = length;
        self.map.save_data(object)
    }
}

fn range_of(offset: u64, len: u64) -> Result<Range<u64>, StoreError> {
    let end = offset.checked_add(len).filter(|end| *end <= OBJECT_BYTES_MAX);
    end.map(|end| offset..end).ok_or(StoreError::OutOfRange { offset, len })
}
