//! Owned, page-aligned, pooled buffers.
