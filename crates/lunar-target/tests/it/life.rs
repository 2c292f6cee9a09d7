//! Tests of commands that wait, hang, or are aborted, on a disk with injected faults: all commands
//! end, and nothing is left behind.

use crate::common::*;
use lunar_block::{Effect, Fault, FaultOperation};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::time::Duration;

/// Goal: reads that had to wait for room are answered, however slow the disk is. Method: room for
/// one read at a time, and a peer that takes nothing for a while: each read can begin only because
/// the previous one was sent.
#[test]
fn reads_that_waited_for_buffers_are_answered() {
    let rig = Rig::with(|options| options.limits.data_in_bytes = 1);
    let mut raw = rig.log_in(1);
    let slow = Effect::Delay(Duration::from_millis(20));
    rig.device.inject(Fault::new(slow).on(FaultOperation::Read));
    let long = [send_read(&mut raw, 0, 16384), send_read(&mut raw, 0, 16384)];
    let last = send_read(&mut raw, 0, 1);
    rig.wait_for("the first began", |rig| rig.device.seen(FaultOperation::Read) > 0);
    std::thread::sleep(Duration::from_millis(200));
    let reads = rig.device.seen(FaultOperation::Read);
    assert!(reads < 8 * 4, "{reads} reads of 256 KiB: the first 8 MiB are still charged");
    for tag in long {
        while answer_to(&mut raw, tag).header[1] & 0x81 != 0x81 {}
    }
    assert_eq!(answer_to(&mut raw, last).opcode(), opcode::DATA_IN);
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: a read that hangs in the disk can be aborted, and its session can be ended.
#[test]
fn a_hanging_read_is_aborted() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Read));
    let read = send_read(&mut raw, 0, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let abort = send_function(&mut raw, ABORT_TASK, read);
    let answer = answer_to(&mut raw, abort);
    assert_eq!((answer.opcode(), answer.header[2]), (0x22, 0), "function complete");
    send_read(&mut raw, 0, 1);
    rig.wait_for("the next hangs", |rig| rig.device.hanging() == 1);
    log_out(raw);
    let mut raw = rig.log_in(1);
    send_read(&mut raw, 0, 1);
    rig.wait_for("one more hangs", |rig| rig.device.hanging() == 1);
    drop(raw);
    rig.wait_for("it is let go with its connection", |rig| rig.device.hanging() == 0);
    rig.stop_cleanly();
}

/// Goal: a command that waits behind a hanging one is aborted before it has any effect. Method: a
/// write that waits for a COMPARE AND WRITE of the same block.
#[test]
fn a_write_aborted_before_its_turn_has_no_effect() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    let mut compare = [0; 16];
    compare[0] = 0x89;
    compare[13] = 1;
    let first = raw.command(0xa1, &compare, 1024).with_data(vec![0; 1024]);
    raw.send(&first).unwrap();
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let late = send_write(&mut raw, 0, 1, 7);
    let abort = send_function(&mut raw, ABORT_TASK, late);
    assert_eq!(answer_to(&mut raw, abort).header[2], 0, "function complete");
    rig.device.release();
    assert_eq!(answer_to(&mut raw, first.u32_at(16)).header[3], 0, "GOOD");
    assert_eq!(raw.read_block(0).unwrap(), vec![0; 512]);
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: an ORDERED command waits for earlier commands, and stops waiting when it is aborted.
#[test]
fn an_ordered_command_is_aborted_before_its_turn() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).times(1));
    let first = send_write(&mut raw, 0, 1, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let ordered = raw.command(0xc2, &ten(0x28, 0, 1), 512);
    raw.send(&ordered).unwrap();
    assert_eq!(raw.answer(Duration::from_millis(100)).unwrap(), RawAnswer::TimedOut);
    let abort = send_function(&mut raw, ABORT_TASK, ordered.u32_at(16));
    assert_eq!(answer_to(&mut raw, abort).header[2], 0, "function complete");
    rig.device.release();
    assert_eq!(answer_to(&mut raw, first).header[3], 0, "GOOD");
    log_out(raw);
    rig.stop_cleanly();
}

