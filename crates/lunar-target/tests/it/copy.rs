//! Tests of EXTENDED COPY over sessions, between the units of one target.

use crate::common::copy::{Segment, copy_cdb, cscd, list, results_cdb};
use crate::common::*;
use lunar_block::{BlockDevice, BlockRange, BufferPool, Effect, ErrorKind, ExtentState, Fault};
use lunar_block::{FaultDevice, FaultOperation, MemoryDevice};
use lunar_scsi::copy::{
    COPIES_OF_INITIATOR_MAX, COPIES_OF_ORIGIN_MAX, CopyFault, Reported, SegmentRole,
};
use lunar_scsi::sense::{Sense, SenseFormat, Status};
use lunar_target::{Access, DiskUnit, DiskUnitOptions, LunOptions, OutOfSpace};
use lunar_testkit::raw::{RawAnswer, RawClient, RawPdu, opcode};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Number of bytes that a copy moves at a time.
const PIECE: u64 = MIB / 4;
const SIZE: u64 = 256 * MIB;
const NAME: u8 = 0x21;
const CONFLICT: u8 = 0x18;
/// Time that PREEMPT AND ABORT waits for a piece of a copy that is being written.
const HANGING_COPY_WAIT: Duration = Duration::from_millis(300);

/// LUN 0 and 1: disks of 512-byte blocks. 2: one of 4096. 3: write protected. 4: visible to
/// initiator 9 only. Their UUIDs are 10 to 14; that of another target's disk is 20.
struct Disks {
    rig: Rig,
    devices: Vec<Arc<FaultDevice>>,
    elsewhere: Arc<FaultDevice>,
}

fn disk(bytes: u64, block_bytes: u32) -> Arc<FaultDevice> {
    FaultDevice::new(Arc::new(MemoryDevice::new(bytes, block_bytes, 4096).unwrap()), 1)
}

fn unit_of(number: u128, device: &Arc<FaultDevice>) -> Arc<DiskUnit> {
    let device = Arc::<FaultDevice>::clone(device);
    DiskUnit::open(DiskUnitOptions {
        read_only: number == 13,
        out_of_space: if number == 11 { OutOfSpace::Hold } else { OutOfSpace::Fail },
        ..DiskUnitOptions::new(uuid::Uuid::from_u128(number), device)
    })
    .unwrap()
}

impl Disks {
    fn new() -> Self {
        Self::with_cores(2)
    }

    fn with_cores(cores: usize) -> Self {
        let devices: Vec<_> = [512, 512, 4096, 512, 512].map(|block| disk(SIZE, block)).into();
        let elsewhere = disk(SIZE, 512);
        let mut shown = target(TARGET, unit_of(10, &devices[0]));
        for id in 1..5_u16 {
            let unit = unit_of(10 + u128::from(id), &devices[usize::from(id)]);
            let initiators =
                if id == 4 { vec!["iqn.2026-11.org.lunarsan.test:raw-9".into()] } else { vec![] };
            let access = Access { initiators, ..Access::default() };
            shown.luns.push(LunOptions { access, ..LunOptions::new(id, unit) });
        }
        let other = target("iqn.2026-11.org.lunarsan.test:other", unit_of(20, &elsewhere));
        let rig = Rig::with(|options| {
            options.targets = vec![shown, other];
            options.cores = cores;
        });
        Self { rig, devices, elsewhere }
    }

    /// Logs in and takes the first unit attentions of all units.
    fn log_in(&self, number: u32) -> RawClient {
        let mut raw = self.rig.log_in(number);
        for lun in 1..5 {
            while run(&mut raw, lun, &[0; 6], &[]).0 == 2 && (lun < 4 || number == 9) {}
        }
        raw
    }

