//! Data that is passed on before it is complete: data-out that is handed over as it arrives, and
//! data-in that is announced before it is there.

use super::requests::*;
use super::rig::{Rig, pattern};
use crate::connection::target::{CloseReason, Input, Outcome, TransferFault};
use crate::framing::{DataDestination, SegmentDigest, TaskId};
use crate::pdu::{
    DataIn, DataInFlags, Opcode, ReadyToTransfer, ResponseFlags, ScsiResponse, TAG_RESERVED,
};
use alloc::vec;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;

const KEYS: &str = "MaxRecvDataSegmentLength=1024 FirstBurstLength=1024 MaxBurstLength=2048 \
                    MaxOutstandingR2T=2 InitialR2T=No ImmediateData=Yes";

/// Sense key, additional sense code and qualifier.
const INTERNAL: (u8, u8, u8) = (0x04, 0x44, 0x00);
const SERVICE_CRC: (u8, u8, u8) = (0x0b, 0x47, 0x05);
const TOO_LONG: (u8, u8, u8) = (0x05, 0x24, 0x00);

/// Asserts that the only PDU sent is a CHECK CONDITION with this sense; returns its header.
fn check_condition(rig: &mut Rig, sense: (u8, u8, u8)) -> ScsiResponse {
    let pdu = rig.sent_one(1);
    assert_eq!(pdu.opcode(), Opcode::SCSI_RESPONSE);
    let response = ScsiResponse::decode(&pdu.bhs);
    assert_eq!(response.status, 2);
    assert_eq!((pdu.data[4], pdu.data[14], pdu.data[15]), sense);
    response
}

fn data_outs(rig: &mut Rig) -> Vec<(u32, u32)> {
    let all = core::mem::take(&mut rig.link(1).data_outs);
    all.into_iter().map(|(_, offset, bytes, _)| (offset, bytes)).collect()
}

fn r2ts(rig: &mut Rig) -> Vec<ReadyToTransfer> {
    rig.sent(1).iter().map(|pdu| ReadyToTransfer::decode(&pdu.bhs)).collect()
}

/// Goal: data that came with the command lies in the buffer and is reported once; data that comes
/// later has the destination `Stream` and is reported by segment, with the digest that was checked.
/// The task is never run; R2Ts follow the ranges that are wanted.
#[test]
fn data_out_is_handed_over_as_it_arrives() {
    let mut rig = Rig::normal(KEYS);
    let data = pattern(5000);
    rig.send(1, write(0, 5, 5000).encode(), &data[..600]);
    let task = rig.started(1).id;
    rig.input(1, Input::Stream(task));
    assert_eq!(data_outs(&mut rig), [(0, 600)]);
    rig.wants_range(1, task, 600, 1000);
    rig.wants_range(1, task, 1600, 3400);
    let mut open = Vec::new();
    for (offset, bytes) in [(600, 1000), (1600, 2048), (3648, 1352)] {
        open.extend(r2ts(&mut rig));
        let r2t = open.remove(0);
        assert_eq!((r2t.buffer_offset_bytes, r2t.desired_length_bytes), (offset, bytes));
        let (tag, start, half) = (r2t.target_transfer_tag, offset as usize, bytes / 2);
        let middle = start + half as usize;
        rig.send(1, data_out(5, tag, 0, offset, false).encode(), &data[start..middle]);
        let destination = DataDestination::Stream { task, offset_bytes: offset };
        assert_eq!(rig.link(1).receives.last(), Some(&destination));
        assert_eq!(data_outs(&mut rig), [(offset, half)]);
        let end = (offset + bytes) as usize;
        rig.send(1, data_out(5, tag, 1, offset + half, true).encode(), &data[middle..end]);
        assert_eq!(data_outs(&mut rig), [(offset + half, bytes - half)]);
    }
    assert!(rig.link(1).runs.is_empty());
    rig.done(1, task, Outcome { data_out_bytes: 5000, ..Outcome::default() });
    let response = ScsiResponse::decode(&rig.sent_one(1).bhs);
    assert_eq!((response.status, response.flags), (0, ResponseFlags::FINAL));
    rig.assert_nothing_left();
}

