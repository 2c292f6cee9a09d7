//! PDUs that are sent again. RFC 7143 §11.16.

use super::requests::*;
use super::rig::{Rig, pattern};
use crate::connection::target::{ConnectionLimits, Input, Outcome};
use crate::framing::{Pdu, TaskId};
use crate::pdu::{
    DataIn, DataInFlags, FirstByte, HEADER_BYTES, Opcode, ReadyToTransfer, Reject, RejectReason,
    ScsiCommand, ScsiResponse, SnackFlags, SnackRequest, TAG_RESERVED,
};
use alloc::vec::Vec;
use bytes::Bytes;
use lunar_wire::{Lun, SerialNumber, U24};
use proptest::prelude::*;

/// MaxRecvDataSegmentLength of the initiator.
const SEGMENT_BYTES: u32 = 512;

const DATA: SnackFlags = SnackFlags::FINAL;
const STATUS: SnackFlags = SnackFlags::FINAL.with(SnackFlags::STATUS);

/// A session of this ErrorRecoveryLevel.
fn rig(error_recovery_level: u8, resend_bytes_max: usize) -> Rig {
    let mut rig = Rig::new();
    rig.offer.error_recovery_level = error_recovery_level;
    rig.limits.resend_bytes_max = resend_bytes_max;
    rig.login(1, "ErrorRecoveryLevel=2 MaxRecvDataSegmentLength=512");
    rig
}

fn snack(flags: SnackFlags, tag: u32, first_missing: u32, run_length: u32) -> [u8; HEADER_BYTES] {
    let pdu = SnackRequest {
        first: FirstByte::plain(Opcode::SNACK_REQUEST),
        flags,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun: Lun::ZERO,
        initiator_task_tag: tag,
        target_transfer_tag: TAG_RESERVED,
        exp_stat_sn: SerialNumber(0),
        first_missing,
        run_length,
    };
    pdu.encode()
}

/// A PDU without ExpCmdSN and MaxCmdSN, which are current when it is sent again.
fn lasting(pdu: &Pdu) -> ([u8; HEADER_BYTES], Bytes) {
    let mut bhs = pdu.bhs;
    bhs[28..36].fill(0);
    (bhs, pdu.data.clone())
}

#[track_caller]
fn assert_same(again: &[Pdu], first: &[Pdu]) {
    let lasting = |pdus: &[Pdu]| pdus.iter().map(lasting).collect::<Vec<_>>();
    assert_eq!(lasting(again), lasting(first));
}

/// Sends a SNACK, which must be rejected.
#[track_caller]
fn assert_rejected(rig: &mut Rig, snack: [u8; HEADER_BYTES]) {
    rig.send(1, snack, &[]);
    assert_eq!(Reject::decode(&rig.sent_one(1).bhs).reason, RejectReason::SNACK_REJECT);
}

fn stat_sn(pdu: &Pdu) -> Option<u32> {
    let is_response =
        pdu.opcode() != Opcode::DATA_IN || DataIn::decode(&pdu.bhs).flags.has(DataInFlags::STATUS);
    is_response.then(|| ScsiResponse::decode(&pdu.bhs).stat_sn.0)
}

/// An initiator that loses PDUs, and all that was sent to it once.
struct Initiator {
    rig: Rig,
    commands: u32,
    sent: Vec<Pdu>,
    /// Responses before this StatSN are acknowledged.
    acknowledged: u32,
}

impl Initiator {
    /// Sends a READ, which is answered with so many Data-In, the last of which has the status.
    fn read(&mut self, segments: u32) {
        let (number, bytes) = (self.commands, segments * SEGMENT_BYTES);
        self.commands += 1;
        let exp_stat_sn = SerialNumber(self.acknowledged);
        let pdu = ScsiCommand { exp_stat_sn, ..read(number, number, bytes) };
        self.rig.send(1, pdu.encode(), &[]);
        let task = self.rig.started(1).id;
        let data_in = Bytes::from(pattern(bytes as usize));
        self.rig.done(1, task, Outcome { data_in, ..Outcome::default() });
        let sent = self.rig.sent(1);
        assert_eq!(sent.len(), segments as usize);
        self.sent.extend(sent);
    }