    fn stop_cleanly(self) {
        for device in &self.devices {
            device.heal();
            device.release();
        }
        assert_eq!(self.elsewhere.seen(FaultOperation::Read), 0);
        assert_eq!(self.elsewhere.seen(FaultOperation::Write), 0);
        self.rig.stop_cleanly();
    }
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

fn fill(device: &FaultDevice, at: u64, data: &[u8]) {
    let block = u64::from(device.geometry().block_bytes);
    let range = BlockRange::new(at / block, data.len() as u64 / block);
    wait(device.write(range, bytes::Bytes::copy_from_slice(data), false)).unwrap();
}

fn content(device: &FaultDevice, at: u64, bytes: u64) -> Vec<u8> {
    let block = u64::from(device.geometry().block_bytes);
    let range = BlockRange::new(at / block, bytes / block);
    let buffer = BufferPool::new(0).take(bytes as usize);
    wait(device.read(range, buffer)).unwrap().to_vec()
}

/// Returns bytes that depend on their position.
fn pattern(seed: u64, bytes: u64) -> Vec<u8> {
    (0..bytes / 8).flat_map(|at| (at.wrapping_mul(0x9e37_79b9) ^ seed).to_be_bytes()).collect()
}

fn at_lun(pdu: RawPdu, lun: u8) -> RawPdu {
    pdu.put(8, &[0, lun])
}

/// Sends a command with all of its data, without waiting; returns its tag.
fn send(raw: &mut RawClient, lun: u8, cdb: &[u8], data: &[u8]) -> u32 {
    let flags = if data.is_empty() { 0x81 } else { 0xa1 };
    let pdu = at_lun(raw.command(flags, cdb, data.len() as u32), lun);
    raw.send(&pdu.clone().with_data(data)).unwrap();
    pdu.u32_at(16)
}

/// Returns the status and the sense data.
#[track_caller]
fn outcome(raw: &mut RawClient, tag: u32) -> (u8, Vec<u8>) {
    let answer = answer_to(raw, tag);
    assert_eq!(answer.opcode(), opcode::SCSI_RESPONSE);
    (answer.header[3], answer.data.get(2..).unwrap_or_default().to_vec())
}

/// Returns the status and the sense data of `count` commands, in the order in which they end.
#[track_caller]
fn outcomes(raw: &mut RawClient, count: usize) -> Vec<(u8, Vec<u8>)> {
    let outcome = |_| {
        let Ok(RawAnswer::Pdu(answer)) = raw.answer(TEST_TIMEOUT) else { panic!("no answer") };
        raw.exp_stat_sn = answer.u32_at(24).wrapping_add(1);
        assert_eq!(answer.opcode(), opcode::SCSI_RESPONSE);
        (answer.header[3], answer.data.get(2..).unwrap_or_default().to_vec())
    };
    (0..count).map(outcome).collect()
}

#[track_caller]
fn run(raw: &mut RawClient, lun: u8, cdb: &[u8], data: &[u8]) -> (u8, Vec<u8>) {
    let tag = send(raw, lun, cdb, data);
    outcome(raw, tag)
}

#[track_caller]
fn copy(raw: &mut RawClient, lun: u8, list: &[u8]) -> (u8, Vec<u8>) {
    run(raw, lun, &copy_cdb(list.len()), list)
}

/// Runs a copy that must fail; returns its sense.
#[track_caller]
fn failed(raw: &mut RawClient, list: &[u8]) -> Sense {
    let (status, sense) = copy(raw, 0, list);
    assert_eq!(status, 2);
    let whole = Sense::decode(&sense).unwrap();
    assert!(whole.key.0 == 0x0a || whole.key.0 == 5, "{whole}");
    whole
}

/// Runs a copy that must fail, and compares its complete sense data.
#[track_caller]
fn fails_with(raw: &mut RawClient, list: &[u8], expected: &Sense) {
    let (status, sense) = copy(raw, 0, list);
    assert_eq!((status, &sense), (2, &expected.encode(SenseFormat::Fixed)), "{expected}");
}

fn results(raw: &mut RawClient, action: u8) -> (u8, Vec<u8>) {
    raw.execute(&results_cdb(action, NAME), 255).unwrap()
}

fn segment(from: u16, to: u16, blocks: u16, source_lba: u64, destination_lba: u64) -> Segment {
    Segment { from, to, blocks, source_lba, destination_lba }
}

/// Returns a list that copies from LUN 0 to LUN `to`, with blocks of 512 bytes.
fn simple(to: u128, blocks: u16, source_lba: u64, destination_lba: u64) -> Vec<u8> {
    let cscds = [cscd(10, 512), cscd(10 + to, 512)];
    list(NAME, &cscds, &[segment(0, 1, blocks, source_lba, destination_lba)])
}

fn refused_by(party: SegmentRole, sense: &Sense) -> Sense {
    let reported = Some(Reported::check(party, sense));
    Sense::THIRD_PARTY_DEVICE_FAILURE.with_copy(CopyFault { segment: 0, reported })
}

fn conflict_at(party: SegmentRole) -> Sense {
    let reported = Some(Reported::status(party, Status::RESERVATION_CONFLICT));
    Sense::THIRD_PARTY_DEVICE_FAILURE.with_copy(CopyFault { segment: 0, reported })
}

/// Goal: 96 MiB, more than one segment can count, are copied, and holes stay holes. Method: data, a
/// hole, data; a destination full of other data; sent to a third unit.
#[test]
fn large_copies_arrive_with_their_holes() {
    let disks = Disks::new();
    let mut raw = disks.log_in(1);
    let (from, to) = (&disks.devices[0], &disks.devices[1]);
    let first = pattern(1, 40 * MIB);
    let last = pattern(2, 32 * MIB);
    fill(from, 4096, &first);
    fill(from, 4096 + 64 * MIB, &last);
    fill(to, 0, &vec![0xee; 100 << 20]);
    let blocks = 96 * MIB / 512;
    let mut segments = Vec::new();
    let mut done = 0;
    while done < blocks {
        let count = (blocks - done).min(0xffff);
        segments.push(segment(0, 1, count as u16, 8 + done, 80 + done));
        done += count;
    }
    assert_eq!(segments.len(), 4);
    let list = list(NAME, &[cscd(10, 512), cscd(11, 512)], &segments);
    let reads = from.seen(FaultOperation::Read);
    assert_eq!(copy(&mut raw, 2, &list), (0, vec![]));
    let of_data = 72 * MIB / PIECE;
    assert!(from.seen(FaultOperation::Read) - reads < of_data + 8, "the hole was not read");
    let at = 80 * 512;
    assert!(content(to, at, 40 * MIB) == first);
    assert!(content(to, at + 40 * MIB, 24 * MIB).iter().all(|byte| *byte == 0));
    assert!(content(to, at + 64 * MIB, 32 * MIB) == last);
    for outside in [0, at + 96 * MIB] {
        assert!(content(to, outside, at).iter().all(|byte| *byte == 0xee));
    }
    let hole = BlockRange::new((at + 44 * MIB) / 512, 16 * MIB / 512);
    let found = wait(to.sparse().unwrap().status(hole, 8)).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].range, found[0].state), (hole, ExtentState::Unmapped));
    // The copy was sent to LUN 2, so only LUN 2 reports it.
    let unknown = results(&mut raw, 0).0;
    assert_eq!(unknown, 2, "LUN 0 knows of no such copy");
    let pdu = at_lun(raw.command(0xc1, &results_cdb(0, NAME), 255), 2);
    raw.send(&pdu).unwrap();
    let status = answer_to(&mut raw, pdu.u32_at(16)).data;
    assert_eq!(status, [0, 0, 0, 8, 1, 0, 4, 0, 6, 0, 0, 0], "96 MiB, 4 segments");
    log_out(raw);
    disks.stop_cleanly();
}