/// Goal: immediate data has its digest if no other data has come before the task takes it.
#[test]
fn immediate_data_keeps_its_digest() {
    for more in [0, 200] {
        let mut rig = Rig::normal(KEYS);
        let mut bhs = write_unsolicited(0, 5, 5000).encode();
        bhs[5..8].copy_from_slice(&[0, 2, 88]); // 600
        rig.input(1, Input::Header(crate::framing::Header::new(bhs)));
        let digest = SegmentDigest::Matched(7);
        rig.input(1, Input::Payload { data: Bytes::new(), digest });
        rig.link(1).forget_destination();
        let task = rig.started(1).id;
        if more > 0 {
            let header = data_out(5, TAG_RESERVED, 0, 600, false);
            rig.send(1, header.encode(), &pattern(more));
        }
        rig.input(1, Input::Stream(task));
        let digest = if more == 0 { digest } else { SegmentDigest::None };
        let reports = core::mem::take(&mut rig.link(1).data_outs);
        assert_eq!(reports, [(task, 0, 600 + more as u32, digest)]);
    }
}

/// Goal: unsolicited data that is arriving when the task begins to stream is reported once it is
/// complete, wherever it lies; the digest that was checked is passed on.
#[test]
fn unsolicited_data_of_a_stream() {
    let mut rig = Rig::normal(KEYS);
    let data = pattern(1024);
    rig.send(1, write_unsolicited(0, 5, 3000).encode(), &data[..200]);
    let task = rig.started(1).id;
    // The header of a segment comes before the task begins to stream.
    let mut bhs = data_out(5, TAG_RESERVED, 0, 200, false).encode();
    bhs[5..8].copy_from_slice(&[0, 0, 100]);
    rig.input(1, Input::Header(crate::framing::Header::new(bhs)));
    rig.input(1, Input::Stream(task));
    let digest = SegmentDigest::Matched(7);
    rig.input(1, Input::Payload { data: Bytes::new(), digest });
    let reports = core::mem::take(&mut rig.link(1).data_outs);
    let none = SegmentDigest::None;
    assert_eq!(reports, [(task, 0, 200, none), (task, 200, 100, digest)]);
    rig.link(1).forget_destination();
    rig.wants_range(1, task, 200, 2800);
    assert!(rig.sent(1).is_empty(), "the unsolicited data is due first");
    rig.send(1, data_out(5, TAG_RESERVED, 1, 300, true).encode(), &data[300..1024]);
    assert_eq!(data_outs(&mut rig), [(300, 724)]);
    let r2t = r2ts(&mut rig).remove(0);
    assert_eq!((r2t.buffer_offset_bytes, r2t.desired_length_bytes), (1024, 1976));
    rig.send(1, data_out(5, r2t.target_transfer_tag, 0, 1024, true).encode(), &pattern(1976));
    rig.good(1, task);
    rig.sent(1);
    rig.assert_nothing_left();
}

/// Goal: a write whose data came with it streams too: all of it is reported, and it is not run.
#[test]
fn a_stream_that_has_all_its_data() {
    let mut rig = Rig::normal(KEYS);
    rig.send(1, write(0, 5, 512).encode(), &pattern(512));
    let task = rig.started(1);
    assert!(task.has_all_data);
    rig.input(1, Input::Stream(task.id));
    assert_eq!(data_outs(&mut rig), [(0, 512)]);
    rig.wants(1, task.id, 512);
    assert!(rig.link(1).runs.is_empty());
    rig.good(1, task.id);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);
    rig.assert_nothing_left();
}

/// Goal: a segment that fails its digest is not reported, and fails the task, as it would without a
/// stream.
#[test]
fn a_damaged_segment_of_a_stream() {
    let mut rig = Rig::normal(KEYS);
    rig.send(1, write(0, 5, 2000).encode(), &[]);
    let task = rig.started(1).id;
    rig.input(1, Input::Stream(task));
    rig.wants(1, task, 2000);
    let r2t = r2ts(&mut rig).remove(0);
    let pdu = data_out(5, r2t.target_transfer_tag, 0, 0, true);
    rig.send_whole(1, pdu.encode(), &[], &pattern(2000), false);
    assert!(data_outs(&mut rig).is_empty());
    assert_eq!(rig.link(1).aborts, [task]);
    let mut sent = rig.sent(1);
    assert_eq!(sent.remove(0).opcode(), Opcode::REJECT);
    rig.link(1).sent = sent;
    check_condition(&mut rig, SERVICE_CRC);
    rig.assert_nothing_left();
}

