//! One block logical unit as SCSI sees it: what it is, and what state it is in.
//!
//! A plain value with one owner; the target keeps it under the unit's lock and asks it to judge
//! each command. Nothing here does I/O.

use alloc::string::String;
use alloc::vec::Vec;
use wire::Lun;

/// What a unit is; fixed while it is served, except for its size.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// Identity: NAA 3, UUID designator and serial number come from here.
    pub uuid: [u8; 16],
    /// PRODUCT IDENTIFICATION, at most 16 characters of ASCII.
    pub product: String,
    /// Logical block length in bytes.
    pub block_bytes: u32,
    /// How many blocks.
    pub block_count: u64,
    /// Physical block length in bytes.
    pub physical_block_bytes: u32,
    /// MAXIMUM TRANSFER LENGTH, in blocks; longer commands are refused.
    pub transfer_blocks_max: u32,
    /// OPTIMAL TRANSFER LENGTH, in blocks.
    pub optimal_transfer_blocks: u32,
    /// Some: thin provisioned (LBPME=1), deallocating in runs of this many blocks.
    pub unmap_granularity_blocks: Option<u32>,
    /// Write protected by configuration.
    pub read_only: bool,
    /// RMB: PREVENT ALLOW, START STOP with LOEJ.
    pub removable: bool,
    /// WCE: the unit acknowledges writes before they are durable.
    pub write_back: bool,
}

/// Who is at the other end of a nexus; persistent reservations name it.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
pub struct InitiatorPort {
    /// iSCSI name.
    pub name: String,
    /// ISID: together with the name the initiator port, RFC 7143 §4.4.3.
    pub isid: [u8; 6],
}

/// The port of ours a command came through.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetPort {
    /// Target name.
    pub name: String,
    /// Target portal group tag.
    pub portal_group_tag: u16,
    /// Relative target port identifier, from 1.
    pub relative_id: u16,
}

/// What the planner may know of a command besides its CDB.
#[derive(Clone, Debug)]
pub struct Context<'a> {
    /// LUNs this initiator sees, in ascending order, for REPORT LUNS.
    pub luns: &'a [Lun],
    /// The port it came through.
    pub port: &'a TargetPort,
}

/// Extents as [`MapStatus`](crate::plan::Plan::MapStatus) found them.
pub type MappedRanges = Vec<(crate::plan::LbaRange, bool)>;