/// Goal: a copy within one unit copies the data from before the copy, however the ranges overlap.
#[test]
fn overlapping_ranges_are_copied_whole() {
    let disks = Disks::new();
    let mut raw = disks.log_in(1);
    let device = &disks.devices[0];
    for (source, destination) in [(100, 100), (100, 101), (101, 100), (100, 3000), (3000, 100)] {
        let before = pattern(source + 7 * destination, 16 * MIB);
        fill(device, 0, &before);
        let list = list(NAME, &[cscd(10, 512)], &[segment(0, 0, 20_001, source, destination)]);
        assert_eq!(copy(&mut raw, 0, &list), (0, vec![]));
        let (from, to, bytes) = (source as usize * 512, destination as usize * 512, 20_001 * 512);
        let mut expected = before;
        expected.copy_within(from..from + bytes, to);
        assert!(content(device, 0, 16 * MIB) == expected, "{source} to {destination}");
    }
    log_out(raw);
    disks.stop_cleanly();
}

/// Goal: copies between blocks of 512 and 4096 bytes work both ways; a copy that would split a
/// block is refused before it begins.
#[test]
fn block_lengths_may_differ() {
    let disks = Disks::new();
    let mut raw = disks.log_in(1);
    let (small, large) = (&disks.devices[0], &disks.devices[2]);
    let data = pattern(3, 5 * MIB);
    fill(small, 512, &data);
    let cscds = [cscd(10, 512), cscd(12, 4096)];
    let there = list(NAME, &cscds, &[segment(0, 1, 10_240, 1, 2)]);
    assert_eq!(copy(&mut raw, 0, &there), (0, vec![]));
    assert!(content(large, 8192, 5 * MIB) == data);
    let back = list(NAME, &cscds, &[segment(1, 0, 1280, 2, 100_001)]);
    assert_eq!(copy(&mut raw, 0, &back), (0, vec![]));
    assert!(content(small, 100_001 * 512, 5 * MIB) == data);
    let writes = large.seen(FaultOperation::Write);
    let exact = segment(0, 1, 8, 1, 2);
    let inexact = list(NAME, &cscds, &[exact, segment(0, 1, 9, 1, 2)]);
    let sense = failed(&mut raw, &inexact);
    assert_eq!(sense.code, Sense::UNEXPECTED_INEXACT_SEGMENT.code);
    let wrong_length = list(NAME, &[cscd(10, 512), cscd(12, 512)], &[exact]);
    let sense = failed(&mut raw, &wrong_length);
    assert_eq!(sense, Sense::invalid_field_in_parameter_list(16 + 32 + 29, None));
    assert_eq!(large.seen(FaultOperation::Write), writes, "nothing was begun");
    log_out(raw);
    disks.stop_cleanly();
}