/// Goal: the data-out of a stream is not limited, because nothing is collected; data that was
/// discarded before the task began to stream ends it.
#[test]
fn a_stream_longer_than_a_buffer() {
    let mut rig = Rig::new();
    rig.limits.data_out_bytes_max = 1000;
    rig.login(1, KEYS);
    rig.send(1, write(0, 5, 2000).encode(), &[]);
    let task = rig.started(1).id;
    rig.input(1, Input::Stream(task));
    rig.wants(1, task, 2000);
    let r2t = r2ts(&mut rig).remove(0);
    rig.send(1, data_out(5, r2t.target_transfer_tag, 0, 0, true).encode(), &pattern(2000));
    assert_eq!(data_outs(&mut rig), [(0, 2000)]);
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);

    rig.send(1, write(1, 6, 2000).encode(), &pattern(1024));
    let task = rig.started(1).id;
    rig.input(1, Input::Stream(task));
    assert!(data_outs(&mut rig).is_empty());
    check_condition(&mut rig, TOO_LONG);
    rig.assert_nothing_left();
}

/// Goal: an executor that begins to stream twice, or too late, loses its task only.
#[test]
fn streams_that_begin_at_the_wrong_time() {
    for wants_first in [false, true] {
        let mut rig = Rig::normal(KEYS);
        rig.send(1, write(0, 5, 2000).encode(), &[]);
        let task = rig.started(1).id;
        rig.input(1, Input::Stream(TaskId(task.0 + 9)));
        match wants_first {
            true => rig.wants(1, task, 0),
            false => rig.input(1, Input::Stream(task)),
        }
        if wants_first {
            rig.link(1).runs.clear();
        }
        rig.input(1, Input::Stream(task));
        check_condition(&mut rig, INTERNAL);
        rig.assert_nothing_left();
    }
}

/// Starts a read of `bytes` bytes with tag 5.
fn reading(bytes: u32) -> (Rig, TaskId) {
    let mut rig = Rig::new();
    rig.limits.ping_after_seconds = 1_000_000;
    rig.login(1, KEYS);
    rig.send(1, read(0, 5, bytes).encode(), &[]);
    let task = rig.started(1).id;
    (rig, task)
}

fn begin(rig: &mut Rig, task: TaskId, offset_bytes: u32, bytes: u32) {
    rig.input(1, Input::DataInBegin { task, offset_bytes, bytes });
}

fn part(rig: &mut Rig, task: TaskId, data: &[u8], digest: Option<u32>) {
    let data = Bytes::copy_from_slice(data);
    rig.input(1, Input::DataInPart { task, data, digest });
}

/// Goal: the header of a range is sent before its data, cut at the limits of the initiator; a given
/// digest is used if the range is one PDU; the status never travels with the data.
#[test]
fn data_in_that_is_announced() {
    let (mut rig, task) = reading(4096);
    let data = pattern(4096);
    begin(&mut rig, task, 0, 1000);
    let pdu = &rig.link(1).sent[0];
    assert_eq!((pdu.data_segment_bytes(), pdu.data.len()), (1000, 0));
    part(&mut rig, task, &data[..1], None);
    part(&mut rig, task, &data[1..999], Some(9));
    part(&mut rig, task, &data[999..1000], Some(8));
    begin(&mut rig, task, 1000, 2500);
    part(&mut rig, task, &data[1000..1500], None);
    assert_eq!(rig.link(1).open.len(), 1);
    part(&mut rig, task, &data[1500..3500], Some(7));
    let digests = core::mem::take(&mut rig.link(1).digests);
    assert_eq!(digests, [Some(8), None], "further PDUs were complete when they were sent");
    rig.data_in(1, task, 3500, &data[3500..3600]);
    let rest = Bytes::copy_from_slice(&data[3600..]);
    rig.done(1, task, Outcome { data_in: rest, ..Outcome::default() });
    let mut sent = rig.sent(1);
    let response = ScsiResponse::decode(&sent.pop().unwrap().bhs);
    assert_eq!((response.status, response.residual_bytes), (0, 0));
    let lengths: Vec<_> = sent.iter().map(|pdu| pdu.data.len()).collect();
    assert_eq!(lengths, [1000, 1024, 1024, 452, 100, 496]);
    assert_eq!(response.exp_data_sn, 6);
    let mut whole = Vec::new();
    for (number, pdu) in sent.iter().enumerate() {
        let header = DataIn::decode(&pdu.bhs);
        assert_eq!(header.data_sn as usize, number);
        assert_eq!(header.buffer_offset_bytes as usize, whole.len());
        assert!(!header.flags.has(DataInFlags::STATUS));
        assert_eq!(header.flags.has(DataInFlags::FINAL), number != 1);
        whole.extend_from_slice(&pdu.data);
    }
    assert_eq!(whole, data);
    rig.assert_nothing_left();
}

