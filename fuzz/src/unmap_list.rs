//! Hostile UNMAP parameter lists, compared with a second implementation of SBC-3 §5.28.

use lunar_scsi::plan::{LbaRange, NexusId, Plan, Refusal};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{BlockUnit, Context, InitiatorPort, TargetPort, UnitOptions};
use lunar_scsi::vpd::{UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX};

/// Runs an input. The first byte selects the unit's size, two more the length in the CDB (missing
/// bytes are zeroes, as from an initiator with longer data); the rest is the list.
pub fn run(input: &[u8]) {
    let Some(([selector, high, low], list)) = input.split_first_chunk() else { return };
    let blocks = match selector % 4 {
        0 => 1,
        1 => 1 << 20,
        2 => (1 << 21) + 7,
        _ => u64::MAX >> 9,
    };
    let mut list = list.to_vec();
    if high & 0x80 != 0 {
        list.resize(usize::from(u16::from_be_bytes([high & 0x1f, *low])), 0);
    }
    list.truncate(usize::from(u16::MAX));
    let answer = unmap(blocks, &list);
    assert_eq!(answer, expected(blocks, &list));
}

fn unmap(blocks: u64, list: &[u8]) -> Result<Plan, Refusal> {
    let port =
        TargetPort { name: "iqn.2026-01.example:t".into(), portal_group_tag: 1, relative_id: 1 };
    let mut unit = BlockUnit::new(UnitOptions {
        block_count: blocks,
        unmap_granularity_blocks: Some(8),
        ..UnitOptions::default()
    });
    let nexus = NexusId(1);
    let initiator = InitiatorPort { name: "iqn.2026-01.example:i".into(), isid: [0; 6] };
    unit.attach(nexus, initiator, port.clone());
    let context = Context::new(&[], &port);
    assert!(unit.plan(nexus, &context, &[0; 6]).is_err(), "the unit attention of the power-on");
    let [high, low] = (list.len() as u16).to_be_bytes();
    match unit.plan(nexus, &context, &[0x42, 0, 0, 0, 0, 0, 0, high, low, 0])? {
        Plan::Parameters { bytes, awaiting } => {
            assert_eq!(bytes as usize, list.len());
            unit.resume(nexus, &context, awaiting, list)
        }
        plan => Ok(plan),
    }
}

/// Returns the expected result of a list, read byte by byte.
fn expected(blocks: u64, list: &[u8]) -> Result<Plan, Refusal> {
    if list.is_empty() {
        return Ok(Plan::Unmap { ranges: Vec::new(), durable: false });
    }
    if list.len() < 8 {
        return Err(Sense::PARAMETER_LIST_LENGTH_ERROR.into());
    }
    let number = |at: usize, bytes: usize| {
        list[at..at + bytes].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let listed = (number(2, 2) as usize).min(list.len() - 8);
    let count = listed / 16; // an incomplete one is ignored
    if count as u64 > u64::from(UNMAP_DESCRIPTORS_MAX) {
        return Err(Sense::invalid_field_in_parameter_list(2, None).into());
    }
    let mut ranges = Vec::new();
    let mut total = 0;
    for index in 0..count {
        let at = 8 + index * 16;
        let range = LbaRange { lba: number(at, 8), count: number(at + 8, 4) };
        let end = u128::from(range.lba) + u128::from(range.count);
        if end > u128::from(blocks) {
            let information = range.lba.max(blocks);
            return Err(Sense::LBA_OUT_OF_RANGE.with_information(information).into());
        }
        total += range.count;
        if total > u64::from(UNMAP_BLOCKS_MAX) {
            return Err(Sense::invalid_field_in_parameter_list(at as u16 + 8, None).into());
        }
        ranges.push(range);
    }
    Ok(Plan::Unmap { ranges, durable: true })
}
