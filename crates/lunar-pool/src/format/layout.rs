//! Positions on a member: two labels, two intent pages, a lease block, data.

use super::{INTENT_PAGE_BYTES, LABEL_BYTES, REGIONS_MAX};

/// Offset of the data; the space before it has room for later versions.
pub const DATA_OFFSET_BYTES: u64 = 1 << 20;

/// Number of copies of the label, and of intent pages.
pub const LABEL_COPIES: u8 = 2;

/// Minimum length of a region of a mirror.
pub const REGION_BYTES_MIN: u64 = 64 << 10;

/// Offset of the first intent page, and distance to the second.
const INTENT_OFFSET_BYTES: u64 = 64 << 10;

/// Offset of the lease block, for which COMPARE AND WRITE needs one block only.
const LEASE_OFFSET_BYTES: u64 = 192 << 10;

/// Size of a member, from which all positions follow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemberLayout {
    /// Length of a block: 512, 1024, 2048 or 4096.
    pub block_bytes: u32,
    /// Number of blocks of the member.
    pub block_count: u64,
}

impl MemberLayout {
    /// Returns the number of blocks of `bytes`, a multiple of 4096.
    const fn blocks(self, bytes: u64) -> u64 {
        bytes / self.block_bytes as u64
    }

    /// Returns the number of blocks of a label or an intent page.
    pub const fn page_blocks(self) -> u64 {
        self.blocks(LABEL_BYTES as u64)
    }

    /// Returns the first block of the data.
    pub const fn data_start(self) -> u64 {
        self.blocks(DATA_OFFSET_BYTES)
    }

    /// Returns the number of blocks of data for which the member has room; 0 if it is too small for
    /// a member.
    pub const fn data_blocks_max(self) -> u64 {
        self.block_count.saturating_sub(self.data_start() + self.page_blocks())
    }

    /// Returns the number of blocks of a member with `data_blocks` blocks of data.
    pub const fn member_blocks(self, data_blocks: u64) -> Option<u64> {
        data_blocks.checked_add(self.data_start() + self.page_blocks())
    }

    /// Returns the first block of the label at the beginning (copy 0) or at the end (copy 1) of a
    /// member that has room for data.
    pub const fn label(self, copy: u8) -> u64 {
        if copy == 0 { 0 } else { self.block_count - self.page_blocks() }
    }

    /// Returns the lease block.
    pub const fn lease(self) -> u64 {
        self.blocks(LEASE_OFFSET_BYTES)
    }

    /// Returns the first block of the intent page with this sequence number.
    pub const fn intent_page(self, sequence: u64) -> u64 {
        self.blocks(INTENT_OFFSET_BYTES + sequence % LABEL_COPIES as u64 * INTENT_OFFSET_BYTES)
    }
}

/// Returns the number of blocks of a region of a new mirror: the smallest power of two of at least
/// 64 KiB for which one page has a bit for every region.
pub fn region_blocks(block_bytes: u32, data_blocks: u64) -> u64 {
    let mut blocks = REGION_BYTES_MIN / u64::from(block_bytes);
    while data_blocks.div_ceil(blocks) > u64::from(REGIONS_MAX) {
        blocks *= 2;
    }
    blocks
}

// The front of a member has room for all that is written there.
const _: () = assert!(
    2 * INTENT_OFFSET_BYTES + INTENT_PAGE_BYTES as u64 <= LEASE_OFFSET_BYTES
        && LEASE_OFFSET_BYTES + 4096 <= DATA_OFFSET_BYTES
        && LABEL_BYTES as u64 <= INTENT_OFFSET_BYTES
);

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: positions are those of docs/formats/pool.md, in blocks of each length.
    #[test]
    fn positions() {
        for block_bytes in [512, 1024, 2048, 4096] {
            let block = u64::from(block_bytes);
            let layout = MemberLayout { block_bytes, block_count: (2 << 20) / block };
            assert_eq!(layout.label(0), 0);
            assert_eq!(layout.label(1) * block, (2 << 20) - 4096);
            assert_eq!(layout.intent_page(6) * block, 65_536);
            assert_eq!(layout.intent_page(7) * block, 131_072);
            assert_eq!(layout.lease() * block, 196_608);
            assert_eq!(layout.data_start() * block, 1_048_576);
            assert_eq!(layout.data_blocks_max() * block, (1 << 20) - 4096);
            assert_eq!(layout.member_blocks(layout.data_blocks_max()), Some(layout.block_count));
            assert_eq!(MemberLayout { block_count: 1, ..layout }.data_blocks_max(), 0);
        }
    }

    /// Goal: every possible size has regions that fit into one page.
    #[test]
    fn regions_fit_into_a_page() {
        for (data_blocks, want) in
            [(1, 128), (32_416 * 128, 128), (32_416 * 128 + 1, 256), (u64::MAX, 1 << 50)]
        {
            let blocks = region_blocks(512, data_blocks);
            assert!(data_blocks.div_ceil(blocks) <= u64::from(REGIONS_MAX));
            assert_eq!(blocks, want, "{data_blocks}");
        }
    }
}
