//! Removal of the rows of removed objects, some at a time.

use super::{MappedExtent, ObjectMap};
use crate::format::{ObjectRow, PartitionRow, RemovedRows, RowKey};
use crate::index::damaged;
use crate::{AttributeId, StoreError};

/// Maximum number of rows that one record removes.
const RECLAIM_ROWS_MAX: usize = 256;

/// Number of rows that the removal of an object itself removes.
const FEW_ROWS: usize = 4;

/// The next row to remove. Nothing adds rows in front of it: they belong to removed objects.
///
/// Without it, each search would pass the rows that were removed since the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReclaimCursor(Option<(RemovedRows, u64, RowKey)>);

const FIRST_ATTRIBUTE: AttributeId = AttributeId::new(0, 0);

/// Returns the range of keys of the rows under a number.
fn range_of(kind: RemovedRows, serial: u64) -> (RowKey, RowKey) {
    let end = serial.saturating_add(1);
    match kind {
        RemovedRows::Attributes => {
            (RowKey::Attribute(serial, FIRST_ATTRIBUTE), RowKey::Attribute(end, FIRST_ATTRIBUTE))
        }
        RemovedRows::Data => (RowKey::Extent(serial, 0), RowKey::Extent(end, 0)),
        RemovedRows::Members => (RowKey::Member(serial, 0), RowKey::Member(end, 0)),
        RemovedRows::Objects => (RowKey::Object(serial, 0), RowKey::Object(end, 0)),
        RemovedRows::Partitions => (RowKey::Partition(serial, 0), RowKey::Partition(end, 0)),
    }
}

impl ObjectMap<'_> {
    /// Removes some rows of removed objects. Returns false if there is none.
    pub(crate) fn reclaim(&mut self, cursor: &mut ReclaimCursor) -> Result<bool, StoreError> {
        let (first, last) = (RemovedRows::Attributes, RemovedRows::Partitions);
        let mut waiting = Vec::new();
        let range = (RowKey::Removed(first, 0), RowKey::Removed(last, u64::MAX));
        self.rows.scan(range.0, range.1, |key, _| {
            waiting.push(key);
            Ok(waiting.len() < RECLAIM_ROWS_MAX)
        })?;
        let mut rest = RECLAIM_ROWS_MAX;
        for key in &waiting {
            let RowKey::Removed(kind, serial) = *key else { return Err(damaged(*key)) };
            if !self.drop_rows(kind, serial, &mut rest, cursor)? {
                break;
            }
            self.rows.put(*key, None);
        }
        Ok(!waiting.is_empty())
    }

    /// Removes up to `rest` rows under a number. Returns true after the last.
    fn drop_rows(
        &mut self,
        kind: RemovedRows,
        serial: u64,
        rest: &mut usize,
        cursor: &mut ReclaimCursor,
    ) -> Result<bool, StoreError> {
        let (first, end) = range_of(kind, serial);
        let mut next = match cursor.0 {
            Some((found_kind, found_serial, next))
                if (found_kind, found_serial) == (kind, serial) =>
            {
                next
            }
            _ => first,
        };
        while *rest > 0 && self.rows.changed_bytes() <= self.bytes_max / 2 {
            let Some((key, value)) = self.rows.next(next, end)? else { return Ok(true) };
            self.drop_row(key, &value)?;
            next = key;
            *rest -= 1;
        }
        cursor.0 = Some((kind, serial, next));
        Ok(false)
    }

    fn drop_row(&mut self, key: RowKey, value: &[u8]) -> Result<(), StoreError> {
        match key {
            RowKey::Attribute(..) => self.rows.put(key, None),
            RowKey::Extent(..) => {
                self.rows.put(key, None);
                self.dereference(MappedExtent::parse(key, value)?.row.blob)?;
            }
            RowKey::Member(collection, id) => self.drop_member(collection, id, value)?,
            RowKey::Object(partition, id) => {
                let row = ObjectRow::decode(value).ok_or_else(|| damaged(key))?;
                self.drop_object(partition, id, &row)?;
            }
            RowKey::Partition(..) => {
                let row = PartitionRow::decode(value).ok_or_else(|| damaged(key))?;
                self.rows.put(key, None);
                self.drop_partition(&row)?;
            }
            _ => return Err(damaged(key)),
        }
        Ok(())
    }

    /// Removes the rows under a number at once if they are few, or else lets them be reclaimed.
    pub(super) fn drop_or_reclaim(
        &mut self,
        kind: RemovedRows,
        serial: u64,
    ) -> Result<(), StoreError> {
        let (mut rest, mut cursor) = (FEW_ROWS, ReclaimCursor::default());
        if !self.drop_rows(kind, serial, &mut rest, &mut cursor)? {
            self.rows.put(RowKey::Removed(kind, serial), Some(Default::default()));
        }
        Ok(())
    }
}
