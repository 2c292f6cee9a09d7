//! Tests that after a failed sync no command writes anything until an operator recovers the disk.

use crate::common::*;
use lunar_block::{Effect, ErrorKind, Fault, FaultOperation};
use lunar_target::{CacheMode, DiskUnit, DiskUnitOptions};
use lunar_testkit::raw::RawClient;
use std::sync::Arc;

const MEDIUM_ERROR: (u8, u16) = (3, 0x0c00);

fn write_back() -> Rig {
    Rig::with(|options| {
        let shown = options.targets[0].luns[0].disk().unwrap();
        let device = Arc::clone(&shown.options().device);
        let made = DiskUnitOptions::new(uuid::Uuid::from_u128(1), device);
        let made = DiskUnitOptions { cache: CacheMode::WriteBack, ..made };
        options.targets[0].luns[0].unit = DiskUnit::open(made).unwrap();
    })
}

/// Returns the status and sense codes of a command with this data-out.
fn put(raw: &mut RawClient, cdb: &[u8], data: &[u8]) -> (u8, (u8, u16)) {
    let outcome = raw.execute_with(cdb, data).unwrap();
    (outcome.status, outcome.sense_codes())
}

/// Goal: after a failed SYNCHRONIZE CACHE each command that writes or syncs fails, including one
/// that is answered at once and fails later; reads continue. Only the operator can recover the
/// disk, and only if it can be synced. Initiators are then informed that the medium may have
/// changed.
#[test]
fn poisoned_until_it_is_recovered() {
    let rig = write_back();
    let unit = rig.unit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut raw = rig.log_in(1);
    raw.write_blocks(0, &[1; 512]).unwrap();
    let failure = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush);
    // Fails the sync with the early reply, a second one, and the first recovery.
    rig.device.inject(failure.times(3));
    let (sync, fua) = (ten(0x35, 0, 0), [0x2a, 8, 0, 0, 0, 0, 0, 0, 1, 0]);
    let mut immediate = sync;
    immediate[1] = 2;
    assert_eq!(put(&mut raw, &immediate, &[]).0, 0, "answered before the sync");
    rig.wait_for("the sync has failed", |_| unit.is_poisoned());
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0];
    unmap.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    for round in 0..2 {
        assert_eq!(put(&mut raw, &sync, &[]), (2, MEDIUM_ERROR));
        assert_eq!(put(&mut raw, &ten(0x2a, 0, 1), &[2; 512]), (2, MEDIUM_ERROR));
        assert_eq!(put(&mut raw, &fua, &[2; 512]), (2, MEDIUM_ERROR));
        assert_eq!(put(&mut raw, &ten(0x2e, 0, 1), &[2; 512]), (2, MEDIUM_ERROR));
        assert_eq!(put(&mut raw, &ten(0x41, 0, 1), &[2; 512]), (2, MEDIUM_ERROR));
        assert_eq!(put(&mut raw, &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap), (2, MEDIUM_ERROR));
        assert_eq!(raw.read_block(0).unwrap(), [1; 512]);
        if round == 0 {
            runtime.block_on(unit.recover()).unwrap_err();
            assert!(unit.is_poisoned(), "the sync of the recovery failed");
        }
    }
    runtime.block_on(unit.recover()).unwrap();
    assert!(!unit.is_poisoned());
    let ready = raw.command(0x80, &[0; 6], 0);
    raw.send(&ready).unwrap();
    let answer = answer_to(&mut raw, ready.u32_at(16));
    assert_eq!((answer.header[3], answer.data[4] & 0xf, answer.data[14]), (2, 6, 0x28));
    assert_eq!(put(&mut raw, &fua, &[2; 512]).0, 0);
    assert_eq!(put(&mut raw, &sync, &[]).0, 0);
    assert_eq!(raw.read_block(0).unwrap(), [2; 512]);
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: a flush requested before the failed sync does not end with GOOD after the recovery,
/// because its data may be lost. Method: the flush hangs until after the recovery.
#[test]
fn a_flush_from_before_the_recovery_fails() {
    let rig = write_back();
    let unit = rig.unit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut one, mut other) = (rig.log_in(1), rig.log_in(2));
    one.write_blocks(0, &[1; 512]).unwrap();
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Flush).times(1));
    let sync = one.command(0x80, &ten(0x35, 0, 0), 0);
    one.send(&sync).unwrap();
    rig.wait_for("the sync hangs", |rig| rig.device.hanging() == 1);
    let failure = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush);
    rig.device.inject(failure.times(1));
    assert_eq!(put(&mut other, &ten(0x35, 0, 0), &[]), (2, MEDIUM_ERROR));
    runtime.block_on(unit.recover()).unwrap();
    rig.device.release();
    let answer = answer_to(&mut one, sync.u32_at(16));
    assert_eq!((answer.header[3], answer.data[4] & 0xf), (2, 3), "CHECK CONDITION, MEDIUM ERROR");
    for raw in [&mut one, &mut other] {
        let ready = raw.command(0x80, &[0; 6], 0);
        raw.send(&ready).unwrap();
        let answer = answer_to(raw, ready.u32_at(16));
        assert_eq!((answer.header[3], answer.data[4] & 0xf, answer.data[14]), (2, 6, 0x28));
        assert_eq!(put(raw, &ten(0x35, 0, 0), &[]).0, 0);
    }
    log_out(one);
    log_out(other);
    rig.stop_cleanly();
}

/// Goal: a server reports a poisoned disk when it stops.
#[test]
fn a_poisoned_disk_is_reported_at_shutdown() {
    let rig = write_back();
    let mut raw = rig.log_in(1);
    let failure = Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Flush);
    rig.device.inject(failure.times(1));
    assert_eq!(put(&mut raw, &ten(0x35, 0, 0), &[]), (2, MEDIUM_ERROR));
    log_out(raw);
    assert_eq!(rig.failed_syncs(), 1);
}
