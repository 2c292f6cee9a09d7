//! Arbitrary CDBs: no panic, and no plan outside the unit.

use crate::unit::support::{A, B, Rig, options};
use lunar_scsi::commands::{COMMANDS, ListKind};
use lunar_scsi::plan::{AwaitingParameterList, LbaRange, Plan};
use lunar_scsi::unit::{Context, UnitOptions, absent_unit_plan};
use lunar_wire::Lun;
use proptest::prelude::*;

/// Maximum length of replies: the longest is REPORT SUPPORTED OPERATION CODES.
const REPLY_BYTES_MAX: usize = 4096;

fn check_range(options: &UnitOptions, range: LbaRange) {
    let end = range.lba.checked_add(range.count);
    assert!(end.is_some_and(|end| end <= options.block_count), "{range:x?}");
}

fn check(options: &UnitOptions, plan: &Plan) {
    let transfer = u64::from(options.transfer_blocks_max);
    match plan {
        Plan::Read { range, .. }
        | Plan::Write { range, .. }
        | Plan::WriteAtomic { range, .. }
        | Plan::WriteAndVerify { range, .. }
        | Plan::Verify { range, .. }
        | Plan::OrWrite { range, .. } => {
            check_range(options, *range);
            assert!(range.count <= transfer);
        }
        Plan::CompareAndWrite { range, .. } => {
            check_range(options, *range);
            assert!(range.count <= transfer.min(255));
        }
        Plan::WriteSame { range, .. } | Plan::Prefetch { range } => check_range(options, *range),
        Plan::MapStatus { range, extents_max, .. } => {
            check_range(options, *range);
            assert!(range.count > 0 && (1..=4096).contains(extents_max));
        }
        Plan::Unmap { ranges, .. } => {
            assert!(ranges.len() <= 256);
            ranges.iter().for_each(|range| check_range(options, *range));
        }
        Plan::Reply(reply) => assert!(reply.len() <= REPLY_BYTES_MAX),
        Plan::Parameters { bytes, .. } => assert!((1..=0xffff).contains(bytes)),
        Plan::LongOperation { operation, .. } => assert!(operation.work.passes() > 0),
        Plan::SelfTest { reads } => reads.iter().for_each(|range| check_range(options, *range)),
        Plan::Copy { list } => crate::unit::copy::check(list),
        Plan::Flush { .. }
        | Plan::SaveState
        | Plan::ExitFailureMode
        | Plan::AbortTasksOf { .. } => {}
    }
    let longest = (2 * 255 * u64::from(options.block_bytes))
        .max(transfer * u64::from(options.block_bytes))
        .max(0xffff);
    assert!(plan.data_out_bytes(options.block_bytes) <= longest);
}

/// CDBs that are valid more often than random ones: a command of the table with random fields, some
/// of them small.
fn cdbs() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![Just(0), Just(0xff), 0..=8_u8, any::<u8>()];
    let likely = (0..COMMANDS.len(), prop::collection::vec(byte, 0..=32)).prop_map(
        |(index, mut cdb): (usize, Vec<u8>)| {
            let command = &COMMANDS[index];
            if let Some(byte) = cdb.get_mut(command.cdb_bytes() - 1) {
                *byte = 0;
            }
            if let Some(flags) = cdb.get_mut(1) {
                *flags &= if command.service_action.is_some() { 0 } else { 0x1e };
            }
            command.write_codes(&mut cdb);
            cdb
        },
    );
    prop_oneof![3 => likely, 1 => prop::collection::vec(any::<u8>(), 0..=260)]
}

fn units() -> impl Strategy<Value = UnitOptions> {
    let counts = prop_oneof![Just(1_u64), 1..=300_u64, Just(1 << 32), Just(1 << 43), any::<u64>()];
    let blocks = prop_oneof![Just(512_u32), Just(1024), Just(2048), Just(4096)];
    let thin = prop::option::of(1..=64_u32);
    (counts, blocks, thin, any::<bool>(), any::<bool>(), 0..5_u32, any::<bool>()).prop_map(
        |(count, block_bytes, thin, removable, write_back, exponent, small)| UnitOptions {
            block_bytes,
            block_count: count.max(1),
            physical_block_bytes: block_bytes << exponent,
            transfer_blocks_max: if small { 1 } else { 2048 },
            unmap_granularity_blocks: thin,
            removable,
            write_back,
            read_only: false,
            ..options()
        },
    )
}

proptest! {
    /// Goal: hostile commands do no harm. Method: sequences of random CDBs and parameter lists from
    /// two nexuses at units of random shape.
    #[test]
    fn any_cdb_is_handled(
        unit in units(),
        commands in prop::collection::vec((any::<bool>(), cdbs()), 1..40),
        list in prop::collection::vec(any::<u8>(), 0..=300),
    ) {
        let mut rig = Rig::new(unit.clone());
        for (first, cdb) in &commands {
            let nexus = if *first { A } else { B };
            let plan = rig.run(nexus, cdb);
            if let Ok(Plan::Parameters { awaiting, .. }) = plan {
                let port = crate::unit::support::port();
                let context = Context::new(&rig.luns, &port);
                if let Ok(plan) = rig.unit.resume(nexus, &context, awaiting, &list) {
                    check(&unit, &plan);
                }
            } else if let Ok(plan) = plan {
                check(&unit, &plan);
            } else if let Err(lunar_scsi::plan::Refusal::Check(sense)) = plan {
                prop_assert!(!rig.unit.encode_sense(&sense).is_empty());
            }
        }
    }

    /// Goal: a command of another unit or nexus that awaits its parameter list does no
    /// harm.
    #[test]
    fn any_awaiting_command_is_handled(
        cdb in cdbs(),
        list in prop::collection::vec(any::<u8>(), 0..=300),
    ) {
        let mut rig = Rig::thin();
        let port = crate::unit::support::port();
        let context = Context::new(&rig.luns, &port);
        let awaiting = AwaitingParameterList { cdb, kind: ListKind::Plain };
        if let Ok(plan) = rig.unit.resume(A, &context, awaiting, &list) {
            check(&options(), &plan);
        }
    }

    /// Goal: the same holds for a LUN without a unit.
    #[test]
    fn any_cdb_without_a_unit_is_handled(cdb in cdbs(), lun in any::<[u8; 8]>()) {
        let port = crate::unit::support::port();
        let luns = [Lun::new(0)];
        let context = Context::new(&luns, &port);
        for lun in [Lun(lun), Lun::REPORT_LUNS] {
            if let Ok(plan) = absent_unit_plan(lun, &context, &cdb) {
                check(&options(), &plan);
            }
        }
    }

    /// Goal: damaged state is refused.
    #[test]
    fn any_state_is_handled(state in prop::collection::vec(any::<u8>(), 0..=300)) {
        let mut rig = Rig::fresh(options());
        prop_assert!(rig.unit.restore(&state).is_err());
    }
}
