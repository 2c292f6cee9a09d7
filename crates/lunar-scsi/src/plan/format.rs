//! FORMAT UNIT: initializes every block; the block length is not changed, and there are no defects.

use super::{NexusId, Plan, Refusal};
use crate::cdb::first;
use crate::cdb::sbc::{FormatHeader, FormatUnit, InitializationPattern, LongFormatHeader};
use crate::commands::Request;
use crate::long_operation::{LongOperation, OperationKind, OperationWork};
use crate::sense::Sense;
use crate::unit::BlockUnit;

/// FORMAT UNIT. SBC-3 §5.3. The CDB has no length of the parameter list, so the longest list is
/// requested: the long header, a pattern descriptor, and a block of pattern.
pub(crate) fn format_unit(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    const PROTECTION: u8 = 0xc0;
    const FMTDATA: u8 = 0x10;
    let raw = FormatUnit::decode(&first(request.cdb));
    if raw.flags & PROTECTION != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(7)).into());
    }
    if raw.flags & FMTDATA == 0 {
        // CMPLST, LONGLIST and the format of a defect list have no meaning without a list.
        if raw.flags != 0 {
            return Err(Sense::invalid_field_in_cdb(1, Some(5)).into());
        }
        return Ok(begin(unit, request.nexus, None, false));
    }
    check_list_format(raw.flags)?;
    let bytes =
        LongFormatHeader::LEN + InitializationPattern::LEN + unit.options().block_bytes as usize;
    let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    Ok(Plan::Parameters { bytes, awaiting: request.awaiting() })
}

/// FORMAT UNIT with its parameter list.
pub(crate) fn format_unit_list(
    unit: &mut BlockUnit,
    request: &Request<'_>,
    list: &[u8],
) -> Result<Plan, Refusal> {
    const LONGLIST: u8 = 0x20;
    const IMMED: u8 = 0x02;
    const IP: u8 = 0x08;
    let raw = FormatUnit::decode(&first(request.cdb));
    let (options, rest) = if raw.flags & LONGLIST == 0 {
        let (header, rest) = list.split_first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let FormatHeader { protection, options, defects_bytes } = FormatHeader::decode(header);
        check_header(protection, options, defects_bytes.into(), 2)?;
        (options, rest)
    } else {
        let (header, rest) = list.split_first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
        let LongFormatHeader { protection, options, interval, defects_bytes } =
            LongFormatHeader::decode(header);
        if interval != 0 {
            return Err(Sense::invalid_field_in_parameter_list(3, None).into());
        }
        check_header(protection, options, defects_bytes, 4)?;
        (options, rest)
    };
    let header_bytes = (list.len() - rest.len()) as u16; // 4 or 8
    let pattern = match options & IP {
        0 => None,
        _ => pattern(unit, rest, header_bytes)?,
    };
    Ok(begin(unit, request.nexus, pattern.map(<[u8]>::to_vec), options & IMMED != 0))
}

fn begin(
    unit: &BlockUnit,
    nexus: NexusId,
    pattern: Option<alloc::vec::Vec<u8>>,
    immediate: bool,
) -> Plan {
    let work = match pattern {
        Some(pattern) => OperationWork::Overwrite { pattern, passes: 1, invert: false },
        None if unit.options().unmap_granularity_blocks.is_some() => OperationWork::Deallocate,
        None => OperationWork::Zero,
    };
    let operation = LongOperation { kind: OperationKind::FORMAT, unrestricted_exit: false, work };
    Plan::LongOperation { operation, by: nexus, immediate }
}

/// Checks the defect list format. An empty list is valid in six formats; the seventh is a vendor's,
/// the eighth reserved.
fn check_list_format(flags: u8) -> Result<(), Sense> {
    match flags & 0x07 {
        0..=5 => Ok(()),
        _ => Err(Sense::invalid_field_in_cdb(1, Some(2))),
    }
}

/// Checks the header. SBC-3 §5.3.2.2. Without FOV its options must be 0. DPRY and STPF select the
/// treatment of defect lists, DCRT requests no certification: none has an effect here.
fn check_header(
    protection: u8,
    options: u8,
    defects_bytes: u32,
    defects_at: u16,
) -> Result<(), Sense> {
    const FOV: u8 = 0x80;
    const DPRY_DCRT_STPF_IP: u8 = 0x78;
    const PROTECTION_USAGE: u8 = 0x07;
    if protection & PROTECTION_USAGE != 0 {
        return Err(Sense::invalid_field_in_parameter_list(0, Some(2)));
    }
    if options & FOV == 0 && options & DPRY_DCRT_STPF_IP != 0 {
        return Err(Sense::invalid_field_in_parameter_list(1, Some(6)));
    }
    if defects_bytes != 0 {
        return Err(Sense::invalid_field_in_parameter_list(defects_at, None));
    }
    Ok(())
}

/// Reads the initialization pattern descriptor: the default pattern (`None`), or a pattern to
/// repeat. SBC-3 §5.3.2.3.
fn pattern<'a>(unit: &BlockUnit, descriptor: &'a [u8], at: u16) -> Result<Option<&'a [u8]>, Sense> {
    const DEFAULT: u8 = 0x00;
    const REPEAT: u8 = 0x01;
    let (header, rest) =
        descriptor.split_first_chunk().ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)?;
    let InitializationPattern { modifier, kind, bytes } = InitializationPattern::decode(header);
    let bytes = usize::from(bytes);
    // IP MODIFIER and SI: neither is supported; SANITIZE is a better way to do what SI requests.
    if modifier != 0 {
        return Err(Sense::invalid_field_in_parameter_list(at, None));
    }
    match kind {
        DEFAULT if bytes == 0 => Ok(None),
        REPEAT if (1..=unit.options().block_bytes as usize).contains(&bytes) => {
            rest.get(..bytes).map(Some).ok_or(Sense::PARAMETER_LIST_LENGTH_ERROR)
        }
        DEFAULT | REPEAT => Err(Sense::invalid_field_in_parameter_list(at + 2, None)),
        _ => Err(Sense::invalid_field_in_parameter_list(at + 1, None)),
    }
}
