//! Tests of PREEMPT AND ABORT by two initiators against each other.

use crate::common::*;
use lunar_block::{Effect, Fault, FaultOperation};
use lunar_target::LunOptions;
use lunar_testkit::raw::{RawClient, opcode};
use std::sync::Arc;
use std::time::Duration;

const REGISTER: u8 = 0;
const PREEMPT_AND_ABORT: u8 = 5;
const EXCLUSIVE_ACCESS: u8 = 3;

/// Sends PERSISTENT RESERVE OUT through this LUN; returns its tag.
fn send_out(raw: &mut RawClient, lun: u8, action: u8, keys: [u64; 2]) -> u32 {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.resize(24, 0);
    let cdb = [0x5f, action, EXCLUSIVE_ACCESS, 0, 0, 0, 0, 0, 24, 0];
    let mut pdu = raw.command(0xa1, &cdb, 24);
    pdu.header[9] = lun;
    raw.send(&pdu.clone().with_data(list)).unwrap();
    pdu.u32_at(16)
}

#[track_caller]
fn out(raw: &mut RawClient, action: u8, keys: [u64; 2]) {
    let tag = send_out(raw, 0, action, keys);
    let answer = answer_to(raw, tag);
    assert_eq!((answer.opcode(), answer.header[3]), (opcode::SCSI_RESPONSE, 0));
}

/// Goal: two PREEMPT AND ABORTs that abort each other do not wait for each other forever. Method:
/// the first waits for a write of its victim; the victim registers again and preempts the first
/// through another number of the same unit, which the first examines last.
#[test]
fn two_that_abort_each_other_both_end() {
    let rig = Rig::with(|options| {
        let unit = Arc::clone(&options.targets[0].luns[0].unit);
        options.targets[0].luns.push(LunOptions::new(1, unit));
    });
    let (mut one, mut two) = (rig.log_in(1), rig.log_in(2));
    out(&mut one, REGISTER, [0, 1]);
    out(&mut two, REGISTER, [0, 2]);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    send_write(&mut two, 0, 1, 7);
    rig.wait_for("the write hangs", |rig| rig.device.hanging() == 1);
    send_out(&mut one, 0, PREEMPT_AND_ABORT, [1, 2]);
    let attention = |raw: &mut RawClient| {
        let pdu = raw.command(0x80, &[0; 6], 0);
        raw.send(&pdu).unwrap();
        answer_to(raw, pdu.u32_at(16)).header[3] == 2
    };
    while !attention(&mut two) {} // REGISTRATIONS PREEMPTED: the first one has begun
    out(&mut two, REGISTER, [0, 2]);
    let mut tag = send_out(&mut two, 1, PREEMPT_AND_ABORT, [2, 1]);
    std::thread::sleep(Duration::from_millis(300));
    rig.device.release();
    let mut answer = answer_to(&mut two, tag);
    if answer.header[3] == 2 {
        tag = send_out(&mut two, 1, PREEMPT_AND_ABORT, [2, 1]); // after the unit attention
        answer = answer_to(&mut two, tag);
    }
    assert_eq!(answer.header[3], 0);
    assert!(attention(&mut one), "its command was cleared, its registration preempted");
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}
