//! Partitions, objects, collections, extents and attributes, as rows.

mod collections;
mod copies;
mod directory;
mod extents;
mod information;
mod lists;
mod quotas;
mod reclaim;

pub(crate) use copies::SharedRows;
pub(crate) use extents::{MappedExtent, OBJECT_BYTES_MAX};
pub(crate) use reclaim::ReclaimCursor;

use crate::format::{ObjectRow, PartitionRow, QuotaFields, RootRow, RowKey};
use crate::index::{RowEditor, damaged};
use crate::information::PartitionKind;
use crate::{FIRST_ID, ObjectId, ObjectKind, StoreError};
use std::ops::Range;

/// The first serial number.
pub(crate) const FIRST_SERIAL: u64 = 1;

/// Codes of kinds in rows of objects.
pub(crate) const USER_OBJECT: u8 = 0;
pub(crate) const COLLECTION: u8 = 1;

/// Reads and changes the rows of objects.
pub(crate) struct ObjectMap<'a> {
    rows: RowEditor<'a>,
    /// Blocks of blobs that nothing uses any more.
    freed: Vec<Range<u64>>,
    /// Maximum length of the changes.
    bytes_max: usize,
    /// Time of the changes, or none if they leave the times of objects.
    now: Option<u64>,
}

/// An object that is being changed, and its partition.
#[derive(Clone, Debug)]
pub(crate) struct OpenObject {
    pub(crate) id: ObjectId,
    pub(crate) row: ObjectRow,
    partition: PartitionRow,
    /// The row as it was.
    before: ObjectRow,
}

impl<'a> ObjectMap<'a> {
    /// Creates a map for look-ups.
    pub(crate) fn new(rows: RowEditor<'a>) -> Self {
        Self::for_changes(rows, usize::MAX, None)
    }

    pub(crate) fn for_changes(rows: RowEditor<'a>, bytes_max: usize, now: Option<u64>) -> Self {
        Self { rows, freed: Vec::new(), bytes_max, now }
    }

