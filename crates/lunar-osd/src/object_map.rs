//! Objects, their extents and their blobs, as rows.

use crate::format::{BLOB_BYTES_MAX, BlobRow, ExtentRow, ObjectRow, PartitionRow, RootRow, RowKey};
use crate::index::{RowEditor, damaged};
use crate::{FIRST_ID, ObjectId, StoreError};
use std::ops::Range;

/// The number under which the attributes of the root are stored.
const ROOT_SERIAL: u64 = 1;

/// Maximum length of an object.
pub(crate) const OBJECT_BYTES_MAX: u64 = i64::MAX as u64;

/// Maximum number of rows of a removed object that one record removes.
const RECLAIM_ROWS_MAX: usize = 256;

/// Reads and changes the rows of objects.
pub(crate) struct ObjectMap<'a> {
    rows: RowEditor<'a>,
    /// Blocks of blobs that nothing uses any more.
    freed: Vec<Range<u64>>,
}

/// Bytes of an object that are in a blob.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct MappedExtent {
    /// First byte in the object.
    pub(crate) offset: u64,
    pub(crate) row: ExtentRow,
}

impl MappedExtent {
    fn end(&self) -> u64 {
        self.offset + u64::from(self.row.len)
    }

    /// Returns the part of the extent in `range`, which it overlaps.
    fn part(&self, range: &Range<u64>) -> Self {
        let (offset, end) = (self.offset.max(range.start), self.end().min(range.end));
        let start = self.row.start + (offset - self.offset) as u32;
        Self { offset, row: ExtentRow { start, len: (end - offset) as u32, ..self.row } }
    }
}

impl<'a> ObjectMap<'a> {
    pub(crate) fn new(rows: RowEditor<'a>) -> Self {
        Self { rows, freed: Vec::new() }
    }

