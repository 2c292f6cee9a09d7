//! Tests that memory which sessions keep after their commands have ended is covered by its charge.
//! They form a program of their own, because they count all allocations of the process.
#![allow(clippy::unwrap_used)] // a test may

#[path = "../it/common/mod.rs"]
mod common;
mod unsafe_counting_allocator;

use common::*;
use lunar_block::{MemoryDevice, MemoryKind};
use lunar_target::{DiskUnit, DiskUnitOptions, Limit, LunOptions};
use lunar_testkit::raw::{RawClient, RawPdu, opcode};
use std::sync::Arc;
use unsafe_counting_allocator::{CountingAllocator, allocated_bytes};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Number of units besides the first one, at which all operations are done once before measuring.
const UNITS: u8 = 64;
/// Number of commands in a burst; together with the WRITE that they wait for they fit the window.
const BURST: usize = 120;
const SIMPLE: u8 = 1;
const ORDERED: u8 = 2;
/// Charges of a session for a unit, without and with a command sent to a unit with limits.
const UNIT_BYTES: usize = 1 << 10;
const SESSION_QUEUE_BYTES: usize = 6 << 10;
/// Amount by which the memory of a connection may vary over time.
const CONNECTION_SLACK_BYTES: usize = 8 << 10;

fn rig_of_many_units() -> Rig {
    Rig::with(|options| {
        options.targets[0].luns =
            (0..=UNITS).map(|id| LunOptions::new(id.into(), small_unit(id))).collect();
    })
}

fn small_unit(number: u8) -> Arc<DiskUnit> {
    let memory = MemoryDevice::new(1 << 20, 512, 4096).unwrap();
    let uuid = uuid::Uuid::from_u128(1 + u128::from(number));
    DiskUnit::open(DiskUnitOptions::new(uuid, Arc::new(memory))).unwrap()
}

/// Returns the bytes charged for sessions.
fn charged(rig: &Rig) -> usize {
    rig.server().buffers().budget().usage().by_kind[MemoryKind::Session as usize]
}

/// Sends a WRITE without its data and waits for its R2T.
fn withhold_write(raw: &mut RawClient) -> RawPdu {
    let pdu = raw.command(0xa0 | SIMPLE, &ten(0x2a, 0, 1), 512);
    raw.send(&pdu).unwrap();
    let r2t = answer_to(raw, pdu.u32_at(16));
    assert_eq!(r2t.opcode(), opcode::R2T);
    r2t
}

/// Sends the data that an R2T requests.
fn send_data(raw: &mut RawClient, r2t: &RawPdu) {
    let pdu = RawPdu::new(opcode::DATA_OUT, 0x80)
        .put(8, &raw.lun)
        .put_u32(16, r2t.u32_at(16))
        .put_u32(20, r2t.u32_at(20))
        .put_u32(28, raw.exp_stat_sn)
        .put_u32(40, r2t.u32_at(40));
    raw.send(&pdu.with_data(vec![1; 512])).unwrap();
}

/// Sends ORDERED commands without data; returns their tags.
fn send_ordered(raw: &mut RawClient) -> Vec<u32> {
    let one = |_| {
        let pdu = raw.command(0x80 | ORDERED, &[0; 6], 0);
        raw.send(&pdu).unwrap();
        pdu.u32_at(16)
    };
    (0..BURST).map(one).collect()
}

/// Makes many ORDERED commands wait for a WRITE, and completes all of them.
fn burst(raw: &mut RawClient) {
    let r2t = withhold_write(raw);
    let tags = send_ordered(raw);
    send_data(raw, &r2t);
    for tag in std::iter::once(r2t.u32_at(16)).chain(tags) {
        let answer = answer_to(raw, tag);
        assert_eq!(answer.header[3], 0, "GOOD: {:02x?}", answer.data);
    }
}

/// Makes READs wait for a limit, one behind the other.
fn wait_for_limit(raw: &mut RawClient) {
    let one = |_| {
        let pdu = raw.command(0xc0 | ORDERED, &ten(0x28, 0, 1), 512);
        raw.send(&pdu).unwrap();
        pdu.u32_at(16)
    };
    let tags: Vec<_> = (0..40).map(one).collect();
    for tag in tags {
        assert_eq!(answer_to(raw, tag).data.len(), 512);
    }
}

