//! Copies of objects and partitions: they share sets of attributes and extent maps until one of
//! them is changed.

use super::{COLLECTION, ObjectMap};
use crate::format::{MembershipRow, ObjectRow, PartitionRow, RemovedRows, RowKey, SharedRow};
use crate::index::damaged;
use crate::information::PartitionKind;
use crate::{AttributeId, FIRST_ID, ObjectId, StoreError};

/// Rows that objects share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SharedRows {
    Attributes,
    Data,
}

impl SharedRows {
    const fn key(self, serial: u64) -> RowKey {
        match self {
            Self::Attributes => RowKey::SharedAttributes(serial),
            Self::Data => RowKey::SharedData(serial),
        }
    }

    const fn removed(self) -> RemovedRows {
        match self {
            Self::Attributes => RemovedRows::Attributes,
            Self::Data => RemovedRows::Data,
        }
    }
}

/// A copy of shared rows that several records make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowsCopy {
    rows: SharedRows,
    from: u64,
    to: u64,
    /// The key of the next row is this one or a later one.
    next: RowKey,
}

/// A copy of a partition that several records make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartitionCopy {
    source: u64,
    /// The source as it was at the start; nothing changes it meanwhile.
    row: PartitionRow,
    /// Serial number of the copy.
    to: u64,
    /// The pass over the objects: first the collections, to which the others refer.
    kind: u8,
    next: u64,
}

const FIRST_ATTRIBUTE: AttributeId = AttributeId::new(0, 0);

