//! Changed rows in memory, in layers above the index.

use super::{IndexRows, failed};
use crate::StoreError;
use crate::block_io::BLOCK_BYTES;
use crate::format::{ROW_OVERHEAD_BYTES, RowKey};
use bytes::Bytes;
use std::collections::{BTreeMap, btree_map};
use std::iter::Peekable;
use std::ops::Bound::{Excluded, Included};

/// The new value of a row, or none for a row that is removed.
pub(crate) type RowValue = Option<Bytes>;

/// Changes of rows.
#[derive(Debug, Default)]
pub(crate) struct RowOverlay {
    rows: BTreeMap<Bytes, RowValue>,
    bytes: usize,
}

impl RowOverlay {
    pub(crate) fn put(&mut self, key: Bytes, value: RowValue) {
        self.bytes += bytes_of(&key, &value);
        if let Some(old) = self.rows.insert(key.clone(), value) {
            self.bytes -= bytes_of(&key, &old);
        }
    }

    /// Adds the changes of `other`, which are later.
    pub(crate) fn merge(&mut self, other: Self) {
        other.rows.into_iter().for_each(|(key, value)| self.put(key, value));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Bytes, &RowValue)> {
        self.rows.iter()
    }

    /// Returns the number of bytes that the index may need to store the changes: a page for each
    /// row, which is copied, and long rows in pages of twice their length.
    pub(crate) fn index_bytes(&self) -> u64 {
        self.rows.len() as u64 * BLOCK_BYTES + self.bytes as u64 * 2
    }

    /// Returns the length of the changes in a record.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if the changes put a row with this key.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.rows.get(key).is_some_and(Option::is_some)
    }

    fn find(&self, from: &[u8], to: &[u8], last: bool) -> Option<(&Bytes, &RowValue)> {
        if from >= to {
            return None;
        }
        let mut rows = self.rows.range::<[u8], _>((Included(from), Excluded(to)));
        if last { rows.next_back() } else { rows.next() }
    }
}

fn bytes_of(key: &Bytes, value: &RowValue) -> usize {
    ROW_OVERHEAD_BYTES + key.len() + value.as_ref().map_or(0, Bytes::len)
}

/// Rows of the index below changes that replace them.
pub(crate) struct RowLayers<'a> {
    /// The latest changes first.
    pub(crate) overlays: Vec<&'a RowOverlay>,
    pub(crate) index: &'a IndexRows,
}

impl RowLayers<'_> {
    fn get(&self, top: Option<&RowOverlay>, key: &[u8]) -> Result<RowValue, StoreError> {
        let overlays = top.into_iter().chain(self.overlays.iter().copied());
        for overlay in overlays {
            if let Some(value) = overlay.rows.get(key) {
                return Ok(value.clone());
            }
        }
        self.index.get(key)
    }

    /// Returns the rows from `from` to `to`, exclusive.
    fn scan<'b>(
        &'b self,
        top: &'b RowOverlay,
        from: &'b [u8],
        to: &'b [u8],
    ) -> Result<RowScan<'b>, StoreError> {
        let range = (Included(from), Excluded(to.max(from)));
        let overlays = std::iter::once(top).chain(self.overlays.iter().copied());
        let changed = overlays.map(|overlay| overlay.rows.range::<[u8], _>(range).peekable());
        let changed = changed.collect();
        let mut scan = RowScan { changed, index: self.index.range(from, to)?, stored: None };
        scan.advance_index()?;
        Ok(scan)
    }

    fn find(
        &self,
        top: Option<&RowOverlay>,
        from: &[u8],
        to: &[u8],
        last: bool,
    ) -> Result<Option<(Bytes, Bytes)>, StoreError> {
        let (mut from, mut to) = (from.to_vec(), to.to_vec());
        loop {
            let mut best: Option<(Bytes, RowValue)> = None;
            let overlays = top.into_iter().chain(self.overlays.iter().copied());
            let changed = overlays.filter_map(|overlay| overlay.find(&from, &to, last));
            let changed = changed.map(|(key, value)| (key.clone(), value.clone()));
            let stored = self.index.find(&from, &to, last)?.map(|(key, value)| (key, Some(value)));
            for row in changed.chain(stored) {
                let is_better = best.as_ref().is_none_or(|(key, _)| match last {
                    true => row.0 > *key,
                    false => row.0 < *key,
                });
                if is_better {
                    best = Some(row);
                }
            }
            match best {
                None => return Ok(None),
                Some((key, Some(value))) => return Ok(Some((key, value))),
                Some((key, None)) if last => to = key.to_vec(),
                Some((key, None)) => from = [&key[..], &[0]].concat(),
            }
        }
    }
}