/// Sends PERSISTENT RESERVE OUT; its list is immediate data or, with `ask`, sent after an R2T.
fn reserve_out(raw: &mut RawClient, action: u8, kind: u8, keys: [u64; 2], ask: bool) -> u32 {
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let pdu = raw.command(0xa1, &cdb, 24);
    let list = reserve_list(keys);
    raw.send(&if ask { pdu.clone() } else { pdu.clone().with_data(list) }).unwrap();
    pdu.u32_at(16)
}

fn reserve_list(keys: [u64; 2]) -> Vec<u8> {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes()].concat();
    list.resize(24, 0);
    list
}

/// Goal: PREEMPT AND ABORT does not wait for a command that is queued behind it, and does not delay
/// its victim. Method: while the parameter list is on its way, an ORDERED command of the victim is
/// answered, and one of the session of the PREEMPT AND ABORT waits behind it.
#[test]
fn preempt_and_abort_starts_waiting_commands() {
    let rig = Rig::new();
    let (mut one, mut two) = (rig.log_in(1), rig.log_in(2));
    for (raw, key) in [(&mut one, 1), (&mut two, 2)] {
        let tag = reserve_out(raw, 0, 0, [0, key], false);
        assert_eq!(answer_to(raw, tag).header[3], 0, "registered");
    }
    let preempt = reserve_out(&mut one, 5, 5, [1, 2], true);
    let ready = answer_to(&mut one, preempt);
    assert_eq!(ready.opcode(), opcode::R2T);
    let ordered = two.command(0xc2, &ten(0x28, 0, 1), 512);
    two.send(&ordered).unwrap();
    assert_eq!(answer_to(&mut two, ordered.u32_at(16)).opcode(), opcode::DATA_IN);
    let behind = one.command(0xc2, &ten(0x28, 0, 1), 512);
    one.send(&behind).unwrap();
    assert_eq!(one.answer(Duration::from_millis(100)).unwrap(), RawAnswer::TimedOut);
    let data = RawPdu::new(opcode::DATA_OUT, 0x80)
        .put_u32(16, preempt)
        .put_u32(20, ready.u32_at(20))
        .put_u32(28, one.exp_stat_sn)
        .with_data(reserve_list([1, 2]));
    one.send(&data).unwrap();
    let answer = answer_to(&mut one, preempt);
    assert_eq!((answer.opcode(), answer.header[3]), (opcode::SCSI_RESPONSE, 0));
    assert_eq!(answer_to(&mut one, behind.u32_at(16)).opcode(), opcode::DATA_IN);
    log_out(two);
    log_out(one);
    rig.stop_cleanly();
}

/// Goal: many syncs with early replies (IMMED) cost no more than one or two syncs.
#[test]
fn immediate_syncs_are_not_piled_up() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Flush));
    let mut cdb = ten(0x35, 0, 0);
    cdb[1] = 2;
    for _ in 0..50 {
        assert_eq!(raw.execute(&cdb, 0).unwrap().0, 0);
    }
    assert!(rig.device.hanging() <= 2, "{} syncs under way", rig.device.hanging());
    let before = rig.device.seen(FaultOperation::Flush);
    rig.device.heal();
    rig.device.release();
    rig.wait_for("a sync covers the last one", |rig| {
        rig.device.seen(FaultOperation::Flush) > before
    });
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: a session that is cut at any point leaves nothing behind: requested data, reads that wait
/// for room, a payload half sent, commands in the disk.
#[test]
fn cut_anywhere_nothing_is_left() {
    let rig = Rig::with(|options| options.limits.data_in_bytes = 4096);
    let slow = Effect::Delay(Duration::from_millis(30));
    rig.device.inject(Fault::new(slow));
    for round in 0..12 {
        let mut raw = rig.log_in(round % 3);
        for lba in 0..4 {
            send_read(&mut raw, lba, 16);
            send_write(&mut raw, lba, 4, 1);
            let solicited = raw.command(0xa1, &ten(0x2a, lba, 64), 64 * 512);
            raw.send(&solicited).unwrap();
        }
        if round % 2 == 0 {
            let half = raw.command(0xa1, &ten(0x2a, 9, 8), 4096).with_data(vec![3; 4096]).bytes();
            raw.send_bytes(&half[..1000 + round as usize]).unwrap();
        }
        std::thread::sleep(Duration::from_millis(u64::from(round) * 5));
        if round % 3 == 0 {
            let again = rig.log_in(round % 3); // reinstates the session while its commands run
            drop(raw);
            drop(again);
        }
    }
    rig.stop_cleanly();
}

