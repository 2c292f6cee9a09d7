//! Creation and removal of partitions, objects and collections.

use super::{COLLECTION, ObjectMap, USER_OBJECT, of_kind, quotas};
use crate::format::{ObjectRow, PartitionRow, RemovedRows, RootRow, RowKey};
use crate::information::{PartitionKind, QuotaKind};
use crate::{FIRST_ID, ObjectId, ObjectKind, StoreError};

impl ObjectMap<'_> {
    /// Creates an empty partition.
    pub(crate) fn create_partition(&mut self, wanted: Option<u64>) -> Result<u64, StoreError> {
        let id = self.choose_partition(wanted)?;
        let serial = self.next_serial()?;
        let mut row = PartitionRow {
            kind: PartitionKind::Primary.code(),
            serial,
            attributes: serial,
            source: 0,
            next_object: FIRST_ID,
            objects: 0,
            used: 0,
            quotas: self.root()?.quotas,
            created: 0,
            attributes_modified: 0,
            data_modified: 0,
        };
        self.stamp(&mut row.created);
        self.add_partition(id, row)?;
        Ok(id)
    }

    /// Returns an id for a new partition.
    pub(super) fn choose_partition(&mut self, wanted: Option<u64>) -> Result<u64, StoreError> {
        let is_used = |map: &Self, id| match map.partition(id) {
            Ok(_) => Ok(true),
            Err(StoreError::NoSuchPartition(_)) => Ok(false),
            Err(error) => Err(error),
        };
        let root = self.root()?;
        let id = self.choose(wanted, root.next_partition, is_used)?;
        if wanted.is_none() {
            self.put_root(RootRow { next_partition: id.saturating_add(1), ..root });
        }
        Ok(id)
    }

    /// Refuses an id that a new partition cannot have, and a partition too many.
    pub(crate) fn check_new_partition(&mut self, wanted: Option<u64>) -> Result<(), StoreError> {
        self.choose_partition(wanted)?;
        let root = self.root()?;
        let count = root.partitions.saturating_add(1);
        quotas::check(ObjectId::ROOT, QuotaKind::PartitionCount, count, root.partition_quota)
    }

    /// Adds a partition to the root.
    pub(super) fn add_partition(&mut self, id: u64, row: PartitionRow) -> Result<(), StoreError> {
        let mut root = self.root()?;
        root.partitions = root.partitions.saturating_add(1);
        let limit = root.partition_quota;
        quotas::check(ObjectId::ROOT, QuotaKind::PartitionCount, root.partitions, limit)?;
        self.put_root(root);
        self.put_partition(id, row)
    }

    /// Removes a partition; with `with_contents` also one with objects, which are reclaimed later.
    pub(crate) fn remove_partition(
        &mut self,
        id: u64,
        with_contents: bool,
    ) -> Result<(), StoreError> {
        let row = self.partition(id)?;
        if row.objects > 0 && !with_contents {
            return Err(StoreError::PartitionNotEmpty(id));
        }
        let mut root = self.root()?;
        root.partitions = root.partitions.saturating_sub(1);
        self.put_root(root);
        self.rows.put(RowKey::Partition(root.serial, id), None);
        self.drop_partition(&row)
    }

    /// Lets the rows of a partition be reclaimed.
    pub(super) fn drop_partition(&mut self, row: &PartitionRow) -> Result<(), StoreError> {
        self.drop_attributes(row.attributes)?;
        self.rows.put(RowKey::Accessed(row.serial), None);
        if row.objects > 0 {
            self.put_removed(RemovedRows::Objects, row.serial);
        }
        Ok(())
    }

    /// Removes all partitions and the attributes and quotas of the root.
    pub(crate) fn remove_all(&mut self) -> Result<(), StoreError> {
        let old = self.root()?;
        let serial = self.next_serial()?;
        self.put_removed(RemovedRows::Attributes, old.serial);
        self.put_removed(RemovedRows::Partitions, old.serial);
        self.rows.put(RowKey::Accessed(old.serial), None);
        let mut root = RootRow {
            serial,
            next_serial: self.root()?.next_serial,
            next_partition: FIRST_ID,
            partitions: 0,
            partition_quota: u64::MAX,
            quotas: crate::format::QuotaFields::NONE,
            attributes_modified: 0,
        };
        self.stamp(&mut root.attributes_modified);
        self.put_root(root);
        Ok(())
    }

    /// Creates an empty user object or collection.
    pub(crate) fn create(
        &mut self,
        partition: u64,
        wanted: Option<u64>,
        kind: ObjectKind,
    ) -> Result<u64, StoreError> {
        let owner = self.writable_partition(partition)?;
        let serial = self.next_serial()?;
        let mut row = ObjectRow {
            kind: if kind == ObjectKind::Collection { COLLECTION } else { USER_OBJECT },
            serial,
            attributes: serial,
            data: serial,
            length: 0,
            used: 0,
            quota: owner.quotas.length,
            created: 0,
            attributes_modified: 0,
            data_modified: 0,
        };
        self.stamp(&mut row.created);
        self.add_object(partition, owner, wanted, row)
    }

    /// Adds an object to a partition, and returns its id.
    pub(super) fn add_object(
        &mut self,
        partition: u64,
        mut owner: PartitionRow,
        wanted: Option<u64>,
        row: ObjectRow,
    ) -> Result<u64, StoreError> {
        let is_used = |map: &Self, id| {
            let key = RowKey::Object(owner.serial, id);
            Ok(map.rows.get(key, ObjectRow::decode)?.is_some())
        };
        let id = self.choose(wanted, owner.next_object, is_used)?;
        if wanted.is_none() {
            owner.next_object = id + 1;
        }
        owner.objects = owner.objects.saturating_add(1);
        owner.used = owner.used.saturating_add(row.used);
        let name = ObjectId::of_partition(partition);
        quotas::check(name, QuotaKind::ObjectCount, owner.objects, owner.quotas.objects)?;
        if row.used > 0 {
            quotas::check_capacity(partition, &owner, owner.used)?;
        }
        self.stamp(&mut owner.data_modified);
        self.put_partition(partition, owner)?;
        self.rows.put(RowKey::Object(owner.serial, id), Some(row.encode()));
        Ok(id)
    }

    /// Returns `wanted` if it is free, or else the first free id from `next` on.
    fn choose(
        &self,
        wanted: Option<u64>,
        next: u64,
        is_used: impl Fn(&Self, u64) -> Result<bool, StoreError>,
    ) -> Result<u64, StoreError> {
        let mut id = wanted.unwrap_or(next);
        // The last id is the end of ranges of keys.
        while (FIRST_ID..u64::MAX).contains(&id) {
            if !is_used(self, id)? {
                return Ok(id);
            }
            if wanted.is_some() {
                return Err(StoreError::IdInUse(id));
            }
            id += 1;
        }
        Err(StoreError::InvalidId(id))
    }

    /// Removes a user object; its extents and attributes are reclaimed later.
    pub(crate) fn remove(&mut self, id: ObjectId) -> Result<(), StoreError> {
        self.remove_of_kind(id, ObjectKind::User, true)
    }

    /// Removes a collection; with `with_members` also one that has members, which stay.
    pub(crate) fn remove_collection(
        &mut self,
        id: ObjectId,
        with_members: bool,
    ) -> Result<(), StoreError> {
        self.remove_of_kind(id, ObjectKind::Collection, with_members)
    }

    fn remove_of_kind(
        &mut self,
        id: ObjectId,
        kind: ObjectKind,
        with_members: bool,
    ) -> Result<(), StoreError> {
        let mut owner = self.writable_partition(id.partition)?;
        let row = of_kind(id, self.object_in(&owner, id)?, kind)?;
        if !with_members && self.has_members(row.serial)? {
            return Err(StoreError::CollectionNotEmpty(id));
        }
        owner.objects = owner.objects.saturating_sub(1);
        owner.used = owner.used.saturating_sub(row.used);
        self.stamp(&mut owner.data_modified);
        self.put_partition(id.partition, owner)?;
        self.drop_object(owner.serial, id.object, &row)
    }

    /// Removes the row of an object, and lets its other rows be reclaimed.
    pub(super) fn drop_object(
        &mut self,
        partition_serial: u64,
        id: u64,
        row: &ObjectRow,
    ) -> Result<(), StoreError> {
        self.rows.put(RowKey::Object(partition_serial, id), None);
        self.rows.put(RowKey::Accessed(row.serial), None);
        self.drop_attributes(row.attributes)?;
        match row.kind {
            COLLECTION if self.has_members(row.serial)? => {
                self.put_removed(RemovedRows::Members, row.serial);
                Ok(())
            }
            COLLECTION => Ok(()),
            _ => {
                self.drop_data(row.data)?;
                self.drop_memberships(row.serial, id)
            }
        }
    }

    pub(super) fn put_removed(&mut self, rows: RemovedRows, serial: u64) {
        self.rows.put(RowKey::Removed(rows, serial), Some(Default::default()));
    }
}
