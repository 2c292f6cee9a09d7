//! Tests of memory that initiators cause: counted while held, shared out when scarce, and released.

use crate::common::*;
use lunar_block::{
    BufferPool, Effect, Fault, FaultOperation, MemoryBudget, MemoryKind, MemoryUsage,
};
use lunar_target::ServerOptions;
use lunar_testkit::raw::{RawAnswer, RawClient};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
/// The longest transfer of a unit, in blocks.
const LONGEST: u32 = 16_384;
const BUSY: u8 = 8;
const TASK_SET_FULL: u8 = 0x28;

/// Gives the server a budget of `limit` bytes.
fn with_budget(options: &mut ServerOptions, limit: usize) {
    options.buffers = BufferPool::with_budget(&MemoryBudget::new(limit));
}

fn usage(rig: &Rig) -> MemoryUsage {
    rig.server().buffers().budget().usage()
}

fn used(rig: &Rig, kind: MemoryKind) -> usize {
    usage(rig).by_kind[kind as usize]
}

/// Sends READ (16) of `blocks` from the start of the disk, of which the initiator expects
/// `expected` bytes.
fn send_long_read(raw: &mut RawClient, blocks: u32, expected: u32) -> u32 {
    let mut cdb = [0; 16];
    cdb[0] = 0x88;
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    let pdu = raw.command(0xc1, &cdb, expected);
    raw.send(&pdu).unwrap();
    pdu.u32_at(16)
}

/// Sends WRITE (10) of `blocks`, whose data is requested by R2T.
fn send_solicited_write(raw: &mut RawClient, blocks: u16) -> u32 {
    let pdu = raw.command(0xa1, &ten(0x2a, 0, blocks), u32::from(blocks) * 512);
    raw.send(&pdu).unwrap();
    pdu.u32_at(16)
}

/// Logs in from an address that no other initiator uses.
fn log_in_from(rig: &Rig, source: &str, number: u32) -> RawClient {
    let mut raw = connect_from(source, &rig.address);
    assert_eq!(join(&mut raw, number, 0, 1).0, 0);
    assert_eq!(raw.execute(&[0; 6], 0).unwrap().0, 0, "TEST UNIT READY");
    raw
}

/// Goal: a READ reads no more than will be sent, and data that an initiator does not take counts
/// while it is held. Fault: READ (16) of 8 MiB with an ExpectedDataTransferLength of 1 and
/// replies never taken: 77 kB of requests took 7.7 GiB of memory, and brought down the server.
#[test]
fn a_read_holds_what_will_be_sent() {
    let rig = Rig::with(|options| with_budget(options, 64 * MIB));
    let mut raw = rig.log_in(1);
    let tags: Vec<_> = (0..1000).map(|_| send_long_read(&mut raw, LONGEST, 1)).collect();
    let mut other = log_in_from(&rig, "127.0.0.2", 2);
    for lba in 0..100 {
        other.read_block(lba).unwrap();
        assert!(usage(&rig).used_bytes <= 64 * MIB);
    }
    for tag in tags {
        let data = answer_to(&mut raw, tag);
        assert_eq!((data.header[1] & 0x87, data.data.len()), (0x85, 1), "an overflow, GOOD");
        assert_eq!(data.u32_at(44), LONGEST * 512 - 1, "its residual");
    }
    log_out(raw);
    log_out(other);
    rig.stop_cleanly();
}

/// Goal: a reply that is built in memory and cut to the expected length does not keep all of its
/// data. Method: REPORT SUPPORTED OPERATION CODES with a long allocation length, of which one byte
/// is expected.
#[test]
fn replies_are_counted_as_they_are_sent() {
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    let mut report = [0; 12];
    (report[0], report[1], report[7]) = (0xa3, 0x0c, 0xff); // REPORT SUPPORTED OPERATION CODES
    let tags: Vec<_> = (0..100)
        .map(|_| {
            let pdu = raw.command(0xc1, &report, 1);
            raw.send(&pdu).unwrap();
            pdu.u32_at(16)
        })
        .collect();
    rig.wait_for("all are answered", |_| used(&rig, MemoryKind::DataIn) == 0);
    for tag in tags {
        assert_eq!(answer_to(&mut raw, tag).data.len(), 1);
    }
    log_out(raw);
    rig.stop_cleanly();
}

/// Fault: an answer that is built when its command arrives counted only once the command ran: up to
/// 35 KB for each of 126 commands of a session behind one whose data does not come.
#[test]
fn replies_of_commands_that_wait_are_counted() {
    const REPORTS: usize = 100;
    const ORDERED: u8 = 2;
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    send_solicited_write(&mut raw, 8);
    let RawAnswer::Pdu(r2t) = raw.answer(TEST_TIMEOUT).unwrap() else { panic!("no R2T") };
    let mut report = [0; 12];
    // REPORT SUPPORTED OPERATION CODES, with command timeouts: over 1 KiB.
    (report[0], report[1], report[2], report[8]) = (0xa3, 0x0c, 0x80, 0xff);
    let tags: Vec<_> = (0..REPORTS)
        .map(|_| {
            let pdu = raw.command(0xc0 | ORDERED, &report, 4);
            raw.send(&pdu).unwrap();
            pdu.u32_at(16)
        })
        .collect();
    rig.wait_for("their answers count", |rig| used(rig, MemoryKind::DataIn) >= REPORTS << 10);
    send_data_out(&mut raw, &r2t);
    for tag in tags {
        assert_eq!(answer_to(&mut raw, tag).data.len(), 4);
    }
    rig.wait_for("nothing is left", |rig| used(rig, MemoryKind::DataIn) == 0);
    log_out(raw);
    rig.stop_cleanly();
}

