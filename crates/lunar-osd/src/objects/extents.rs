//! Extent maps: the bytes of objects in blobs, and the references of blobs.

use super::{ObjectMap, OpenObject};
use crate::format::{BLOB_BYTES_MAX, BlobRow, ExtentRow, RowKey};
use crate::index::damaged;
use crate::{ObjectId, StoreError};
use std::ops::Range;

/// Maximum length of an object.
pub(crate) const OBJECT_BYTES_MAX: u64 = i64::MAX as u64;

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

    /// Parses a row.
    pub(crate) fn parse(key: RowKey, value: &[u8]) -> Result<Self, StoreError> {
        let (RowKey::Extent(_, offset), Some(row)) = (key, ExtentRow::decode(value)) else {
            return Err(damaged(key));
        };
        let end = u64::from(row.start) + u64::from(row.len);
        let object_end = offset.checked_add(u64::from(row.len));
        let fits = row.len > 0
            && end <= BLOB_BYTES_MAX
            && object_end.is_some_and(|end| end <= OBJECT_BYTES_MAX);
        fits.then_some(Self { offset, row }).ok_or_else(|| damaged(key))
    }
}

impl ObjectMap<'_> {
    /// Returns the first extent that starts from `from` to `to`, exclusive.
    pub(super) fn next_extent(
        &self,
        map: u64,
        from: u64,
        to: u64,
    ) -> Result<Option<MappedExtent>, StoreError> {
        let found = self.rows.next(RowKey::Extent(map, from), RowKey::Extent(map, to))?;
        found.map(|(key, value)| MappedExtent::parse(key, &value)).transpose()
    }

    /// Returns the first extent that overlaps `range`.
    fn overlapping(
        &self,
        map: u64,
        range: &Range<u64>,
    ) -> Result<Option<MappedExtent>, StoreError> {
        let from = RowKey::Extent(map, range.start.saturating_sub(BLOB_BYTES_MAX));
        let before = self.rows.last(from, RowKey::Extent(map, range.start))?;
        if let Some((key, value)) = before {
            let extent = MappedExtent::parse(key, &value)?;
            if extent.end() > range.start && !range.is_empty() {
                return Ok(Some(extent));
            }
        }
        self.next_extent(map, range.start, range.end)
    }

    /// Returns the extents in `range`, in order, cut to it; `visit` gets each.
    pub(crate) fn extents(
        &self,
        map: u64,
        range: Range<u64>,
        mut visit: impl FnMut(MappedExtent) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let Some(first) = self.overlapping(map, &range)? else { return Ok(()) };
        visit(first.part(&range))?;
        let (from, to) = (first.offset + 1, range.end);
        self.rows.scan(RowKey::Extent(map, from), RowKey::Extent(map, to), |key, value| {
            visit(MappedExtent::parse(key, value)?.part(&range))?;
            Ok(true)
        })
    }

    /// Returns up to `count_max` runs of written bytes, in order, from `offset` on.
    pub(crate) fn written_ranges(
        &self,
        id: ObjectId,
        offset: u64,
        count_max: usize,
    ) -> Result<Vec<Range<u64>>, StoreError> {
        let row = self.user_object(id)?;
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut rest = offset..row.length.max(offset);
        while let Some(extent) = self.overlapping(row.data, &rest)? {
            let part = extent.part(&rest);
            rest.start = part.end();
            let is_full = found.len() >= count_max;
            match found.last_mut() {
                Some(last) if last.end == part.offset => last.end = part.end(),
                _ if is_full => break,
                _ => found.push(part.offset..part.end()),
            }
        }
        Ok(found)
    }

    /// Returns the blob of an extent, which has the bytes of the extent.
    pub(crate) fn blob(&self, extent: &ExtentRow) -> Result<BlobRow, StoreError> {
        let key = RowKey::Blob(extent.blob);
        let blob = self.rows.get(key, BlobRow::decode)?.ok_or_else(|| damaged(key))?;
        let has_bytes = extent.blocks().end <= blob.checksums.len() as u64;
        has_bytes.then_some(blob).ok_or_else(|| damaged(key))
    }

    pub(super) fn reference(&mut self, start: u64) -> Result<(), StoreError> {
        let key = RowKey::Blob(start);
        let mut blob = self.rows.get(key, BlobRow::decode)?.ok_or_else(|| damaged(key))?;
        blob.references = blob.references.checked_add(1).ok_or(StoreError::NoSpace)?;
        self.rows.put(key, Some(blob.encode()));
        Ok(())
    }

    pub(super) fn dereference(&mut self, start: u64) -> Result<(), StoreError> {
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

    pub(super) fn put_extent(&mut self, map: u64, extent: MappedExtent) {
        self.rows.put(RowKey::Extent(map, extent.offset), Some(extent.row.encode()));
    }

    /// Maps bytes of an object, which are a hole, to a new blob.
    pub(crate) fn map_blob(
        &mut self,
        object: &mut OpenObject,
        offset: u64,
        len: u32,
        start: u64,
        blob: &BlobRow,
    ) {
        self.rows.put(RowKey::Blob(start), Some(blob.encode()));
        let row = ExtentRow { blob: start, start: 0, len };
        self.put_extent(object.row.data, MappedExtent { offset, row });
        object.row.used = object.row.used.saturating_add(row.used_bytes());
    }

    /// Makes `range` a hole.
    ///
    /// # Errors
    /// `CommandTooLarge` when the changes do not fit a record.
    pub(crate) fn unmap(
        &mut self,
        object: &mut OpenObject,
        range: Range<u64>,
    ) -> Result<(), StoreError> {
        let map = object.row.data;
        let mut found = self.overlapping(map, &range)?;
        while let Some(extent) = found {
            self.rows.put(RowKey::Extent(map, extent.offset), None);
            object.row.used = object.row.used.saturating_sub(extent.row.used_bytes());
            let sides = [extent.offset..range.start, range.end..extent.end()];
            let mut kept = 0;
            for side in sides.into_iter().filter(|side| side.start < side.end) {
                let part = extent.part(&side);
                self.put_extent(map, part);
                object.row.used = object.row.used.saturating_add(part.row.used_bytes());
                kept += 1;
            }
            match kept {
                0 => self.dereference(extent.row.blob)?,
                2 => self.reference(extent.row.blob)?,
                _ => {}
            }
            self.check_size()?;
            // A search from the start would pass the rows that were removed.
            found = self.next_extent(map, extent.offset + 1, range.end)?;
        }
        Ok(())
    }

    /// Moves all extents from `from` on by `distance` bytes to the front, over a hole.
    pub(crate) fn shift(
        &mut self,
        object: &OpenObject,
        from: u64,
        distance: u64,
    ) -> Result<(), StoreError> {
        let (map, mut next) = (object.row.data, from);
        while let Some(extent) = self.next_extent(map, next, u64::MAX)? {
            next = extent.offset + 1;
            self.rows.put(RowKey::Extent(map, extent.offset), None);
            self.put_extent(map, MappedExtent { offset: extent.offset - distance, ..extent });
            self.check_size()?;
        }
        Ok(())
    }
}
