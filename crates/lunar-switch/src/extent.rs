//! Extents of a disk, given in bytes.

use lunar_block::{BlockDevice, BlockRange, Geometry};
use lunar_pool::DeviceExtent;
use std::sync::Arc;

/// The reason why a disk has no such extent.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ExtentError {
    /// An extent without blocks.
    #[error("the extent is empty")]
    Empty,
    /// Start or length are no whole number of blocks.
    #[error("start and length must be multiples of the block size, {block_bytes} bytes")]
    Unaligned {
        /// Length of a block.
        block_bytes: u32,
    },
    /// The extent ends past the end of the disk.
    #[error("the extent ends at byte {end_bytes}, and the disk has {size_bytes} bytes")]
    PastEnd {
        /// First byte behind the extent.
        end_bytes: u64,
        /// Size of the disk.
        size_bytes: u64,
    },
}

/// Returns the blocks of an extent of a disk.
///
/// # Errors
/// The disk has no such extent.
pub fn blocks_of(
    geometry: Geometry,
    start_bytes: u64,
    length_bytes: u64,
) -> Result<BlockRange, ExtentError> {
    let block_bytes = geometry.block_bytes;
    let block = u64::from(block_bytes);
    if length_bytes == 0 {
        return Err(ExtentError::Empty);
    }
    if !start_bytes.is_multiple_of(block) || !length_bytes.is_multiple_of(block) {
        return Err(ExtentError::Unaligned { block_bytes });
    }
    let (end_bytes, size_bytes) = (start_bytes.saturating_add(length_bytes), geometry.size_bytes());
    if end_bytes > size_bytes {
        return Err(ExtentError::PastEnd { end_bytes, size_bytes });
    }
    Ok(BlockRange::new(start_bytes / block, length_bytes / block))
}

/// Returns an extent of a disk.
///
/// # Errors
/// The disk has no such extent.
pub fn extent(
    device: &Arc<dyn BlockDevice>,
    start_bytes: u64,
    length_bytes: u64,
) -> Result<DeviceExtent, ExtentError> {
    let blocks = blocks_of(device.geometry(), start_bytes, length_bytes)?;
    Ok(DeviceExtent { device: Arc::clone(device), blocks })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an extent is whole blocks within the disk; no number overflows.
    #[test]
    fn extents_are_whole_blocks_of_the_disk() {
        let geometry = Geometry::new("disk", 1 << 20, 4096, 4096).unwrap();
        let unaligned = Err(ExtentError::Unaligned { block_bytes: 4096 });
        let past = |end_bytes| Err(ExtentError::PastEnd { end_bytes, size_bytes: 1 << 20 });
        for (start, length, expected) in [
            (0, 1 << 20, Ok(BlockRange::new(0, 256))),
            (4096, 8192, Ok(BlockRange::new(1, 2))),
            (0, 0, Err(ExtentError::Empty)),
            (512, 4096, unaligned),
            (4096, 512, unaligned),
            (4096, 1 << 20, past((1 << 20) + 4096)),
            (1 << 20, 4096, past((1 << 20) + 4096)),
            (u64::MAX - 4095, 4096, past(u64::MAX)),
        ] {
            assert_eq!(blocks_of(geometry, start, length), expected, "{start} {length}");
        }
    }
}
