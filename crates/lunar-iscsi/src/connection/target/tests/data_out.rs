//! Data-Out that violates a rule. RFC 7143 §4.2.5.2, §7.8, §7.9, §11.4.7.2, §11.7.

use super::requests::*;
use super::rig::{Rig, pattern};
use crate::connection::target::{Input, Outcome, TransferFault};
use crate::framing::{DataDestination, Pdu, TaskId};
use crate::pdu::{
    DataOut, Opcode, ReadyToTransfer, Reject, RejectReason, ScsiResponse, TAG_RESERVED,
};
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{Lun, SerialNumber};

const UNEXPECTED_UNSOLICITED: (u8, u8, u8) = (0x0b, 0x0c, 0x0c);
const INCORRECT_AMOUNT: (u8, u8, u8) = (0x0b, 0x0c, 0x0d);
const SERVICE_CRC: (u8, u8, u8) = (0x0b, 0x47, 0x05);

const KEYS: &str = "MaxRecvDataSegmentLength=8192 FirstBurstLength=1024 MaxBurstLength=2048 \
                    InitialR2T=No ImmediateData=Yes MaxOutstandingR2T=2";

/// Asserts that the response is CHECK CONDITION with this sense key and code, and that no data of
/// the write counts.
fn assert_check(pdu: &Pdu, sense: (u8, u8, u8)) {
    assert_eq!(pdu.opcode(), Opcode::SCSI_RESPONSE);
    let response = ScsiResponse::decode(&pdu.bhs);
    assert_eq!(response.status, 0x02);
    assert_eq!(pdu.data[..2], [0, 18], "SenseLength");
    assert_eq!(pdu.data.len(), 20);
    assert_eq!((pdu.data[4], pdu.data[14], pdu.data[15]), sense);
}

fn rejects(sent: &[Pdu]) -> Vec<RejectReason> {
    let rejects = sent.iter().filter(|pdu| pdu.opcode() == Opcode::REJECT);
    rejects.map(|pdu| Reject::decode(&pdu.bhs).reason).collect()
}

/// Starts a write of 2048 bytes and returns the R2T for all of it.
fn write_with_r2t(keys: &str) -> (Rig, TaskId, ReadyToTransfer) {
    let mut rig = Rig::normal(keys);
    rig.send(1, write(0, 5, 2048).encode(), &[]);
    let task = rig.started(1).id;
    rig.wants(1, task, 2048);
    let r2t = ReadyToTransfer::decode(&rig.sent_one(1).bhs);
    assert_eq!(r2t.desired_length_bytes, 2048);
    (rig, task, r2t)
}

/// Goal: a wrong DataSN never ends GOOD and never hangs. Method: the sequences of libiscsi's
/// test (0,0 · 27 · −1 · reversed), solicited and unsolicited.
#[test]
fn wrong_data_sn() {
    for [first, second] in [[0, 0], [0, 27], [27, 1], [u32::MAX, 0], [1, 0]] {
        let (mut rig, task, r2t) = write_with_r2t(KEYS);
        let tag = r2t.target_transfer_tag;
        rig.send(1, data_out(5, tag, first, 0, false).encode(), &[1; 1024]);
        rig.send(1, data_out(5, tag, second, 1024, true).encode(), &[1; 1024]);
        assert!(rig.link(1).runs.is_empty());
        assert_eq!(rig.link(1).aborts, [task]);
        assert_check(&rig.sent_one(1), SERVICE_CRC);
        rig.assert_nothing_left();

        let mut rig = Rig::normal(KEYS);
        rig.send(1, write_unsolicited(0, 5, 1024).encode(), &[]);
        let task = rig.started(1).id;
        rig.send(1, data_out(5, TAG_RESERVED, first, 0, false).encode(), &[1; 512]);
        rig.send(1, data_out(5, TAG_RESERVED, second, 512, true).encode(), &[1; 512]);
        rig.wants(1, task, 1024);
        assert_check(&rig.sent_one(1), SERVICE_CRC);
        rig.assert_nothing_left();
    }
}