/// Goal: two sessions that reset the unit at the same time, with commands of both in progress, both
/// get their responses.
#[test]
fn two_resets_at_once() {
    let rig = Rig::new();
    let slow = Effect::Delay(Duration::from_millis(20));
    rig.device.inject(Fault::new(slow));
    let mut sessions = [rig.log_in(1), rig.log_in(2)];
    for round in 0..10 {
        for raw in &mut sessions {
            for lba in 0..8 {
                send_write(raw, lba, 1, round);
                send_read(raw, lba, 8);
            }
        }
        let function = [LOGICAL_UNIT_RESET, CLEAR_TASK_SET][usize::from(round % 2)];
        let tags = sessions.each_mut().map(|raw| send_function(raw, function, u32::MAX));
        for (raw, tag) in sessions.iter_mut().zip(tags) {
            assert_eq!(answer_to(raw, tag).header[2], 0, "function complete, round {round}");
        }
    }
    sessions.into_iter().for_each(log_out);
    rig.stop_cleanly();
}

/// Goal: a slow peer that takes the data it requested counts as alive: while it reads, it cannot
/// answer a ping in time.
#[test]
fn a_slow_reader_is_alive() {
    let rig = Rig::with(|options| {
        options.limits.ping_after_seconds = 1;
        // On a busy machine the last reply, which the socket holds as a whole, takes this long to
        // read.
        options.limits.ping_timeout_seconds = 8;
    });
    let mut raw = rig.log_in(1);
    let tags: Vec<_> = (0..7).map(|_| send_read(&mut raw, 0, 16384)).collect();
    for tag in tags {
        std::thread::sleep(Duration::from_millis(700));
        while answer_to(&mut raw, tag).header[1] & 0x81 != 0x81 {}
    }
    raw.read_block(0).unwrap();
    drop(raw);
    rig.stop_cleanly();
}

