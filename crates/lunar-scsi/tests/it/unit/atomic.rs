//! WRITE ATOMIC (16).

use crate::unit::support::{COUNT, Rig, options};
use lunar_scsi::plan::{LbaRange, Plan};
use lunar_scsi::sense::Sense;
use lunar_scsi::unit::{AtomicBlocks, UnitOptions};

fn rig() -> Rig {
    let atomic = Some(AtomicBlocks { unit_blocks: 8, blocks_max: 64 });
    Rig::new(UnitOptions { atomic, ..options() })
}

fn write_atomic(flags: u8, lba: u64, boundary: u16, count: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[..2].copy_from_slice(&[0x9c, flags]);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..12].copy_from_slice(&boundary.to_be_bytes());
    cdb[12..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

#[test]
fn atomic_writes_within_the_limits() {
    let mut rig = rig();
    for (lba, count) in [(0, 8), (8, 64), (COUNT - 8, 8), (0, 0), (COUNT, 0)] {
        for (flags, durable) in [(0, false), (0x08, true), (0x10, false)] {
            let plan = rig.plan(&write_atomic(flags, lba, 0, count));
            let range = LbaRange { lba, count: count.into() };
            assert_eq!(plan, Plan::WriteAtomic { range, durable });
            assert_eq!(plan.data_out_bytes(512), u64::from(count) * 512);
        }
    }
}

#[test]
fn atomic_writes_beyond_the_limits_are_refused() {
    let mut rig = rig();
    for (cdb, at) in [
        (write_atomic(0, 0, 0, 72), 12),
        (write_atomic(0, 0, 0, 7), 12),
        (write_atomic(0, 1, 0, 8), 2),
        (write_atomic(0, 0, 8, 8), 10),
    ] {
        assert_eq!(rig.sense(&cdb), Sense::invalid_field_in_cdb(at, None), "{cdb:x?}");
    }
    let protected = rig.sense(&write_atomic(0x20, 0, 0, 8));
    assert_eq!(protected, Sense::invalid_field_in_cdb(1, Some(7)));
    for (lba, count) in [(COUNT - 8, 16), (COUNT, 8), (COUNT + 8, 0), (1 << 63, 8), (u64::MAX, 1)] {
        let sense = rig.sense(&write_atomic(0, lba, 0, count));
        assert_eq!(sense, Sense::LBA_OUT_OF_RANGE.with_information(lba.max(COUNT)));
    }
}

/// Goal: a unit whose device guarantees nothing does not have the command.
#[test]
fn write_atomic_requires_support_of_the_device() {
    let sense = Rig::thin().sense(&write_atomic(0, 0, 0, 8));
    assert_eq!(sense, Sense::INVALID_OPERATION_CODE);
}