/// Goal: the response to a bad sequence waits for the end of every requested sequence.
#[test]
fn check_condition_waits_for_all_data() {
    let mut rig = Rig::normal(KEYS);
    rig.send(1, write(0, 5, 4096).encode(), &[]);
    let task = rig.started(1).id;
    rig.wants(1, task, 4096);
    let tags: Vec<u32> = rig
        .sent(1)
        .iter()
        .map(|pdu| ReadyToTransfer::decode(&pdu.bhs).target_transfer_tag)
        .collect();
    assert_eq!(tags.len(), 2);
    rig.send(1, data_out(5, tags[0], 3, 0, true).encode(), &[1; 2048]);
    assert!(rig.sent(1).is_empty());
    rig.send(1, data_out(5, tags[1], 0, 2048, false).encode(), &[1; 1024]);
    assert_eq!(rig.link(1).receives.last(), Some(&DataDestination::Discard));
    assert!(rig.sent(1).is_empty());
    rig.send(1, data_out(5, tags[1], 1, 3072, true).encode(), &[1; 1024]);
    assert_check(&rig.sent_one(1), SERVICE_CRC);
    rig.assert_nothing_left();
}

/// Goal: a data digest error is rejected with the header, and the command ends with CHECK
/// CONDITION. RFC 7143 §7.8.
#[test]
fn data_digest_error() {
    let (mut rig, _, r2t) = write_with_r2t(KEYS);
    let pdu = data_out(5, r2t.target_transfer_tag, 0, 0, false);
    rig.send_whole(1, pdu.encode(), &[], &[1; 1024], false);
    let reject = rig.sent_one(1);
    assert_eq!(Reject::decode(&reject.bhs).reason, RejectReason::DATA_DIGEST_ERROR);
    assert_eq!(DataOut::decode(reject.data[..].try_into().unwrap()).initiator_task_tag, 5);
    let pdu = data_out(5, r2t.target_transfer_tag, 1, 1024, true);
    rig.send(1, pdu.encode(), &[1; 1024]);
    assert_check(&rig.sent_one(1), SERVICE_CRC);
    rig.assert_nothing_left();
}

/// Goal: a command with damaged immediate data does not count: its CmdSN is still expected, and a
/// retry is carried out. RFC 7143 §7.3.
#[test]
fn damaged_immediate_data_leaves_a_gap() {
    let mut rig = Rig::normal(KEYS);
    rig.send_whole(1, write(0, 5, 512).encode(), &[], &[1; 512], false);
    let reject = rig.sent_one(1);
    let pdu = Reject::decode(&reject.bhs);
    assert_eq!((pdu.reason, pdu.exp_cmd_sn), (RejectReason::DATA_DIGEST_ERROR, cmd_sn(0)));
    assert!(rig.link(1).buffers.is_empty());
    rig.send(1, write(0, 5, 512).encode(), &pattern(512));
    let task = rig.started(1).id;
    rig.wants(1, task, 512);
    assert_eq!(rig.link(1).buffers[&task], pattern(512));
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);
}

