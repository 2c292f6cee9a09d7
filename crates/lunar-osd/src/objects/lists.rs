//! Lists of partitions, objects and members.

use super::{COLLECTION, ObjectMap};
use crate::format::{ObjectRow, RowKey};
use crate::index::damaged;
use crate::{ObjectId, ObjectKind, StoreError};

impl ObjectMap<'_> {
    /// Returns up to `count_max` ids of partitions, in order, from `first` on.
    pub(crate) fn list_partitions(
        &self,
        first: u64,
        count_max: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let root = self.root()?.serial;
        let (from, to) = (RowKey::Partition(root, first), RowKey::Partition(root, u64::MAX));
        let mut found = Vec::new();
        self.rows.scan(from, to, |key, _| {
            let RowKey::Partition(_, id) = key else { return Err(damaged(key)) };
            Ok(push(&mut found, count_max, id))
        })?;
        Ok(found)
    }

    /// Returns up to `count_max` ids of objects of a kind, in order, from `first` on.
    pub(crate) fn list_objects(
        &self,
        partition: u64,
        kind: ObjectKind,
        first: u64,
        count_max: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let serial = self.partition(partition)?.serial;
        let (from, to) = (RowKey::Object(serial, first), RowKey::Object(serial, u64::MAX));
        let mut found = Vec::new();
        self.rows.scan(from, to, |key, value| {
            let (RowKey::Object(_, id), Some(row)) = (key, ObjectRow::decode(value)) else {
                return Err(damaged(key));
            };
            let is_wanted = (row.kind == COLLECTION) == (kind == ObjectKind::Collection);
            Ok(!is_wanted || push(&mut found, count_max, id))
        })?;
        Ok(found)
    }

    /// Returns up to `count_max` ids of members of a collection, in order, from `first` on.
    pub(crate) fn list_members(
        &self,
        collection: ObjectId,
        first: u64,
        count_max: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let serial = self.collection(collection)?.serial;
        let (from, to) = (RowKey::Member(serial, first), RowKey::Member(serial, u64::MAX));
        let mut found = Vec::new();
        self.rows.scan(from, to, |key, _| {
            let RowKey::Member(_, id) = key else { return Err(damaged(key)) };
            Ok(push(&mut found, count_max, id))
        })?;
        Ok(found)
    }
}

/// Adds an id to a list that is not full. Returns false for a full list.
fn push(found: &mut Vec<u64>, count_max: usize, id: u64) -> bool {
    let has_room = found.len() < count_max;
    if has_room {
        found.push(id);
    }
    has_room
}