/// Rows of all layers in a range, in the order of their keys.
struct RowScan<'a> {
    /// The latest changes first.
    changed: Vec<Peekable<btree_map::Range<'a, Bytes, RowValue>>>,
    index: redb::Range<'static, &'static [u8], &'static [u8]>,
    /// The next row of the index.
    stored: Option<(Bytes, Bytes)>,
}

impl RowScan<'_> {
    /// Reads the next row of the index.
    fn advance_index(&mut self) -> Result<(), StoreError> {
        self.stored = match self.index.next() {
            None => None,
            Some(row) => {
                let (key, value) = row.map_err(failed)?;
                let copy = Bytes::copy_from_slice;
                Some((copy(key.value()), copy(value.value())))
            }
        };
        Ok(())
    }

    /// Returns the next row.
    fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, StoreError> {
        loop {
            let changed = self.changed.iter_mut().filter_map(|rows| rows.peek().map(|row| row.0));
            let stored = self.stored.as_ref().map(|row| &row.0);
            let Some(key) = changed.chain(stored).min().cloned() else { return Ok(None) };
            // The first layer with the key has its value; the others are passed too.
            let mut found: Option<RowValue> = None;
            for rows in &mut self.changed {
                if let Some((_, value)) = rows.next_if(|row| *row.0 == key) {
                    found.get_or_insert_with(|| value.clone());
                }
            }
            if self.stored.as_ref().is_some_and(|row| row.0 == key) {
                let value = self.stored.take().map(|row| row.1);
                found.get_or_insert(value);
                self.advance_index()?;
            }
            if let Some(Some(value)) = found {
                return Ok(Some((key, value)));
            }
        }
    }
}

/// Reads rows, and collects changes above them.
pub(crate) struct RowEditor<'a> {
    changes: RowOverlay,
    below: RowLayers<'a>,
}

impl<'a> RowEditor<'a> {
    pub(crate) fn new(below: RowLayers<'a>) -> Self {
        Self { changes: RowOverlay::default(), below }
    }

    pub(crate) fn into_changes(self) -> RowOverlay {
        self.changes
    }

    pub(crate) fn changed_bytes(&self) -> usize {
        self.changes.bytes
    }

    pub(crate) fn put(&mut self, key: RowKey, value: RowValue) {
        self.changes.put(key.encode().into(), value);
    }

    /// Returns a row; `decode` parses it.
    pub(crate) fn get<T>(
        &self,
        key: RowKey,
        decode: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        let Some(value) = self.below.get(Some(&self.changes), &key.encode())? else {
            return Ok(None);
        };
        decode(&value).map(Some).ok_or_else(|| damaged(key))
    }

    /// Returns the first row from `from` to `to`, exclusive.
    pub(crate) fn next(
        &self,
        from: RowKey,
        to: RowKey,
    ) -> Result<Option<(RowKey, Bytes)>, StoreError> {
        self.find(from, to, false)
    }

    /// Calls `visit` with the rows from `from` to `to`, exclusive, until it returns false.
    pub(crate) fn scan(
        &self,
        from: RowKey,
        to: RowKey,
        mut visit: impl FnMut(RowKey, &[u8]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let (from, to) = (from.encode(), to.encode());
        let mut rows = self.below.scan(&self.changes, &from, &to)?;
        while let Some((key, value)) = rows.next()? {
            if !visit(decode_key(&key)?, &value)? {
                break;
            }
        }
        Ok(())
    }

    /// Returns the last row from `from` to `to`, exclusive.
    pub(crate) fn last(
        &self,
        from: RowKey,
        to: RowKey,
    ) -> Result<Option<(RowKey, Bytes)>, StoreError> {
        self.find(from, to, true)
    }

    fn find(
        &self,
        from: RowKey,
        to: RowKey,
        last: bool,
    ) -> Result<Option<(RowKey, Bytes)>, StoreError> {
        let found = self.below.find(Some(&self.changes), &from.encode(), &to.encode(), last)?;
        let Some((key, value)) = found else { return Ok(None) };
        Ok(Some((decode_key(&key)?, value)))
    }
}

fn decode_key(key: &[u8]) -> Result<RowKey, StoreError> {
    RowKey::decode(key).ok_or_else(|| StoreError::damaged("a key is invalid"))
}

pub(crate) fn damaged(key: RowKey) -> StoreError {
    StoreError::damaged(format!("row {key:?} is invalid"))
}