impl ObjectMap<'_> {
    fn users(&self, rows: SharedRows, serial: u64) -> Result<u64, StoreError> {
        let key = rows.key(serial);
        match self.rows.get(key, SharedRow::decode)? {
            None => Ok(1),
            Some(row) if row.users > 1 => Ok(row.users),
            Some(_) => Err(damaged(key)),
        }
    }

    fn put_users(&mut self, rows: SharedRows, serial: u64, users: u64) {
        let value = (users > 1).then(|| SharedRow { users }.encode());
        self.rows.put(rows.key(serial), value);
    }

    /// Adds a user of shared rows.
    fn share(&mut self, rows: SharedRows, serial: u64) -> Result<(), StoreError> {
        let users = self.users(rows, serial)?.checked_add(1).ok_or(StoreError::NoSpace)?;
        self.put_users(rows, serial, users);
        Ok(())
    }

    /// Ends the use of shared rows; the last user lets them be reclaimed.
    fn drop_shared(&mut self, rows: SharedRows, serial: u64) -> Result<(), StoreError> {
        match self.users(rows, serial)? {
            1 => self.drop_or_reclaim(rows.removed(), serial)?,
            users => self.put_users(rows, serial, users - 1),
        }
        Ok(())
    }

    pub(super) fn drop_attributes(&mut self, serial: u64) -> Result<(), StoreError> {
        self.drop_shared(SharedRows::Attributes, serial)
    }

    pub(super) fn drop_data(&mut self, serial: u64) -> Result<(), StoreError> {
        self.drop_shared(SharedRows::Data, serial)
    }

    fn has_rows(&self, rows: SharedRows, serial: u64) -> Result<bool, StoreError> {
        let (from, to) = match rows {
            SharedRows::Attributes => (
                RowKey::Attribute(serial, FIRST_ATTRIBUTE),
                RowKey::Attribute(serial.saturating_add(1), FIRST_ATTRIBUTE),
            ),
            SharedRows::Data => {
                (RowKey::Extent(serial, 0), RowKey::Extent(serial.saturating_add(1), 0))
            }
        };
        Ok(self.rows.next(from, to)?.is_some())
    }

    /// Returns the serial number of these rows, or of a copy of them if they are shared.
    fn own(&mut self, rows: SharedRows, serial: u64) -> Result<u64, StoreError> {
        if self.users(rows, serial)? == 1 {
            return Ok(serial);
        }
        let mut copy = self.begin_copy(rows, serial)?;
        while self.continue_copy(&mut copy, 1)? {
            if self.rows.changed_bytes() > self.bytes_max / 2 {
                return Err(StoreError::CommandTooLarge(self.rows.changed_bytes()));
            }
        }
        self.end_copy(copy)
    }

    pub(super) fn own_attributes(&mut self, serial: u64) -> Result<u64, StoreError> {
        self.own(SharedRows::Attributes, serial)
    }

    pub(super) fn own_data(&mut self, serial: u64) -> Result<u64, StoreError> {
        self.own(SharedRows::Data, serial)
    }

    /// Begins a copy of shared rows. Until its end, the copy is to be removed.
    fn begin_copy(&mut self, rows: SharedRows, from: u64) -> Result<RowsCopy, StoreError> {
        let to = self.next_serial()?;
        self.put_removed(rows.removed(), to);
        let next = match rows {
            SharedRows::Attributes => RowKey::Attribute(from, FIRST_ATTRIBUTE),
            SharedRows::Data => RowKey::Extent(from, 0),
        };
        Ok(RowsCopy { rows, from, to, next })
    }

    /// Copies up to `count` rows. Returns false after the last.
    pub(crate) fn continue_copy(
        &mut self,
        copy: &mut RowsCopy,
        count: usize,
    ) -> Result<bool, StoreError> {
        let end = copy.from.saturating_add(1);
        let end = match copy.rows {
            SharedRows::Attributes => RowKey::Attribute(end, FIRST_ATTRIBUTE),
            SharedRows::Data => RowKey::Extent(end, 0),
        };
        for _ in 0..count {
            if self.rows.changed_bytes() > self.bytes_max / 2 {
                break;
            }
            let Some((key, value)) = self.rows.next(copy.next, end)? else { return Ok(false) };
            match key {
                RowKey::Attribute(_, id) => {
                    let number = u64::from(id.page) << 32 | u64::from(id.number);
                    let next = number.saturating_add(1);
                    let next = AttributeId::new((next >> 32) as u32, next as u32);
                    copy.next = RowKey::Attribute(copy.from, next);
                    self.rows.put(RowKey::Attribute(copy.to, id), Some(value));
                }
                RowKey::Extent(_, offset) => {
                    let extent = super::MappedExtent::parse(key, &value)?;
                    copy.next = RowKey::Extent(copy.from, offset.saturating_add(1));
                    self.put_extent(copy.to, extent);
                    self.reference(extent.row.blob)?;
                }
                _ => return Err(damaged(key)),
            }
        }
        Ok(true)
    }

    /// Ends a copy whose rows are complete, and returns its serial number.
    fn end_copy(&mut self, copy: RowsCopy) -> Result<u64, StoreError> {
        self.rows.put(RowKey::Removed(copy.rows.removed(), copy.to), None);
        self.drop_shared(copy.rows, copy.from)?;
        Ok(copy.to)
    }

    /// Begins a copy of the shared rows of an object or partition, if it has shared ones.
    pub(crate) fn begin_object_copy(
        &mut self,
        id: ObjectId,
        rows: SharedRows,
    ) -> Result<Option<RowsCopy>, StoreError> {
        self.writable_partition(id.partition)?;
        let serial = match rows {
            SharedRows::Attributes => self.attributes_of(id)?,
            SharedRows::Data => self.user_object(id)?.data,
        };
        if self.users(rows, serial)? == 1 {
            return Ok(None);
        }
        self.begin_copy(rows, serial).map(Some)
    }

    /// Lets an object use the copy that was made for it.
    pub(crate) fn end_object_copy(
        &mut self,
        id: ObjectId,
        copy: RowsCopy,
    ) -> Result<(), StoreError> {
        let serial = self.end_copy(copy)?;
        if id.object == 0 {
            let row = PartitionRow { attributes: serial, ..self.partition(id.partition)? };
            return self.put_partition(id.partition, row);
        }
        let mut object = self.open(id)?;
        match copy.rows {
            SharedRows::Attributes => object.row.attributes = serial,
            SharedRows::Data => object.row.data = serial,
        }
        self.put_open(object)
    }

    /// Creates a copy of a user object in a partition, and returns its id. Its cost does not depend
    /// on the length.
    pub(crate) fn copy_object(
        &mut self,
        source: ObjectId,
        partition: u64,
        wanted: Option<u64>,
        with_attributes: bool,
    ) -> Result<u64, StoreError> {
        let from = self.user_object(source)?;
        let owner = self.writable_partition(partition)?;
        let mut row = self.share_object(&from, with_attributes)?;
        row.quota = row.quota.min(owner.quotas.length).max(row.length);
        (row.created, row.attributes_modified, row.data_modified) = (0, 0, 0);
        self.stamp(&mut row.created);
        self.add_object(partition, owner, wanted, row)
    }

    /// Returns the row of a new object that shares the rows of `from`.
    fn share_object(
        &mut self,
        from: &ObjectRow,
        with_attributes: bool,
    ) -> Result<ObjectRow, StoreError> {
        let serial = self.next_serial()?;
        let mut row = ObjectRow { serial, attributes: serial, data: serial, ..*from };
        if with_attributes && self.has_rows(SharedRows::Attributes, from.attributes)? {
            self.share(SharedRows::Attributes, from.attributes)?;
            row.attributes = from.attributes;
        }
        if from.used > 0 {
            self.share(SharedRows::Data, from.data)?;
            row.data = from.data;
        }
        Ok(row)
    }

    /// Begins a copy of a partition. Until its end, the copy is to be removed.
    pub(crate) fn begin_partition_copy(
        &mut self,
        source: u64,
    ) -> Result<PartitionCopy, StoreError> {
        let row = self.partition(source)?;
        let to = self.next_serial()?;
        self.put_removed(RemovedRows::Objects, to);
        Ok(PartitionCopy { source, row, to, kind: COLLECTION, next: FIRST_ID })
    }

    /// Copies up to `count` objects. Returns false after the last.
    pub(crate) fn continue_partition_copy(
        &mut self,
        copy: &mut PartitionCopy,
        count: usize,
    ) -> Result<bool, StoreError> {
        let end = RowKey::Object(copy.row.serial, u64::MAX);
        for _ in 0..count {
            if self.rows.changed_bytes() > self.bytes_max / 2 {
                break;
            }
            let Some((key, value)) =
                self.rows.next(RowKey::Object(copy.row.serial, copy.next), end)?
            else {
                if copy.kind != COLLECTION {
                    return Ok(false);
                }
                (copy.kind, copy.next) = (super::USER_OBJECT, FIRST_ID);
                continue;
            };
            let (RowKey::Object(_, id), Some(from)) = (key, ObjectRow::decode(&value)) else {
                return Err(damaged(key));
            };
            copy.next = id + 1;
            if from.kind != copy.kind {
                continue;
            }
            let row = self.share_object(&from, true)?;
            self.rows.put(RowKey::Object(copy.to, id), Some(row.encode()));
            self.copy_memberships(copy, id, from.serial, row.serial)?;
        }
        Ok(true)
    }

    fn copy_memberships(
        &mut self,
        copy: &PartitionCopy,
        id: u64,
        from: u64,
        to: u64,
    ) -> Result<(), StoreError> {
        let mut next = 0;
        while let Some((number, row)) = self.next_membership(from, next)? {
            next = number + 1;
            let collection = |partition| {
                self.rows.get(RowKey::Object(partition, row.collection), ObjectRow::decode)
            };
            let is_valid = collection(copy.row.serial)?.is_some_and(|old| old.serial == row.serial);
            let (true, Some(new)) = (is_valid, collection(copy.to)?) else { continue };
            self.put_membership(to, id, number, MembershipRow { serial: new.serial, ..row })?;
        }
        Ok(())
    }

    /// Creates the partition of a complete copy, and returns its id.
    pub(crate) fn end_partition_copy(
        &mut self,
        copy: PartitionCopy,
        wanted: Option<u64>,
        kind: PartitionKind,
    ) -> Result<u64, StoreError> {
        let id = self.choose_partition(wanted)?;
        let mut row = PartitionRow { kind: kind.code(), source: copy.source, ..copy.row };
        (row.created, row.attributes_modified, row.data_modified) = (0, 0, 0);
        self.stamp(&mut row.created);
        self.take_copy(&copy, &mut row)?;
        self.add_partition(id, row)?;
        Ok(id)
    }

    /// Replaces the contents of partition `id` by a complete copy; its quotas stay.
    pub(crate) fn replace_by_copy(
        &mut self,
        copy: PartitionCopy,
        id: u64,
    ) -> Result<(), StoreError> {
        let old = self.partition(id)?;
        self.drop_partition(&old)?;
        let next_object = old.next_object.max(copy.row.next_object);
        let mut row =
            PartitionRow { next_object, objects: copy.row.objects, used: copy.row.used, ..old };
        self.stamp(&mut row.data_modified);
        self.take_copy(&copy, &mut row)?;
        self.put_partition(id, row)
    }

    /// Lets the row of a partition have the objects and attributes of a copy.
    fn take_copy(
        &mut self,
        copy: &PartitionCopy,
        row: &mut PartitionRow,
    ) -> Result<(), StoreError> {
        self.rows.put(RowKey::Removed(RemovedRows::Objects, copy.to), None);
        self.share(SharedRows::Attributes, copy.row.attributes)?;
        row.attributes = copy.row.attributes;
        row.serial = copy.to;
        Ok(())
    }

    /// Makes a clone a partition of its own.
    pub(crate) fn detach_clone(&mut self, id: u64) -> Result<(), StoreError> {
        let row = self.partition(id)?;
        if row.kind != PartitionKind::Clone.code() {
            return Err(StoreError::WrongObjectKind(ObjectId::of_partition(id)));
        }
        let row = PartitionRow { kind: PartitionKind::Primary.code(), source: 0, ..row };
        self.put_partition(id, row)
    }
}
