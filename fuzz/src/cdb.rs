//! Hostile commands: any CDB, any parameter list, from two initiators at one unit.

use lunar_scsi::long_operation::LongOperation;
use lunar_scsi::plan::{LbaRange, NexusId, Plan, Refusal};
use lunar_scsi::unit::{
    AtomicBlocks, BlockUnit, Context, InitiatorPort, TargetPort, Threshold, UnitOptions,
    absent_unit_plan,
};
use lunar_wire::Lun;

const CDB_BYTES: usize = 16;
const BLOCKS: u64 = 1 << 20;
const BLOCK_BYTES: u32 = 512;
const TRANSFER_BLOCKS_MAX: u32 = 4096;
/// Maximum length of parameter lists and replies.
const LIST_BYTES_MAX: usize = 1 << 17;

/// Runs an input. The first byte selects the unit. Commands follow: a byte whose low bit selects
/// the sender, sixteen bytes of CDB, a length byte, and a parameter list of this length.
pub fn run(input: &[u8]) {
    let Some((selector, mut rest)) = input.split_first() else { return };
    let mut unit = unit(*selector);
    let port =
        TargetPort { name: "iqn.2026-01.example:t".into(), portal_group_tag: 1, relative_id: 1 };
    for number in [0, 1] {
        let name = format!("iqn.2026-01.example:i{number}");
        let initiator = InitiatorPort { name, isid: [0x80, 0, 0, 0, 0, number] };
        unit.attach(NexusId(u64::from(number)), initiator, port.clone());
    }
    let luns = [Lun::new(0), Lun::new(3)];
    let context = Context::new(&luns, &port);
    while let Some((command, after)) = rest.split_at_checked(CDB_BYTES + 2) {
        let nexus = NexusId(u64::from(command[0] & 1));
        let cdb = &command[1..=CDB_BYTES];
        let list_bytes = usize::from(command[CDB_BYTES + 1]).min(after.len());
        let (list, after) = after.split_at(list_bytes);
        rest = after;
        check_reply(&absent_unit_plan(luns[1], &context, cdb));
        let mut plan = unit.plan(nexus, &context, cdb);
        check_plan(&unit, &plan);
        if let Ok(Plan::Parameters { bytes, awaiting }) = plan {
            assert!(bytes as usize <= LIST_BYTES_MAX, "a parameter list of {bytes} bytes");
            let list = &list[..list.len().min(bytes as usize)];
            plan = unit.resume(nexus, &context, awaiting, list);
            check_plan(&unit, &plan);
            assert!(
                !matches!(plan, Ok(Plan::Parameters { .. })),
                "a parameter list requires another one"
            );
        }
        if let Ok(Plan::LongOperation { operation, by, .. }) = plan {
            long_operation(&mut unit, operation, by, command[0] >> 1);
        }
        if command[0] == 0xff {
            unit.detach(nexus);
        }
    }
    let state = unit.persistent_state();
    assert!(unit.restore(&state).is_ok(), "a saved state can be restored");
    // The rest of the input as a state is refused or accepted, without a panic.
    let _ = unit.restore(rest);
}

/// Begins the operation if possible, and ends it as two bits select; 3: it continues.
fn long_operation(unit: &mut BlockUnit, operation: LongOperation, by: NexusId, end: u8) {
    assert!(operation.work.passes() > 0);
    if unit.begin_operation(operation, by).is_err() {
        return;
    }
    unit.set_operation_progress(u64::from(end), BLOCKS);
    match end & 3 {
        0 => {
            unit.set_operation_done();
            unit.end_operation();
        }
        1 => unit.fail_operation(),
        2 => unit.withdraw_operation(),
        _ => assert!(unit.operation().is_some()),
    }
}

fn unit(selector: u8) -> BlockUnit {
    let bit = |number: u8| selector & (1 << number) != 0;
    let mut unit = BlockUnit::new(UnitOptions {
        uuid: [0x5a; 16],
        block_bytes: BLOCK_BYTES,
        block_count: if bit(6) { 1 } else { BLOCKS },
        physical_block_bytes: if bit(0) { 4096 } else { BLOCK_BYTES },
        transfer_blocks_max: TRANSFER_BLOCKS_MAX,
        optimal_transfer_blocks: 128,
        unmap_granularity_blocks: bit(1).then_some(8),
        read_only: bit(2),
        removable: bit(3),
        write_back: bit(4),
        threshold: bit(7).then_some(Threshold { set_exponent: 11, available_sets: 100 }),
        atomic: bit(7).then_some(AtomicBlocks { unit_blocks: 8, blocks_max: 2048 }),
        ..UnitOptions::default()
    });
    if bit(5) {
        unit.keep_state();
    }
    unit
}

fn check_reply(plan: &Result<Plan, Refusal>) {
    if let Ok(Plan::Reply(data)) = plan {
        assert!(data.len() <= LIST_BYTES_MAX);
    }
}

/// Checks that a plan lies within the unit and its limits, and that a refusal can be encoded.
fn check_plan(unit: &BlockUnit, plan: &Result<Plan, Refusal>) {
    let blocks = unit.options().block_count;
    let assert_inside = |range: &LbaRange| {
        let end = range.lba.checked_add(range.count);
        assert!(end.is_some_and(|end| end <= blocks), "{range:?} of {blocks} blocks");
    };
    check_reply(plan);
    match plan {
        Ok(plan) => {
            let data_out = plan.data_out_bytes(BLOCK_BYTES);
            let bytes_max = u64::from(TRANSFER_BLOCKS_MAX) * u64::from(BLOCK_BYTES);
            assert!(data_out <= bytes_max.max(LIST_BYTES_MAX as u64), "{data_out} bytes: {plan:?}");
            match plan {
                Plan::Read { range, .. } => {
                    assert_inside(range);
                    assert!(range.count <= u64::from(TRANSFER_BLOCKS_MAX));
                }
                Plan::Write { range, .. }
                | Plan::WriteAtomic { range, .. }
                | Plan::WriteAndVerify { range, .. }
                | Plan::Verify { range, .. }
                | Plan::CompareAndWrite { range, .. }
                | Plan::OrWrite { range, .. }
                | Plan::WriteSame { range, .. }
                | Plan::Prefetch { range }
                | Plan::MapStatus { range, .. } => assert_inside(range),
                Plan::SelfTest { reads } => reads.iter().for_each(assert_inside),
                Plan::Unmap { ranges, .. } => ranges.iter().for_each(assert_inside),
                _ => {}
            }
        }
        Err(Refusal::Check(sense)) => assert!(unit.encode_sense(sense).len() <= 252),
        Err(_) => {}
    }
}