    fn acknowledge(&mut self, share: u32) {
        let all = self.sent.iter().filter_map(stat_sn).max().map_or(0, |last| last + 1);
        self.acknowledged = self.acknowledged.max(all * share / 4);
        let exp_stat_sn = SerialNumber(self.acknowledged);
        self.rig.send(1, pong(self.commands, TAG_RESERVED, exp_stat_sn).encode(), &[]);
    }

    /// The PDUs that a SNACK has to bring back; `None`: it is rejected.
    fn expected(&self, flags: SnackFlags, tag: u32, first: u32, count: u32) -> Option<Vec<Pdu>> {
        let (sent, acknowledged) = (&self.sent, self.acknowledged);
        let is_missing = |number: u32| match count {
            0 => number >= first,
            _ => (first..first + count).contains(&number),
        };
        let responses = || sent.iter().filter_map(|pdu| Some((stat_sn(pdu)?, pdu)));
        let mut found: Vec<Pdu> = Vec::new();
        if flags == STATUS {
            let kept = responses().filter(|(number, _)| *number >= acknowledged);
            found.extend(kept.filter(|(number, _)| is_missing(*number)).map(|(_, p)| p.clone()));
            let all = first == 0 && count == 0;
            return (all || first >= acknowledged && is_whole(&found, count)).then_some(found);
        }
        let of_task = |pdu: &&Pdu| pdu.opcode() == Opcode::DATA_IN && tag_of(pdu) == tag;
        let ends = |(number, pdu): (u32, &Pdu)| tag_of(pdu) == tag && number < acknowledged;
        if responses().any(ends) {
            return None;
        }
        let its = sent.iter().filter(of_task);
        found.extend(its.filter(|pdu| is_missing(DataIn::decode(&pdu.bhs).data_sn)).cloned());
        is_whole(&found, count).then_some(found)
    }

    fn send_snack(&mut self, flags: SnackFlags, tag: u32, first: u32, count: u32) {
        let expected = self.expected(flags, tag, first, count);
        self.rig.send(1, snack(flags, tag, first, count), &[]);
        let sent = self.rig.sent(1);
        match expected {
            Some(expected) => assert_same(&sent, &expected),
            None => {
                assert_eq!(sent.len(), 1);
                assert_eq!(Reject::decode(&sent[0].bhs).reason, RejectReason::SNACK_REJECT);
                self.sent.extend(sent);
            }
        }
    }
}

fn tag_of(pdu: &Pdu) -> u32 {
    pdu.initiator_task_tag()
}

fn is_whole(found: &[Pdu], count: u32) -> bool {
    !found.is_empty() && (count == 0 || found.len() == count as usize)
}

proptest! {
    /// Goal: a SNACK brings back what it asks for, unchanged, until it is acknowledged; then it is
    /// rejected. When all is acknowledged, nothing is kept.
    /// Method: compared with a list of all PDUs.
    #[test]
    fn missing_pdus_are_sent_again(
        steps in prop::collection::vec((0u8..8, 0u32..5, 0u32..5, 0u32..4), 1..60),
    ) {
        let rig = rig(1, usize::MAX);
        let mut initiator = Initiator { rig, commands: 0, sent: Vec::new(), acknowledged: 0 };
        let spare = initiator.rig.link(1).machine.task_memory_bytes();
        for (step, one, first, count) in steps {
            match step {
                0..3 => initiator.read(1 + one % 4),
                3 => initiator.acknowledge(one.min(4)),
                4 | 5 => {
                    let tag = initiator.commands.saturating_sub(one);
                    initiator.send_snack(DATA, tag, first, count);
                }
                _ => {
                    let first = initiator.acknowledged.saturating_sub(1) + first;
                    initiator.send_snack(STATUS, TAG_RESERVED, first, count);
                }
            }
        }
        initiator.acknowledge(4);
        let machine = &mut initiator.rig.link(1).machine;
        machine.free_spare_memory();
        let kept = machine.task_memory_bytes();
        prop_assert!(kept < spare + 4096, "{} bytes are kept", kept);
        initiator.rig.assert_nothing_left();
    }
}

