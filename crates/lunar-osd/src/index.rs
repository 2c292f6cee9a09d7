//! Rows: those since the last checkpoint in memory, the others in redb.

mod chunks;
mod overlay;

pub(crate) use chunks::ChunkFile;
pub(crate) use overlay::{RowEditor, RowLayers, RowOverlay, damaged};

use crate::StoreError;
use bytes::Bytes;
use redb::{Builder, Database, ReadOnlyTable, ReadableDatabase, ReadableTable, TableDefinition};

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");

/// The rows of the last checkpoint.
#[derive(Debug)]
pub(crate) struct Index(Database);

/// A view of the rows of a checkpoint.
pub(crate) struct IndexRows(ReadOnlyTable<&'static [u8], &'static [u8]>);

fn failed(error: impl std::error::Error) -> StoreError {
    StoreError::index(&error)
}

impl Index {
    /// Opens the index, or creates it if `file` is empty.
    pub(crate) fn open(file: ChunkFile, cache_bytes: usize) -> Result<Self, StoreError> {
        let mut builder = Builder::new();
        builder.set_cache_size(cache_bytes);
        Ok(Self(builder.create_with_backend(file).map_err(failed)?))
    }

    pub(crate) fn rows(&self) -> Result<IndexRows, StoreError> {
        let transaction = self.0.begin_read().map_err(failed)?;
        Ok(IndexRows(transaction.open_table(ROWS).map_err(failed)?))
    }

    /// Applies changes and makes them durable, with all that was written to the device before.
    ///
    /// A quick-repair commit stores which pages are free, so that an opening after a crash scans
    /// nothing.
    pub(crate) fn apply<'a>(
        &self,
        changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> Result<(), StoreError> {
        let mut transaction = self.0.begin_write().map_err(failed)?;
        transaction.set_quick_repair(true);
        let mut table = transaction.open_table(ROWS).map_err(failed)?;
        for (key, value) in changes {
            match value {
                Some(value) => drop(table.insert(key, value).map_err(failed)?),
                None => drop(table.remove(key).map_err(failed)?),
            }
        }
        drop(table);
        transaction.commit().map_err(failed)
    }
}

impl IndexRows {
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let found = self.0.get(key).map_err(failed)?;
        Ok(found.map(|value| Bytes::copy_from_slice(value.value())))
    }

    /// Returns the rows from `from` to `to`, exclusive, in the order of the keys.
    fn range(
        &self,
        from: &[u8],
        to: &[u8],
    ) -> Result<redb::Range<'static, &'static [u8], &'static [u8]>, StoreError> {
        // A range that ends before its start would panic.
        self.0.range(from..to.max(from)).map_err(failed)
    }

    /// Calls `visit` with each row, in the order of the keys.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&[u8], &[u8])) -> Result<(), StoreError> {
        for row in self.0.iter().map_err(failed)? {
            let (key, value) = row.map_err(failed)?;
            visit(key.value(), value.value());
        }
        Ok(())
    }

    /// Returns the first row from `from` to `to`, exclusive; with `last` the last one.
    pub(crate) fn find(
        &self,
        from: &[u8],
        to: &[u8],
        last: bool,
    ) -> Result<Option<(Bytes, Bytes)>, StoreError> {
        if from >= to {
            return Ok(None);
        }
        let mut rows = self.0.range(from..to).map_err(failed)?;
        let row = if last { rows.next_back() } else { rows.next() };
        let Some(row) = row else { return Ok(None) };
        let (key, value) = row.map_err(failed)?;
        Ok(Some((Bytes::copy_from_slice(key.value()), Bytes::copy_from_slice(value.value()))))
    }
}