    pub(crate) fn rows(&self) -> &RowEditor<'a> {
        &self.rows
    }

    /// Returns the changes, and the blocks that they free.
    pub(crate) fn into_parts(self) -> (RowEditor<'a>, Vec<Range<u64>>) {
        (self.rows, self.freed)
    }

    /// Refuses changes that do not fit a record.
    pub(crate) fn check_size(&self) -> Result<(), StoreError> {
        match self.rows.changed_bytes() {
            bytes if bytes > self.bytes_max => Err(StoreError::CommandTooLarge(bytes)),
            _ => Ok(()),
        }
    }

    /// Sets a time field of a row.
    fn stamp(&self, field: &mut u64) {
        *field = self.now.unwrap_or(*field);
    }

    pub(crate) fn root(&self) -> Result<RootRow, StoreError> {
        let first = RootRow {
            serial: FIRST_SERIAL,
            next_serial: FIRST_SERIAL + 1,
            next_partition: FIRST_ID,
            partitions: 0,
            partition_quota: u64::MAX,
            quotas: QuotaFields::NONE,
            attributes_modified: 0,
        };
        Ok(self.rows.get(RowKey::Root, RootRow::decode)?.unwrap_or(first))
    }

    fn put_root(&mut self, row: RootRow) {
        self.rows.put(RowKey::Root, Some(row.encode()));
    }

    fn next_serial(&mut self) -> Result<u64, StoreError> {
        let mut root = self.root()?;
        let serial = root.next_serial;
        root.next_serial = serial.checked_add(1).ok_or(StoreError::NoSpace)?;
        self.put_root(root);
        Ok(serial)
    }

    pub(crate) fn partition(&self, id: u64) -> Result<PartitionRow, StoreError> {
        let key = RowKey::Partition(self.root()?.serial, id);
        let row = self.rows.get(key, PartitionRow::decode)?;
        let row = row.ok_or(StoreError::NoSuchPartition(id))?;
        PartitionKind::from_code(row.kind).map(|_| row).ok_or_else(|| damaged(key))
    }

    /// Returns a partition whose contents may be changed.
    fn writable_partition(&self, id: u64) -> Result<PartitionRow, StoreError> {
        let row = self.partition(id)?;
        match row.kind == PartitionKind::Snapshot.code() {
            true => Err(StoreError::ReadOnlySnapshot(id)),
            false => Ok(row),
        }
    }

    fn put_partition(&mut self, id: u64, row: PartitionRow) -> Result<(), StoreError> {
        let key = RowKey::Partition(self.root()?.serial, id);
        self.rows.put(key, Some(row.encode()));
        Ok(())
    }

    fn object_in(&self, partition: &PartitionRow, id: ObjectId) -> Result<ObjectRow, StoreError> {
        let key = RowKey::Object(partition.serial, id.object);
        let row = self.rows.get(key, ObjectRow::decode)?.ok_or(StoreError::NoSuchObject(id))?;
        let is_possible = row.length <= OBJECT_BYTES_MAX && row.kind <= COLLECTION;
        is_possible.then_some(row).ok_or_else(|| damaged(key))
    }

    /// Returns the row of a user object or collection.
    pub(crate) fn object(&self, id: ObjectId) -> Result<ObjectRow, StoreError> {
        self.object_in(&self.partition(id.partition)?, id)
    }

    /// Returns the row of a user object.
    pub(crate) fn user_object(&self, id: ObjectId) -> Result<ObjectRow, StoreError> {
        of_kind(id, self.object(id)?, ObjectKind::User)
    }

    /// Returns the row of a collection.
    pub(crate) fn collection(&self, id: ObjectId) -> Result<ObjectRow, StoreError> {
        of_kind(id, self.object(id)?, ObjectKind::Collection)
    }

    /// Opens a user object or collection for changes.
    fn open(&self, id: ObjectId) -> Result<OpenObject, StoreError> {
        let partition = self.writable_partition(id.partition)?;
        let row = self.object_in(&partition, id)?;
        Ok(OpenObject { id, row, partition, before: row })
    }

    /// Opens a user object for changes of its data: no other object uses its extent map then.
    ///
    /// # Errors
    /// `CommandTooLarge` if a map that has to be copied is too long for a record.
    pub(crate) fn open_data(&mut self, id: ObjectId) -> Result<OpenObject, StoreError> {
        let mut object = self.open(id)?;
        of_kind(id, object.row, ObjectKind::User)?;
        object.row.data = self.own_data(object.row.data)?;
        Ok(object)
    }

    /// Makes a user object empty at once; its extents are reclaimed later.
    pub(crate) fn empty(&mut self, id: ObjectId) -> Result<(), StoreError> {
        let mut object = self.open(id)?;
        of_kind(id, object.row, ObjectKind::User)?;
        if object.row.used > 0 {
            self.drop_data(object.row.data)?;
            object.row.data = self.next_serial()?;
        }
        (object.row.length, object.row.used) = (0, 0);
        self.save_data(object)
    }

    /// Stores an object after changes of its data.
    ///
    /// # Errors
    /// `QuotaExceeded` if it has grown too much.
    pub(crate) fn save_data(&mut self, mut object: OpenObject) -> Result<(), StoreError> {
        self.stamp(&mut object.row.data_modified);
        self.put_open(object)
    }

    fn put_open(&mut self, object: OpenObject) -> Result<(), StoreError> {
        object.check_growth()?;
        let OpenObject { id, row, mut partition, before } = object;
        let key = RowKey::Object(partition.serial, id.object);
        self.rows.put(key, Some(row.encode()));
        if row.used != before.used {
            partition.used = partition.used.saturating_sub(before.used).saturating_add(row.used);
            self.put_partition(id.partition, partition)?;
        }
        Ok(())
    }

    /// Returns the serial number of the set of attributes of an object, partition or the root.
    pub(crate) fn attributes_of(&self, owner: ObjectId) -> Result<u64, StoreError> {
        match owner {
            ObjectId::ROOT => Ok(self.root()?.serial),
            ObjectId { partition, object: 0 } => Ok(self.partition(partition)?.attributes),
            object => Ok(self.object(object)?.attributes),
        }
    }

    /// Returns the serial number of an object, partition or the root.
    pub(crate) fn serial(&self, owner: ObjectId) -> Result<u64, StoreError> {
        match owner {
            ObjectId::ROOT => Ok(self.root()?.serial),
            ObjectId { partition, object: 0 } => Ok(self.partition(partition)?.serial),
            object => Ok(self.object(object)?.serial),
        }
    }

    /// Sets or removes an attribute.
    pub(crate) fn set_attribute(
        &mut self,
        owner: ObjectId,
        id: crate::AttributeId,
        value: Option<bytes::Bytes>,
    ) -> Result<(), StoreError> {
        let serial = self.modify_attributes(owner)?;
        self.rows.put(RowKey::Attribute(serial, id), value);
        Ok(())
    }

    /// Prepares a change of attributes: sets the time, and returns the serial number of the set,
    /// which no other object uses then.
    fn modify_attributes(&mut self, owner: ObjectId) -> Result<u64, StoreError> {
        let now = self.now;
        let stamp = |field: &mut u64| *field = now.unwrap_or(*field);
        match owner {
            ObjectId::ROOT => {
                let mut row = self.root()?;
                stamp(&mut row.attributes_modified);
                self.put_root(row);
                Ok(row.serial)
            }
            ObjectId { partition: id, object: 0 } => {
                let mut row = self.writable_partition(id)?;
                row.attributes = self.own_attributes(row.attributes)?;
                stamp(&mut row.attributes_modified);
                self.put_partition(id, row)?;
                Ok(row.attributes)
            }
            id => {
                let mut object = self.open(id)?;
                object.row.attributes = self.own_attributes(object.row.attributes)?;
                stamp(&mut object.row.attributes_modified);
                let serial = object.row.attributes;
                self.put_open(object)?;
                Ok(serial)
            }
        }
    }
}

/// Returns `row` if it is that of an object of this kind.
fn of_kind(id: ObjectId, row: ObjectRow, kind: ObjectKind) -> Result<ObjectRow, StoreError> {
    match (row.kind == COLLECTION) == (kind == ObjectKind::Collection) {
        true => Ok(row),
        false => Err(StoreError::WrongObjectKind(id)),
    }
}
