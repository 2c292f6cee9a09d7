//! SEND DIAGNOSTIC: the default self-test.

use super::{LbaRange, Plan, Refusal};
use crate::cdb::first;
use crate::cdb::spc::SendDiagnostic;
use crate::commands::Request;
use crate::sense::Sense;
use crate::unit::BlockUnit;
use alloc::vec::Vec;

/// Number of blocks that the self-test reads, spread evenly over the unit, including the first and
/// the last.
pub const SELF_TEST_READS: u64 = 16;

/// SEND DIAGNOSTIC. SPC-4 §6.42. There are no diagnostic pages, and no background self-tests;
/// nothing goes offline, whatever DEVOFFL and UNITOFFL allow.
pub(crate) fn send(unit: &mut BlockUnit, request: &Request<'_>) -> Result<Plan, Refusal> {
    const SELF_TEST_CODE: u8 = 0xe0;
    const SELFTEST: u8 = 0x04;
    let raw = SendDiagnostic::decode(&first(request.cdb));
    if raw.flags & SELF_TEST_CODE != 0 {
        return Err(Sense::invalid_field_in_cdb(1, Some(7)).into());
    }
    if raw.parameter_bytes != 0 {
        return Err(Sense::invalid_field_in_cdb(3, None).into());
    }
    if raw.flags & SELFTEST == 0 {
        return Ok(Plan::Reply(Vec::new()));
    }
    Ok(Plan::SelfTest { reads: probes(unit.options().block_count) })
}

fn probes(blocks: u64) -> Vec<LbaRange> {
    let last = blocks.saturating_sub(1);
    let reads = SELF_TEST_READS.min(blocks);
    let address = |at: u64| {
        // The product may have 68 bits.
        let lba = u128::from(last) * u128::from(at) / u128::from(reads.max(2) - 1);
        LbaRange { lba: lba as u64, count: 1 }
    };
    (0..reads).map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_self_test_reads_from_one_end_to_the_other() {
        for blocks in [1, 2, 15, 16, 17, 1 << 20, u64::MAX] {
            let probes = probes(blocks);
            assert_eq!(probes.len() as u64, SELF_TEST_READS.min(blocks));
            assert_eq!(probes[0].lba, 0);
            assert_eq!(probes[probes.len() - 1].lba, blocks - 1);
            assert!(probes.is_sorted_by(|a, b| a.lba < b.lba), "{blocks}: {probes:?}");
        }
        assert!(probes(0).is_empty());
    }
}