/// Goal: each wrong Data-Out is discarded, ends the command as the RFC requires, and is rejected if
/// one of its fields is wrong.
#[test]
fn wrong_fields() {
    type Case = (&'static str, fn(&mut DataOut), usize, (u8, u8, u8), RejectReason);
    let cases: [Case; 5] = [
        (
            "unknown tag",
            |pdu| pdu.target_transfer_tag ^= 0x4000,
            512,
            INCORRECT_AMOUNT,
            RejectReason::INVALID_PDU_FIELD,
        ),
        (
            "another unit's tag",
            |pdu| pdu.lun = Lun::new(2),
            512,
            INCORRECT_AMOUNT,
            RejectReason::INVALID_PDU_FIELD,
        ),
        (
            "a hole",
            |pdu| pdu.buffer_offset_bytes = 512,
            512,
            INCORRECT_AMOUNT,
            RejectReason::INVALID_PDU_FIELD,
        ),
        ("too much", |_| (), 2052, INCORRECT_AMOUNT, RejectReason::PROTOCOL_ERROR),
        (
            "unsolicited",
            |pdu| pdu.target_transfer_tag = TAG_RESERVED,
            512,
            UNEXPECTED_UNSOLICITED,
            RejectReason::PROTOCOL_ERROR,
        ),
    ];
    for (what, change, bytes, sense, reason) in cases {
        let (mut rig, _, r2t) = write_with_r2t(KEYS);
        let mut pdu = data_out(5, r2t.target_transfer_tag, 0, 0, false);
        change(&mut pdu);
        rig.send(1, pdu.encode(), &pattern(bytes));
        assert_eq!(rig.link(1).receives.last(), Some(&DataDestination::Discard), "{what}");
        assert_eq!(rejects(&rig.sent(1)), [reason], "{what}");
        let end = data_out(5, r2t.target_transfer_tag, 0, 0, true);
        rig.send(1, end.encode(), &pattern(512));
        assert_check(&rig.sent_one(1), sense);
        rig.assert_nothing_left();
    }
}

/// Goal: overlapping data is never accepted. Method: the second PDU starts inside the first.
#[test]
fn overlapping_data() {
    let (mut rig, task, r2t) = write_with_r2t(KEYS);
    let tag = r2t.target_transfer_tag;
    rig.send(1, data_out(5, tag, 0, 0, false).encode(), &[1; 1024]);
    rig.send(1, data_out(5, tag, 1, 512, false).encode(), &[2; 1024]);
    assert!(!rig.link(1).buffers.contains_key(&task), "returned with the abort");
    assert_eq!(rejects(&rig.sent(1)), [RejectReason::INVALID_PDU_FIELD]);
    rig.send(1, data_out(5, tag, 2, 1536, true).encode(), &[3; 512]);
    assert_check(&rig.sent_one(1), INCORRECT_AMOUNT);
}

/// Goal: the F bit ends a sequence: too early is an error, on an empty last PDU it is valid.
#[test]
fn final_bit() {
    let (mut rig, _, r2t) = write_with_r2t(KEYS);
    rig.send(1, data_out(5, r2t.target_transfer_tag, 0, 0, true).encode(), &[1; 512]);
    assert_check(&rig.sent_one(1), INCORRECT_AMOUNT);

    let (mut rig, task, r2t) = write_with_r2t(KEYS);
    let tag = r2t.target_transfer_tag;
    rig.send(1, data_out(5, tag, 0, 0, false).encode(), &pattern(2048));
    assert!(rig.link(1).runs.is_empty(), "the sequence is not over");
    rig.send(1, data_out(5, tag, 1, 2048, true).encode(), &[]);
    assert_eq!(rig.link(1).runs, [task]);
    rig.good(1, task);
}

/// Goal: a Data-Out without data is accepted at its position in the sequence, and counts in DataSN.
/// RFC 7143 §11.7.7.
#[test]
fn data_out_without_data() {
    let (mut rig, task, r2t) = write_with_r2t(KEYS);
    let tag = r2t.target_transfer_tag;
    let data = pattern(2048);
    rig.send(1, data_out(5, tag, 0, 0, false).encode(), &[]);
    rig.send(1, data_out(5, tag, 1, 0, false).encode(), &data[..1024]);
    rig.send(1, data_out(5, tag, 2, 1024, false).encode(), &[]);
    rig.send(1, data_out(5, tag, 3, 1024, true).encode(), &data[1024..]);
    assert_eq!(rig.link(1).runs, [task]);
    assert_eq!(rig.link(1).buffers[&task], data);
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);
    rig.assert_nothing_left();
}

/// Goal: the number of open R2Ts never exceeds MaxOutstandingR2T; the next one follows the end of
/// one. RFC 7143 §13.17.
#[test]
fn open_sequences_are_counted() {
    for (agreed, keys) in [(2, KEYS), (1, "MaxBurstLength=2048 MaxOutstandingR2T=1")] {
        let mut rig = Rig::normal(keys);
        let data = pattern(9 * 2048);
        rig.send(1, write(0, 5, 9 * 2048).encode(), &[]);
        let task = rig.started(1).id;
        rig.wants(1, task, 9 * 2048);
        let mut open: Vec<ReadyToTransfer> = Vec::new();
        for r2t_sn in 0..9 {
            open.extend(rig.sent(1).iter().map(|pdu| ReadyToTransfer::decode(&pdu.bhs)));
            assert_eq!(open.len(), agreed.min(9 - r2t_sn), "as many R2Ts as may be open");
            let r2t = open.remove(0);
            assert_eq!(r2t.r2t_sn as usize, r2t_sn);
            let at = r2t.buffer_offset_bytes as usize;
            let (tag, half) = (r2t.target_transfer_tag, at as u32 + 1024);
            rig.send(1, data_out(5, tag, 0, at as u32, false).encode(), &data[at..at + 1024]);
            assert!(rig.sent(1).is_empty(), "the sequence is still open");
            rig.send(1, data_out(5, tag, 1, half, true).encode(), &data[at + 1024..at + 2048]);
        }
        assert_eq!(rig.link(1).buffers[&task], data);
        rig.good(1, task);
        assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);
        rig.assert_nothing_left();
    }
}

