//! What one EXTENDED COPY may ask for, as OPERATING PARAMETERS tells and the parser enforces.

use crate::share::Shares;

/// MAXIMUM CSCD DESCRIPTOR COUNT.
pub const CSCD_DESCRIPTORS_MAX: u16 = 64;
/// MAXIMUM SEGMENT DESCRIPTOR COUNT: up to 64 GiB in one command.
pub const SEGMENT_DESCRIPTORS_MAX: u16 = 256;
/// MAXIMUM DESCRIPTOR LIST LENGTH, in bytes: as many as there may be of both.
pub const DESCRIPTOR_LIST_BYTES_MAX: u32 = CSCD_DESCRIPTORS_MAX as u32 * CSCD_BYTES as u32
    + SEGMENT_DESCRIPTORS_MAX as u32 * SEGMENT_BYTES as u32;
/// A longer parameter list is not even received.
pub const PARAMETER_LIST_BYTES_MAX: u32 = 0xffff;
/// MAXIMUM SEGMENT LENGTH, in bytes: as many blocks as 16 bits count, of the longest there are.
pub const SEGMENT_DATA_BYTES_MAX: u32 = 0xffff * 4096;
/// MAXIMUM CONCURRENT COPIES that one unit carries out; a further one gets BUSY.
pub const COPIES_MAX: u8 = 16;
/// Copies that one unit carries out at once for one initiator, and for those of one origin whose
/// names are not proven; a further one gets BUSY.
pub const COPIES_OF_INITIATOR_MAX: u8 = 8;
/// As [`COPIES_OF_INITIATOR_MAX`], of one origin.
pub const COPIES_OF_ORIGIN_MAX: u8 = 12;
/// Outcomes kept for one nexus until it asks for them; the oldest gives way.
pub const RESULTS_MAX: usize = 32;

pub(crate) const RUNNING_SHARES: Shares = Shares {
    of_all: COPIES_MAX as usize,
    of_initiator: COPIES_OF_INITIATOR_MAX as usize,
    of_origin: COPIES_OF_ORIGIN_MAX as usize,
};
/// Outcomes that one unit keeps; the oldest gives way.
pub(crate) const RESULT_SHARES: Shares = Shares { of_all: 512, of_initiator: 128, of_origin: 256 };

/// DATA SEGMENT GRANULARITY: data move in logical blocks, of which the shortest has 2^9 bytes.
pub(crate) const DATA_GRANULARITY_EXPONENT: u8 = 9;
/// Length of a CSCD descriptor.
pub(crate) const CSCD_BYTES: usize = 32;
/// Length of a block to block segment descriptor.
pub(crate) const SEGMENT_BYTES: usize = 28;

/// Block device to block device. The only one, because it is what disks are asked for: VMware,
/// Windows, sg_xcopy and ddpt send nothing else. Those with byte offsets (0Ah, 0Bh) would tear
/// blocks, the others want tapes or hold data back for RECEIVE DATA.
pub const BLOCK_TO_BLOCK: u8 = 0x02;
/// Identification descriptor: a designator of VPD page 83h.
pub const IDENTIFICATION: u8 = 0xe4;
/// LIST OF IMPLEMENTED DESCRIPTOR TYPE CODES, in ascending order.
pub const IMPLEMENTED_DESCRIPTORS: [u8; 2] = [BLOCK_TO_BLOCK, IDENTIFICATION];