/// Goal: copies reach no unit that the initiator does not see, neither a masked one nor one of
/// another target, and read no data of it. CVE-2020-28374, CVE-2021-3139.
#[test]
fn invisible_luns_are_not_copied() {
    let disks = Disks::new();
    let mut raw = disks.log_in(1);
    let fault = CopyFault { segment: 0, reported: None };
    let unreachable = Sense::COPY_TARGET_DEVICE_NOT_REACHABLE.with_copy(fault);
    for hidden in [14, 20, 99] {
        let cscds = [cscd(10, 512), cscd(hidden, 512)];
        for (from, to) in [(0, 1), (1, 0), (1, 1)] {
            let list = list(NAME, &cscds, &[segment(from, to, 16, 0, 64)]);
            fails_with(&mut raw, &list, &unreachable);
        }
    }
    for device in [&disks.devices[0], &disks.devices[4]] {
        assert_eq!(device.seen(FaultOperation::Read) + device.seen(FaultOperation::Write), 0);
    }
    // An initiator that sees LUN 4 can copy to it.
    let mut other = disks.log_in(9);
    assert_eq!(copy(&mut other, 0, &simple(4, 16, 0, 64)), (0, vec![]));
    log_out(raw);
    log_out(other);
    disks.stop_cleanly();
}

#[test]
fn write_protected_and_reserved_units_refuse() {
    let disks = Disks::new();
    let mut raw = disks.log_in(1);
    let mut other = disks.log_in(2);
    let protected = refused_by(SegmentRole::Destination, &Sense::WRITE_PROTECTED);
    fails_with(&mut raw, &simple(3, 16, 0, 0), &protected);
    // RESERVE (6) of another initiator at the destination; the holder itself may copy.
    assert_eq!(run(&mut other, 1, &[0x16, 0, 0, 0, 0, 0], &[]).0, 0);
    fails_with(&mut raw, &simple(1, 16, 0, 0), &conflict_at(SegmentRole::Destination));
    let back = list(NAME, &[cscd(11, 512), cscd(10, 512)], &[segment(0, 1, 16, 0, 0)]);
    fails_with(&mut raw, &back, &conflict_at(SegmentRole::Source));
    assert_eq!(copy(&mut other, 0, &simple(1, 16, 0, 0)), (0, vec![]));
    assert_eq!(run(&mut other, 1, &[0x17, 0, 0, 0, 0, 0], &[]).0, 0);
    // WRITE EXCLUSIVE of another initiator: the unit may be read.
    assert_eq!(register(&mut other, 1, 7), 0);
    assert_eq!(persistent(&mut other, 1, 1, 7, 0).0, 0);
    fails_with(&mut raw, &simple(1, 16, 0, 0), &conflict_at(SegmentRole::Destination));
    assert_eq!(copy(&mut raw, 0, &back), (0, vec![]));
    // The unit that receives the command may be reserved, too.
    assert_eq!(copy(&mut raw, 1, &back), (CONFLICT, vec![]));
    for device in &disks.devices[1..] {
        device.heal();
    }
    log_out(raw);
    log_out(other);
    disks.stop_cleanly();
}

/// Sends PERSISTENT RESERVE OUT, WRITE EXCLUSIVE.
fn persistent(raw: &mut RawClient, lun: u8, action: u8, key: u64, other: u64) -> (u8, Vec<u8>) {
    let tag = send_persistent(raw, lun, action, key, other);
    outcome(raw, tag)
}

fn send_persistent(raw: &mut RawClient, lun: u8, action: u8, key: u64, other: u64) -> u32 {
    let mut list = key.to_be_bytes().to_vec();
    list.extend(other.to_be_bytes());
    list.extend([0; 8]);
    send(raw, lun, &[0x5f, action, 1, 0, 0, 0, 0, 0, 24, 0], &list)
}

