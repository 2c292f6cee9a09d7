//! Disks whose size changes while they are used.

use crate::{BoxFuture, Error, Geometry};
use std::sync::atomic::{AtomicU64, Ordering};

/// What a disk that can be made longer or shorter can do besides.
pub trait Resize: Send + Sync {
    /// Gives the disk another size; durable when it returns. New blocks read as zeroes. What lies
    /// beyond a smaller size is lost; transfers there that have begun come first, later ones are
    /// `OutOfRange`.
    ///
    /// # Errors
    /// `Open` for a size that is impossible ([`Geometry::new`]), or not in this disk's hands ·
    /// `ReadOnly` · `NoSpace` · `Medium` · `Poisoned`. The size is as before then, unless only the
    /// sync failed.
    fn resize(&self, size_bytes: u64) -> BoxFuture<'_, Result<(), Error>>;
}

/// A shape of which one thing changes: how many blocks there are.
#[derive(Debug)]
pub(crate) struct Shape {
    first: Geometry,
    block_count: AtomicU64,
}

impl Shape {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self { first: geometry, block_count: AtomicU64::new(geometry.block_count) }
    }

    pub(crate) fn get(&self) -> Geometry {
        Geometry { block_count: self.block_count.load(Ordering::Acquire), ..self.first }
    }

    /// What it would be with another size.
    pub(crate) fn with_size(&self, device: &str, size_bytes: u64) -> Result<Geometry, Error> {
        let Geometry { block_bytes, physical_block_bytes, .. } = self.first;
        Geometry::new(device, size_bytes, block_bytes, physical_block_bytes)
    }

    pub(crate) fn set(&self, geometry: Geometry) {
        self.block_count.store(geometry.block_count, Ordering::Release);
    }
}