/// Goal: requests with replies longer than themselves do not make the server hold all replies.
/// Method: a peer that sends SendTargets continuously and reads nothing; many targets.
#[test]
fn long_answers_are_not_piled_up() {
    let rig = Rig::alone_with(|options| {
        let first = options.targets[0].clone();
        options.targets.extend((0..500).map(|n| lunar_target::TargetOptions {
            name: format!("{}-{n}-{}", first.name, "x".repeat(100)),
            ..first.clone()
        }));
    });
    let mut raw = RawClient::connect(&rig.address).unwrap();
    let text = "InitiatorName=iqn.2026-11.org.lunarsan.test:raw-1\0SessionType=Discovery\0\
                MaxRecvDataSegmentLength=1048576\0";
    raw.send(&raw.login(text.as_bytes())).unwrap();
    let answer = raw.expect(opcode::LOGIN_RESPONSE).unwrap();
    assert_eq!(answer.header[36..38], [0, 0]);
    let before = resident_bytes();
    let mut all = Vec::new();
    for tag in 1..4000 {
        let ask = RawPdu::new(0x40 | opcode::TEXT, 0x80)
            .put_u32(16, tag)
            .put_u32(20, u32::MAX)
            .put_u32(24, raw.cmd_sn)
            .put_u32(28, answer.u32_at(24).wrapping_add(1))
            .with_data(b"SendTargets=All\0");
        all.extend(ask.bytes());
    }
    raw.send_bytes(&all).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let grown = resident_bytes().saturating_sub(before) >> 20;
    assert!(grown < 64, "grown by {grown} MiB");
    drop(raw);
    rig.stop_cleanly();
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Goal: a write that is longer than the whole room for data-out runs when it is alone, and gets
/// TASK SET FULL when it is not.
#[test]
fn a_single_write_of_any_length_runs() {
    let rig = Rig::with(|options| options.limits.data_out_bytes = 1024);
    let mut raw = rig.log_in(1);
    let first = raw.command(0xa1, &ten(0x2a, 0, 8), 4096);
    raw.send(&first).unwrap();
    let ready = answer_to(&mut raw, first.u32_at(16));
    assert_eq!(ready.opcode(), opcode::R2T);
    let second = send_write(&mut raw, 8, 8, 2);
    assert_eq!(answer_to(&mut raw, second).header[3], 0x28, "TASK SET FULL");
    let data = RawPdu::new(opcode::DATA_OUT, 0x80)
        .put_u32(16, first.u32_at(16))
        .put_u32(20, ready.u32_at(20))
        .put_u32(28, raw.exp_stat_sn)
        .with_data(vec![1; 4096]);
    raw.send(&data).unwrap();
    assert_eq!(answer_to(&mut raw, first.u32_at(16)).header[3], 0, "GOOD");
    assert_eq!(raw.read_blocks(0, 16).unwrap(), [vec![1; 4096], vec![0; 4096]].concat());
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: a disk in which a write hangs does not keep the server from stopping.
#[test]
fn a_hanging_disk_does_not_delay_a_shutdown() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
    send_write(&mut raw, 0, 1, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let device = std::sync::Arc::clone(&rig.device);
    let buffers = rig.server().buffers().clone();
    let began = IdleTimeClock::now();
    assert_eq!(rig.stop(Duration::from_secs(2)), 1);
    assert!(began.elapsed() < Duration::from_secs(4), "took {:?}", began.elapsed());
    device.heal();
    device.release();
    let until = std::time::Instant::now() + 6 * TEST_TIMEOUT;
    while buffers.in_use_bytes() > 0 {
        assert!(std::time::Instant::now() < until, "the buffer is still in use");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Goal: although buffers are reused, no data that one initiator wrote appears in replies to
/// another. Method: the pool is filled with a mark; then every kind of data-in is requested, with
/// long allocation lengths, and unwritten blocks are read.
#[test]
fn reused_buffers_reveal_no_data() {
    const MARK: u8 = 0xa5;
    let rig = Rig::new();
    let mut writer = rig.log_in(1);
    for round in 0..8 {
        writer.write_blocks(1000 + round * 64, &[MARK; 64 * 512]).unwrap();
        assert!(writer.read_blocks(1000, 64).unwrap().iter().all(|byte| *byte == MARK));
    }
    let mut other = rig.log_in(2);
    let mut replies = Vec::new();
    for page in 0..=255 {
        replies.push(other.execute(&[0x12, 1, page, 0xff, 0xff, 0], 0xffff).unwrap().1);
        replies.push(other.execute(&[0x1a, 0, page, 0, 0xff, 0], 0xff).unwrap().1);
    }
    let mut report = [0; 12];
    for operation in [0xa0, 0xa3] {
        report[0] = operation;
        report[1] = if operation == 0xa3 { 0x0c } else { 0 };
        report[8] = 0xff; // an allocation length of 65,280 bytes
        replies.push(other.execute(&report, 0xff00).unwrap().1);
    }
    for action in [0x10, 0x12] {
        let mut service = [0; 16];
        (service[0], service[1], service[12]) = (0x9e, action, 0xff);
        replies.push(other.execute(&service, 0xff00).unwrap().1);
    }
    for keys in 0..4 {
        replies.push(other.execute(&[0x5e, keys, 0, 0, 0, 0, 0, 0xff, 0, 0], 0xff00).unwrap().1);
    }
    for blocks in [1, 7, 64, 255] {
        let blank = other.read_blocks(20_000, blocks).unwrap();
        assert!(blank.iter().all(|byte| *byte == 0), "{blocks} blocks that were never written");
    }
    assert!(replies.iter().any(|data| data.len() > 30), "there is something to look at");
    for data in replies {
        assert!(!data.windows(4).any(|four| four == [MARK; 4]), "{data:02x?}");
    }
    log_out(writer);
    log_out(other);
    rig.stop_cleanly();
}