/// Does the work at every unit but the first.
fn at_all_units(raw: &mut RawClient, work: impl Fn(&mut RawClient)) {
    for unit in 1..=UNITS {
        raw.lun[1] = unit;
        work(raw);
    }
    raw.lun[1] = 0;
}

fn ready(raw: &mut RawClient) {
    assert_eq!(raw.execute(&[0; 6], 0).unwrap().0, 0, "TEST UNIT READY");
}

/// Waits until at most `bytes` more than `before` are allocated.
#[track_caller]
fn has_grown_by_at_most(rig: &Rig, before: usize, bytes: usize) {
    let grown = || allocated_bytes().saturating_sub(before);
    rig.wait_for(&format!("{bytes} bytes cover {}", grown()), |_| grown() <= bytes);
    println!("{} bytes of {bytes}", grown());
}

/// Goal: the charge of a session for its units covers their memory, even after bursts of ORDERED
/// commands and with limits. Fault: 14 KiB were kept at each unit after a burst without a charge,
/// and 5 KiB at each unit with limits: 480 sessions of one host could take 2 GB of a server that
/// was allowed 256 MiB.
#[test]
fn the_charge_for_units_covers_them() {
    let rig = rig_of_many_units();
    let target = rig.server().catalogue().targets[0].clone();
    let mut raw = rig.log_in(1);
    // The disks allocate their blocks before anything is measured.
    at_all_units(&mut raw, |raw| {
        ready(raw);
        raw.write_blocks(0, &[1; 512]).unwrap();
    });
    log_out(raw);
    rig.wait_until_alone();
    let nobody = charged(&rig);
    let mut raw = rig.log_in(2);
    burst(&mut raw);
    let before = allocated_bytes();
    let units_bytes = usize::from(UNITS) * UNIT_BYTES;
    assert!(charged(&rig) >= nobody + units_bytes);
    at_all_units(&mut raw, ready);
    has_grown_by_at_most(&rig, before, units_bytes + CONNECTION_SLACK_BYTES);
    at_all_units(&mut raw, burst);
    has_grown_by_at_most(&rig, before, units_bytes + CONNECTION_SLACK_BYTES);
    let before = allocated_bytes();
    for lun in &target.luns {
        lun.unit.common().set_limit(Limit::new(Some(1_000), None).unwrap());
    }
    let lines_bytes = usize::from(UNITS) * SESSION_QUEUE_BYTES;
    at_all_units(&mut raw, |raw| drop(raw.read_block(0).unwrap()));
    assert!(charged(&rig) >= nobody + units_bytes + lines_bytes);
    at_all_units(&mut raw, wait_for_limit);
    has_grown_by_at_most(&rig, before, lines_bytes + CONNECTION_SLACK_BYTES);
    log_out(raw);
    rig.wait_until_alone();
    rig.wait_for("nothing is charged", |rig| charged(rig) == nobody);
    drop(target);
    rig.stop_cleanly();
}

/// Fault: notifications between a connection and its session about 120 aborted commands were kept
/// until both ended, without a charge: 20 KiB.
#[test]
fn a_connection_keeps_no_memory_of_what_was_aborted() {
    const SESSIONS: u32 = 16;
    let rig = Rig::new();
    let mut sessions: Vec<RawClient> = (1..=SESSIONS).map(|number| rig.log_in(number)).collect();
    let warm_up = send_function(&mut sessions[0], ABORT_TASK_SET, u32::MAX);
    answer_to(&mut sessions[0], warm_up);
    let (before, charged_before) = (allocated_bytes(), charged(&rig));
    for function in [ABORT_TASK_SET, LOGICAL_UNIT_RESET] {
        for raw in &mut sessions {
            while raw.execute(&[0; 6], 0).unwrap().0 != 0 {} // unit attentions
            let r2t = withhold_write(raw);
            send_ordered(raw);
            let tag = send_function(raw, function, u32::MAX);
            send_data(raw, &r2t); // the target has requested it
            assert_eq!(answer_to(raw, tag).header[2], 0, "function complete");
            while raw.execute(&[0; 6], 0).unwrap().0 != 0 {}
        }
        has_grown_by_at_most(&rig, before, SESSIONS as usize * 2048);
        rig.wait_for("nothing more is charged", |rig| charged(rig) <= charged_before);
    }
    sessions.into_iter().for_each(log_out);
    rig.stop_cleanly();
}
