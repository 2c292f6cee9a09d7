//! The vital product data pages of block units. SBC-3 §6.5.

use super::VpdPage;
use crate::commands::Offered::{Always, Thin};
use crate::primary::Context;
use crate::unit::{BlockUnit, UnitOptions};
use alloc::vec::Vec;

/// MAXIMUM UNMAP LBA COUNT: total blocks in one UNMAP.
pub const UNMAP_BLOCKS_MAX: u32 = 1 << 20;
/// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
pub const UNMAP_DESCRIPTORS_MAX: u32 = 256;
/// MAXIMUM WRITE SAME LENGTH, in blocks: the maximum of WRITE SAME (10), and an amount that a slow
/// disk writes within a usual command timeout.
pub const WRITE_SAME_BLOCKS_MAX: u32 = 0xffff;
/// MAXIMUM COMPARE AND WRITE LENGTH, if transfers of this many blocks are allowed.
pub const COMPARE_AND_WRITE_BLOCKS_MAX: u8 = 255;

/// All pages of block units, in ascending order; the source of page 00h and CONFORMANCE.md.
pub(crate) const BLOCK_PAGES: &[VpdPage<BlockUnit>] = &[
    VpdPage::SUPPORTED_PAGES,
    VpdPage::UNIT_SERIAL_NUMBER,
    VpdPage::DEVICE_IDENTIFICATION,
    VpdPage::EXTENDED_INQUIRY,
    VpdPage::SCSI_PORTS,
    VpdPage::THIRD_PARTY_COPY,
    VpdPage::new(0xb0, "Block Limits", "SBC-3 §6.5.3", Always, block_limits),
    VpdPage::new(
        0xb1,
        "Block Device Characteristics",
        "SBC-3 §6.5.2",
        Always,
        block_device_characteristics,
    ),
    VpdPage::new(
        0xb2,
        "Logical Block Provisioning",
        "SBC-3 §6.5.4",
        Thin,
        logical_block_provisioning,
    ),
];

/// Limits of one command, which page B0h reports and the planner enforces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BlockLimits {
    /// MAXIMUM TRANSFER LENGTH, in blocks.
    pub transfer_blocks_max: u32,
    /// MAXIMUM COMPARE AND WRITE LENGTH, in blocks.
    pub compare_and_write_blocks_max: u8,
    /// MAXIMUM UNMAP LBA COUNT; 0 if the unit is not thin.
    pub unmap_blocks_max: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT; 0 if the unit is not thin.
    pub unmap_descriptors_max: u32,
    /// MAXIMUM WRITE SAME LENGTH, in blocks.
    pub write_same_blocks_max: u32,
    /// WSNZ: WRITE SAME of zero blocks, which means "to the end of the unit", is refused. Set if
    /// the whole unit is longer than the longest WRITE SAME.
    pub write_same_non_zero: bool,
}

impl BlockLimits {
    /// Returns the limits of a unit.
    pub fn of(options: &UnitOptions) -> Self {
        let thin = is_thin(options);
        let compare = options.transfer_blocks_max.min(options.compare_and_write_blocks_max.into());
        Self {
            transfer_blocks_max: options.transfer_blocks_max,
            compare_and_write_blocks_max: compare as u8,
            unmap_blocks_max: if thin { UNMAP_BLOCKS_MAX } else { 0 },
            unmap_descriptors_max: if thin { UNMAP_DESCRIPTORS_MAX } else { 0 },
            write_same_blocks_max: WRITE_SAME_BLOCKS_MAX,
            write_same_non_zero: options.block_count > u64::from(WRITE_SAME_BLOCKS_MAX),
        }
    }
}

fn is_thin(options: &UnitOptions) -> bool {
    options.unmap_granularity_blocks.is_some()
}

lunar_wire::wire_struct! {
    /// B0h after the header. SBC-3 §6.5.3; the fields of WRITE ATOMIC are those of SBC-4.
    pub struct BlockLimitsPage [60] {
        0  => wsnz: u8,
        1  => compare_and_write_blocks_max: u8,
        2  => transfer_granularity_blocks: u16,
        4  => transfer_blocks_max: u32,
        8  => optimal_transfer_blocks: u32,
        12 => prefetch_blocks_max: u32,
        16 => unmap_blocks_max: u32,
        20 => unmap_descriptors_max: u32,
        24 => unmap_granularity_blocks: u32,
        28 => unmap_alignment: u32,
        32 => write_same_blocks_max: u64,
        40 => atomic_blocks_max: u32,
        44 => atomic_alignment_blocks: u32,
        48 => atomic_granularity_blocks: u32,
        /// Maximum length with an atomic boundary, and the maximum boundary: not supported.
        52 => bounded_atomic_blocks_max: u32,
        56 => atomic_boundary_blocks_max: u32,
    }
}

