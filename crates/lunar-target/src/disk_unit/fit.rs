//! Adaptation of a plan to the data that the initiator announced: how much it sends and has room
//! for.

use lunar_scsi::commands::ListKind;
use lunar_scsi::plan::{Compare, Pattern, Plan};
use lunar_scsi::sense::Sense;

/// Cuts open-ended parameter lists, which contain their own length, to the announced length.
pub(super) fn cut_to_announced_length(plan: &mut Plan, expected: u64) {
    if let Plan::Parameters { bytes, awaiting } = plan
        && awaiting.kind == ListKind::OpenEnded
    {
        *bytes = u32::try_from(expected).unwrap_or(u32::MAX).min(*bytes);
    }
}

/// Adapts the plan and the announced data-out to each other.
///
/// Plain writes move as many whole blocks as both sides allow; the rest is a residual (RFC 7143
/// §11.4.5.1). Commands whose data has one right length are refused with any other: a wrong length
/// there means that initiator and target interpret the command differently.
pub(super) fn fit_data_out(
    plan: &mut Plan,
    block_bytes: u32,
    wants: u64,
    expected: u64,
) -> Result<(), Sense> {
    if wants == expected {
        return Ok(());
    }
    let exact = matches!(
        plan,
        Plan::CompareAndWrite { .. } | Plan::WriteSame { pattern: Pattern::DataOut, .. }
    );
    if wants < expected && !exact {
        return Ok(());
    }
    let block = u64::from(block_bytes);
    match plan {
        Plan::Write { range, .. } if expected.is_multiple_of(block) => {
            range.count = expected / block;
            Ok(())
        }
        Plan::WriteAndVerify { range, compare: compare @ (Compare::Medium | Compare::Bytes) }
            if expected.is_multiple_of(block) =>
        {
            range.count = expected / block;
            *compare = Compare::Bytes;
            Ok(())
        }
        _ => Err(Sense::INVALID_FIELD_IN_COMMAND_INFORMATION_UNIT),
    }
}

/// Shortens a read to the blocks that the initiator has room for: data that would only be cut off
/// is not read (RFC 7143 §11.4.5.1). Returns the number of bytes that the command would have moved.
pub(super) fn fit_data_in(plan: &mut Plan, block_bytes: u32, expected: u32) -> u32 {
    let Plan::Read { range, .. } = plan else { return 0 };
    let bytes = range.count.saturating_mul(block_bytes.into());
    range.count = range.count.min(u64::from(expected.div_ceil(block_bytes.max(1))));
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