/// Fault: nobody charged the extents that GET LBA STATUS collects: 98 KB for each of 126 commands
/// of a session, which a disk in memory looks for in several turns.
#[test]
fn extents_count_while_they_are_looked_for() {
    const EXTENTS: u32 = 1000;
    let rig = Rig::new();
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Status));
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0x9e, 0x12);
    cdb[10..14].copy_from_slice(&(8 + 16 * EXTENTS).to_be_bytes());
    let pdu = raw.command(0xc1, &cdb, 8);
    raw.send(&pdu).unwrap();
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    assert!(used(&rig, MemoryKind::DataIn) >= EXTENTS as usize * 24, "{:?}", usage(&rig));
    rig.device.heal();
    rig.device.release();
    assert_eq!(answer_to(&mut raw, pdu.u32_at(16)).data.len(), 8);
    rig.wait_for("nothing is left", |rig| used(rig, MemoryKind::DataIn) == 0);
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: data-out counts from its arrival until its command has ended, even on a disk that hangs;
/// further data is not requested before. Fault: complete writes of 8 MiB at depth 128 held 705
/// MiB, because data was no longer counted when its command started.
#[test]
fn data_out_counts_until_its_command_has_ended() {
    let rig = Rig::with(|options| {
        options.limits.data_out_bytes = 4 * MIB;
        options.limits.memory_wait_seconds = 1;
    });
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
    let pieces = 64_u8;
    let tags: Vec<_> = (0..pieces).map(|_| send_solicited_write(&mut raw, 512)).collect();
    let (mut asked, mut answered) = (0, Vec::new());
    // Requested data is sent at once; the other commands end when no memory was free in time.
    while asked + answered.len() < tags.len() {
        let RawAnswer::Pdu(pdu) = raw.answer(6 * TEST_TIMEOUT).unwrap() else {
            panic!("no answer")
        };
        match pdu.opcode() {
            0x31 => {
                send_data_out(&mut raw, &pdu);
                asked += usize::from(pdu.u32_at(40) + pdu.u32_at(44) == 512 * 512);
            }
            0x21 => {
                assert_eq!(pdu.header[3], TASK_SET_FULL);
                raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
                answered.push(pdu.u32_at(16));
            }
            _ => {}
        }
        assert!(used(&rig, MemoryKind::DataOut) <= 4 * MIB);
    }
    assert_eq!(asked, 4 * MIB / (256 << 10) - 1, "as many as fit, each with a page");
    rig.device.heal();
    rig.device.release();
    for _ in 0..asked {
        let RawAnswer::Pdu(pdu) = raw.answer(TEST_TIMEOUT).unwrap() else { panic!("no answer") };
        assert_eq!((pdu.opcode(), pdu.header[3]), (0x21, 0), "GOOD");
        raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
    }
    log_out(raw);
    rig.stop_cleanly();
}

/// Answers an R2T with one Data-Out PDU for each 64 KiB.
fn send_data_out(raw: &mut RawClient, r2t: &lunar_testkit::raw::RawPdu) {
    let (mut offset, end) = (r2t.u32_at(40), r2t.u32_at(40) + r2t.u32_at(44));
    let mut data_sn = 0;
    while offset < end {
        let bytes = (end - offset).min(65_536);
        let last = offset + bytes == end;
        let pdu = lunar_testkit::raw::RawPdu::new(0x05, if last { 0x80 } else { 0 })
            .put(8, &raw.lun)
            .put_u32(16, r2t.u32_at(16))
            .put_u32(20, r2t.u32_at(20))
            .put_u32(28, raw.exp_stat_sn)
            .put_u32(36, data_sn)
            .put_u32(40, offset)
            .with_data(vec![7; bytes as usize]);
        raw.send(&pdu).unwrap();
        (offset, data_sn) = (offset + bytes, data_sn + 1);
    }
}

/// Goal: unsolicited data without room is discarded, and its command gets TASK SET FULL.
#[test]
fn unsolicited_data_without_buffers_is_refused() {
    let rig = Rig::with(|options| options.limits.data_out_bytes = 64 << 10);
    let mut raw = rig.log_in(1);
    rig.device.inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
    let held = send_write(&mut raw, 0, 64, 1);
    rig.wait_for("it hangs", |rig| rig.device.hanging() == 1);
    let refused = send_write(&mut raw, 100, 64, 2);
    assert_eq!(answer_to(&mut raw, refused).header[3], TASK_SET_FULL);
    rig.device.heal();
    rig.device.release();
    assert_eq!(answer_to(&mut raw, held).header[3], 0);
    log_out(raw);
    rig.stop_cleanly();
}