fn register(raw: &mut RawClient, lun: u8, key: u64) -> u8 {
    persistent(raw, lun, 0, 0, key).0
}

/// Goal: a running copy is reported as running, keeps its list identifier, and ends when aborted;
/// the piece in progress is finished and counted. Method: the destination's second write hangs
/// until the abort has been received. A piece that returns too late is left to the system and is
/// not counted; a busy machine may be too late, but not every time.
#[test]
fn a_copy_is_aborted_in_the_middle() {
    let disks = Disks::new();
    let mut raw = disks.log_in(1);
    let to = &disks.devices[1];
    let data = pattern(5, 8 * MIB);
    fill(&disks.devices[0], 0, &data);
    let until = Instant::now() + MINUTE;
    while aborted_after(&disks, &mut raw) != 2 {
        assert!(Instant::now() < until, "written data does not count");
    }
    to.heal();
    let begun = 2 * PIECE;
    assert!(
        content(to, 0, begun) == data[..begun as usize],
        "a segment that was begun is complete"
    );
    assert!(content(to, begun, 8 * MIB - begun).iter().all(|byte| *byte == 0), "nothing more");
    log_out(raw);
    disks.stop_cleanly();
}

/// Aborts a copy in its second piece; returns the number of pieces that are reported as written.
fn aborted_after(disks: &Disks, raw: &mut RawClient) -> u64 {
    let to = &disks.devices[1];
    to.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).after(1));
    let writes = to.seen(FaultOperation::Write);
    let list = simple(1, 16_384, 0, 0);
    let running = send(raw, 0, &copy_cdb(list.len()), &list);
    disks.rig.wait_for("a piece hangs", |_| to.hanging() == 1);
    let (status, progress) = results(raw, 0);
    assert_eq!((status, progress), (0, vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 4, 0, 0]), "256 KiB");
    assert_eq!(failed(raw, &list), Sense::OPERATION_IN_PROGRESS);
    let abort = send_function(raw, ABORT_TASK, running);
    // The server processes PDUs in order: the reply to this one shows that the abort was received.
    let ping = RawPdu::new(0x40 | opcode::NOP_OUT, 0x80)
        .put_u32(16, raw.new_tag())
        .put_u32(20, u32::MAX)
        .put_u32(24, raw.cmd_sn)
        .put_u32(28, raw.exp_stat_sn);
    raw.send(&ping).unwrap();
    let RawAnswer::Pdu(first) = raw.answer(TEST_TIMEOUT).unwrap() else { panic!("no answer") };
    to.release();
    let [answer, pong] = match first.u32_at(16) == abort {
        true => [first, answer_to(raw, ping.u32_at(16))],
        false => [answer_to(raw, abort), first],
    };
    assert_eq!((answer.opcode(), answer.header[2]), (0x22, 0), "function complete");
    assert_eq!((pong.opcode(), pong.u32_at(16)), (opcode::NOP_IN, ping.u32_at(16)));
    let (status, mut reply) = results(raw, 0);
    let written = std::mem::take(&mut reply[9]);
    assert_eq!((status, reply), (0, vec![0, 0, 0, 8, 2, 0, 0, 0, 0, 0, 0, 0]), "aborted");
    assert_eq!(results(raw, 0).0, 2, "the result is returned once");
    disks.rig.wait_for("it is written", |_| to.hanging() == 0);
    assert_eq!(to.seen(FaultOperation::Write) - writes, 2, "nothing more is begun");
    to.heal();
    u64::from(written) * 65_536 / PIECE
}

/// Fault: a copy held all units that its session saw: a removed unit was not closed while any copy
/// ran.
#[test]
fn a_copy_holds_no_unit_that_it_does_not_name() {
    let disks = Disks::new();
    let mut raw = disks.log_in(1);
    fill(&disks.devices[0], 0, &pattern(1, PIECE));
    disks.devices[1].inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
    let list = simple(1, 8, 0, 0);
    let tag = send(&mut raw, 0, &copy_cdb(list.len()), &list);
    disks.rig.wait_for("a piece hangs", |_| disks.devices[1].hanging() == 1);
    let units = disks.rig.server().catalogue().units();
    let removed = units.into_iter().find(|unit| unit.uuid().as_u128() == 12).unwrap();
    drop(disks.rig.replace(|targets| targets[0].luns.retain(|lun| lun.id != 2)));
    run(&mut raw, 0, &[0; 6], &[]); // the connection keeps its units until its next command
    assert_eq!(Arc::strong_count(&removed), 1, "no session holds it any more");
    disks.devices[1].heal();
    disks.devices[1].release();
    assert_eq!(outcome(&mut raw, tag).0, 0);
    drop(raw);
    disks.stop_cleanly();
}

