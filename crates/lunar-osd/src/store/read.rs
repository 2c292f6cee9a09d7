//! Reads, outside the thread of the store.

use super::{ObjectStore, SharedStore, blocking, lock};
use crate::block_io::BLOCK_BYTES;
use crate::format::{BlobRow, RowKey};
use crate::index::{RowEditor, RowLayers};
use crate::objects::{MappedExtent, ObjectMap};
use crate::{AccessKind, AttributeId, ObjectId, ObjectInformation, ObjectKind, StoreError};
use bytes::{Bytes, BytesMut};
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of bytes that one read returns.
const READ_BYTES_MAX: u64 = 64 << 20;

/// Maximum number of objects whose times of access are kept between two checkpoints.
const ACCESS_TIMES_MAX: usize = 16 << 10;

/// The source of some bytes of a read.
enum FoundBytes {
    /// In memory.
    Deferred(Bytes),
    /// On the device: the blocks and their checksums.
    Stored(Range<u64>, Vec<u32>),
}

/// Bytes of an object, and their sources.
struct ReadPlan {
    len: usize,
    pieces: Vec<(MappedExtent, FoundBytes)>,
    /// Keeps the blocks from being used again.
    _reader: Arc<()>,
}

/// Compares the checksums of blocks, which is at least as many.
pub(super) fn verify(data: &[u8], checksums: &[u32]) -> Result<(), StoreError> {
    let found = BlobRow::of(data).checksums;
    match checksums.starts_with(&found) {
        true => Ok(()),
        false => Err(StoreError::damaged("the checksum of a block of data is wrong")),
    }
}

impl SharedStore {
    /// Calls `work` with the committed rows.
    fn look_up<T>(
        &self,
        work: impl FnOnce(&ObjectMap<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let state = self.state();
        let index = self.index()?.rows()?;
        let layers = RowLayers { overlays: state.overlays(), index: &index };
        work(&ObjectMap::new(RowEditor::new(layers)))
    }

    fn plan_read(&self, object: ObjectId, offset: u64, len: u64) -> Result<ReadPlan, StoreError> {
        let _reader = Arc::clone(&lock(&self.readers));
        let state = self.state();
        let index = self.index()?.rows()?;
        let layers = RowLayers { overlays: state.overlays(), index: &index };
        let map = ObjectMap::new(RowEditor::new(layers));
        let row = map.user_object(object)?;
        let start = offset.min(row.length);
        let end = start.saturating_add(len.min(READ_BYTES_MAX)).min(row.length);
        let mut pieces = Vec::new();
        map.extents(row.data, start..end, |extent| {
            let found = match state.deferred(extent.row.blob) {
                Some(data) => FoundBytes::Deferred(data.clone()),
                None => {
                    let (blob, blocks) = (map.blob(&extent.row)?, extent.row.blocks());
                    let start = extent.row.blob.saturating_add(blocks.start);
                    let checksums = &blob.checksums[blocks.start as usize..blocks.end as usize];
                    let end = start.saturating_add(checksums.len() as u64);
                    FoundBytes::Stored(start..end, checksums.to_vec())
                }
            };
            pieces.push((MappedExtent { offset: extent.offset - start, ..extent }, found));
            Ok(())
        })?;
        Ok(ReadPlan { len: (end - start) as usize, pieces, _reader })
    }
}

impl ObjectStore {
    /// Reads up to `len` bytes from `offset` on: fewer at the end of the object, and at most
    /// 64 MiB. Holes read as zeroes.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`; `Damaged` if a checksum is wrong; `Device`, `Index`.
    pub async fn read(&self, object: ObjectId, offset: u64, len: u64) -> Result<Bytes, StoreError> {
        let shared = Arc::clone(&self.shared);
        let plan = blocking(move || shared.plan_read(object, offset, len)).await?;
        let mut out = BytesMut::zeroed(plan.len);
        for (extent, found) in &plan.pieces {
            let start = extent.row.start as usize;
            let (data, start) = match found {
                FoundBytes::Deferred(data) => (data.clone(), start),
                FoundBytes::Stored(blocks, checksums) => {
                    let count = blocks.end - blocks.start;
                    let data = self.shared.io.read(blocks.start, count).await?;
                    verify(&data, checksums)?;
                    (data, start % BLOCK_BYTES as usize)
                }
            };
            let data = data.get(start..).and_then(|data| data.get(..extent.row.len as usize));
            let data = data.ok_or_else(|| StoreError::damaged("a blob is too short"))?;
            out[extent.offset as usize..][..data.len()].copy_from_slice(data);
        }
        Ok(out.freeze())
    }

    /// Returns the logical length of a user object.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `WrongObjectKind`, `Damaged`, `Index`.
    pub async fn length(&self, object: ObjectId) -> Result<u64, StoreError> {
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.look_up(|map| Ok(map.user_object(object)?.length))).await
    }

