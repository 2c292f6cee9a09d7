//! Collections: references of objects to them, and their members.

use super::{ObjectMap, quotas};
use crate::format::{MemberRow, MembershipRow, RowKey};
use crate::index::damaged;
use crate::information::QuotaKind;
use crate::{ObjectId, StoreError};

/// Maximum number of references of an object to collections, whatever the quota says: a removal of
/// the object removes them in one record.
pub(crate) const MEMBERSHIPS_MAX: u64 = 1024;

/// The last number of a reference. OSD-2 §7.1.2.
const NUMBER_MAX: u32 = 0xffff_ff00;

impl ObjectMap<'_> {
    /// Makes reference `number` of a user object lead to a collection of its partition, or to none.
    pub(crate) fn set_membership(
        &mut self,
        id: ObjectId,
        number: u32,
        collection: Option<u64>,
    ) -> Result<(), StoreError> {
        if number == 0 || number > NUMBER_MAX {
            return Err(StoreError::InvalidNumber(number));
        }
        let object = self.user_object(id)?;
        self.modify_attributes(id)?;
        let key = RowKey::Membership(object.serial, number);
        if let Some(old) = self.rows.get(key, MembershipRow::decode)? {
            self.rows.put(key, None);
            self.remove_reference(old.serial, id.object)?;
        }
        let Some(collection) = collection else { return Ok(()) };
        let serial = self.collection(ObjectId::new(id.partition, collection))?.serial;
        let count = self.membership_count(object.serial)? + 1;
        let limit = self.partition(id.partition)?.quotas.memberships.min(MEMBERSHIPS_MAX);
        quotas::check(id, QuotaKind::Memberships, count, limit)?;
        self.put_membership(object.serial, id.object, number, MembershipRow { collection, serial })
    }

    /// Adds a reference, in both directions.
    pub(super) fn put_membership(
        &mut self,
        object_serial: u64,
        id: u64,
        number: u32,
        row: MembershipRow,
    ) -> Result<(), StoreError> {
        self.rows.put(RowKey::Membership(object_serial, number), Some(row.encode()));
        let key = RowKey::Member(row.serial, id);
        let member = self.rows.get(key, MemberRow::decode)?;
        let mut member = member.unwrap_or(MemberRow { serial: object_serial, count: 0 });
        member.count = member.count.checked_add(1).ok_or_else(|| damaged(key))?;
        self.rows.put(key, Some(member.encode()));
        Ok(())
    }

    /// Removes a reference to a collection from its member.
    fn remove_reference(&mut self, collection_serial: u64, id: u64) -> Result<(), StoreError> {
        let key = RowKey::Member(collection_serial, id);
        let mut row = self.rows.get(key, MemberRow::decode)?.ok_or_else(|| damaged(key))?;
        row.count = row.count.saturating_sub(1);
        self.rows.put(key, (row.count > 0).then(|| row.encode()));
        Ok(())
    }

    /// Returns the next reference of an object from `number` on, whether void or not.
    pub(super) fn next_membership(
        &self,
        object_serial: u64,
        number: u32,
    ) -> Result<Option<(u32, MembershipRow)>, StoreError> {
        let from = RowKey::Membership(object_serial, number);
        let to = RowKey::Membership(object_serial, u32::MAX);
        match self.rows.next(from, to)? {
            None => Ok(None),
            Some((key, value)) => match (key, MembershipRow::decode(&value)) {
                (RowKey::Membership(_, number), Some(row)) => Ok(Some((number, row))),
                _ => Err(damaged(key)),
            },
        }
    }

    fn membership_count(&self, object_serial: u64) -> Result<u64, StoreError> {
        let (mut next, mut count) = (0, 0);
        while let Some((number, _)) = self.next_membership(object_serial, next)? {
            (next, count) = (number + 1, count + 1);
        }
        Ok(count)
    }

    /// Returns the references of a user object: numbers and ids of collections.
    pub(crate) fn memberships(&self, id: ObjectId) -> Result<Vec<(u32, u64)>, StoreError> {
        let serial = self.user_object(id)?.serial;
        let (mut next, mut found) = (0, Vec::new());
        while let Some((number, row)) = self.next_membership(serial, next)? {
            next = number + 1;
            match self.collection(ObjectId::new(id.partition, row.collection)) {
                Ok(collection) if collection.serial == row.serial => {
                    found.push((number, row.collection));
                }
                // The collection was removed; the reference will be.
                Ok(_) | Err(StoreError::NoSuchObject(_) | StoreError::WrongObjectKind(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    pub(super) fn has_members(&self, collection_serial: u64) -> Result<bool, StoreError> {
        Ok(self.next_member(collection_serial, 0)?.is_some())
    }

    /// Returns the first member of a collection from `id` on.
    pub(crate) fn next_member(
        &self,
        collection_serial: u64,
        id: u64,
    ) -> Result<Option<(u64, MemberRow)>, StoreError> {
        let from = RowKey::Member(collection_serial, id);
        match self.rows.next(from, RowKey::Member(collection_serial, u64::MAX))? {
            None => Ok(None),
            Some((key, value)) => match (key, MemberRow::decode(&value)) {
                (RowKey::Member(_, id), Some(row)) => Ok(Some((id, row))),
                _ => Err(damaged(key)),
            },
        }
    }

    /// Removes all references of an object.
    pub(super) fn drop_memberships(
        &mut self,
        object_serial: u64,
        id: u64,
    ) -> Result<(), StoreError> {
        while let Some((number, row)) = self.next_membership(object_serial, 0)? {
            self.rows.put(RowKey::Membership(object_serial, number), None);
            self.remove_reference(row.serial, id)?;
        }
        Ok(())
    }

    /// Removes a member of a removed collection, and its references.
    pub(super) fn drop_member(
        &mut self,
        collection_serial: u64,
        id: u64,
        value: &[u8],
    ) -> Result<(), StoreError> {
        let key = RowKey::Member(collection_serial, id);
        let member = MemberRow::decode(value).ok_or_else(|| damaged(key))?;
        self.rows.put(key, None);
        let mut next = 0;
        while let Some((number, row)) = self.next_membership(member.serial, next)? {
            next = number + 1;
            if row.serial == collection_serial {
                self.rows.put(RowKey::Membership(member.serial, number), None);
            }
        }
        Ok(())
    }
}