/// Goal: at ErrorRecoveryLevel 0 nothing is kept, and each SNACK is rejected.
#[test]
fn nothing_is_kept_at_level_0() {
    let mut rig = rig(0, usize::MAX);
    let mut memory_bytes = 0;
    for number in 0..100 {
        rig.send(1, read(number, number, SEGMENT_BYTES).encode(), &[]);
        let task = rig.started(1).id;
        let data_in = Bytes::from(pattern(512));
        rig.done(1, task, Outcome { data_in, ..Outcome::default() });
        rig.sent(1);
        assert_rejected(&mut rig, snack(DATA, number, 0, 0));
        assert_rejected(&mut rig, snack(STATUS, TAG_RESERVED, number, 0));
        let bytes = rig.link(1).machine.task_memory_bytes();
        assert!(number == 0 || bytes == memory_bytes, "{bytes} bytes are kept");
        memory_bytes = bytes;
    }
}

/// Goal: an initiator that acknowledges nothing makes the target keep no more than the limit; the
/// newest PDUs are kept.
#[test]
fn what_is_kept_has_a_limit() {
    const LIMIT: usize = 20 << 10;
    let mut rig = rig(1, LIMIT);
    let mut last = Vec::new();
    for number in 0..100 {
        rig.send(1, read(number, number, 4 * SEGMENT_BYTES).encode(), &[]);
        let task = rig.started(1).id;
        let data_in = Bytes::from(pattern(2048));
        rig.done(1, task, Outcome { data_in, ..Outcome::default() });
        last = rig.sent(1);
        let bytes = rig.link(1).machine.task_memory_bytes();
        assert!(bytes < 2 * LIMIT, "{bytes} bytes");
    }
    rig.send(1, snack(DATA, 99, 0, 4), &[]);
    assert_same(&rig.sent(1), &last);
    assert_rejected(&mut rig, snack(DATA, 0, 0, 0));
    assert!(ConnectionLimits::default().resend_bytes_max > 0);
}

/// Goal: an R2T is sent again.
#[test]
fn a_missing_r2t_is_sent_again() {
    let mut rig = rig(1, usize::MAX);
    rig.send(1, write(0, 5, 512).encode(), &[]);
    let task = rig.started(1).id;
    rig.wants(1, task, 512);
    let r2t = rig.sent(1);
    rig.send(1, snack(DATA, 5, 0, 1), &[]);
    assert_same(&rig.sent(1), &r2t);
    let tag = ReadyToTransfer::decode(&r2t[0].bhs).target_transfer_tag;
    rig.send(1, data_out(5, tag, 0, 0, true).encode(), &pattern(512));
    assert_eq!(rig.link(1).runs, [task]);
    rig.good(1, task);
    rig.assert_nothing_left();
}

/// Goal: the data of a task that passes its data on is not kept: a SNACK for it is rejected, and
/// one for its response, or for another task, is not.
#[test]
fn data_that_is_passed_on_is_not_sent_again() {
    let mut rig = rig(1, usize::MAX);
    let start = |rig: &mut Rig, number: u32| -> TaskId {
        rig.send(1, read(number, number, 2 * SEGMENT_BYTES).encode(), &[]);
        rig.started(1).id
    };
    let (kept, passed) = (start(&mut rig, 0), start(&mut rig, 1));
    rig.data_in(1, kept, 0, &pattern(512));
    let first = rig.sent(1);
    rig.data_in(1, passed, 0, &pattern(512));
    rig.input(1, Input::DataInBegin { task: passed, offset_bytes: 512, bytes: 512 });
    let data = Bytes::from(pattern(512));
    rig.input(1, Input::DataInPart { task: passed, data, digest: None });
    assert_eq!(rig.sent(1).len(), 2);
    for sn in 0..2 {
        assert_rejected(&mut rig, snack(DATA, 1, sn, 1));
    }
    rig.good(1, passed);
    let response = rig.sent(1);
    assert_rejected(&mut rig, snack(DATA, 1, 0, 0));
    let number = ScsiResponse::decode(&response[0].bhs).stat_sn.0;
    rig.send(1, snack(STATUS, TAG_RESERVED, number, 1), &[]);
    assert_same(&rig.sent(1), &response);
    rig.send(1, snack(DATA, 0, 0, 1), &[]);
    assert_same(&rig.sent(1), &first);
    rig.data_in(1, kept, 512, &pattern(512));
    rig.good(1, kept);
    rig.sent(1);
    rig.assert_nothing_left();
}
