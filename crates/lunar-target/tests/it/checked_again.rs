//! Tests that a command is checked again when its data has arrived: a reservation or write
//! protection that came between its header and its data counts. Decision 087.

use crate::common::*;
use lunar_block::{Effect, ErrorKind, Fault, FaultDevice, FaultOperation, MemoryDevice};
use lunar_target::{DiskUnit, DiskUnitOptions, OutOfSpace};
use lunar_testkit::raw::{RawClient, RawPdu, opcode};
use std::sync::Arc;

const CONFLICT: u8 = 0x18;
const REGISTRATIONS_PREEMPTED: u16 = 0x2a05;
const MODE_PARAMETERS_CHANGED: u16 = 0x2a01;
const SOFTWARE_WRITE_PROTECTED: u16 = 0x2702;
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const PREEMPT: u8 = 4;
const WRITE_EXCLUSIVE_REGISTRANTS_ONLY: u8 = 5;

fn reserve_list(keys: [u64; 2]) -> Vec<u8> {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.resize(24, 0);
    list
}

fn reserve_cdb(action: u8) -> [u8; 10] {
    [0x5f, action, WRITE_EXCLUSIVE_REGISTRANTS_ONLY, 0, 0, 0, 0, 0, 24, 0]
}

#[track_caller]
fn reserve_out(raw: &mut RawClient, action: u8, keys: [u64; 2]) {
    let cdb = reserve_cdb(action);
    let pdu = raw.command(0xa1, &cdb, 24).with_data(reserve_list(keys));
    raw.send(&pdu).unwrap();
    assert_eq!(outcome(raw, pdu.u32_at(16)), (0, 0), "PERSISTENT RESERVE OUT {action}");
}

/// Logs in and registers two sessions that may both write; the second one holds the reservation.
fn registered(rig: &Rig) -> (RawClient, RawClient) {
    let (mut one, mut two) = (rig.log_in(1), rig.log_in(2));
    reserve_out(&mut one, REGISTER, [0, 1]);
    reserve_out(&mut two, REGISTER, [0, 2]);
    reserve_out(&mut two, RESERVE, [2, 0]);
    (one, two)
}

/// Returns the status and the additional sense code.
#[track_caller]
fn outcome(raw: &mut RawClient, tag: u32) -> (u8, u16) {
    let pdu = answer_to(raw, tag);
    assert!(matches!(pdu.opcode(), opcode::SCSI_RESPONSE | opcode::DATA_IN), "{pdu:02x?}");
    let code = pdu.data.get(14..16).filter(|_| pdu.header[3] == 2);
    (pdu.header[3], code.map_or(0, |code| u16::from_be_bytes([code[0], code[1]])))
}

fn ready(raw: &mut RawClient) -> (u8, u16) {
    let pdu = raw.command(0x81, &[0; 6], 0);
    raw.send(&pdu).unwrap();
    outcome(raw, pdu.u32_at(16))
}

/// Sends a command without its data; returns the R2T that requests the data.
#[track_caller]
fn withhold(raw: &mut RawClient, command: &RawPdu) -> RawPdu {
    raw.send(command).unwrap();
    let r2t = answer_to(raw, command.u32_at(16));
    assert_eq!(r2t.opcode(), opcode::R2T, "{command:02x?}");
    r2t
}

fn send_data(raw: &mut RawClient, r2t: &RawPdu, data: Vec<u8>) {
    let pdu = RawPdu::new(opcode::DATA_OUT, 0x80)
        .put_u32(16, r2t.u32_at(16))
        .put_u32(20, r2t.u32_at(20))
        .put_u32(28, raw.exp_stat_sn)
        .put_u32(40, r2t.u32_at(40));
    raw.send(&pdu.with_data(data)).unwrap();
}

fn sixteen(operation: u8, blocks: u8) -> Vec<u8> {
    let mut cdb = vec![0; 16];
    (cdb[0], cdb[13]) = (operation, blocks);
    cdb
}

/// Goal: a command of an initiator that a PREEMPT has shut out writes nothing if its header arrived
/// before and its data after; it ends with RESERVATION CONFLICT. The unit attention waits for the
/// next command. Method: every command that sends data and is excluded by a reservation, on a disk
/// that makes commands wait and on one that never waits.
#[test]
fn a_preempt_before_the_data_counts() {
    let waiting = Rig::new();
    preempt_before_the_data(&waiting);
    waiting.stop_cleanly();
    let immediate = Rig::with(|options| {
        let memory = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
        options.targets = vec![target(TARGET, unit(memory))];
    });
    preempt_before_the_data(&immediate);
    immediate.stop_cleanly();
}

