//! Blobs: references, checksums and blocks.

use super::{CheckProblem, CheckReport};
use crate::StoreError;
use crate::allocator::Allocator;
use crate::block_io::{BLOCK_BYTES, BlockIo};
use crate::format::{BlobRow, ExtentRow, StoreLayout, Superblock};
use crate::store::{SharedStore, recovery};
use lunar_wire::crc32c;
use std::collections::HashMap;

/// The references of a blob.
#[derive(Default)]
struct CheckedBlob {
    extents: u64,
    /// Blocks that the extents use: a blob must have as many.
    blocks: u64,
}

/// Counts references until the blobs are visited, whose keys are behind those of extents.
pub(super) struct BlobWalk {
    io: BlockIo,
    layout: StoreLayout,
    references: HashMap<u64, CheckedBlob>,
    /// Blocks whose owner was found.
    owned: Allocator,
}

impl BlobWalk {
    pub(super) fn new(io: &BlockIo, layout: StoreLayout) -> Result<Self, StoreError> {
        let owned = recovery::allocator_of(&Superblock::read(io)?);
        Ok(Self { io: io.clone(), layout, references: HashMap::new(), owned })
    }

    /// Counts an extent.
    pub(super) fn reference(&mut self, extent: &ExtentRow) {
        let found = self.references.entry(extent.blob).or_default();
        found.extents += 1;
        found.blocks = found.blocks.max(extent.blocks().end);
    }

    /// Verifies a blob. Returns `None` if its row cannot be parsed.
    pub(super) fn visit(
        &mut self,
        report: &mut CheckReport,
        start: u64,
        value: &[u8],
    ) -> Option<()> {
        let row = BlobRow::decode(value)?;
        let blocks = row.blocks(start);
        let counted = self.references.remove(&start).unwrap_or_default();
        let stored = u64::from(row.references);
        if counted.extents != stored || counted.blocks > blocks.end - blocks.start {
            let counted = counted.extents;
            report.add(CheckProblem::WrongReferences { blob: start, counted, stored });
        }
        let data = self.layout.data();
        let is_inside = data.start <= blocks.start && blocks.end <= data.end;
        if !is_inside || !self.owned.claim(blocks.clone()) {
            report.add(CheckProblem::OverlappingBlob(start));
            return Some(());
        }
        report.blobs += 1;
        report.data_bytes += (blocks.end - blocks.start) * BLOCK_BYTES;
        self.verify(report, start, &row);
        Some(())
    }

    fn verify(&self, report: &mut CheckReport, start: u64, row: &BlobRow) {
        let count = row.checksums.len() as u64;
        let Ok(data) = self.io.read_blocking(start, count) else {
            report.add(CheckProblem::DamagedBlock(start));
            return;
        };
        let blocks = data.chunks(BLOCK_BYTES as usize).zip(&row.checksums);
        for (block, _) in (start..).zip(blocks).filter(|(_, (data, sum))| crc32c(data) != **sum) {
            report.add(CheckProblem::DamagedBlock(block));
        }
    }

    /// Reports extents without blobs, and blocks that the bitmap has wrong.
    pub(super) fn finish(&mut self, report: &mut CheckReport, shared: &SharedStore) {
        for (blob, counted) in std::mem::take(&mut self.references) {
            let counted = counted.extents;
            report.add(CheckProblem::WrongReferences { blob, counted, stored: 0 });
        }
        let wrong = self.owned.differences(&shared.allocator());
        for run in wrong {
            let count = run.end - run.start;
            report.add(CheckProblem::WrongBitmap { first: run.start, count });
        }
    }
}