/// Goal: a write without F whose data is all immediate does not wait. RFC 7143 §11.3.4 requires F
/// there; an initiator that omits it must not hang.
#[test]
fn all_data_immediate_without_f() {
    let mut rig = Rig::normal(KEYS);
    rig.send(1, write_unsolicited(0, 5, 512).encode(), &pattern(512));
    let task = rig.started(1).id;
    rig.wants(1, task, 512);
    assert_eq!(rig.link(1).runs, [task]);
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);
    rig.assert_nothing_left();
}

/// Goal: the executor learns whether all data of a write has arrived, in one or several PDUs; then
/// it may end the write without a request for data, or still make one.
#[test]
fn writes_whose_data_came_with_them() {
    for (immediate_bytes, rest_bytes) in [(512, 0), (0, 512), (256, 256)] {
        for requests_data in [false, true] {
            let mut rig = Rig::normal(KEYS);
            let command = if rest_bytes > 0 { write_unsolicited } else { write };
            rig.send(1, command(0, 5, 512).encode(), &pattern(immediate_bytes));
            if rest_bytes > 0 {
                // If a write starts before its last data arrives, the executor requests data as
                // usual.
                let task = rig.started(1);
                assert!(!task.has_all_data, "{immediate_bytes} bytes have arrived");
                let rest = data_out(5, TAG_RESERVED, 0, immediate_bytes as u32, true);
                rig.send(1, rest.encode(), &pattern(rest_bytes));
                rig.wants(1, task.id, 512);
                assert_eq!(rig.link(1).runs, [task.id]);
                rig.good(1, task.id);
            } else {
                let task = rig.started(1);
                assert!(task.has_all_data);
                if requests_data {
                    rig.wants(1, task.id, 512);
                    assert_eq!(rig.link(1).runs, [task.id]);
                }
                rig.good(1, task.id);
            }
            assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0);
            rig.assert_nothing_left();
        }
    }
}

/// Goal: a write that has all its data accepts no more data while it runs: further data ends it
/// with CHECK CONDITION, after the executor is done.
#[test]
fn more_data_for_a_write_that_has_all_its_data() {
    let mut rig = Rig::normal(KEYS);
    rig.send(1, write(0, 5, 512).encode(), &pattern(512));
    let task = rig.started(1).id;
    rig.send(1, data_out(5, TAG_RESERVED, 0, 0, true).encode(), &[9; 512]);
    assert_eq!(rig.link(1).receives.last(), Some(&DataDestination::Discard));
    assert_eq!(rejects(&rig.sent(1)), [RejectReason::PROTOCOL_ERROR]);
    rig.good(1, task);
    assert_check(&rig.sent_one(1), UNEXPECTED_UNSOLICITED);
    rig.assert_nothing_left();
}

/// Goal: a write has all its data only if nothing is missing, and only if the data was kept.
#[test]
fn writes_whose_data_did_not_all_come_with_them() {
    let mut rig = Rig::normal(KEYS);
    rig.send(1, write(0, 5, 1024).encode(), &pattern(512));
    assert!(!rig.started(1).has_all_data, "half of the data is missing");
    rig.send(1, read(1, 6, 512).encode(), &[]);
    assert!(!rig.started(1).has_all_data, "a read has none");
    rig.send(1, write(2, 7, 0).encode(), &[]);
    assert!(!rig.started(1).has_all_data, "there is none");

    let mut rig = Rig::new();
    rig.limits.data_out_bytes_max = 256;
    rig.login(1, KEYS);
    rig.send(1, write(0, 5, 512).encode(), &pattern(512));
    assert!(!rig.started(1).has_all_data, "the data was discarded");
}

