//! Properties of objects, from their rows.

use super::{COLLECTION, ObjectMap, quotas};
use crate::format::{AccessedRow, RowKey};
use crate::information::{ObjectInformation, ObjectTimes, PartitionKind};
use crate::{ObjectId, ObjectKind, StoreError};

impl ObjectMap<'_> {
    /// Returns the serial number and the properties of an object, a partition or the root, without
    /// the used bytes of the root.
    pub(crate) fn information(&self, id: ObjectId) -> Result<(u64, ObjectInformation), StoreError> {
        let (serial, mut found) = match id {
            ObjectId::ROOT => self.information_of_root()?,
            ObjectId { object: 0, .. } => self.information_of_partition(id)?,
            _ => self.information_of_object(id)?,
        };
        let accessed = self.accessed(serial)?;
        found.times.attributes_accessed = accessed.attributes;
        found.times.data_accessed = accessed.data;
        Ok((serial, found))
    }

    fn accessed(&self, serial: u64) -> Result<AccessedRow, StoreError> {
        let row = self.rows.get(RowKey::Accessed(serial), AccessedRow::decode)?;
        Ok(row.unwrap_or_default())
    }

    /// Returns the serial number of an object, and the times of access that are stored.
    pub(crate) fn access_times(&self, id: ObjectId) -> Result<(u64, AccessedRow), StoreError> {
        let serial = self.serial(id)?;
        Ok((serial, self.accessed(serial)?))
    }

    fn information_of_root(&self) -> Result<(u64, ObjectInformation), StoreError> {
        let row = self.root()?;
        let times =
            ObjectTimes { attributes_modified: row.attributes_modified, ..ObjectTimes::default() };
        let found = ObjectInformation {
            id: ObjectId::ROOT,
            kind: ObjectKind::Root,
            length: 0,
            used_bytes: 0,
            contained: row.partitions,
            quotas: quotas::of_root(&row),
            times,
            partition_kind: PartitionKind::Primary,
            source: None,
        };
        Ok((row.serial, found))
    }

    fn information_of_partition(
        &self,
        id: ObjectId,
    ) -> Result<(u64, ObjectInformation), StoreError> {
        let row = self.partition(id.partition)?;
        let times = ObjectTimes {
            created: row.created,
            attributes_modified: row.attributes_modified,
            data_modified: row.data_modified,
            ..ObjectTimes::default()
        };
        let found = ObjectInformation {
            id,
            kind: ObjectKind::Partition,
            length: 0,
            used_bytes: row.used,
            contained: row.objects,
            quotas: quotas::of_partition(&row),
            times,
            partition_kind: PartitionKind::from_code(row.kind).unwrap_or(PartitionKind::Primary),
            source: Some(row.source).filter(|id| *id != 0),
        };
        Ok((row.serial, found))
    }

    fn information_of_object(&self, id: ObjectId) -> Result<(u64, ObjectInformation), StoreError> {
        let row = self.object(id)?;
        let is_collection = row.kind == COLLECTION;
        let times = ObjectTimes {
            created: row.created,
            attributes_modified: row.attributes_modified,
            data_modified: row.data_modified,
            ..ObjectTimes::default()
        };
        let found = ObjectInformation {
            id,
            kind: if is_collection { ObjectKind::Collection } else { ObjectKind::User },
            length: row.length,
            used_bytes: row.used,
            contained: 0,
            quotas: quotas::of_object(&row),
            times,
            partition_kind: PartitionKind::Primary,
            source: None,
        };
        Ok((row.serial, found))
    }
}