fn preempt_before_the_data(rig: &Rig) {
    let mut unmap = vec![0, 22, 0, 16, 0, 0, 0, 0];
    unmap.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0]);
    let control = vec![0, 0, 0, 0, 10, 10, 0x22, 0x10, 8, 0, 0, 0, 0, 0, 0, 0];
    let commands = [
        ("WRITE", ten(0x2a, 0, 1).to_vec(), vec![1; 512]),
        ("WRITE AND VERIFY", ten(0x2e, 0, 1).to_vec(), vec![1; 512]),
        ("WRITE ATOMIC", sixteen(0x9c, 8), vec![1; 4096]),
        ("COMPARE AND WRITE", sixteen(0x89, 1), [vec![0; 512], vec![1; 512]].concat()),
        ("ORWRITE", sixteen(0x8b, 1), vec![1; 512]),
        ("WRITE SAME", ten(0x41, 0, 8).to_vec(), vec![1; 512]),
        ("UNMAP", vec![0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], unmap),
        ("MODE SELECT", vec![0x15, 0x10, 0, 0, 16, 0], control),
        ("WRITE BUFFER", vec![0x3b, 2, 0, 0, 0, 0, 0, 0, 4, 0], vec![1; 4]),
        ("FORMAT UNIT", vec![0x04, 0x10, 0, 0, 0, 0], vec![0; 4]),
        ("SANITIZE", vec![0x48, 1, 0, 0, 0, 0, 0, 0, 5, 0], vec![1, 0, 0, 1, 1]),
        ("EXTENDED COPY", crate::common::copy::copy_cdb(16), vec![0; 16]),
        ("PERSISTENT RESERVE OUT", reserve_cdb(RESERVE).to_vec(), reserve_list([1, 0])),
    ];
    for (name, cdb, data) in commands {
        let (mut one, mut two) = registered(rig);
        let command = one.command(0xa1, &cdb, data.len() as u32);
        let r2t = withhold(&mut one, &command);
        reserve_out(&mut two, PREEMPT, [2, 1]);
        send_data(&mut one, &r2t, data);
        assert_eq!(outcome(&mut one, command.u32_at(16)), (CONFLICT, 0), "{name}");
        assert_eq!(ready(&mut one), (2, REGISTRATIONS_PREEMPTED), "{name}");
        assert_eq!(ready(&mut one), (0, 0), "{name}");
        assert_eq!(two.read_blocks(0, 8).unwrap(), vec![0; 4096], "{name}");
        reserve_out(&mut two, 3, [2, 0]); // CLEAR
        log_out(one);
        log_out(two);
    }
}

/// Goal: a CDB that is longer than its field in the header is never taken for a shorter one: it is
/// refused if it has no command, and checked as any other when its data arrives. RFC 7143
/// §11.2.2.3. Method: an extended CDB header segment behind an operation code that only other types
/// of units have, and behind a WRITE that a PREEMPT excludes before its data comes.
#[test]
fn a_cdb_longer_than_the_header() {
    const INVALID_OPERATION_CODE: u16 = 0x2000;
    let rig = Rig::new();
    let (mut one, mut two) = registered(&rig);
    let longer = |mut command: RawPdu| {
        command.segments = vec![0xff; 188];
        command.segments[..4].copy_from_slice(&[0, 185, 1, 0]); // 184 more bytes of the CDB
        command
    };
    let object = longer(one.command(0x81, &[0x7f, 0, 0, 0, 0, 0, 0, 0xc0, 0x88, 5], 0));
    one.send(&object).unwrap();
    assert_eq!(outcome(&mut one, object.u32_at(16)), (2, INVALID_OPERATION_CODE));
    let write = longer(one.command(0xa1, &ten(0x2a, 0, 1), 512));
    let r2t = withhold(&mut one, &write);
    reserve_out(&mut two, PREEMPT, [2, 1]);
    send_data(&mut one, &r2t, vec![1; 512]);
    assert_eq!(outcome(&mut one, write.u32_at(16)), (CONFLICT, 0));
    assert_eq!(ready(&mut one), (2, REGISTRATIONS_PREEMPTED));
    assert_eq!(two.read_block(0).unwrap(), [0; 512]);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}

/// Goal: a write that waits for its blocks has not begun: a PREEMPT that is answered meanwhile
/// excludes it. Method: the holder's COMPARE AND WRITE of the block hangs in the disk.
#[test]
fn a_preempt_before_the_blocks_are_free_counts() {
    let rig = Rig::new();
    let (mut one, mut two) = registered(&rig);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    let compare = two.command(0xa1, &sixteen(0x89, 1), 1024);
    two.send(&compare.clone().with_data([vec![0; 512], vec![2; 512]].concat())).unwrap();
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let late = send_write(&mut one, 0, 1, 1);
    while rig.server().sessions().iter().map(|session| session.commands).sum::<usize>() < 2 {
        std::thread::yield_now();
    }
    reserve_out(&mut two, PREEMPT, [2, 1]);
    rig.device.release();
    assert_eq!(outcome(&mut two, compare.u32_at(16)), (0, 0));
    assert_eq!(outcome(&mut one, late), (CONFLICT, 0));
    assert_eq!(two.read_block(0).unwrap(), [2; 512]);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}

