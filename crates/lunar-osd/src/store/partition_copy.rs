//! Copies of partitions, in several records. A copy that is not complete is reclaimed.

use super::commit::Committer;
use super::{ChangeOptions, JobResult, PartitionCopyTarget};
use crate::{ObjectId, PartitionKind, StoreError};

/// Number of objects that one record copies.
const COPY_OBJECTS_MAX: usize = 1000;

impl Committer {
    /// Copies a partition, and returns the id of the copy.
    pub(super) fn copy_partition(
        &mut self,
        source: u64,
        target: PartitionCopyTarget,
        options: ChangeOptions,
    ) -> JobResult<u64> {
        let mut copy = self.apply(None, false, |map| {
            match target {
                PartitionCopyTarget::Snapshot(id) | PartitionCopyTarget::Clone(id) => {
                    map.check_new_partition(id)?;
                }
                PartitionCopyTarget::Existing(id) if id == source => {
                    return Err(StoreError::WrongObjectKind(ObjectId::of_partition(id)));
                }
                PartitionCopyTarget::Existing(id) => drop(map.partition(id)?),
            }
            map.begin_partition_copy(source)
        })?;
        loop {
            self.check_space()?;
            let (next, has_more) = self.apply(None, false, |map| {
                let mut next = copy;
                let has_more = map.continue_partition_copy(&mut next, COPY_OBJECTS_MAX)?;
                Ok((next, has_more))
            })?;
            copy = next;
            if !has_more {
                break;
            }
        }
        let ChangeOptions { durable, time } = options;
        self.apply(time, durable, |map| match target {
            PartitionCopyTarget::Snapshot(id) => {
                map.end_partition_copy(copy, id, PartitionKind::Snapshot)
            }
            PartitionCopyTarget::Clone(id) => {
                map.end_partition_copy(copy, id, PartitionKind::Clone)
            }
            PartitionCopyTarget::Existing(id) => map.replace_by_copy(copy, id).map(|()| id),
        })
    }
}