/// Goal: a copy ends with its connection, and the piece in progress is finished. Method: as above,
/// but the peer disconnects.
#[test]
fn a_copy_ends_with_its_session() {
    let disks = Disks::new();
    let mut raw = disks.log_in(1);
    let to = &disks.devices[1];
    let data = pattern(5, 8 * MIB);
    fill(&disks.devices[0], 0, &data);
    to.inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
    let list = simple(1, 16_384, 0, 0);
    send(&mut raw, 0, &copy_cdb(list.len()), &list);
    disks.rig.wait_for("a piece hangs", |_| to.hanging() == 1);
    drop(raw);
    disks.rig.wait_until_alone();
    to.release();
    let unit = DiskUnit::of(&disks.rig.server().unit(TARGET, 1).unwrap()).unwrap();
    disks.rig.wait_for("it is let go", |_| unit.detached_write_count() == 0);
    assert_eq!((to.hanging(), to.seen(FaultOperation::Write)), (0, 1), "nothing more is begun");
    assert!(
        content(to, 0, PIECE) == data[..PIECE as usize],
        "a segment that was begun is complete"
    );
    let mut raw = disks.log_in(1);
    assert_eq!(results(&mut raw, 0).0, 2, "its result went with the nexus");
    log_out(raw);
    disks.stop_cleanly();
}

/// Goal: an initiator that is fenced off from the destination does not write there by a running
/// copy, and the reply to the fencing comes after the last piece is written. Method: PREEMPT AND
/// ABORT while a piece hangs; the copy is a task of another unit.
#[test]
fn a_running_copy_is_fenced_off() {
    let disks = Disks::new();
    let [mut raw, mut other, mut third] = [1, 2, 3].map(|number| disks.log_in(number));
    let to = &disks.devices[1];
    fill(&disks.devices[0], 0, &pattern(5, 8 * MIB));
    assert_eq!(register(&mut raw, 1, 1), 0);
    assert_eq!(persistent(&mut raw, 1, 1, 1, 0).0, 0, "reserved");
    assert_eq!(register(&mut other, 1, 2), 0);
    to.inject(Fault::new(Effect::Hang).on(FaultOperation::Write).after(1).times(1));
    let list = simple(1, 16_384, 0, 0);
    let running = send(&mut raw, 0, &copy_cdb(list.len()), &list);
    disks.rig.wait_for("a piece hangs", |_| to.hanging() == 1);
    let began = Instant::now();
    let preempt = send_persistent(&mut other, 1, 5, 2, 1);
    while holder(&mut third, 1) != 2 {
        assert!(began.elapsed() < MINUTE, "it is not preempted");
    }
    let early = other.answer(Duration::from_millis(200)).unwrap();
    let waited = began.elapsed();
    to.release();
    let answer = match early {
        RawAnswer::TimedOut => answer_to(&mut other, preempt),
        // On a busy machine the wait for the piece may already have ended.
        RawAnswer::Pdu(early) => {
            assert!(waited >= HANGING_COPY_WAIT, "a piece may still be written: {waited:?}");
            early
        }
        RawAnswer::Closed => panic!("closed"),
    };
    assert_eq!((answer.opcode(), answer.header[3]), (opcode::SCSI_RESPONSE, 0));
    let (status, sense) = outcome(&mut raw, running);
    let left = (8 * MIB - 2 * PIECE) / 512;
    let expected = conflict_at(SegmentRole::Destination).with_information(left);
    assert_eq!((status, sense), (2, expected.encode(SenseFormat::Fixed)));
    assert_eq!(to.seen(FaultOperation::Write), 2, "nothing after the preemption");
    let (status, details) = results(&mut raw, 4);
    assert_eq!((status, &details[60..]), (0, &expected.encode(SenseFormat::Fixed)[..]));
    assert_eq!(results(&mut raw, 0).1[4], 2);
    [raw, other, third].into_iter().for_each(log_out);
    disks.stop_cleanly();
}

/// Returns the key of the reservation's holder, by PERSISTENT RESERVE IN, READ RESERVATION.
fn holder(raw: &mut RawClient, lun: u8) -> u64 {
    let read = at_lun(raw.command(0xc1, &[0x5e, 1, 0, 0, 0, 0, 0, 0, 24, 0], 24), lun);
    raw.send(&read).unwrap();
    let data = answer_to(raw, read.u32_at(16)).data;
    u64::from_be_bytes(data[8..16].try_into().unwrap())
}

