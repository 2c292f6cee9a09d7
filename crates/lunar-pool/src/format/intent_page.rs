//! The intent page of a mirror: the regions in which its members may differ.

use super::{PoolId, RegionSet, checksum};
use lunar_wire::Field;

/// Length of an intent page.
pub const INTENT_PAGE_BYTES: usize = 4096;

const HEADER_BYTES: usize = 40;

/// Maximum number of regions of a mirror: the bits of a page.
pub const REGIONS_MAX: u32 = ((super::CHECKED_BYTES - HEADER_BYTES) * 8) as u32;

const MAGIC: [u8; 8] = *b"LunarWI\0";
const VERSION: u16 = 1;

lunar_wire::wire_struct! {
    /// The header and the checksum of an intent page, docs/formats/pool.md. The bits of the regions
    /// are between them.
    pub struct IntentPageBytes [4096] {
        0 => magic: [u8; 8],
        8 => version: u16,
        12 => regions: u32,
        16 => pool: PoolId,
        32 => sequence: u64,
        4092 => checksum: u32,
    }
}

/// An intent page.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct IntentPage {
    /// The pool.
    pub pool: PoolId,
    /// Sequence number; of two valid pages, the one with the higher number counts.
    pub sequence: u64,
    /// The regions with writes that may be pending.
    pub marked: RegionSet,
}

impl IntentPage {
    /// Decodes untrusted bytes; `None` unless they are a page of this pool with this number of
    /// regions.
    pub fn decode(bytes: &[u8; INTENT_PAGE_BYTES], pool: PoolId, regions: u32) -> Option<Self> {
        let raw = IntentPageBytes::decode(bytes);
        let is_page = raw.magic == MAGIC
            && raw.checksum == checksum(bytes)
            && raw.version == VERSION
            && raw.regions == regions
            && regions <= REGIONS_MAX
            && raw.pool == pool
            && i64::try_from(raw.sequence).is_ok();
        if !is_page {
            return None;
        }
        let bits = &bytes[HEADER_BYTES..super::CHECKED_BYTES];
        let marked = RegionSet::from_bits(bits, regions)?;
        Some(Self { pool, sequence: raw.sequence, marked })
    }

    /// Encodes the page.
    pub fn encode(&self) -> [u8; INTENT_PAGE_BYTES] {
        let raw = IntentPageBytes {
            magic: MAGIC,
            version: VERSION,
            regions: self.marked.regions(),
            pool: self.pool,
            sequence: self.sequence,
            checksum: 0,
        };
        let mut bytes = raw.encode();
        self.marked.put_bits(&mut bytes[HEADER_BYTES..super::CHECKED_BYTES]);
        let sum = checksum(&bytes);
        sum.put(&mut bytes[super::CHECKED_BYTES..]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POOL: PoolId = PoolId([7; 16]);

    fn page(regions: u32, marked: &[u32], sequence: u64) -> IntentPage {
        let mut set = RegionSet::new(regions);
        marked.iter().for_each(|region| set.insert(*region));
        IntentPage { pool: POOL, sequence, marked: set }
    }

    /// Goal: the bytes are those of the document.
    #[test]
    fn bytes_of_the_document() {
        let bytes = page(REGIONS_MAX, &[0, 9, 32_415], 5).encode();
        assert_eq!(&bytes[..8], b"LunarWI\0");
        assert_eq!(&bytes[8..16], [0, 1, 0, 0, 0, 0, 0x7e, 0xa0]);
        assert_eq!(&bytes[16..32], [7; 16]);
        assert_eq!(&bytes[32..40], [0, 0, 0, 0, 0, 0, 0, 5]);
        assert_eq!((bytes[40], bytes[41], bytes[4091]), (1, 2, 0x80));
        assert_eq!(REGIONS_MAX, 32_416);
    }

    /// Goal: pages of other pools, sizes or versions, and damaged ones, are no pages of this pool.
    #[test]
    fn other_pages_are_not_used() {
        let bytes = page(9, &[8], 1).encode();
        assert_eq!(IntentPage::decode(&bytes, POOL, 9), Some(page(9, &[8], 1)));
        assert_eq!(IntentPage::decode(&bytes, PoolId([8; 16]), 9), None);
        assert_eq!(IntentPage::decode(&bytes, POOL, 10), None);
        for bit in (0..50 * 8).chain(4092 * 8..4096 * 8) {
            let mut bytes = bytes;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(IntentPage::decode(&bytes, POOL, 9), None, "bit {bit}");
        }
        let with = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            let sum = checksum(&bytes);
            sum.put(&mut bytes[super::super::CHECKED_BYTES..]);
            IntentPage::decode(&bytes, POOL, 9)
        };
        assert_eq!(with(9, 2), None, "a later version");
        assert_eq!(with(32, 0x80), None, "a negative sequence number");
        assert_eq!(with(41, 2), None, "a mark of a region that does not exist");
        assert_eq!(with(41, 1), Some(page(9, &[8], 1)));
    }

    proptest! {
        /// Goal: every page survives encoding.
        #[test]
        fn encoding_keeps_pages(
            regions in 1..=REGIONS_MAX,
            marked in proptest::collection::vec(any::<u32>(), 0..50),
            sequence in 0..i64::MAX as u64,
        ) {
            let marked: Vec<u32> = marked.iter().map(|region| region % regions).collect();
            let page = page(regions, &marked, sequence);
            prop_assert_eq!(IntentPage::decode(&page.encode(), POOL, regions), Some(page));
        }
    }
}
