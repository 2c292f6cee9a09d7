//! A method for each command, with the durability of the store and the time of the system.

use super::{ChangeOptions, JobResult, ObjectCommand, ObjectCommandResult, ObjectStore, stopped};
use crate::{AttributeId, ObjectId, QuotaKind, StoreError};
use bytes::Bytes;
use std::time::{SystemTime, UNIX_EPOCH};

impl ObjectStore {
    /// Returns the options of commands that this interface applies.
    fn options(&self) -> ChangeOptions {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        ChangeOptions { durable: !self.write_back, time: u64::try_from(since.as_millis()).ok() }
    }

    async fn execute_one(&self, command: ObjectCommand) -> JobResult<ObjectCommandResult> {
        let results = self.execute(vec![command], self.options()).await?;
        results.first().copied().ok_or_else(stopped)
    }

    /// Creates a partition, and returns its id; the store chooses one if `id` is none.
    ///
    /// # Errors
    /// `IdInUse`, `InvalidId`, and those of the device.
    pub async fn create_partition(&self, id: Option<u64>) -> Result<u64, StoreError> {
        match self.execute_one(ObjectCommand::CreatePartition(id)).await? {
            ObjectCommandResult::Partition(id) => Ok(id),
            _ => Err(stopped()),
        }
    }

    /// Removes an empty partition.
    ///
    /// # Errors
    /// `NoSuchPartition`, `PartitionNotEmpty`, and those of the device.
    pub async fn remove_partition(&self, id: u64) -> Result<(), StoreError> {
        let command = ObjectCommand::RemovePartition { id, with_contents: false };
        self.execute_one(command).await.map(drop)
    }

    /// Creates an empty user object; the store chooses the id if `id` is none.
    ///
    /// # Errors
    /// `NoSuchPartition`, `IdInUse`, `InvalidId`, and those of the device.
    pub async fn create(&self, partition: u64, id: Option<u64>) -> Result<ObjectId, StoreError> {
        match self.execute_one(ObjectCommand::Create { partition, id }).await? {
            ObjectCommandResult::Object(id) => Ok(id),
            _ => Err(stopped()),
        }
    }

    /// Creates an empty collection; the store chooses the id if `id` is none.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    pub async fn create_collection(
        &self,
        partition: u64,
        id: Option<u64>,
    ) -> Result<ObjectId, StoreError> {
        match self.execute_one(ObjectCommand::CreateCollection { partition, id }).await? {
            ObjectCommandResult::Object(id) => Ok(id),
            _ => Err(stopped()),
        }
    }

    /// Creates a copy of a user object with its attributes, and returns its name.
    ///
    /// # Errors
    /// The errors of [`create`](Self::create), `NoSuchObject`, `WrongObjectKind`.
    pub async fn copy(
        &self,
        source: ObjectId,
        partition: u64,
        id: Option<u64>,
    ) -> Result<ObjectId, StoreError> {
        let command = ObjectCommand::Copy { source, partition, id, with_attributes: true };
        match self.execute_one(command).await? {
            ObjectCommandResult::Object(id) => Ok(id),
            _ => Err(stopped()),
        }
    }

    /// Makes reference `number` of a user object lead to a collection, or to none.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `WrongObjectKind`, `InvalidNumber`; `QuotaExceeded` for
    /// the number of references, and those of the device.
    pub async fn set_membership(
        &self,
        object: ObjectId,
        number: u32,
        collection: Option<u64>,
    ) -> Result<(), StoreError> {
        let command = ObjectCommand::SetMembership { object, number, collection };
        self.execute_one(command).await.map(drop)
    }

    /// Sets a quota; `u64::MAX` ends it. What is in use beyond it stays.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`; `WrongObjectKind` if the owner has no such quota, and
    /// those of the device.
    pub async fn set_quota(
        &self,
        owner: ObjectId,
        quota: QuotaKind,
        limit: u64,
    ) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::SetQuota { owner, quota, limit }).await.map(drop)
    }

    /// Removes an object with its attributes. Its space is free after a while.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, and those of the device.
    pub async fn remove(&self, object: ObjectId) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::Remove(object)).await.map(drop)
    }

    /// Writes `data` from byte `offset` on.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `OutOfRange`, `NoSpace`; `Damaged` if the other bytes of
    /// a block are damaged; those of the device.
    pub async fn write(
        &self,
        object: ObjectId,
        offset: u64,
        data: Bytes,
    ) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::Write { object, offset, data }).await.map(drop)
    }

    /// Writes `data` at the end of the object, and returns the first byte.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub async fn append(&self, object: ObjectId, data: Bytes) -> Result<u64, StoreError> {
        match self.execute_one(ObjectCommand::Append { object, data }).await? {
            ObjectCommandResult::Offset(offset) => Ok(offset),
            _ => Err(stopped()),
        }
    }

    /// Makes `len` bytes zero and frees their space.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write), and `CommandTooLarge`.
    pub async fn clear(&self, object: ObjectId, offset: u64, len: u64) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::Clear { object, offset, len }).await.map(drop)
    }

    /// Removes `len` bytes; those behind them move to the front.
    ///
    /// # Errors
    /// `OutOfRange` if `offset` is beyond the end; those of [`clear`](Self::clear).
    pub async fn punch(&self, object: ObjectId, offset: u64, len: u64) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::Punch { object, offset, len }).await.map(drop)
    }

    /// Sets the logical length.
    ///
    /// # Errors
    /// The errors of [`clear`](Self::clear).
    pub async fn set_length(&self, object: ObjectId, length: u64) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::SetLength { object, length }).await.map(drop)
    }

    /// Sets an attribute of an object, a partition or the root; none removes it.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `AttributeTooLong`, and those of the device.
    pub async fn set_attribute(
        &self,
        owner: ObjectId,
        id: AttributeId,
        value: Option<Bytes>,
    ) -> Result<(), StoreError> {
        self.execute_one(ObjectCommand::SetAttribute { owner, id, value }).await.map(drop)
    }
}
