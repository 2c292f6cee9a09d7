//! Limits of one EXTENDED COPY, which OPERATING PARAMETERS reports and the parser enforces.

use crate::share::Shares;

/// MAXIMUM CSCD DESCRIPTOR COUNT.
pub const CSCD_DESCRIPTORS_MAX: u16 = 64;
/// MAXIMUM SEGMENT DESCRIPTOR COUNT: up to 64 GiB in one command.
pub const SEGMENT_DESCRIPTORS_MAX: u16 = 256;
/// MAXIMUM DESCRIPTOR LIST LENGTH, in bytes: the maximum number of CSCD and segment descriptors.
pub const DESCRIPTOR_LIST_BYTES_MAX: u32 = CSCD_DESCRIPTORS_MAX as u32 * CSCD_BYTES as u32
    + SEGMENT_DESCRIPTORS_MAX as u32 * SEGMENT_BYTES as u32;
/// Maximum parameter list; a longer one is not received.
pub const PARAMETER_LIST_BYTES_MAX: u32 = 0xffff;
/// MAXIMUM SEGMENT LENGTH, in bytes: a 16-bit count of blocks of the longest supported length.
pub const SEGMENT_DATA_BYTES_MAX: u32 = 0xffff * 4096;
/// MAXIMUM CONCURRENT COPIES of one unit; a further one gets BUSY.
pub const COPIES_MAX: u8 = 16;
/// Maximum number of concurrent copies of one unit for one initiator; a further one gets BUSY.
pub const COPIES_OF_INITIATOR_MAX: u8 = 8;
/// Like [`COPIES_OF_INITIATOR_MAX`], for all initiators of one origin whose names are not proven.
pub const COPIES_OF_ORIGIN_MAX: u8 = 12;
/// Maximum number of results kept for one nexus until it fetches them; a further result replaces
/// the oldest.
pub const RESULTS_MAX: usize = 32;

pub(crate) const RUNNING_SHARES: Shares = Shares {
    of_all: COPIES_MAX as usize,
    of_initiator: COPIES_OF_INITIATOR_MAX as usize,
    of_origin: COPIES_OF_ORIGIN_MAX as usize,
};
/// Maximum numbers of results kept by one unit; a further result replaces the oldest.
pub(crate) const RESULT_SHARES: Shares = Shares { of_all: 512, of_initiator: 128, of_origin: 256 };

/// DATA SEGMENT GRANULARITY: data is copied in logical blocks, the shortest of which has 2^9 bytes.
pub(crate) const DATA_GRANULARITY_EXPONENT: u8 = 9;
/// Length of a CSCD descriptor.
pub(crate) const CSCD_BYTES: usize = 32;
/// Length of a block to block segment descriptor.
pub(crate) const SEGMENT_BYTES: usize = 28;

/// Block device to block device. The only segment type, because it is the one used for disks:
/// VMware, Windows, sg_xcopy and ddpt send no others. Types with byte offsets (0Ah, 0Bh) would
/// split blocks, the others require tapes or hold data for RECEIVE DATA.
pub const BLOCK_TO_BLOCK: u8 = 0x02;
/// Identification descriptor: a designator of VPD page 83h.
pub const IDENTIFICATION: u8 = 0xe4;
/// LIST OF IMPLEMENTED DESCRIPTOR TYPE CODES, in ascending order.
pub const IMPLEMENTED_DESCRIPTORS: [u8; 2] = [BLOCK_TO_BLOCK, IDENTIFICATION];
