//! The format of the members of a pool, docs/formats/pool.md: codecs of untrusted bytes, without
//! I/O.
//!
//! ```
//! use lunar_pool::format::{FoundLabel, LABEL_BYTES, Label};
//!
//! assert_eq!(Label::decode(&[0; LABEL_BYTES]), FoundLabel::None);
//! ```

mod intent_page;
mod kind;
mod label;
mod layout;
mod lease_block;
mod member_set;
mod pool_id;
mod region_set;

pub use intent_page::{INTENT_PAGE_BYTES, IntentPage, REGIONS_MAX};
pub use kind::PoolKind;
pub use label::{
    FoundLabel, HISTORY_GENERATIONS_MAX, History, LABEL_BYTES, Label, MEMBERS_MAX, MEMBERS_MIN,
    Unusable,
};
pub use layout::{DATA_OFFSET_BYTES, LABEL_COPIES, MemberLayout, REGION_BYTES_MIN, region_blocks};
pub use lease_block::{
    FoundLease, LEASE_BYTES, LEASE_TIME_MAX, LeaseBlock, LeasePhase, OWNER_NAME_BYTES_MAX,
};
pub use member_set::MemberSet;
pub use pool_id::PoolId;
pub use region_set::RegionSet;

use lunar_wire::Crc32c;

/// Number of bytes that the checksum at the end of a label or page covers.
const CHECKED_BYTES: usize = 4092;

/// Returns the checksum of a label or an intent page.
fn checksum(bytes: &[u8; 4096]) -> u32 {
    checksum_of(&bytes[..CHECKED_BYTES])
}

fn checksum_of(bytes: &[u8]) -> u32 {
    let mut crc = Crc32c::new();
    crc.update(bytes);
    crc.value()
}