/// Goal: the part of a range that is not expected is not sent, and counts as a residual.
#[test]
fn announced_data_beyond_the_expected_length() {
    for (expected, sent_bytes) in [(1500, 1500), (500, 500)] {
        let (mut rig, task) = reading(expected);
        begin(&mut rig, task, 0, 1000);
        part(&mut rig, task, &pattern(1000), Some(1));
        begin(&mut rig, task, 1000, 800);
        part(&mut rig, task, &pattern(700), None);
        part(&mut rig, task, &pattern(100), Some(2));
        rig.good(1, task);
        let digests = core::mem::take(&mut rig.link(1).digests);
        assert!(digests.iter().all(|digest| digest.is_none() || *digest == Some(1)));
        let mut sent = rig.sent(1);
        let response = ScsiResponse::decode(&sent.pop().unwrap().bhs);
        assert_eq!((response.status, response.residual_bytes), (0, 1800 - expected));
        assert_eq!(sent.iter().map(|pdu| pdu.data.len()).sum::<usize>(), sent_bytes);
        rig.assert_nothing_left();
    }
}

/// Goal: a task that ends while a PDU misses data fills it with zeroes and does not end GOOD: an
/// error of the executor is kept, and anything else is an internal failure.
#[test]
fn a_task_that_ends_in_an_open_pdu() {
    let sense = Bytes::from_static(&[0x70, 0, 3, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x11, 0, 0, 0, 0, 0]);
    for error in [false, true] {
        let (mut rig, task) = reading(4096);
        begin(&mut rig, task, 0, 2000);
        part(&mut rig, task, &[9; 300], None);
        let outcome = match error {
            true => Outcome { status: 2, sense: sense.clone(), ..Outcome::default() },
            false => Outcome { data_in: pattern(100).into(), ..Outcome::default() },
        };
        rig.done(1, task, outcome);
        let mut sent = rig.sent(1);
        let data = sent.remove(0).data;
        assert_eq!(data[..], [vec![9; 300], vec![0; 724]].concat(), "the PDU that was announced");
        rig.link(1).sent = sent;
        let response = check_condition(&mut rig, if error { (0x03, 0x11, 0x00) } else { INTERNAL });
        assert_eq!(response.exp_data_sn, 1);
        rig.assert_nothing_left();
    }
}

/// Goal: an aborted task fills its PDU and gets no response; parts that come later are dropped. A
/// connection that is closed fills its open PDU, too.
#[test]
fn an_aborted_task_fills_its_pdu() {
    let (mut rig, task) = reading(4096);
    rig.aborts_at_once = false;
    begin(&mut rig, task, 0, 100_000);
    part(&mut rig, task, &[9; 300], None);
    rig.send(1, abort_task(1, 6, 5, 0).encode(), &[]);
    part(&mut rig, task, &[9; 300], None);
    rig.good(1, task);
    let sent = rig.sent(1);
    assert_eq!(sent[0].data[..], [vec![9; 300], vec![0; 724]].concat());
    assert_eq!(sent[1].opcode(), Opcode::TASK_MANAGEMENT_RESPONSE);
    rig.assert_nothing_left();

    let (mut rig, task) = reading(4096);
    begin(&mut rig, task, 0, 1000);
    rig.input(1, Input::Shutdown { within_seconds: 0 });
    assert_eq!(rig.link(1).closed, Some(CloseReason::Dropped));
    assert_eq!(rig.sent(1)[0].data[..], [0; 1000]);
    rig.assert_nothing_left();
}

