//! Lists of partitions, objects and members.

use super::{COLLECTION, ObjectMap};
use crate::format::{ObjectRow, RowKey};
use crate::index::damaged;
use crate::{FIRST_ID, ObjectId, ObjectKind, StoreError};

impl ObjectMap<'_> {
    /// Returns up to `count_max` ids of partitions, in order, from `first` on.
    pub(crate) fn list_partitions(
        &self,
        first: u64,
        count_max: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let root = self.root()?.serial;
        let (mut next, mut found) = (first.max(FIRST_ID), Vec::new());
        let end = RowKey::Partition(root, u64::MAX);
        while found.len() < count_max {
            let Some((key, _)) = self.rows.next(RowKey::Partition(root, next), end)? else { break };
            let RowKey::Partition(_, id) = key else { return Err(damaged(key)) };
            found.push(id);
            next = id + 1;
        }
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
        let (mut next, mut found) = (first.max(FIRST_ID), Vec::new());
        let end = RowKey::Object(serial, u64::MAX);
        while found.len() < count_max {
            let row = self.rows.next(RowKey::Object(serial, next), end)?;
            let Some((key, value)) = row else { break };
            let (RowKey::Object(_, id), Some(row)) = (key, ObjectRow::decode(&value)) else {
                return Err(damaged(key));
            };
            if (row.kind == COLLECTION) == (kind == ObjectKind::Collection) {
                found.push(id);
            }
            next = id + 1;
        }
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
        let (mut next, mut found) = (first, Vec::new());
        while found.len() < count_max {
            let Some((id, _)) = self.next_member(serial, next)? else { break };
            found.push(id);
            next = id + 1;
        }
        Ok(found)
    }
}