    /// Returns up to `count_max` runs of bytes of a user object that are written, in order, from
    /// `offset` on; the bytes between them are holes. READ MAP.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `WrongObjectKind`, `Damaged`, `Index`.
    pub async fn written_ranges(
        &self,
        object: ObjectId,
        offset: u64,
        count_max: usize,
    ) -> Result<Vec<Range<u64>>, StoreError> {
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.look_up(|map| map.written_ranges(object, offset, count_max))).await
    }

    /// Returns the properties of an object, a collection, a partition or the root.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `Damaged`, `Index`.
    pub async fn information(&self, id: ObjectId) -> Result<ObjectInformation, StoreError> {
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let (serial, mut found) = shared.look_up(|map| map.information(id))?;
            if let Some((_, times)) = lock(&shared.accessed).get(&serial) {
                let found = &mut found.times;
                found.attributes_accessed = found.attributes_accessed.max(times.attributes);
                found.data_accessed = found.data_accessed.max(times.data);
            }
            if id == ObjectId::ROOT {
                let data = shared.layout.data();
                let free = shared.allocator().all_free_blocks();
                found.used_bytes = (data.end - data.start - free) * BLOCK_BYTES;
            }
            Ok(found)
        })
        .await
    }

    /// Records the time of an access, in milliseconds since 1970-01-01 UTC. The time is stored with
    /// the next checkpoint: it never causes a write of its own, and a power cut loses it. Between
    /// two checkpoints the times of 16,384 objects are kept.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `Damaged`, `Index`.
    pub async fn record_access(
        &self,
        id: ObjectId,
        access: AccessKind,
        time: u64,
    ) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let (serial, before) = shared.look_up(|map| map.access_times(id))?;
            let mut accessed = lock(&shared.accessed);
            if accessed.len() >= ACCESS_TIMES_MAX && !accessed.contains_key(&serial) {
                return Ok(());
            }
            let (_, times) = accessed.entry(serial).or_insert((id, before));
            match access {
                AccessKind::Attributes => times.attributes = time,
                AccessKind::Data => times.data = time,
            }
            Ok(())
        })
        .await
    }

    /// Returns an attribute; none if it was never set.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `Damaged`, `Index`.
    pub async fn attribute(
        &self,
        owner: ObjectId,
        id: AttributeId,
    ) -> Result<Option<Bytes>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let get = move |map: &ObjectMap<'_>| {
            let key = RowKey::Attribute(map.attributes_of(owner)?, id);
            map.rows().get(key, |value| Some(Bytes::copy_from_slice(value)))
        };
        blocking(move || shared.look_up(get)).await
    }

    /// Returns up to `count_max` attributes of a page, in order, from `first` on.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `Damaged`, `Index`.
    pub async fn attributes(
        &self,
        owner: ObjectId,
        first: AttributeId,
        count_max: usize,
    ) -> Result<Vec<(AttributeId, Bytes)>, StoreError> {
        self.attributes_before(owner, first, first.page.checked_add(1), count_max).await
    }

    /// Returns up to `count_max` attributes of all pages, in order, from `first` on.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `Damaged`, `Index`.
    pub async fn attributes_of_pages(
        &self,
        owner: ObjectId,
        first: AttributeId,
        count_max: usize,
    ) -> Result<Vec<(AttributeId, Bytes)>, StoreError> {
        self.attributes_before(owner, first, None, count_max).await
    }

    /// Returns attributes from `first` on, of pages before `end_page` if there is one.
    async fn attributes_before(
        &self,
        owner: ObjectId,
        first: AttributeId,
        end_page: Option<u32>,
        count_max: usize,
    ) -> Result<Vec<(AttributeId, Bytes)>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let get = move |map: &ObjectMap<'_>| {
            let serial = map.attributes_of(owner)?;
            let end = match end_page {
                Some(page) => RowKey::Attribute(serial, AttributeId::new(page, 0)),
                None => RowKey::Attribute(serial.saturating_add(1), AttributeId::new(0, 0)),
            };
            let mut found = Vec::new();
            map.rows().scan(RowKey::Attribute(serial, first), end, |key, value| {
                let RowKey::Attribute(_, id) = key else { return Ok(false) };
                let has_room = found.len() < count_max;
                if has_room {
                    found.push((id, Bytes::copy_from_slice(value)));
                }
                Ok(has_room)
            })?;
            Ok(found)
        };
        blocking(move || shared.look_up(get)).await
    }

    /// Returns up to `count_max` ids of user objects of a partition, in order, from `first` on.
    ///
    /// # Errors
    /// `NoSuchPartition`, `Damaged`, `Index`.
    pub async fn list(
        &self,
        partition: u64,
        first: u64,
        count_max: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let list = move |map: &ObjectMap<'_>| {
            map.list_objects(partition, ObjectKind::User, first, count_max)
        };
        blocking(move || shared.look_up(list)).await
    }

    /// Returns up to `count_max` ids of collections of a partition, in order, from `first` on.
    ///
    /// # Errors
    /// `NoSuchPartition`, `Damaged`, `Index`.
    pub async fn list_collections(
        &self,
        partition: u64,
        first: u64,
        count_max: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let list = move |map: &ObjectMap<'_>| {
            map.list_objects(partition, ObjectKind::Collection, first, count_max)
        };
        blocking(move || shared.look_up(list)).await
    }

    /// Returns up to `count_max` ids of members of a collection, in order, from `first` on.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `WrongObjectKind`, `Damaged`, `Index`.
    pub async fn list_members(
        &self,
        collection: ObjectId,
        first: u64,
        count_max: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let list = move |map: &ObjectMap<'_>| map.list_members(collection, first, count_max);
        blocking(move || shared.look_up(list)).await
    }

    /// Returns the references of a user object: numbers and ids of collections, in order.
    ///
    /// # Errors
    /// `NoSuchPartition`, `NoSuchObject`, `WrongObjectKind`, `Damaged`, `Index`.
    pub async fn memberships(&self, object: ObjectId) -> Result<Vec<(u32, u64)>, StoreError> {
        let shared = Arc::clone(&self.shared);
        blocking(move || shared.look_up(|map| map.memberships(object))).await
    }

    /// Returns up to `count_max` ids of partitions, in order, from `first` on.
    ///
    /// # Errors
    /// `Damaged`, `Index`.
    pub async fn list_partitions(
        &self,
        first: u64,
        count_max: usize,
    ) -> Result<Vec<u64>, StoreError> {
        let shared = Arc::clone(&self.shared);
        let list = move |map: &ObjectMap<'_>| map.list_partitions(first, count_max);
        blocking(move || shared.look_up(list)).await
    }
}