/// Goal: a failing disk is reported as the source or the destination, with the number of blocks
/// left to copy.
#[test]
fn failures_of_both_disks_are_reported() {
    let disks = Disks::new();
    let mut raw = disks.log_in(1);
    let (from, to) = (&disks.devices[0], &disks.devices[1]);
    fill(from, 0, &pattern(5, 8 * MIB));
    let bad = BlockRange::new(3 * MIB / 512, 1);
    from.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Read).at(bad));
    let sense = Sense::UNRECOVERED_READ_ERROR.with_information(3 * MIB / 512);
    let expected = refused_by(SegmentRole::Source, &sense).with_information(5 * MIB / 512);
    fails_with(&mut raw, &simple(1, 16_384, 0, 0), &expected);
    from.heal();
    to.inject(Fault::new(Effect::Fail(ErrorKind::Medium)).on(FaultOperation::Write));
    let sense = Sense::WRITE_ERROR.with_information(0);
    fails_with(&mut raw, &simple(1, 16_384, 0, 0), &refused_by(SegmentRole::Destination, &sense));
    to.heal();
    assert_eq!(copy(&mut raw, 0, &simple(1, 16_384, 0, 0)), (0, vec![]), "and then it goes");
    log_out(raw);
    disks.stop_cleanly();
}

/// Goal: a copy waits for room like a write does; it does not delay PREEMPT AND ABORT then, and
/// does not continue after it.
#[test]
fn a_copy_that_waits_for_space_can_be_fenced_off() {
    let disks = Disks::new();
    let (mut raw, mut other) = (disks.log_in(1), disks.log_in(2));
    let to = &disks.devices[1];
    let data = pattern(6, 2 * MIB);
    fill(&disks.devices[0], 0, &data);
    let full = || Fault::new(Effect::Fail(ErrorKind::NoSpace)).on(FaultOperation::Write);
    let list = simple(1, 4096, 0, 0);
    to.inject(full().times(1));
    assert_eq!(copy(&mut raw, 0, &list), (0, vec![]));
    assert!(content(to, 0, 2 * MIB) == data);
    assert_eq!(register(&mut raw, 1, 1), 0);
    assert_eq!(persistent(&mut raw, 1, 1, 1, 0).0, 0, "reserved");
    assert_eq!(register(&mut other, 1, 2), 0);
    let fired = to.fired();
    to.inject(full());
    let running = send(&mut raw, 0, &copy_cdb(list.len()), &list);
    disks.rig.wait_for("there is no room", |_| to.fired() > fired);
    assert_eq!(persistent(&mut other, 1, 5, 2, 1).0, 0, "PREEMPT AND ABORT");
    let expected = conflict_at(SegmentRole::Destination).encode(SenseFormat::Fixed);
    assert_eq!(outcome(&mut raw, running), (2, expected));
    log_out(raw);
    log_out(other);
    disks.stop_cleanly();
}

/// Goal: all other commands are served while the longest copy runs, and it holds at most two
/// pieces. Method: 8 GiB within a disk in memory, which never waits, and one thread for all work.
/// On a busy machine a read may take long, or the copy may end before the reads of this test, but
/// not every time.
#[test]
fn a_long_copy_delays_no_other_command() {
    let disks = Disks::with_cores(1);
    let (mut raw, mut other) = (disks.log_in(1), disks.log_in(2));
    fill(&disks.devices[0], 0, &vec![1; 32 << 20]);
    let segments = vec![segment(0, 0, 0xffff, 0, 100_000); 256];
    let long = list(NAME, &[cscd(10, 512)], &segments);
    let until = Instant::now() + MINUTE;
    while !is_served_during_copy(disks.rig.server().buffers(), &mut raw, &long, &mut other) {
        assert!(Instant::now() < until, "others wait, or are served when it is over");
    }
    log_out(raw);
    log_out(other);
    disks.stop_cleanly();
}

