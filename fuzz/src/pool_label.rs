//! Labels, intent pages and leases of pools: hostile bytes on a disk.

use lunar_pool::format::{
    FoundLabel, FoundLease, INTENT_PAGE_BYTES, IntentPage, LABEL_BYTES, LEASE_BYTES, Label,
    LeaseBlock, MemberLayout, PoolId,
};
use lunar_wire::crc32c;

/// Number of bytes that the checksum covers.
const CHECKED_BYTES: usize = LABEL_BYTES - 4;

/// Decodes the input as a label, as an intent page and as a lease, unchanged and with the right
/// checksum, and checks that labels are accepted only on devices with room for their data.
pub fn run(input: &[u8]) {
    let mut bytes = [0; LABEL_BYTES];
    let len = input.len().min(LABEL_BYTES);
    bytes[..len].copy_from_slice(&input[..len]);
    decode(&bytes);
    let sum = crc32c(&bytes[..CHECKED_BYTES]);
    bytes[CHECKED_BYTES..].copy_from_slice(&sum.to_be_bytes());
    decode(&bytes);
    let mut lease = [0; LEASE_BYTES];
    lease.copy_from_slice(&bytes[..LEASE_BYTES]);
    decode_lease(&lease);
    let sum = crc32c(&lease[..LEASE_BYTES - 4]);
    lease[LEASE_BYTES - 4..].copy_from_slice(&sum.to_be_bytes());
    decode_lease(&lease);
}

fn decode_lease(bytes: &[u8; LEASE_BYTES]) {
    let found = LeaseBlock::decode(bytes);
    if let FoundLease::Valid(lease) = &found {
        assert_eq!(LeaseBlock::decode(&lease.encode()), found);
        assert!(!lease.owner.chars().any(char::is_control));
    }
}

fn decode(bytes: &[u8; LABEL_BYTES]) {
    if let FoundLabel::Valid(label) = Label::decode(bytes) {
        let again = Label::decode(&label.encode());
        assert_eq!(again, FoundLabel::Valid(label.clone()));
        check(&label);
    }
    // Pool and number of regions are taken from the page itself, so that it can be valid.
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[16..32]);
    let regions = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    if let Some(page) = IntentPage::decode(bytes, PoolId(id), regions) {
        assert_eq!(IntentPage::decode(&page.encode(), PoolId(id), regions), Some(page.clone()));
        assert!(page.marked.iter().all(|region| region < regions));
    }
}

fn check(label: &Label) {
    let block_bytes = label.block_bytes;
    if !matches!(block_bytes, 512 | 1024 | 2048 | 4096) {
        return;
    }
    let layout = MemberLayout { block_bytes, block_count: u64::MAX };
    if label.check(layout).is_err() {
        return;
    }
    let need = layout.member_blocks(label.data_blocks);
    let need = need.expect("a label that fits describes a possible size");
    assert!(label.check(MemberLayout { block_bytes, block_count: need }).is_ok());
    assert!(label.check(MemberLayout { block_bytes, block_count: need - 1 }).is_err());
    assert!(u64::from(label.regions()) <= label.data_blocks);
    assert!(label.descends_from(label));
}

const _: () = assert!(LABEL_BYTES == INTENT_PAGE_BYTES);
