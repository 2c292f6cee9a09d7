//! UNMAP, WRITE SAME, GET LBA STATUS.

use super::read_write::{checked_range, unprotected};
use super::{LbaRange, Pattern, Plan, Refusal};
use crate::cdb::first;
use crate::cdb::sbc::{Blocks, LbaStatus, ServiceActionIn16, Unmap, UnmapDescriptor, UnmapHeader};
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;
use crate::vpd::BlockLimits;
use alloc::vec::Vec;

/// Maximum number of extents that one GET LBA STATUS queries; a longer list is fetched in pieces.
pub const MAP_STATUS_EXTENTS_MAX: usize = 4096;

/// UNMAP. SBC-3 §5.28. Anchored blocks do not exist here (ANC_SUP is 0).
pub(crate) fn unmap(_: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    const ANCHOR: u8 = 0x01;
    let raw = Unmap::decode(&first(request.cdb));
    if raw.flags & ANCHOR != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(0)).into());
    }
    match raw.parameter_list_bytes {
        0 => Ok(Plan::Unmap { ranges: Vec::new(), durable: false }),
        1..8 => Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into()),
        bytes => Ok(Plan::Parameters { bytes: bytes.into(), awaiting: request.awaiting() }),
    }
}

/// UNMAP with its list. An incomplete descriptor is ignored, as SBC-3 §5.28.2 requires; one with a
/// count of 0 is no error.
pub(crate) fn unmap_list(
    unit: &mut BlockUnit,
    _: &Request<'_>,
    data: &[u8],
) -> Result<Plan, Refusal> {
    let Some((header, rest)) = data.split_first_chunk() else {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    };
    let header = UnmapHeader::decode(header);
    let listed = usize::from(header.descriptors_bytes).min(rest.len());
    let (descriptors, _) = rest[..listed].as_chunks::<{ UnmapDescriptor::LEN }>();
    let limits = BlockLimits::of(unit.options());
    if descriptors.len() as u64 > u64::from(limits.unmap_descriptors_max) {
        return Err(Sense::invalid_field_in_parameter_list(2, None).into());
    }
    let mut ranges = Vec::with_capacity(descriptors.len());
    let mut total = 0_u64;
    for (index, descriptor) in descriptors.iter().enumerate() {
        let descriptor = UnmapDescriptor::decode(descriptor);
        let range = checked_range(unit, descriptor.lba, descriptor.count.into())?;
        total += range.count;
        if total > u64::from(limits.unmap_blocks_max) {
            // Offset of the excessive count; at most 256 descriptors are checked here.
            let at = UnmapHeader::LEN + index * UnmapDescriptor::LEN + 8;
            return Err(Sense::invalid_field_in_parameter_list(at as u16, None).into());
        }
        ranges.push(range);
    }
    Ok(Plan::Unmap { ranges, durable: unit.is_durable(false) })
}

/// WRITE SAME (10). SBC-3 §5.44.
pub(crate) fn write_same_10(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    write_same(unit, request, false)
}

/// WRITE SAME (16). SBC-3 §5.45; NDOB as in SBC-4.
pub(crate) fn write_same_16(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    write_same(unit, request, true)
}

fn write_same(
    unit: &BlockUnit,
    request: &Request<'_>,
    allows_no_data_out: bool,
) -> Result<Plan, Refusal> {
    const ANCHOR: u8 = 0x10;
    const UNMAP: u8 = 0x08;
    const PHYSICAL_OR_LOGICAL_DATA: u8 = 0x06;
    const NO_DATA_OUT: u8 = 0x01;
    let blocks = unprotected(request)?;
    let may_unmap = blocks.flags & UNMAP != 0;
    if blocks.flags & ANCHOR != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(4)).into());
    }
    if may_unmap && unit.options().unmap_granularity_blocks.is_none() {
        return Err(Sense::invalid_field_in_cdb(1, Some(3)).into());
    }
    // Obsolete, but under their former meaning other data would have to be written.
    if blocks.flags & PHYSICAL_OR_LOGICAL_DATA != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(2)).into());
    }
    let no_data_out = blocks.flags & NO_DATA_OUT != 0;
    if no_data_out && !allows_no_data_out {
        return Err(Sense::invalid_field_in_cdb(1, Some(0)).into());
    }
    let range = write_same_range(unit, blocks)?;
    let pattern = if no_data_out { Pattern::Zeroes } else { Pattern::DataOut };
    Ok(Plan::WriteSame { range, pattern, may_unmap, durable: unit.is_durable(false) })
}

/// Returns the range. A count of 0 means all blocks from the first one on, unless WSNZ forbids it.
/// SBC-3 §5.44.
fn write_same_range(unit: &BlockUnit, blocks: Blocks) -> Result<LbaRange, Sense> {
    let limits = BlockLimits::of(unit.options());
    let mut range = checked_range(unit, blocks.lba, blocks.count)?;
    if range.count == 0 && !limits.write_same_non_zero {
        range.count = unit.options().block_count - range.lba;
        if range.count == 0 {
            return Err(Sense::LBA_OUT_OF_RANGE.with_information(range.lba)); // no first block
        }
    }
    if range.count == 0 || range.count > u64::from(limits.write_same_blocks_max) {
        return Err(Sense::invalid_field_in_cdb(blocks.count_at, None));
    }
    Ok(range)
}

/// GET LBA STATUS. SBC-3 §5.4.
pub(crate) fn lba_status(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    let raw = ServiceActionIn16::decode(&first(request.cdb));
    let end = unit.options().block_count;
    if raw.lba >= end {
        return Err(Sense::LBA_OUT_OF_RANGE.with_information(raw.lba).into());
    }
    let range = LbaRange { lba: raw.lba, count: end - raw.lba };
    let fitting = raw.allocation_bytes.saturating_sub(8) as usize / LbaStatus::LEN;
    Ok(Plan::MapStatus {
        range,
        extents_max: fitting.clamp(1, MAP_STATUS_EXTENTS_MAX),
        allocation_bytes: raw.allocation_bytes,
    })
}

/// Builds the answer to GET LBA STATUS for these extents, truncated to the allocation length.
/// SBC-3 §5.4.2.
pub(crate) fn status_reply(extents: &[(LbaRange, bool)], allocation_bytes: u32) -> Vec<u8> {
    let mut reply = alloc::vec![0; 8];
    for (range, mapped) in extents {
        let mut rest = *range;
        // One descriptor counts blocks in 32 bits. Descriptors that do not fit are not built,
        // except the first.
        while rest.count > 0 && (reply.len() == 8 || reply.len() < allocation_bytes as usize) {
            let count = u32::try_from(rest.count).unwrap_or(u32::MAX);
            let status = LbaStatus { lba: rest.lba, count, status: u8::from(!mapped) };
            reply.extend_from_slice(&status.encode());
            rest.lba = rest.lba.saturating_add(count.into());
            rest.count -= u64::from(count);
        }
    }
    // PARAMETER DATA LENGTH counts the bytes after it.
    let bytes = u32::try_from(reply.len() - 4).unwrap_or(u32::MAX);
    reply[..4].copy_from_slice(&bytes.to_be_bytes());
    super::inform::truncated(reply, allocation_bytes)
}