/// Returns true when `other` can read while a copy runs; aborts the copy after that.
fn is_served_during_copy(
    buffers: &BufferPool,
    raw: &mut RawClient,
    long: &[u8],
    other: &mut RawClient,
) -> bool {
    let running = send(raw, 0, &copy_cdb(long.len()), long);
    let mut longest = Duration::ZERO;
    for lba in 0..50 {
        let began = Instant::now();
        other.read_block(lba).unwrap();
        longest = longest.max(began.elapsed());
        let held = buffers.in_use_bytes();
        assert!(held <= 2 * (PIECE as usize + 8192) + 65_536, "{held} bytes");
    }
    let results = raw.command(0xc1, &results_cdb(0, NAME), 255);
    raw.send(&results).unwrap();
    let progress = answer_to(raw, results.u32_at(16)).data;
    let abort = send_function(raw, ABORT_TASK, running);
    let aborted = answer_to(raw, abort);
    assert_eq!(aborted.opcode(), 0x22);
    (progress[4], aborted.header[2]) == (0, 0) && longest < Duration::from_secs(1)
}

/// Goal: one initiator cannot take all concurrent copies of a unit, nor can initiators of one
/// address that prove no names; one copy more gets BUSY.
#[test]
fn copies_at_once_are_limited() {
    let disks = Disks::new();
    let mut greedy = disks.log_in(1);
    let mut other = disks.log_in(2);
    let to = &disks.devices[1];
    fill(&disks.devices[0], 0, &pattern(6, MIB));
    to.inject(Fault::new(Effect::Hang).on(FaultOperation::Write));
    let begin = |raw: &mut RawClient, name: u8| {
        let mut list = simple(1, 16, 0, 0);
        list[0] = name;
        send(raw, 0, &copy_cdb(list.len()), &list)
    };
    let of_greedy: Vec<_> =
        (0..COPIES_OF_INITIATOR_MAX).map(|name| begin(&mut greedy, name)).collect();
    disks.rig.wait_for("all hang", |_| to.hanging() == of_greedy.len());
    assert_eq!(copy(&mut greedy, 0, &simple(1, 16, 0, 0)), (0x08, vec![]));
    let rest = COPIES_OF_ORIGIN_MAX - COPIES_OF_INITIATOR_MAX;
    let of_other: Vec<_> = (0..rest).map(|name| begin(&mut other, name)).collect();
    let all = of_greedy.len() + of_other.len();
    disks.rig.wait_for("those hang too", |_| to.hanging() == all);
    assert_eq!(copy(&mut other, 0, &simple(1, 16, 0, 0)), (0x08, vec![]));
    to.heal();
    to.release();
    assert_eq!(outcomes(&mut greedy, of_greedy.len()), vec![(0, vec![]); of_greedy.len()]);
    assert_eq!(outcomes(&mut other, of_other.len()), vec![(0, vec![]); of_other.len()]);
    log_out(greedy);
    log_out(other);
    disks.stop_cleanly();
}

/// Goal: crossing copies, with writes and COMPARE AND WRITEs in between, all end; each block
/// written during a copy holds either of the two data.
#[test]
fn copies_that_cross_do_not_wait_for_each_other() {
    let disks = Disks::new();
    let mut sessions: Vec<_> = (1..=4).map(|number| disks.log_in(number)).collect();
    fill(&disks.devices[0], 0, &vec![0x11; 32 << 20]);
    fill(&disks.devices[1], 0, &vec![0x22; 32 << 20]);
    let there = simple(1, 0xffff, 0, 0);
    let back = list(NAME, &[cscd(11, 512), cscd(10, 512)], &[segment(0, 1, 0xffff, 0, 0)]);
    let mut compare = [0; 16];
    (compare[0], compare[13]) = (0x89, 1);
    for _ in 0..3 {
        let mut sent = 0;
        for (number, raw) in sessions.iter_mut().enumerate() {
            let lun = number as u8 % 2;
            let list = if number < 2 { &there } else { &back };
            send(raw, lun, &copy_cdb(list.len()), list);
            for lba in 0..16 {
                let write = ten(0x2a, lba * 4001, 1);
                send(raw, lun, &write, &[0x30 + number as u8; 512]);
                send(raw, lun, &compare, &[0; 1024]);
            }
            sent = 1 + 2 * 16;
        }
        for raw in &mut sessions {
            for (status, sense) in outcomes(raw, sent) {
                let miscompare = sense.get(2).is_some_and(|key| key & 0x0f == 0x0e);
                assert!(status == 0 || miscompare, "status {status:#x}, {sense:02x?}");
            }
        }
    }
    for device in &disks.devices[..2] {
        for block in content(device, 0, 32 * MIB).chunks(512) {
            assert!(block.iter().all(|byte| *byte == block[0]), "no block is torn");
            assert!([0x11, 0x22, 0x30, 0x31, 0x32, 0x33, 0].contains(&block[0]));
        }
    }
    sessions.into_iter().for_each(log_out);
    disks.stop_cleanly();
}
