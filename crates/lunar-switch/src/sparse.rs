//! Deallocation on virtual disks.

use crate::migration::Change;
use crate::virtual_disk::VirtualDisk;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Clear, Error, ErrorKind, Extent, SpaceUsage, Sparse,
};

/// Length of the range that is cleared at a time on an extent that is being moved.
const CLEAR_BYTES_MAX: u64 = 16 << 20;

fn not_sparse(name: &str) -> Error {
    Error::new(ErrorKind::Medium, name, "it is not sparse")
}

impl VirtualDisk {
    /// Clears the first piece of `ranges`. Returns the first block behind it.
    async fn clear_first(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> Result<u64, Error> {
        let routing = self.routing();
        let first = ranges.iter().find(|range| range.count > 0).copied();
        let Some(first) = first.filter(|first| routing.migration_of(*first).is_some()) else {
            let sparse = routing.joined.sparse().ok_or_else(|| not_sparse(self.name()))?;
            return sparse.clear_piece(ranges, clear, durable).await;
        };
        drop(routing);
        let piece_blocks = CLEAR_BYTES_MAX / u64::from(self.geometry().block_bytes);
        let piece =
            BlockRange::new(first.lba, first.count.min(piece_blocks - first.lba % piece_blocks));
        let change = match clear {
            Clear::Unmap => Change::Unmap { durable },
            Clear::Zero { may_unmap } => Change::Zero { may_unmap, durable },
        };
        self.change(piece, change).await?;
        Ok(piece.lba + piece.count)
    }
}

impl Sparse for VirtualDisk {
    fn unmap(&self, range: BlockRange, durable: bool) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.change(range, Change::Unmap { durable }))
    }

    fn write_zeroes(
        &self,
        range: BlockRange,
        may_unmap: bool,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.change(range, Change::Zero { may_unmap, durable }))
    }

    /// Clears one piece of one range. With `durable`, each piece is durable: the last one may lie
    /// on another extent.
    fn clear_piece(
        &self,
        ranges: Vec<BlockRange>,
        clear: Clear,
        durable: bool,
    ) -> BoxFuture<'_, Result<u64, Error>> {
        Box::pin(self.clear_first(ranges, clear, durable))
    }

    fn status(
        &self,
        range: BlockRange,
        extents_max: usize,
    ) -> BoxFuture<'_, Result<Vec<Extent>, Error>> {
        let routing = self.routing();
        Box::pin(async move {
            let sparse = routing.joined.sparse().ok_or_else(|| not_sparse(self.name()))?;
            sparse.status(range, extents_max).await
        })
    }

    fn granularity_bytes(&self) -> u32 {
        let routing = self.routing();
        let sparse = routing.joined.sparse();
        sparse.map_or(self.geometry().block_bytes, Sparse::granularity_bytes)
    }

    fn space_usage(&self) -> Result<Option<SpaceUsage>, Error> {
        self.routing().joined.sparse().map_or(Ok(None), Sparse::space_usage)
    }
}
