//! Tests of SANITIZE and FORMAT UNIT over sockets.

use crate::common::*;
use lunar_block::{Effect, Fault, FaultOperation};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::time::{Duration, Instant};

const BLOCK_ERASE: u8 = 0x02;
const OVERWRITE: u8 = 0x01;
const IMMED: u8 = 0x80;
const READY: [u8; 6] = [0; 6];
const SANITIZE_IN_PROGRESS: [u8; 3] = [0x02, 0x04, 0x1b];

fn sanitize(flags: u8, list_bytes: u16) -> [u8; 10] {
    let [high, low] = list_bytes.to_be_bytes();
    [0x48, flags, 0, 0, 0, 0, 0, high, low, 0]
}

/// Sends SANITIZE OVERWRITE with zeroes; returns its tag.
fn send_overwrite(raw: &mut RawClient, flags: u8) -> u32 {
    let list = [1, 0, 0, 1, 0];
    let pdu = raw.command(0xa1, &sanitize(OVERWRITE | flags, 5), 5).with_data(list);
    raw.send(&pdu).unwrap();
    pdu.u32_at(16)
}

/// Returns the status and the sense key, code and qualifier.
fn status(answer: &RawPdu) -> (u8, [u8; 3]) {
    let sense = answer.data.get(2..).unwrap_or_default();
    let at = |index: usize| sense.get(index).copied().unwrap_or_default();
    (answer.header[3], [at(2) & 0x0f, at(12), at(13)])
}

fn ask(raw: &mut RawClient, cdb: &[u8]) -> (u8, [u8; 3]) {
    let pdu = raw.command(0xc1, cdb, 512);
    raw.send(&pdu).unwrap();
    status(&answer_to(raw, pdu.u32_at(16)))
}

/// Sends TEST UNIT READY until the unit is ready; returns the sense codes before that.
fn until_ready(raw: &mut RawClient) -> Vec<[u8; 3]> {
    let until = Instant::now() + TEST_TIMEOUT;
    let mut senses = Vec::new();
    loop {
        match ask(raw, &READY) {
            (0, _) => return senses,
            (_, sense) => senses.push(sense),
        }
        assert!(Instant::now() < until, "{senses:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn hang_one_write(rig: &Rig) {
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).after(3).times(1));
}

/// Goal: with IMMED the reply comes at once. Meanwhile other initiators receive the state and
/// progress of the operation, and afterwards a unit attention that the medium may have changed.
#[test]
fn immed_returns_early_and_others_are_informed() {
    let rig = Rig::new();
    let (mut one, mut two) = (rig.log_in(1), rig.log_in(2));
    one.write_blocks(9, &[0x5a; 512]).unwrap();
    hang_one_write(&rig);
    let tag = send_overwrite(&mut one, IMMED);
    assert_eq!(answer_to(&mut one, tag).header[3], 0);
    rig.wait_for("the overwrite hangs", |rig| rig.device.hanging() == 1);
    for raw in [&mut one, &mut two] {
        assert_eq!(ask(raw, &READY), (2, SANITIZE_IN_PROGRESS));
        assert_eq!(ask(raw, &ten(0x28, 9, 1)), (2, SANITIZE_IN_PROGRESS));
        assert_eq!(ask(raw, &sanitize(BLOCK_ERASE, 0)), (2, SANITIZE_IN_PROGRESS));
        let (status, data) = raw.execute(&[0x03, 0, 0, 0, 18, 0], 18).unwrap();
        assert_eq!((status, data[2], &data[12..14]), (0, 2, &[0x04, 0x1b][..]));
        // Three pieces of 256 KiB of 64 MiB.
        assert_eq!(data[15..18], [0x80, 0x03, 0x00], "progress");
    }
    rig.device.release();
    assert_eq!(until_ready(&mut one).pop().unwrap_or(SANITIZE_IN_PROGRESS), SANITIZE_IN_PROGRESS);
    assert_eq!(until_ready(&mut two).pop(), Some([0x06, 0x28, 0x00]), "it became ready");
    assert_eq!(two.read_block(9).unwrap(), [0; 512]);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}