/// Goal: unsolicited data is accepted only if negotiated, and at most FirstBurstLength.
#[test]
fn unsolicited_data_that_was_not_negotiated() {
    let mut rig = Rig::normal("InitialR2T=Yes ImmediateData=No");
    rig.send(1, write(0, 5, 512).encode(), &[1; 512]);
    assert_check(&rig.sent_one(1), UNEXPECTED_UNSOLICITED);
    rig.send(1, write_unsolicited(1, 6, 512).encode(), &[]);
    assert!(rig.sent(1).is_empty(), "the target waits for the announced data");
    rig.send(1, data_out(6, TAG_RESERVED, 0, 0, true).encode(), &[1; 512]);
    assert_check(&rig.sent_one(1), UNEXPECTED_UNSOLICITED);
    rig.send(1, read(2, 7, 512).encode(), &[1; 512]);
    assert_check(&rig.sent_one(1), UNEXPECTED_UNSOLICITED);
    assert!(rig.link(1).started.is_empty(), "no refused command was ever started");
    assert!(
        rig.link(1)
            .receives
            .iter()
            .all(|destination| !matches!(destination, DataDestination::Task { .. }))
    );
    rig.assert_nothing_left();

    let mut rig = Rig::normal(KEYS);
    rig.send(1, write(0, 5, 2048).encode(), &[1; 1028]);
    assert_check(&rig.sent_one(1), INCORRECT_AMOUNT);
    rig.send(1, write(1, 6, 512).encode(), &[1; 516]);
    assert_check(&rig.sent_one(1), INCORRECT_AMOUNT);
    rig.send(1, write_unsolicited(2, 7, 2048).encode(), &[1; 512]);
    rig.started(1);
    rig.send(1, data_out(7, TAG_RESERVED, 0, 512, true).encode(), &[1; 256]);
    assert_check(&rig.sent_one(1), INCORRECT_AMOUNT);
    rig.send(1, write_unsolicited(3, 8, 2048).encode(), &[1; 512]);
    rig.started(1);
    rig.send(1, data_out(8, TAG_RESERVED, 0, 512, true).encode(), &[1; 516]);
    let sent = rig.sent(1);
    assert_eq!(rejects(&sent), [RejectReason::PROTOCOL_ERROR]);
    assert_check(&sent[1], UNEXPECTED_UNSOLICITED);
    rig.assert_nothing_left();
}

/// Goal: data for an unknown task is discarded without a response.
#[test]
fn data_for_unknown_tasks_is_discarded() {
    let mut rig = Rig::normal(KEYS);
    rig.send(1, data_out(99, 7, 0, 0, true).encode(), &[1; 512]);
    rig.send(1, data_out(98, TAG_RESERVED, 0, 0, false).encode(), &[1; 512]);
    rig.send(1, data_out(97, 7, 0, 0, true).encode(), &[]);
    assert!(rig.sent(1).is_empty());
    assert_eq!(
        rig.link(1).receives[1..],
        [DataDestination::Discard; 2],
        "no Receive after that of the login"
    );
}

/// Goal: a damaged PDU that would be skipped is rejected too, RFC 7143 §7.8, unless its CmdSN
/// requires that it is ignored. Method: data for no task, an acknowledgement with data, an old
/// command.
#[test]
fn damaged_pdus_of_no_task_are_rejected() {
    let mut rig = Rig::normal(KEYS);
    let acknowledgement = pong(0, TAG_RESERVED, SerialNumber(0)).encode();
    for bhs in [data_out(99, 7, 0, 0, true).encode(), acknowledgement] {
        rig.send_whole(1, bhs, &[], &[1; 512], false);
        let reject = rig.sent_one(1);
        assert_eq!(Reject::decode(&reject.bhs).reason, RejectReason::DATA_DIGEST_ERROR);
        assert_eq!(reject.data[..], {
            let mut quoted = bhs;
            quoted[5..8].copy_from_slice(&[0, 2, 0]);
            quoted
        });
    }
    rig.send_whole(1, write(u32::MAX, 5, 512).encode(), &[], &[1; 512], false);
    assert!(rig.sent(1).is_empty());
    rig.assert_nothing_left();
}

/// Goal: if the executor refuses a command before its data arrives, arriving data is discarded and
/// open R2Ts are awaited before the response. RFC 7143 §11.4.2.
#[test]
fn refused_before_the_data() {
    let (mut rig, task, r2t) = write_with_r2t(KEYS);
    rig.done(1, task, Outcome { status: 0x08, ..Outcome::default() });
    assert!(rig.sent(1).is_empty());
    let pdu = data_out(5, r2t.target_transfer_tag, 0, 0, true);
    rig.send(1, pdu.encode(), &[1; 2048]);
    assert_eq!(rig.link(1).receives.last(), Some(&DataDestination::Discard));
    let response = ScsiResponse::decode(&rig.sent_one(1).bhs);
    assert_eq!((response.status, response.residual_bytes), (0x08, 2048));

    rig.send(1, write_unsolicited(1, 6, 1024).encode(), &[1; 512]);
    let task = rig.started(1).id;
    rig.done(1, task, Outcome { status: 0x18, ..Outcome::default() });
    assert!(rig.sent(1).is_empty());
    rig.send(1, data_out(6, TAG_RESERVED, 0, 512, true).encode(), &[1; 512]);
    assert_eq!(rig.link(1).receives.last(), Some(&DataDestination::Discard));
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0x18);
    rig.assert_nothing_left();
}