/// Maximum block length for reporting an OPTIMAL UNMAP GRANULARITY: with one, QEMU's initiator maps
/// allocated blocks, and fails an assertion (`iscsi_co_block_status`) for blocks longer than its
/// own sectors: decision 040.
const QEMU_ALLOCATION_MAP_BLOCK_BYTES_MAX: u32 = 512;

/// B0h. SBC-3 §6.5.3.
fn block_limits(unit: &BlockUnit, _: &Context<'_>) -> Vec<u8> {
    /// UGAVALID, and an alignment of 0.
    const ALIGNED_TO_0: u32 = 0x8000_0000;
    let options = unit.options();
    let limits = BlockLimits::of(options);
    let physical = options.physical_block_bytes.checked_div(options.block_bytes).unwrap_or(1);
    let page = BlockLimitsPage {
        wsnz: u8::from(limits.write_same_non_zero),
        compare_and_write_blocks_max: limits.compare_and_write_blocks_max,
        transfer_granularity_blocks: u16::try_from(physical).unwrap_or(0),
        transfer_blocks_max: limits.transfer_blocks_max,
        optimal_transfer_blocks: options.optimal_transfer_blocks,
        prefetch_blocks_max: 0,
        unmap_blocks_max: limits.unmap_blocks_max,
        unmap_descriptors_max: limits.unmap_descriptors_max,
        unmap_granularity_blocks: if options.block_bytes > QEMU_ALLOCATION_MAP_BLOCK_BYTES_MAX {
            0
        } else {
            options.unmap_granularity_blocks.unwrap_or(0)
        },
        unmap_alignment: if is_thin(options) { ALIGNED_TO_0 } else { 0 },
        // 0, no limit, if a WRITE SAME may reach from the first block to the end.
        write_same_blocks_max: if limits.write_same_non_zero {
            u64::from(limits.write_same_blocks_max)
        } else {
            0
        },
        atomic_blocks_max: options.atomic.map_or(0, |atomic| atomic.blocks_max),
        atomic_alignment_blocks: options.atomic.map_or(0, |atomic| atomic.unit_blocks),
        atomic_granularity_blocks: options.atomic.map_or(0, |atomic| atomic.unit_blocks),
        bounded_atomic_blocks_max: 0,
        atomic_boundary_blocks_max: 0,
    };
    page.encode().to_vec()
}

lunar_wire::wire_struct! {
    /// B1h after the header. SBC-3 §6.5.2.
    pub struct Characteristics [60] {
        0 => rotation_rate: u16,
        /// WABEREQ C0h, WACEREQ 30h.
        3 => after_erase: u8,
        4 => flags: u8,
    }
}

/// B1h. Non-rotating; VBULS: VERIFY compares unmapped blocks as zeroes. WABEREQ 01b: after a
/// SANITIZE BLOCK ERASE, which thin units support, all blocks are readable. WACEREQ 00b, not
/// reported: there is no CRYPTOGRAPHIC ERASE.
fn block_device_characteristics(unit: &BlockUnit, _: &Context<'_>) -> Vec<u8> {
    const NON_ROTATING: u16 = 1;
    const VBULS: u8 = 0x01;
    const READABLE_AFTER_BLOCK_ERASE: u8 = 0x40;
    let after_erase = if is_thin(unit.options()) { READABLE_AFTER_BLOCK_ERASE } else { 0 };
    Characteristics { rotation_rate: NON_ROTATING, after_erase, flags: VBULS }.encode().to_vec()
}

lunar_wire::wire_struct! {
    /// B2h after the header. SBC-3 §6.5.4.
    pub struct Provisioning [4] {
        0 => threshold_exponent: u8,
        /// LBPU, LBPWS, LBPWS10, LBPRZ, ANC_SUP, DP.
        1 => flags: u8,
        2 => kind: u8,
    }
}

/// B2h: LBPU, LBPWS, LBPWS10, LBPRZ; thin provisioned. Blocks are never anchored (ANC_SUP), and the
/// other users of the unit's space are not reported (DP). SBC-3 §6.5.4.
fn logical_block_provisioning(unit: &BlockUnit, _: &Context<'_>) -> Vec<u8> {
    const UNMAP_AND_WRITE_SAME_READ_ZEROES: u8 = 0x80 | 0x40 | 0x20 | 0x04;
    const THIN: u8 = 0x02;
    let page = Provisioning {
        threshold_exponent: unit.options().threshold.map_or(0, |threshold| threshold.set_exponent),
        flags: UNMAP_AND_WRITE_SAME_READ_ZEROES,
        kind: THIN,
    };
    page.encode().to_vec()
}