/// Goal: events that end the command (ABORT TASK, resets, logout) do not end the operation.
#[test]
fn the_end_of_the_command_does_not_end_the_operation() {
    let rig = Rig::new();
    let mut one = rig.log_in(1);
    one.write_blocks(131_000, &[0x5a; 512]).unwrap();
    hang_one_write(&rig);
    let tag = send_overwrite(&mut one, 0);
    rig.wait_for("the overwrite hangs", |rig| rig.device.hanging() == 1);
    for (function, referenced) in
        [(ABORT_TASK, tag), (CLEAR_TASK_SET, u32::MAX), (LOGICAL_UNIT_RESET, u32::MAX)]
    {
        let function = send_function(&mut one, function, referenced);
        assert_eq!(answer_to(&mut one, function).header[2], 0);
    }
    assert_eq!(ask(&mut one, &READY), (2, SANITIZE_IN_PROGRESS));
    let function = send_function(&mut one, TARGET_COLD_RESET, u32::MAX);
    assert_eq!(answer_to(&mut one, function).header[2], 0);
    one.wait_until_closed(TEST_TIMEOUT).unwrap();
    let mut two = RawClient::log_in_as(&rig.address, TARGET, 2).unwrap();
    assert_eq!(ask(&mut two, &READY), (2, [0x06, 0x29, 0x00]));
    assert_eq!(ask(&mut two, &READY), (2, SANITIZE_IN_PROGRESS));
    rig.device.release();
    until_ready(&mut two);
    assert_eq!(two.read_block(131_000).unwrap(), [0; 512]);
    log_out(two);
    rig.stop_cleanly();
}

/// Goal: a WRITE that was accepted before SANITIZE leaves no data after it. Method: its data
/// arrives when the unit is already erased.
#[test]
fn a_write_that_waits_for_its_data() {
    let rig = Rig::new();
    let (mut one, mut two) = (rig.log_in(1), rig.log_in(2));
    let write = two.command(0xa1, &ten(0x2a, 7, 1), 512);
    two.send(&write).unwrap();
    let ready = answer_to(&mut two, write.u32_at(16));
    assert_eq!(ready.opcode(), opcode::R2T);
    assert_eq!(ask(&mut one, &sanitize(BLOCK_ERASE, 0)), (0, [0; 3]));
    let data = RawPdu::new(opcode::DATA_OUT, 0x80)
        .put_u32(16, write.u32_at(16))
        .put_u32(20, ready.u32_at(20))
        .put_u32(28, two.exp_stat_sn)
        .with_data([0x5a; 512]);
    two.send(&data).unwrap();
    let cleared = answer_to(&mut two, write.u32_at(16));
    assert_eq!(status(&cleared), (2, [0x0b, 0x2f, 0x02]));
    assert_eq!(one.read_block(7).unwrap(), [0; 512]);
    log_out(one);
    log_out(two);
    rig.stop_cleanly();
}

/// Goal: the parameter list of FORMAT UNIT has the length that the initiator announces, which the
/// CDB does not contain; the blocks hold the requested pattern.
#[test]
fn format_unit_takes_the_list_that_comes() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    raw.write_blocks(9, &[0x5a; 512]).unwrap();
    let format = [0x04, 0x10, 0, 0, 0, 0];
    for (list, filled) in
        [(vec![0, 0, 0, 0], 0), (vec![0, 0x88, 0, 0, 0, 1, 0, 1, 0xee], 0xee), (vec![], 0xee)]
    {
        let flags = if list.is_empty() { 0x81 } else { 0xa1 };
        let pdu = raw.command(flags, &format, list.len() as u32).with_data(list.clone());
        raw.send(&pdu).unwrap();
        let answer = answer_to(&mut raw, pdu.u32_at(16));
        let expected = if list.is_empty() { (2, [0x05, 0x1a, 0x00]) } else { (0, [0; 3]) };
        assert_eq!(status(&answer), expected, "{list:?}");
        assert_eq!(answer.header[1] & 0x06, 0, "no residual");
        assert_eq!(raw.read_block(9).unwrap(), [filled; 512]);
    }
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: a server that stops does not wait for the operation, even on a disk that hangs.
#[test]
fn the_server_ends_in_the_middle() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    hang_one_write(&rig);
    let tag = send_overwrite(&mut raw, 0);
    rig.wait_for("the overwrite hangs", |rig| rig.device.hanging() == 1);
    let began = IdleTimeClock::now();
    let device = std::sync::Arc::clone(&rig.device);
    rig.stop(Duration::from_secs(2));
    assert!(began.elapsed() < Duration::from_secs(5), "took {:?}", began.elapsed());
    while let Ok(RawAnswer::Pdu(pdu)) = raw.answer(Duration::from_millis(200)) {
        assert_ne!((pdu.opcode(), pdu.u32_at(16)), (opcode::SCSI_RESPONSE, tag), "not done");
    }
    device.release();
}
