//! Disks whose size changes while they are in use.

use crate::{BoxFuture, Error, Geometry};
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations of a disk whose size can be changed.
pub trait Resize: Send + Sync {
    /// Changes the size of the disk; durable when it completes. New blocks read as zeroes. Data
    /// beyond a smaller size is lost: transfers to it that have begun complete first, later ones
    /// fail with `OutOfRange`.
    ///
    /// # Errors
    /// `Open` for a size that is impossible ([`Geometry::new`]) or that this disk cannot set ·
    /// `ReadOnly` · `NoSpace` · `Medium` · `Poisoned`. After an error the size is as before, unless
    /// only the sync failed.
    fn resize(&self, size_bytes: u64) -> BoxFuture<'_, Result<(), Error>>;
}

/// A geometry in which only the number of blocks changes.
#[derive(Debug)]
pub(crate) struct ResizableGeometry {
    first: Geometry,
    block_count: AtomicU64,
}

impl ResizableGeometry {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { first: geometry, block_count: AtomicU64::new(geometry.block_count) }
    }

    pub(crate) fn get(&self) -> Geometry {
        Geometry { block_count: self.block_count.load(Ordering::Acquire), ..self.first }
    }

    /// Returns the geometry with another size.
    pub(crate) fn with_size(&self, device: &str, size_bytes: u64) -> Result<Geometry, Error> {
        let Geometry { block_bytes, physical_block_bytes, .. } = self.first;
        Geometry::new(device, size_bytes, block_bytes, physical_block_bytes)
    }

    pub(crate) fn set(&self, geometry: Geometry) {
        self.block_count.store(geometry.block_count, Ordering::Release);
    }
}