/// Goal: a write that waits for room begins again with each try: a PREEMPT that is answered
/// meanwhile excludes it, however long ago the first try was.
#[test]
fn a_preempt_while_a_write_waits_for_space_applies() {
    let disk = FaultDevice::new(Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap()), 1);
    let device = Arc::<FaultDevice>::clone(&disk);
    let options = DiskUnitOptions {
        out_of_space: OutOfSpace::Hold,
        ..DiskUnitOptions::new(uuid::Uuid::from_u128(1), device)
    };
    let unit = DiskUnit::open(options).unwrap();
    let shown = Arc::clone(&unit);
    let rig = Rig::with(|options| options.targets = vec![target(TARGET, shown)]);
    let (mut one, mut two) = registered(&rig);
    disk.inject(Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(FaultOperation::Write));
    let held = send_write(&mut one, 0, 1, 1);
    rig.wait_for("it waits for room", |_| unit.held_writes() == 1);
    reserve_out(&mut two, PREEMPT, [2, 1]);
    disk.heal();
    assert_eq!(outcome(&mut one, held), (CONFLICT, 0));
    assert_eq!(ready(&mut one), (2, REGISTRATIONS_PREEMPTED));
    assert_eq!(two.read_block(0).unwrap(), [0; 512]);
    log_out(one);
    log_out(two);
    drop(unit);
    rig.stop_cleanly();
}

/// Goal: PREEMPT without ABORT neither ends nor awaits commands that have begun: according to SPC-4
/// §5.12.1 a later reservation does not end an enabled command.
#[test]
fn preempt_does_not_end_commands_that_have_begun() {
    let rig = Rig::new();
    let (mut one, mut two) = registered(&rig);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    let begun = send_write(&mut one, 0, 1, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    reserve_out(&mut two, PREEMPT, [2, 1]);
    rig.device.release();
    assert_eq!(outcome(&mut one, begun), (0, 0));
    assert_eq!(ready(&mut one), (2, REGISTRATIONS_PREEMPTED));
    let late = send_write(&mut one, 0, 1, 3);
    assert_eq!(outcome(&mut one, late), (CONFLICT, 0));
    assert_eq!(two.read_block(0).unwrap(), [1; 512]);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}

/// Goal: a write protection set by another initiator before the data arrives counts, too.
#[test]
fn a_write_protection_before_the_data_counts() {
    let rig = Rig::new();
    let (mut one, mut two) = (rig.log_in(1), rig.log_in(2));
    let write = one.command(0xa1, &ten(0x2a, 0, 1), 512);
    let r2t = withhold(&mut one, &write);
    let list = [0, 0, 0, 0, 10, 10, 0x22, 0x10, 8, 0, 0, 0, 0, 0, 0, 0];
    let select = two.command(0xa1, &[0x15, 0x10, 0, 0, 16, 0], 16).with_data(list);
    two.send(&select).unwrap();
    assert_eq!(outcome(&mut two, select.u32_at(16)), (0, 0));
    send_data(&mut one, &r2t, vec![1; 512]);
    assert_eq!(outcome(&mut one, write.u32_at(16)), (2, SOFTWARE_WRITE_PROTECTED));
    assert_eq!(ready(&mut one), (2, MODE_PARAMETERS_CHANGED), "not reported before");
    assert_eq!(two.read_block(0).unwrap(), [0; 512]);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}

/// Goal: a reservation that comes and goes between a write and its data changes nothing.
#[test]
fn a_reservation_that_is_gone_again_has_no_effect() {
    let rig = Rig::new();
    let (mut one, mut two) = (rig.log_in(1), rig.log_in(2));
    let write = one.command(0xa1, &ten(0x2a, 0, 1), 512);
    let r2t = withhold(&mut one, &write);
    for cdb in [[0x16, 0, 0, 0, 0, 0], [0x17, 0, 0, 0, 0, 0]] {
        assert_eq!(two.execute(&cdb, 0).unwrap().0, 0, "RESERVE, RELEASE");
    }
    send_data(&mut one, &r2t, vec![1; 512]);
    assert_eq!(outcome(&mut one, write.u32_at(16)), (0, 0));
    assert_eq!(two.read_block(0).unwrap(), [1; 512]);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}
