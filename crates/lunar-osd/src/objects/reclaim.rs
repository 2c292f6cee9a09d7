//! Removal of the rows of removed objects, some at a time.

use super::{MappedExtent, ObjectMap};
use crate::format::{ObjectRow, PartitionRow, RemovedRows, RowKey};
use crate::index::damaged;
use crate::{AttributeId, StoreError};

/// Maximum number of rows that one record removes.
const RECLAIM_ROWS_MAX: usize = 256;

impl ObjectMap<'_> {
    /// Removes some rows of removed objects. Returns false if there is none.
    pub(crate) fn reclaim(&mut self) -> Result<bool, StoreError> {
        let (first, last) = (RemovedRows::Attributes, RemovedRows::Partitions);
        let range = (RowKey::Removed(first, 0), RowKey::Removed(last, u64::MAX));
        let Some((key, _)) = self.rows.next(range.0, range.1)? else { return Ok(false) };
        let RowKey::Removed(kind, serial) = key else { return Err(damaged(key)) };
        for _ in 0..RECLAIM_ROWS_MAX {
            if self.rows.changed_bytes() > self.bytes_max / 2 {
                break;
            }
            let found = match kind {
                RemovedRows::Attributes => self.drop_next_attribute(serial)?,
                RemovedRows::Data => self.drop_next_extent(serial)?,
                RemovedRows::Members => self.drop_next_member(serial)?,
                RemovedRows::Objects => self.drop_next_object(serial)?,
                RemovedRows::Partitions => self.drop_next_partition(serial)?,
            };
            if !found {
                self.rows.put(key, None);
                break;
            }
        }
        Ok(true)
    }

    fn drop_next_attribute(&mut self, serial: u64) -> Result<bool, StoreError> {
        let first = AttributeId::new(0, 0);
        let end = RowKey::Attribute(serial.saturating_add(1), first);
        let Some((key, _)) = self.rows.next(RowKey::Attribute(serial, first), end)? else {
            return Ok(false);
        };
        self.rows.put(key, None);
        Ok(true)
    }

    fn drop_next_extent(&mut self, serial: u64) -> Result<bool, StoreError> {
        let end = RowKey::Extent(serial, u64::MAX);
        let Some((key, value)) = self.rows.next(RowKey::Extent(serial, 0), end)? else {
            return Ok(false);
        };
        self.rows.put(key, None);
        self.dereference(MappedExtent::parse(key, &value)?.row.blob)?;
        Ok(true)
    }

    fn drop_next_object(&mut self, serial: u64) -> Result<bool, StoreError> {
        let end = RowKey::Object(serial, u64::MAX);
        let Some((key, value)) = self.rows.next(RowKey::Object(serial, 0), end)? else {
            return Ok(false);
        };
        let row = ObjectRow::decode(&value).ok_or_else(|| damaged(key))?;
        let RowKey::Object(_, id) = key else { return Err(damaged(key)) };
        self.drop_object(serial, id, &row)?;
        Ok(true)
    }

    fn drop_next_partition(&mut self, root: u64) -> Result<bool, StoreError> {
        let end = RowKey::Partition(root, u64::MAX);
        let Some((key, value)) = self.rows.next(RowKey::Partition(root, 0), end)? else {
            return Ok(false);
        };
        let row = PartitionRow::decode(&value).ok_or_else(|| damaged(key))?;
        self.rows.put(key, None);
        self.drop_partition(&row)?;
        Ok(true)
    }
}