    pub(crate) fn rows(&self) -> &RowEditor<'a> {
        &self.rows
    }

    pub(crate) fn rows_mut(&mut self) -> &mut RowEditor<'a> {
        &mut self.rows
    }

    /// Returns the changes, and the blocks that they free.
    pub(crate) fn into_parts(self) -> (RowEditor<'a>, Vec<Range<u64>>) {
        (self.rows, self.freed)
    }

    pub(crate) fn root(&self) -> Result<RootRow, StoreError> {
        let first = RootRow { next_partition: FIRST_ID, next_serial: ROOT_SERIAL + 1 };
        Ok(self.rows.get(RowKey::Root, RootRow::decode)?.unwrap_or(first))
    }

    fn next_serial(&mut self) -> Result<u64, StoreError> {
        let mut root = self.root()?;
        let serial = root.next_serial;
        root.next_serial = serial.checked_add(1).ok_or(StoreError::NoSpace)?;
        self.rows.put(RowKey::Root, Some(root.encode()));
        Ok(serial)
    }

    pub(crate) fn partition(&self, id: u64) -> Result<PartitionRow, StoreError> {
        let found = self.rows.get(RowKey::Partition(id), PartitionRow::decode)?;
        found.ok_or(StoreError::NoSuchPartition(id))
    }

    pub(crate) fn object(&self, id: ObjectId) -> Result<ObjectRow, StoreError> {
        match self.rows.get(RowKey::Object(id), ObjectRow::decode)? {
            Some(row) if row.length > OBJECT_BYTES_MAX => Err(damaged(RowKey::Object(id))),
            Some(row) => Ok(row),
            None => {
                self.partition(id.partition)?;
                Err(StoreError::NoSuchObject(id))
            }
        }
    }

    pub(crate) fn put_object(&mut self, id: ObjectId, row: ObjectRow) {
        self.rows.put(RowKey::Object(id), Some(row.encode()));
    }

    /// Returns the number under which the attributes of an object, partition or the root are.
    pub(crate) fn serial(&self, owner: ObjectId) -> Result<u64, StoreError> {
        match owner {
            ObjectId::ROOT => Ok(ROOT_SERIAL),
            ObjectId { partition, object: 0 } => Ok(self.partition(partition)?.serial),
            object => Ok(self.object(object)?.serial),
        }
    }

    pub(crate) fn create_partition(&mut self, wanted: Option<u64>) -> Result<u64, StoreError> {
        let is_used = |map: &Self, id| match map.partition(id) {
            Ok(_) => Ok(true),
            Err(StoreError::NoSuchPartition(_)) => Ok(false),
            Err(error) => Err(error),
        };
        let id = self.choose(wanted, self.root()?.next_partition, is_used)?;
        if wanted.is_none() {
            let root = RootRow { next_partition: id.saturating_add(1), ..self.root()? };
            self.rows.put(RowKey::Root, Some(root.encode()));
        }
        let row = PartitionRow { serial: self.next_serial()?, next_object: FIRST_ID };
        self.rows.put(RowKey::Partition(id), Some(row.encode()));
        Ok(id)
    }

    pub(crate) fn remove_partition(&mut self, id: u64) -> Result<(), StoreError> {
        let row = self.partition(id)?;
        let (from, to) = (ObjectId::new(id, 0), ObjectId::new(id, u64::MAX));
        if self.rows.next(RowKey::Object(from), RowKey::Object(to))?.is_some() {
            return Err(StoreError::PartitionNotEmpty(id));
        }
        self.rows.put(RowKey::Partition(id), None);
        self.rows.put(RowKey::Removed(row.serial), Some(Default::default()));
        Ok(())
    }

    pub(crate) fn create(
        &mut self,
        partition: u64,
        wanted: Option<u64>,
    ) -> Result<u64, StoreError> {
        let mut row = self.partition(partition)?;
        let is_used = |map: &Self, id| {
            let key = RowKey::Object(ObjectId::new(partition, id));
            Ok(map.rows.get(key, ObjectRow::decode)?.is_some())
        };
        let id = self.choose(wanted, row.next_object, is_used)?;
        if wanted.is_none() {
            row.next_object = id + 1;
            self.rows.put(RowKey::Partition(partition), Some(row.encode()));
        }
        let object = ObjectRow { serial: self.next_serial()?, length: 0 };
        self.put_object(ObjectId::new(partition, id), object);
        Ok(id)
    }

    /// Returns `wanted` if it is free, or else the first free id from `next` on.
    fn choose(
        &self,
        wanted: Option<u64>,
        next: u64,
        is_used: impl Fn(&Self, u64) -> Result<bool, StoreError>,
    ) -> Result<u64, StoreError> {
        let mut id = wanted.unwrap_or(next);
        // The last id is the end of ranges of keys.
        while (FIRST_ID..u64::MAX).contains(&id) {
            if !is_used(self, id)? {
                return Ok(id);
            }
            if wanted.is_some() {
                return Err(StoreError::IdInUse(id));
            }
            id += 1;
        }
        Err(StoreError::InvalidId(id))
    }

    /// Removes an object; its extents and attributes are reclaimed later.
    pub(crate) fn remove(&mut self, id: ObjectId) -> Result<(), StoreError> {
        let row = self.object(id)?;
        self.rows.put(RowKey::Object(id), None);
        self.rows.put(RowKey::Removed(row.serial), Some(Default::default()));
        Ok(())
    }

    /// Removes some rows of a removed object. Returns false if there is none.
    pub(crate) fn reclaim(&mut self) -> Result<bool, StoreError> {
        let found = self.rows.next(RowKey::Removed(0), RowKey::Removed(u64::MAX))?;
        let Some((RowKey::Removed(serial), _)) = found else { return Ok(false) };
        let end = serial + 1;
        for _ in 0..RECLAIM_ROWS_MAX {
            let first = crate::AttributeId::new(0, 0);
            let attributes = (RowKey::Attribute(serial, first), RowKey::Attribute(end, first));
            if let Some(extent) = self.next_extent(serial, 0, u64::MAX)? {
                self.rows.put(RowKey::Extent(serial, extent.offset), None);
                self.dereference(extent.row.blob)?;
            } else if let Some((key, _)) = self.rows.next(attributes.0, attributes.1)? {
                self.rows.put(key, None);
            } else {
                self.rows.put(RowKey::Removed(serial), None);
                break;
            }
        }
        Ok(true)
    }

    /// Returns the first extent that starts from `from` to `to`, exclusive.
    fn next_extent(
        &self,
        serial: u64,
        from: u64,
        to: u64,
    ) -> Result<Option<MappedExtent>, StoreError> {
        let found = self.rows.next(RowKey::Extent(serial, from), RowKey::Extent(serial, to))?;
        found.map(|(key, value)| parse_extent(key, &value)).transpose()
    }

    /// Returns the first extent that overlaps `range`.
    fn overlapping(
        &self,
        serial: u64,
        range: &Range<u64>,
    ) -> Result<Option<MappedExtent>, StoreError> {
        let from = RowKey::Extent(serial, range.start.saturating_sub(BLOB_BYTES_MAX));
        let before = self.rows.last(from, RowKey::Extent(serial, range.start))?;
        if let Some((key, value)) = before {
            let extent = parse_extent(key, &value)?;
            if extent.end() > range.start && !range.is_empty() {
                return Ok(Some(extent));
            }
        }
        self.next_extent(serial, range.start, range.end)
    }

    /// Returns the extents in `range`, in order, cut to it; `visit` gets each.
    pub(crate) fn extents(
        &self,
        serial: u64,
        range: Range<u64>,
        mut visit: impl FnMut(MappedExtent) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut rest = range;
        while let Some(extent) = self.overlapping(serial, &rest)? {
            let part = extent.part(&rest);
            rest.start = part.end();
            visit(part)?;
        }
        Ok(())
    }

    /// Returns the blob of an extent, which has the bytes of the extent.
    pub(crate) fn blob(&self, extent: &ExtentRow) -> Result<BlobRow, StoreError> {
        let key = RowKey::Blob(extent.blob);
        let blob = self.rows.get(key, BlobRow::decode)?.ok_or_else(|| damaged(key))?;
        let has_bytes = extent.blocks().end <= blob.checksums.len() as u64;
        has_bytes.then_some(blob).ok_or_else(|| damaged(key))
    }

    fn reference(&mut self, start: u64) -> Result<(), StoreError> {
        let key = RowKey::Blob(start);
        let mut blob = self.rows.get(key, BlobRow::decode)?.ok_or_else(|| damaged(key))?;
        blob.references = blob.references.checked_add(1).ok_or_else(|| damaged(key))?;
        self.rows.put(key, Some(blob.encode()));
        Ok(())
    }

    fn dereference(&mut self, start: u64) -> Result<(), StoreError> {
        let key = RowKey::Blob(start);
        let mut blob = self.rows.get(key, BlobRow::decode)?.ok_or_else(|| damaged(key))?;
        blob.references -= 1;
        let value = (blob.references > 0).then(|| blob.encode());
        if value.is_none() {
            self.freed.push(blob.blocks(start));
        }
        self.rows.put(key, value);
        Ok(())
    }

    fn put_extent(&mut self, serial: u64, extent: MappedExtent) {
        self.rows.put(RowKey::Extent(serial, extent.offset), Some(extent.row.encode()));
    }

    /// Maps bytes of an object, which are a hole, to a new blob.
    pub(crate) fn map_blob(
        &mut self,
        serial: u64,
        offset: u64,
        len: u32,
        start: u64,
        blob: &BlobRow,
    ) {
        self.rows.put(RowKey::Blob(start), Some(blob.encode()));
        let row = ExtentRow { blob: start, start: 0, len };
        self.put_extent(serial, MappedExtent { offset, row });
    }

    /// Makes `range` a hole.
    ///
    /// # Errors
    /// `CommandTooLarge` when the changes exceed `bytes_max`.
    pub(crate) fn unmap(
        &mut self,
        serial: u64,
        range: Range<u64>,
        bytes_max: usize,
    ) -> Result<(), StoreError> {
        while let Some(extent) = self.overlapping(serial, &range)? {
            self.rows.put(RowKey::Extent(serial, extent.offset), None);
            let sides = [extent.offset..range.start, range.end..extent.end()];
            let mut kept = 0;
            for side in sides.into_iter().filter(|side| side.start < side.end) {
                self.put_extent(serial, extent.part(&side));
                kept += 1;
            }
            match kept {
                0 => self.dereference(extent.row.blob)?,
                2 => self.reference(extent.row.blob)?,
                _ => {}
            }
            self.check_size(bytes_max)?;
        }
        Ok(())
    }

    fn check_size(&self, bytes_max: usize) -> Result<(), StoreError> {
        match self.rows.changed_bytes() {
            bytes if bytes > bytes_max => Err(StoreError::CommandTooLarge(bytes)),
            _ => Ok(()),
        }
    }

    /// Moves all extents from `from` on by `distance` bytes to the front, over a hole.
    pub(crate) fn shift(
        &mut self,
        serial: u64,
        from: u64,
        distance: u64,
        bytes_max: usize,
    ) -> Result<(), StoreError> {
        let mut next = from;
        while let Some(extent) = self.next_extent(serial, next, u64::MAX)? {
            next = extent.offset + 1;
            self.rows.put(RowKey::Extent(serial, extent.offset), None);
            self.put_extent(serial, MappedExtent { offset: extent.offset - distance, ..extent });
            self.check_size(bytes_max)?;
        }
        Ok(())
    }
}

fn parse_extent(key: RowKey, value: &[u8]) -> Result<MappedExtent, StoreError> {
    let (RowKey::Extent(_, offset), Some(row)) = (key, ExtentRow::decode(value)) else {
        return Err(damaged(key));
    };
    let end = u64::from(row.start) + u64::from(row.len);
    let fits = row.len > 0 && end <= BLOB_BYTES_MAX;
    let fits =
        fits && offset.checked_add(u64::from(row.len)).is_some_and(|end| end <= OBJECT_BYTES_MAX);
    fits.then_some(MappedExtent { offset, row }).ok_or_else(|| damaged(key))
}