/// Goal: the target requests at most the expected length. Method: the executor requests less,
/// nothing, and more than the initiator has.
#[test]
fn r2ts_stay_within_the_expected_length() {
    let mut rig = Rig::normal(KEYS);
    for (number, wanted, asked) in [(0, 512, 512), (1, 0, 0), (2, 4096, 1000)] {
        rig.send(1, write(number, 5, 1000).encode(), &[]);
        let task = rig.started(1).id;
        rig.wants(1, task, wanted);
        let sent = rig.sent(1);
        let lengths = sent.iter().map(|pdu| ReadyToTransfer::decode(&pdu.bhs));
        assert_eq!(lengths.map(|r2t| r2t.desired_length_bytes).sum::<u32>(), asked);
        for pdu in &sent {
            let r2t = ReadyToTransfer::decode(&pdu.bhs);
            let data = data_out(5, r2t.target_transfer_tag, 0, 0, true);
            rig.send(1, data.encode(), &pattern(asked as usize));
        }
        assert_eq!(rig.link(1).runs.last(), Some(&task));
        rig.good(1, task);
        rig.sent(1);
    }
    rig.assert_nothing_left();
}

/// Goal: data-out beyond the limit of one command is never received.
#[test]
fn data_out_beyond_the_limit_is_not_received() {
    let mut rig = Rig::new();
    rig.limits.data_out_bytes_max = 1024;
    rig.login(1, KEYS);
    rig.send(1, write(0, 5, u32::MAX).encode(), &[1; 512]);
    let task = rig.started(1).id;
    let destination = DataDestination::Task { task, offset_bytes: 0, buffer_bytes: 1024 };
    assert_eq!(rig.link(1).receives.last(), Some(&destination));
    rig.wants(1, task, 1 << 30);
    assert_check(&rig.sent_one(1), (0x05, 0x24, 0x00));
    rig.assert_nothing_left();
}

/// Goal: the executor formats the sense data of a fault; if the task ended by itself before the
/// executor received the fault, that result does not count. Fault: units with D_SENSE set
/// answered such faults in fixed format.
#[test]
fn the_executor_formats_the_sense() {
    let mut rig = Rig::normal("InitialR2T=Yes ImmediateData=No");
    rig.aborts_at_once = false;
    rig.send(1, write(0, 5, 1000).encode(), &[1; 1000]);
    let fault = TransferFault::UnexpectedUnsolicited;
    let task = rig.link(1).faults.remove(0);
    assert_eq!(task.1, fault);
    assert!(rig.link(1).started.is_empty() && rig.sent(1).is_empty());
    rig.good(1, task.0);
    assert!(rig.sent(1).is_empty(), "a result for the buffer does not count");
    let sense = [0x72, 0x0b, 0x0c, 0x0c, 0, 0, 0, 0];
    let outcome =
        Outcome { status: 2, sense: Bytes::copy_from_slice(&sense), ..Outcome::default() };
    rig.input(1, Input::Failed { task: task.0, outcome });
    let response = rig.sent_one(1);
    assert_eq!(ScsiResponse::decode(&response.bhs).status, 2);
    assert_eq!(response.data[2..], sense);
    rig.assert_nothing_left();
}

/// Goal: a failing task that is aborted while the executor ends it is aborted: no response.
#[test]
fn a_failing_task_is_aborted() {
    let mut rig = Rig::normal("InitialR2T=No");
    rig.aborts_at_once = false;
    rig.send(1, write_unsolicited(0, 5, 1000).encode(), &[]);
    rig.started(1);
    rig.send(1, data_out(5, TAG_RESERVED, 7, 0, true).encode(), &[1; 1000]);
    assert_eq!(rig.link(1).faults.len(), 1);
    rig.send(1, abort_task(1, 6, 5, 0).encode(), &[]);
    assert!(rig.sent(1).is_empty());
    rig.answer_fault(1);
    rig.run_until_idle();
    assert_eq!(rig.sent_one(1).opcode(), Opcode::TASK_MANAGEMENT_RESPONSE);
    rig.assert_nothing_left();
}