/// Goal: initiators at one address that take no replies hold only their share of the memory; an
/// initiator at another address reads and writes without hindrance.
#[test]
fn initiators_that_read_no_answers_hold_only_their_share() {
    const LIMIT: usize = 32 * MIB;
    let rig = Rig::with(|options| with_budget(options, LIMIT));
    let mut greedy: Vec<_> = (1..=4).map(|number| rig.log_in(number)).collect();
    for raw in &mut greedy {
        for _ in 0..64 {
            send_long_read(raw, 2048, 2048 * 512);
        }
    }
    rig.wait_for("they hold their share", |rig| usage(rig).used_bytes > LIMIT / 5 * 2);
    let mut other = log_in_from(&rig, "127.0.0.2", 9);
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        other.write_blocks(0, &vec![5; 128 * 512]).unwrap();
        assert_eq!(other.read_blocks(0, 128).unwrap(), vec![5; 128 * 512]);
        assert!(usage(&rig).used_bytes <= LIMIT, "{:?}", usage(&rig));
    }
    for kind in [MemoryKind::DataIn, MemoryKind::Outbox, MemoryKind::Socket] {
        assert!(used(&rig, kind) > 0, "{kind:?} of those that take nothing");
    }
    drop(greedy);
    rig.wait_for("all is given back", |rig| {
        // The session of the other connection remains.
        usage(rig).kinds().all(|(kind, bytes)| bytes == 0 || kind == MemoryKind::Session)
    });
    rig.wait_for("those are gone", |rig| used(rig, MemoryKind::Session) < 64 << 10);
    log_out(other);
    rig.stop_cleanly();
}

/// Sends NOP-Outs with data until the connection ends, without reading their echoes.
fn send_pings(mut tcp: TcpStream) -> std::thread::JoinHandle<()> {
    let ping = lunar_testkit::raw::RawPdu::new(0x40, 0x80)
        .put_u32(16, 1)
        .put_u32(20, u32::MAX)
        .with_data(vec![7; 65_536])
        .bytes();
    std::thread::spawn(move || while tcp.write_all(&ping).is_ok() {})
}

/// Goal: connections that exhaust the memory of the process, their sockets included, and take
/// nothing are dropped, beginning with those of the owner that holds most; an initiator at another
/// address is still served.
#[test]
fn connections_that_exhaust_memory_are_dropped() {
    const LIMIT: usize = 12 * MIB;
    let rig = Rig::with(|options| with_budget(options, LIMIT));
    let greedy: Vec<_> = (1..=64).map(|number| rig.log_in(number).into_tcp()).collect();
    let mut other = log_in_from(&rig, "127.0.0.2", 99);
    let floods = greedy.iter().map(|tcp| send_pings(tcp.try_clone().unwrap()));
    let floods: Vec<_> = floods.collect();
    rig.wait_for("some are dropped", |rig| rig.sessions() < 65);
    rig.wait_for("some is free", |rig| usage(rig).used_bytes <= LIMIT);
    other.write_blocks(0, &vec![5; 128 * 512]).unwrap();
    assert!(rig.sessions() >= 2, "not more than need be");
    for tcp in greedy {
        let _ = tcp.shutdown(std::net::Shutdown::Both); // dropped ones are not connected
    }
    floods.into_iter().for_each(|flood| flood.join().unwrap());
    log_out(other);
    rig.stop_cleanly();
}

/// Goal: a command that gets no memory in time ends with BUSY. Its connection stays, and its data
/// is requested once memory is free.
#[test]
fn a_command_without_memory_ends_busy() {
    let rig = Rig::with(|options| {
        with_budget(options, 64 * MIB);
        options.limits.memory_wait_seconds = 1;
    });
    let mut raw = rig.log_in(1);
    let budget = rig.server().buffers().clone();
    let all = budget.take(64 * MIB);
    let read = send_long_read(&mut raw, 2048, 2048 * 512);
    let write = send_solicited_write(&mut raw, 2048);
    let mut ended = [read, write].map(|tag| (tag, false));
    for _ in 0..ended.len() {
        let RawAnswer::Pdu(pdu) = raw.answer(TEST_TIMEOUT).unwrap() else { panic!("no answer") };
        assert_eq!((pdu.opcode(), pdu.header[3]), (0x21, BUSY));
        raw.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
        ended.iter_mut().filter(|(tag, _)| *tag == pdu.u32_at(16)).for_each(|its| its.1 = true);
    }
    assert!(ended.iter().all(|(_, ended)| *ended));
    let waits = send_solicited_write(&mut raw, 128);
    rig.wait_for("it waits", |rig| usage(rig).waiting == 1);
    drop(all);
    let r2t = answer_to(&mut raw, waits);
    assert_eq!(r2t.opcode(), 0x31);
    send_data_out(&mut raw, &r2t);
    assert_eq!(answer_to(&mut raw, waits).header[3], 0);
    log_out(raw);
    rig.stop_cleanly();
}
