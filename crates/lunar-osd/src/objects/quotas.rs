//! Quotas: limits of objects, partitions and the root.

use super::{ObjectMap, OpenObject};
use crate::format::{ObjectRow, PartitionRow, QuotaFields, RootRow};
use crate::information::{ObjectQuotas, QuotaKind};
use crate::{ObjectId, StoreError};

/// Refuses a count above a limit.
pub(super) fn check(
    owner: ObjectId,
    quota: QuotaKind,
    count: u64,
    limit: u64,
) -> Result<(), StoreError> {
    match count > limit {
        true => Err(StoreError::QuotaExceeded { owner, quota, limit }),
        false => Ok(()),
    }
}

impl OpenObject {
    /// Refuses growth beyond a quota. A quota that is lower than what is in use forbids growth
    /// only.
    pub(crate) fn check_growth(&self) -> Result<(), StoreError> {
        let Self { id, row, partition, before } = self;
        if row.length > before.length {
            check(*id, QuotaKind::ObjectLength, row.length, row.quota)?;
        }
        if row.used > before.used {
            let used = partition.used.saturating_sub(before.used).saturating_add(row.used);
            check_capacity(id.partition, partition, used)?;
        }
        Ok(())
    }
}

/// Refuses `used` bytes of a partition above its quota.
pub(super) fn check_capacity(
    id: u64,
    partition: &PartitionRow,
    used: u64,
) -> Result<(), StoreError> {
    let owner = ObjectId::of_partition(id);
    check(owner, QuotaKind::Capacity, used, partition.quotas.capacity)
}

fn field(quotas: &mut QuotaFields, quota: QuotaKind) -> Option<&mut u64> {
    match quota {
        QuotaKind::ObjectLength => Some(&mut quotas.length),
        QuotaKind::Capacity => Some(&mut quotas.capacity),
        QuotaKind::ObjectCount => Some(&mut quotas.objects),
        QuotaKind::Memberships => Some(&mut quotas.memberships),
        QuotaKind::PartitionCount => None,
    }
}

impl ObjectMap<'_> {
    /// Sets a limit. It may be lower than what is in use.
    ///
    /// # Errors
    /// `WrongObjectKind` if the owner has no such quota.
    pub(crate) fn set_quota(
        &mut self,
        owner: ObjectId,
        quota: QuotaKind,
        limit: u64,
    ) -> Result<(), StoreError> {
        let wrong = || StoreError::WrongObjectKind(owner);
        match owner {
            ObjectId::ROOT => {
                let mut row = self.root()?;
                match field(&mut row.quotas, quota) {
                    Some(field) => *field = limit,
                    None => row.partition_quota = limit,
                }
                self.stamp(&mut row.attributes_modified);
                self.put_root(row);
                Ok(())
            }
            ObjectId { partition: id, object: 0 } => {
                let mut row = self.writable_partition(id)?;
                *field(&mut row.quotas, quota).ok_or_else(wrong)? = limit;
                self.stamp(&mut row.attributes_modified);
                self.put_partition(id, row)
            }
            id => {
                let mut object = self.open(id)?;
                if quota != QuotaKind::ObjectLength || object.row.kind != super::USER_OBJECT {
                    return Err(wrong());
                }
                object.row.quota = limit;
                self.stamp(&mut object.row.attributes_modified);
                self.put_open(object)
            }
        }
    }
}

const NO_QUOTAS: ObjectQuotas = ObjectQuotas {
    object_length: u64::MAX,
    capacity: u64::MAX,
    object_count: u64::MAX,
    memberships: u64::MAX,
    partition_count: u64::MAX,
};

fn of_fields(fields: &QuotaFields) -> ObjectQuotas {
    ObjectQuotas {
        object_length: fields.length,
        capacity: fields.capacity,
        object_count: fields.objects,
        memberships: fields.memberships,
        ..NO_QUOTAS
    }
}

pub(super) fn of_root(row: &RootRow) -> ObjectQuotas {
    ObjectQuotas { partition_count: row.partition_quota, ..of_fields(&row.quotas) }
}

pub(super) fn of_partition(row: &PartitionRow) -> ObjectQuotas {
    of_fields(&row.quotas)
}

pub(super) fn of_object(row: &ObjectRow) -> ObjectQuotas {
    ObjectQuotas { object_length: row.quota, ..NO_QUOTAS }
}