/// Goal: data that does not come in time fails its task, so that the PDUs behind it are not held up
/// for longer; each part renews the time, and a range that is complete has no limit.
#[test]
fn parts_that_come_too_late() {
    let (mut rig, task) = reading(4096);
    let limit = u64::from(rig.limits.data_in_part_seconds);
    begin(&mut rig, task, 0, 500);
    for _ in 0..3 {
        rig.wait(Duration::from_secs(limit - 1));
        part(&mut rig, task, &[9; 100], None);
    }
    part(&mut rig, task, &[9; 200], None);
    rig.wait(Duration::from_secs(10));
    assert!(rig.link(1).faults.is_empty());
    begin(&mut rig, task, 500, 500);
    rig.aborts_at_once = false;
    rig.wait(Duration::from_secs(limit - 1));
    assert!(rig.link(1).faults.is_empty());
    rig.wait(Duration::from_secs(1));
    assert_eq!(rig.link(1).faults, [(task, TransferFault::Internal)]);
    assert_eq!(rig.sent(1)[1].data[..], [0; 500]);
    rig.answer_fault(1);
    rig.run_until_idle();
    check_condition(&mut rig, INTERNAL);
    rig.assert_nothing_left();
}

/// Goal: parts and ranges at a wrong offset end their task only, with a complete PDU.
#[test]
fn misplaced_parts_end_their_task() {
    type Mistake = fn(&mut Rig, TaskId);
    let mistakes: [Mistake; 6] = [
        |rig, task| part(rig, task, &[1; 10], None),
        |rig, task| {
            begin(rig, task, 0, 100);
            part(rig, task, &[1; 101], None);
        },
        |rig, task| {
            begin(rig, task, 0, 100);
            begin(rig, task, 100, 100);
        },
        |rig, task| {
            begin(rig, task, 0, 100);
            rig.data_in(1, task, 100, &[1; 10]);
        },
        |rig, task| begin(rig, task, 1, 100),
        |rig, task| {
            begin(rig, task, 0, 100);
            part(rig, task, &[1; 100], None);
            part(rig, task, &[1; 1], None);
        },
    ];
    for mistake in mistakes {
        let (mut rig, task) = reading(4096);
        mistake(&mut rig, task);
        assert_eq!(rig.link(1).aborts, [task]);
        let mut sent = rig.sent(1);
        let response = sent.pop().into_iter().collect();
        rig.link(1).sent = response;
        check_condition(&mut rig, INTERNAL);
        rig.assert_nothing_left();
    }
}

/// Goal: two tasks may each have an open PDU, and others are served meanwhile.
#[test]
fn two_open_pdus() {
    let mut rig = Rig::normal(KEYS);
    let mut tasks = Vec::new();
    for number in 0..3 {
        rig.send(1, read(number, 5 + number, 600).encode(), &[]);
        tasks.push(rig.started(1).id);
    }
    begin(&mut rig, tasks[0], 0, 600);
    begin(&mut rig, tasks[1], 0, 600);
    rig.done(1, tasks[2], Outcome { data_in: pattern(600).into(), ..Outcome::default() });
    for step in 0..6 {
        part(&mut rig, tasks[1], &[2; 100], None);
        part(&mut rig, tasks[0], &[1; 100], None);
        assert_eq!(rig.link(1).open.len(), if step < 5 { 2 } else { 0 });
    }
    rig.good(1, tasks[0]);
    rig.good(1, tasks[1]);
    let sent = rig.sent(1);
    assert_eq!(
        (sent[0].data[..].to_vec(), sent[1].data[..].to_vec()),
        (vec![1; 600], vec![2; 600])
    );
    assert_eq!(sent.len(), 5);
    rig.assert_nothing_left();
}
