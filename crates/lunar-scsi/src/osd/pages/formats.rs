//! Page format: pages as a whole, each with its own layout. Pages without a layout, such as
//! Directory and Information, are read in list format only.

use crate::osd::{ObjectType, OsdTime};
use alloc::vec::Vec;

lunar_wire::wire_struct! {
    /// The start of every page.
    pub struct OsdPageHeader [8] {
        0 => page: u32,
        4 => body_bytes: u32,
    }
}

lunar_wire::wire_struct! {
    /// The Quotas page of the root.
    pub struct RootQuotasPage [36] {
        0 => default_object_length_max: u64,
        8 => partition_capacity_quota: u64,
        16 => partition_object_count: u64,
        24 => collections_per_user_object: u32,
        28 => partition_count: u64,
    }
}

lunar_wire::wire_struct! {
    /// The Quotas page of a partition.
    pub struct PartitionQuotasPage [28] {
        0 => default_object_length_max: u64,
        8 => capacity_quota: u64,
        16 => object_count: u64,
        24 => collections_per_user_object: u32,
    }
}

lunar_wire::wire_struct! {
    /// The Quotas page of a user object.
    pub struct UserQuotasPage [8] {
        0 => length_max: u64,
    }
}

lunar_wire::wire_struct! {
    /// The Timestamps page of the root.
    pub struct RootTimestampsPage [13] {
        0 => attributes_accessed: OsdTime,
        6 => attributes_modified: OsdTime,
        12 => bypass: u8,
    }
}

lunar_wire::wire_struct! {
    /// The Timestamps page of a partition.
    pub struct PartitionTimestampsPage [31] {
        0 => created: OsdTime,
        6 => attributes_accessed: OsdTime,
        12 => attributes_modified: OsdTime,
        18 => data_accessed: OsdTime,
        24 => data_modified: OsdTime,
        30 => bypass: u8,
    }
}

lunar_wire::wire_struct! {
    /// The Timestamps page of a collection or a user object.
    pub struct ObjectTimestampsPage [30] {
        0 => created: OsdTime,
        6 => attributes_accessed: OsdTime,
        12 => attributes_modified: OsdTime,
        18 => data_accessed: OsdTime,
        24 => data_modified: OsdTime,
    }
}

lunar_wire::wire_struct! {
    /// The Policy/Security page of the root. Interpretation: one source has the flags before the
    /// limits of nonces.
    pub struct RootSecurityPage [63] {
        0 => default_method: u8,
        1 => partition_default_method: u8,
        2 => supported_methods: u16,
        4 => oldest_valid_nonce: OsdTime,
        10 => newest_valid_nonce: OsdTime,
        /// The master key identifier is valid 02h, the root key identifier 01h.
        16 => key_flags: u8,
        17 => master_key_id: [u8; 7],
        24 => root_key_id: [u8; 7],
        31 => integrity_algorithms: [u8; 16],
        47 => diffie_hellman_groups: [u8; 16],
    }
}

lunar_wire::wire_struct! {
    /// The end of the Policy/Security page of the root in OSD-2.
    pub struct RootSecurityPageEnd [3] {
        1 => boot_epoch: u16,
    }
}

lunar_wire::wire_struct! {
    /// The Policy/Security page of a partition. Interpretation: one source has the tags at the end.
    pub struct PartitionSecurityPage [150] {
        3 => default_method: u8,
        4 => oldest_valid_nonce: OsdTime,
        10 => newest_valid_nonce: OsdTime,
        16 => nonce_list_depth: u16,
        18 => frozen_working_keys: u16,
        20 => policy_access_tag: u32,
        24 => user_object_policy_access_tag: u32,
        /// The identifier of the partition key is valid; those of working keys 0 to 7; 8 to 15.
        28 => key_flags: [u8; 3],
        31 => partition_key_id: [u8; 7],
        /// Sixteen identifiers of seven bytes.
        38 => working_key_ids: [u8; 112],
    }
}

lunar_wire::wire_struct! {
    /// The Policy/Security page of a collection or a user object.
    pub struct ObjectSecurityPage [4] {
        0 => policy_access_tag: u32,
    }
}

lunar_wire::wire_struct! {
    /// The Error Recovery page of the root or a partition.
    pub struct PartitionErrorRecoveryPage [28] {
        0 => damaged_count: u64,
        8 => damage_summary: u8,
        9 => contained_damage: u8,
        10 => data_damage_time: OsdTime,
        16 => attributes_damage_time: OsdTime,
        22 => contained_damage_time: OsdTime,
    }
}

lunar_wire::wire_struct! {
    /// The Error Recovery page of a collection or a user object.
    pub struct ObjectErrorRecoveryPage [14] {
        0 => damage_summary: u8,
        2 => data_damage_time: OsdTime,
        8 => attributes_damage_time: OsdTime,
    }
}

lunar_wire::wire_struct! {
    /// The Current Command page of OSD-1 and of OSD-2 revision 3.
    pub struct Osd1CurrentCommandPage [48] {
        0 => response_integrity_value: [u8; 20],
        20 => object_type: ObjectType,
        24 => partition: u64,
        32 => object: u64,
        40 => append_start: u64,
    }
}

lunar_wire::wire_struct! {
    /// The Current Command page of OSD-2.
    pub struct CurrentCommandPage [68] {
        0 => response_integrity_value: [u8; 32],
        32 => object_type: ObjectType,
        36 => partition: u64,
        44 => object: u64,
        52 => append_start: u64,
        60 => capacity_change: u64,
    }
}

/// Length of the start of every page.
pub const PAGE_HEADER_BYTES: usize = OsdPageHeader::LEN;

/// Encodes a page, at most as long as the allocation length, which does not change the length in
/// the header. A page that is not defined has no body.
pub fn encode_page(page: u32, body: &[u8], allocation_bytes: usize) -> Vec<u8> {
    let body_bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut bytes = OsdPageHeader { page, body_bytes }.encode().to_vec();
    bytes.extend_from_slice(body);
    bytes.truncate(allocation_bytes);
    bytes
}

/// A page that was read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RetrievedPage<'a> {
    /// The number of the page.
    pub page: u32,
    /// The body as far as it arrived.
    pub body: &'a [u8],
    /// True if the allocation length was too small for the body.
    pub is_truncated: bool,
}

/// Decodes a page from data-in; `None` if not even the header arrived. Bytes behind the page are
/// ignored.
pub fn decode_page(bytes: &[u8]) -> Option<RetrievedPage<'_>> {
    let (header, rest) = bytes.split_first_chunk()?;
    let OsdPageHeader { page, body_bytes } = OsdPageHeader::decode(header);
    let end = usize::try_from(body_bytes).unwrap_or(usize::MAX);
    let body = &rest[..end.min(rest.len())];
    Some(RetrievedPage { page, body, is_truncated: end > body.len() })
}
