//! Streaming commands: data-in that is handed over as it arrives, and data-out that is given as it
//! comes.

use super::rig::{Rig, command, limits};
use crate::connection::initiator::{
    CloseReason, Command, CommandResult, Input, Management, Output, RequestFailure,
    StreamingCommand,
};
use crate::framing::{DataDestination, Header, Pdu, SegmentDigest, TaskId};
use crate::pdu::*;
use crate::session::initiator::{ToConnection, ToSession};
use crate::text::{Digest, Offer};
use bytes::Bytes;
use std::boxed::Box;
use std::vec;
use std::vec::Vec;

fn offer(initial_r2t: bool, digests: bool) -> Offer {
    let digest = if digests { Digest::Crc32c } else { Digest::None };
    Offer {
        initial_r2t,
        immediate_data: true,
        first_burst_bytes: 2048,
        max_burst_bytes: 8192,
        max_recv_data_segment_bytes: 1024,
        max_outstanding_r2t: 4,
        data_digest: vec![digest],
        ..Offer::initiator()
    }
}

fn rig(digests: bool) -> Rig {
    Rig::with(offer(true, digests), limits())
}

fn streaming(command: Command, data_out_bytes: usize) -> Input {
    let data_out_bytes = data_out_bytes as u32;
    Input::Stream(Box::new(StreamingCommand { command, data_out_bytes, prefix_digest: None }))
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

/// A digest that no data here has.
const DIGEST: u32 = 0xd1_6e57;

/// Goal: the digest of a segment is sent with its data if that is one PDU: with the command, or for
/// an R2T. Otherwise none is named, and so the digests are calculated. Method: a digest that is not
/// that of the data.
#[test]
fn a_segment_keeps_its_digest() {
    // MaxRecvDataSegmentLength is 1024. Data of the command, and digest of its PDU.
    for (prefix_bytes, expected) in [(600, Some(DIGEST)), (1024, Some(DIGEST)), (1025, None)] {
        let mut rig = rig(true);
        let data = pattern(8000);
        let (command, digest) = (command(1, &data[..prefix_bytes], 0), Some(DIGEST));
        let (data_out_bytes, prefix_digest) = (data.len() as u32, digest);
        let command = StreamingCommand { command, data_out_bytes, prefix_digest };
        rig.handle(Input::Stream(Box::new(command)));
        let sent = rig.sent(Opcode::SCSI_COMMAND);
        assert_eq!((sent.data.len(), sent.digest), (prefix_bytes.min(1024), expected));
        let tag = sent.initiator_task_tag();
        let start = sent.data.len() as u32;
        let r2t = rig.r2t(tag, 0, start, 8000 - start);
        rig.target(r2t.encode(), &[]);
        let mut give = |offset_bytes: usize, bytes: usize| {
            let data = Bytes::copy_from_slice(&data[offset_bytes..offset_bytes + bytes]);
            let (id, offset_bytes) = (TaskId(1), offset_bytes as u32);
            rig.handle(Input::DataOut { id, offset_bytes, data, digest });
            rig.sent.drain(..).map(|pdu| pdu.digest).collect::<Vec<_>>()
        };
        // The rest of the prefix is not a whole segment.
        let rest = prefix_bytes - start as usize;
        let before = if rest > 0 { vec![None] } else { vec![] };
        assert_eq!(give(prefix_bytes, 1024), [before, vec![Some(DIGEST)]].concat());
        assert_eq!(give(prefix_bytes + 1024, 1025), [None, None]);
        assert_eq!(give(prefix_bytes + 2049, 100), [Some(DIGEST)]);
    }
}

/// Goal: data that a command came with keeps its digest also if it is sent for an R2T.
#[test]
fn a_prefix_that_is_requested_keeps_its_digest() {
    let mut offer = offer(true, true);
    offer.immediate_data = false;
    let mut rig = Rig::with(offer, limits());
    let data = pattern(3000);
    let command = command(1, &data[..700], 0);
    let (data_out_bytes, prefix_digest) = (3000, Some(DIGEST));
    let command = StreamingCommand { command, data_out_bytes, prefix_digest };
    rig.handle(Input::Stream(Box::new(command)));
    let sent = rig.sent(Opcode::SCSI_COMMAND);
    assert!(sent.data.is_empty() && sent.digest.is_none());
    let r2t = rig.r2t(sent.initiator_task_tag(), 0, 0, 700);
    rig.target(r2t.encode(), &[]);
    let sent = rig.sent(Opcode::DATA_OUT);
    assert_eq!((&sent.data[..], sent.digest), (&data[..700], Some(DIGEST)));
}

impl Rig {
    /// Starts a streaming command of which the first `prefix_bytes` are there; returns its tag.
    fn stream(&mut self, id: u64, data: &[u8], prefix_bytes: usize, data_in: u32) -> u32 {
        let command = command(id, &data[..prefix_bytes], data_in);
        self.handle(streaming(command, data.len()));
        self.sent_command().initiator_task_tag
    }

    fn request_data(&mut self, tag: u32, r2t_sn: u32, offset: u32, bytes: u32) -> Vec<(u32, u32)> {
        let r2t = self.r2t(tag, r2t_sn, offset, bytes);
        self.target(r2t.encode(), &[]);
        let wants = self.outputs().into_iter().map(|output| match output {
            Output::Wants { offset_bytes, bytes, .. } => (offset_bytes, bytes),
            other => panic!("{other:?}"),
        });
        wants.collect()
    }

    fn give(&mut self, id: u64, offset_bytes: u32, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        self.handle(Input::DataOut { id: TaskId(id), offset_bytes, data, digest: None });
    }

    fn begin_data_out(&mut self, id: u64, offset_bytes: u32, bytes: u32) {
        self.handle(Input::DataOutBegin { id: TaskId(id), offset_bytes, bytes });
    }

    fn part(&mut self, id: u64, data: &[u8], digest: Option<u32>) {
        let data = Bytes::copy_from_slice(data);
        self.handle(Input::DataOutPart { id: TaskId(id), data, digest });
    }

    /// Takes the Data-Out PDUs that were sent: tag, offset, length and F.
    fn data_outs(&mut self, data: &[u8]) -> Vec<(u32, u32, usize, bool)> {
        let check = |pdu: Pdu| {
            assert_eq!((pdu.opcode(), pdu.missing_bytes()), (Opcode::DATA_OUT, 0));
            let header = DataOut::decode(&pdu.bhs);
            let offset = header.buffer_offset_bytes;
            assert_eq!(pdu.data[..], data[offset as usize..][..pdu.data.len()]);
            let last = header.flags.has(FinalFlag::FINAL);
            (header.initiator_task_tag, offset, pdu.data.len(), last)
        };
        self.sent.drain(..).map(check).collect()
    }

    /// Ends a command GOOD; returns its result.
    fn complete(&mut self, tag: u32) -> CommandResult {
        let response = self.response(tag);
        self.target(response.encode(), &[]);
        match self.outputs().pop() {
            Some(Output::Completed { result: Ok(result), .. }) => result,
            other => panic!("{other:?}"),
        }
    }
}

/// Goal: immediate data is what is there; unsolicited PDUs are sent only if they fill the first
/// burst, because a target expects all of it.
#[test]
fn the_prefix_is_sent_with_the_command() {
    for initial_r2t in [true, false] {
        for prefix_bytes in [0, 1, 1000, 1024, 1500, 2047, 2048, 3000, 4000] {
            let mut rig = Rig::with(offer(initial_r2t, false), limits());
            let data = pattern(4000);
            let command = command(1, &data[..prefix_bytes], 0);
            rig.handle(streaming(command, 4000));
            let pdu = rig.sent(Opcode::SCSI_COMMAND);
            let header = ScsiCommand::decode(&pdu.bhs);
            assert_eq!(header.expected_data_transfer_length, 4000);
            assert_eq!(pdu.data, data[..prefix_bytes.min(1024)]);
            let unsolicited = !initial_r2t && prefix_bytes >= 2048;
            assert_eq!(header.flags.has(CommandFlags::FINAL), !unsolicited);
            let tag = header.initiator_task_tag;
            let sent = rig.data_outs(&data);
            assert_eq!(sent, if unsolicited { vec![(tag, 1024, 1024, true)] } else { vec![] });
            assert!(rig.outputs().is_empty(), "the target has not asked");
        }
    }
}

/// Goal: an R2T is answered from the prefix as far as it reaches; the rest is asked of the caller
/// and sent as it is given.
#[test]
fn an_r2t_is_answered_in_pieces() {
    let mut rig = rig(false);
    let data = pattern(6000);
    let tag = rig.stream(1, &data, 2500, 0);
    assert_eq!(rig.request_data(tag, 0, 1024, 3000), [(2500, 1524)]);
    let sent = rig.data_outs(&data);
    assert_eq!(sent, [(tag, 1024, 1024, false), (tag, 2048, 452, false)]);
    rig.give(1, 2500, &data[2500..2600]);
    rig.give(1, 2600, &[]);
    rig.give(1, 2600, &data[2600..4024]);
    let sent = rig.data_outs(&data);
    assert_eq!(sent, [(tag, 2500, 100, false), (tag, 2600, 1024, false), (tag, 3624, 400, true)]);
    assert_eq!(rig.request_data(tag, 1, 4024, 1976), [(4024, 1976)]);
    rig.give(1, 4024, &data[4024..]);
    let sent = rig.data_outs(&data);
    assert_eq!(sent, [(tag, 4024, 1024, false), (tag, 5048, 952, true)]);
    rig.complete(tag);
    rig.assert_nothing_left();
}

/// Goal: an R2T whose data is not there holds up no other task; R2Ts of one task are answered in
/// their order. RFC 7143 §11.8.
#[test]
fn other_tasks_are_not_held_up() {
    let mut rig = rig(false);
    let data = pattern(4000);
    let first = rig.stream(1, &data, 0, 0);
    let second = rig.stream(2, &data, 0, 0);
    rig.execute(3, &data, 0);
    let plain = rig.sent_command().initiator_task_tag;
    assert_eq!(rig.request_data(first, 0, 0, 1000), [(0, 1000)]);
    assert_eq!(rig.request_data(first, 1, 1000, 500), [(1000, 500)]);
    assert_eq!(rig.request_data(second, 0, 0, 700), [(0, 700)]);
    assert_eq!(rig.request_data(plain, 0, 1024, 800), []);
    assert_eq!(rig.data_outs(&data), [(plain, 1024, 800, true)]);
    rig.give(2, 0, &data[..700]);
    assert_eq!(rig.data_outs(&data), [(second, 0, 700, true)]);
    rig.give(1, 0, &data[..1000]);
    rig.give(1, 1000, &data[1000..1500]);
    assert_eq!(rig.data_outs(&data), [(first, 0, 1000, true), (first, 1000, 500, true)]);
    for tag in [first, second, plain] {
        rig.complete(tag);
    }
    rig.assert_nothing_left();
}

/// Goal: data-in of a streaming command has no buffer; each segment is reported once it is checked,
/// before the result. A damaged one ends the connection.
#[test]
fn data_in_is_handed_over() {
    for good in [true, false] {
        let mut rig = rig(true);
        let tag = rig.stream(1, &[], 0, 1500);
        let data = pattern(1500);
        let pdu = rig.data_in(tag, 0, 0);
        rig.target(pdu.encode(), &data[..1000]);
        let destination = DataDestination::Stream { task: TaskId(1), offset_bytes: 0 };
        assert!(matches!(rig.outputs[0], Output::Receive(found) if found == destination));
        let last = DataIn {
            flags: DataInFlags::FINAL | DataInFlags::STATUS,
            stat_sn: rig.stat_sn,
            ..rig.data_in(tag, 1, 1000)
        };
        let bhs = Pdu::with_data(last.encode(), Bytes::copy_from_slice(&data[1000..])).bhs;
        rig.handle(Input::Header(Header::new(bhs)));
        let digest = if good { SegmentDigest::Matched(5) } else { SegmentDigest::Mismatched };
        rig.handle(Input::Payload { data: Bytes::new(), digest });
        let outputs = rig.outputs();
        let segment = |at: usize| match outputs[at] {
            Output::DataIn { id: TaskId(1), offset_bytes, bytes, digest } => {
                (offset_bytes, bytes, digest)
            }
            ref other => panic!("{other:?}"),
        };
        assert_eq!(segment(0), (0, 1000, SegmentDigest::None));
        if !good {
            assert!(matches!(
                outputs[1],
                Output::Completed { result: Err(RequestFailure::Lost), .. }
            ));
            continue;
        }
        assert_eq!(segment(1), (1000, 500, SegmentDigest::Matched(5)));
        assert!(matches!(outputs[2], Output::Completed { result: Ok(_), .. }));
        rig.stat_sn.take();
        rig.assert_nothing_left();
    }
}

/// Goal: the header of announced data is sent before it, cut at the limits of the target; the
/// digest is used if the range is one PDU. Other tasks are served meanwhile.
#[test]
fn data_out_that_is_announced() {
    let mut rig = rig(true);
    let data = pattern(3500);
    let tag = rig.stream(1, &data, 0, 0);
    assert_eq!(rig.request_data(tag, 0, 0, 3500), [(0, 3500)]);
    rig.begin_data_out(1, 0, 1000);
    assert_eq!((rig.sent[0].data_segment_bytes(), rig.sent[0].data.len()), (1000, 0));
    rig.execute(2, &[], 512);
    rig.part(1, &data[..999], Some(3));
    rig.part(1, &data[999..1000], Some(4));
    rig.begin_data_out(1, 1000, 2000);
    rig.part(1, &data[1000..2500], None);
    rig.part(1, &data[2500..3000], Some(5));
    rig.give(1, 3000, &data[3000..]);
    assert_eq!(rig.digests, [Some(4), None, None]);
    let read = rig.sent.remove(1).expect("a command");
    assert_eq!(read.opcode(), Opcode::SCSI_COMMAND);
    let sent = rig.data_outs(&data);
    assert_eq!(
        sent,
        [
            (tag, 0, 1000, false),
            (tag, 1000, 1024, false),
            (tag, 2024, 976, false),
            (tag, 3000, 500, true),
        ]
    );
    rig.complete(tag);
}

/// Goal: an open PDU of a command that the target has ended is completed with zeroes, which the
/// target ignores.
#[test]
fn the_target_ends_a_command_in_an_open_pdu() {
    for digests in [false, true] {
        let mut rig = rig(digests);
        let data = pattern(2000);
        let tag = rig.stream(1, &data, 0, 0);
        rig.request_data(tag, 0, 0, 2000);
        rig.begin_data_out(1, 0, 2000);
        rig.part(1, &data[..10], None);
        let response = ScsiResponse { status: 8, ..rig.response(tag) };
        rig.target(response.encode(), &[]);
        assert_eq!(rig.digests, [None]);
        let pdu = rig.sent(Opcode::DATA_OUT);
        assert_eq!((pdu.missing_bytes(), pdu.data.len()), (0, 1024));
        assert_eq!(pdu.data[10..], [0; 1014]);
        rig.part(1, &data[10..], None);
        rig.outputs();
        rig.assert_nothing_left();
    }
}

/// Goal: data that does not come in time, or at the wrong position, fails its command and aborts it
/// at the target. An open PDU is never accepted there: its digest is wrong, or the connection ends.
#[test]
fn data_that_does_not_come() {
    type Mistake = fn(&mut Rig);
    let mistakes: [(bool, Mistake); 5] = [
        (true, |rig| {
            rig.begin_data_out(1, 0, 2000);
            rig.later(10);
        }),
        (true, |rig| {
            rig.begin_data_out(1, 0, 2000);
            rig.give(1, 2000, &[1; 10]);
        }),
        (true, |rig| {
            rig.begin_data_out(1, 0, 1000);
            rig.part(1, &[1; 1001], None);
        }),
        (false, |rig| rig.give(1, 1, &[1; 10])),
        (false, |rig| rig.give(1, 0, &[1; 3001])),
    ];
    for digests in [true, false] {
        for (is_open, mistake) in mistakes {
            let mut rig = rig(digests);
            let data = pattern(4000);
            let tag = rig.stream(1, &data, 0, 0);
            rig.request_data(tag, 0, 0, 3000);
            mistake(&mut rig);
            if is_open && !digests {
                let outputs = rig.outputs();
                assert!(matches!(
                    outputs[0],
                    Output::Completed { result: Err(RequestFailure::DataMissing), .. }
                ));
                assert!(matches!(outputs[1], Output::Close(CloseReason::DataMissing)));
                assert!(rig.sent[0].missing_bytes() > 0, "the target cannot accept it");
                continue;
            }
            if is_open {
                assert!(rig.digests[0].is_some(), "a digest that does not match");
                assert_eq!(rig.sent(Opcode::DATA_OUT).missing_bytes(), 0);
            }
            let abort =
                TaskManagementRequest::decode(&rig.sent(Opcode::TASK_MANAGEMENT_REQUEST).bhs);
            assert_eq!(abort.referenced_task_tag, tag);
            assert!(rig.outputs().is_empty(), "until the target has ended it");
            rig.give(1, 0, &data[..10]);
            let complete = ManagementResponse::FUNCTION_COMPLETE;
            let response = rig.management(abort.initiator_task_tag, complete);
            rig.target(response, &[]);
            let outputs = rig.outputs();
            assert_eq!(outputs.len(), 1, "the abort is not reported: {outputs:?}");
            assert!(matches!(
                outputs[0],
                Output::Completed { result: Err(RequestFailure::DataMissing), .. }
            ));
            rig.assert_nothing_left();
        }
    }
}

/// Goal: a caller that aborts a command gives no more data for it: an open PDU is completed with a
/// wrong digest, and the abort follows.
#[test]
fn an_aborted_stream() {
    let mut rig = rig(true);
    let data = pattern(4000);
    let tag = rig.stream(1, &data, 0, 0);
    rig.request_data(tag, 0, 0, 3000);
    rig.begin_data_out(1, 0, 1000);
    rig.handle(abort());
    assert!(rig.digests[0].is_some());
    assert_eq!(rig.sent(Opcode::DATA_OUT).missing_bytes(), 0);
    let abort = rig.sent(Opcode::TASK_MANAGEMENT_REQUEST).initiator_task_tag();
    rig.part(1, &data[..10], None);
    let response = rig.management(abort, ManagementResponse::FUNCTION_COMPLETE);
    rig.target(response, &[]);
    let outputs = rig.outputs();
    let aborted = Err(RequestFailure::Aborted);
    assert!(matches!(&outputs[0], Output::Completed { result, .. } if *result == aborted));
    assert!(matches!(outputs[1], Output::Managed { .. }));
    rig.assert_nothing_left();
}

/// Fault: the wrong digest that an abort gives to an open PDU made the target end the command
/// before it received the abort; the CHECK CONDITION was reported as if nothing was aborted.
#[test]
fn the_target_ends_an_aborted_stream_for_its_digest() {
    let crc_error = [0x70, 0, 0x0b, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0x47, 5];
    let in_descriptors = [0x72, 0x0b, 0x47, 5, 0, 0, 0, 0];
    let attention = [0x70, 0, 0x06, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0x29, 0];
    let ends = [(&crc_error[..], true), (&in_descriptors[..], true), (&attention[..], false)];
    for (is_spoiled, (sense, is_end)) in
        [true, false].into_iter().flat_map(|first| ends.map(|second| (first, second)))
    {
        let mut rig = rig(true);
        let tag = rig.stream(1, &pattern(4000), 0, 0);
        rig.request_data(tag, 0, 0, 3000);
        if is_spoiled {
            rig.begin_data_out(1, 0, 1000);
        }
        rig.handle(abort());
        assert_eq!(rig.digests.len(), usize::from(is_spoiled));
        let response = ScsiResponse { status: 2, ..rig.response(tag) };
        rig.target(response.encode(), &[&[0, sense.len() as u8], sense].concat());
        let outputs = rig.outputs();
        let Some(Output::Completed { result, .. }) = outputs.last() else { panic!("{outputs:?}") };
        match result {
            Ok(result) => {
                assert!(!is_spoiled || !is_end, "{sense:x?}");
                assert_eq!((result.status, &result.sense[..]), (2, sense));
            }
            Err(failure) => {
                assert!(is_spoiled && is_end, "{sense:x?}");
                assert_eq!(*failure, RequestFailure::Aborted);
            }
        }
    }
}

fn abort() -> Input {
    Input::Manage(Management {
        id: TaskId(9),
        function: ManagementFunction::ABORT_TASK,
        lun: lunar_wire::Lun::new(3),
        referenced: Some(TaskId(1)),
    })
}

/// Fault: data that was announced while an ABORT TASK waited for its numbers was sent as an open
/// PDU. Its rest was abandoned with the abort, which cost the connection if there were no digests.
#[test]
fn an_abort_that_waits_for_its_numbers() {
    let mut rig = rig(false);
    let data = pattern(4000);
    let tag = rig.stream(1, &data, 0, 0);
    rig.request_data(tag, 0, 0, 3000);
    rig.give(1, 0, &data[..10]);
    assert_eq!(rig.data_outs(&data), [(tag, 0, 10, false)]);
    rig.machine.handle(rig.now, abort());
    rig.begin_data_out(1, 10, 1000);
    let abort = TaskManagementRequest::decode(&rig.sent(Opcode::TASK_MANAGEMENT_REQUEST).bhs);
    assert_eq!(abort.referenced_task_tag, tag);
    rig.part(1, &data[10..20], None);
    assert!(rig.sent.is_empty() && rig.outputs().is_empty());
    let complete = ManagementResponse::FUNCTION_COMPLETE;
    let response = rig.management(abort.initiator_task_tag, complete);
    rig.target(response, &[]);
    let outputs = rig.outputs();
    let aborted = Err(RequestFailure::Aborted);
    assert!(matches!(&outputs[0], Output::Completed { result, .. } if *result == aborted));
    rig.assert_nothing_left();
}

/// Goal: the rest of a PDU that is open when its command is aborted may come until the abort is
/// sent; the connection then continues without digests, too.
#[test]
fn an_open_pdu_is_completed_before_its_abort() {
    let mut rig = rig(false);
    let data = pattern(4000);
    let tag = rig.stream(1, &data, 0, 0);
    rig.request_data(tag, 0, 0, 3000);
    rig.begin_data_out(1, 0, 3000);
    rig.machine.handle(rig.now, abort());
    rig.part(1, &data[..2000], None);
    let pdu = rig.sent(Opcode::DATA_OUT);
    assert_eq!((pdu.missing_bytes(), &pdu.data[..]), (0, &data[..1024]));
    rig.sent(Opcode::TASK_MANAGEMENT_REQUEST);
    assert!(rig.sent.is_empty() && rig.outputs().is_empty());
}

/// Goal: an abort that the session refuses was never sent: the data of its command continues.
#[test]
fn a_refused_abort_leaves_a_stream_as_it_was() {
    let mut rig = rig(false);
    let data = pattern(1000);
    let tag = rig.stream(1, &data, 0, 0);
    rig.request_data(tag, 0, 0, 1000);
    rig.machine.handle(rig.now, abort());
    let Output::ToSession(ToSession::Request { ticket, .. }) = rig.machine.poll() else {
        panic!("a request for numbers")
    };
    rig.give(1, 0, &data);
    assert!(rig.sent.is_empty());
    rig.handle(Input::Session(ToConnection::Refused { ticket }));
    assert!(matches!(
        rig.outputs()[..],
        [Output::Managed { result: Err(RequestFailure::Refused(_)), .. }]
    ));
    assert_eq!(rig.data_outs(&data), [(tag, 0, 1000, true)]);
    rig.complete(tag);
    rig.assert_nothing_left();
}

/// Goal: a logout ends the data of streaming commands like that of others: after the rest of the
/// PDU that is open, nothing is sent.
#[test]
fn a_logout_ends_streams() {
    let mut rig = rig(true);
    let tag = rig.stream(1, &pattern(4000), 0, 0);
    rig.request_data(tag, 0, 0, 3000);
    rig.begin_data_out(1, 0, 1000);
    rig.handle(Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None });
    rig.give(1, 1000, &[1; 10]);
    rig.part(1, &[2; 400], None);
    rig.part(1, &[2; 600], Some(6));
    assert_eq!(rig.digests, [Some(6)]);
    assert_eq!(rig.sent(Opcode::DATA_OUT).missing_bytes(), 0);
    rig.sent(Opcode::LOGOUT_REQUEST);
    rig.give(1, 1000, &[1; 10]);
    rig.part(1, &[1; 10], None);
    assert!(rig.sent.is_empty() && rig.outputs().is_empty());
}

/// Fault: an R2T that the target sent before it received the Logout Request was taken for one too
/// many: the open PDU had ended the sequence of the R2T before it, which was not counted.
#[test]
fn an_r2t_crosses_a_logout() {
    let offer = Offer { max_outstanding_r2t: 1, ..offer(true, false) };
    let mut rig = Rig::with(offer, limits());
    let data = pattern(2000);
    let tag = rig.stream(1, &data, 0, 0);
    rig.request_data(tag, 0, 0, 1000);
    rig.begin_data_out(1, 0, 1000);
    rig.part(1, &data[..100], None);
    rig.handle(Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None });
    rig.part(1, &data[100..1000], None);
    assert!(rig.request_data(tag, 1, 1000, 1000).is_empty(), "no more data is sent");
}

/// Goal: a command with more data at hand than it announces is refused.
#[test]
fn a_prefix_longer_than_the_data() {
    let mut rig = rig(false);
    let command = Command { data_out: Bytes::from_static(&[1; 10]), ..command(1, &[], 0) };
    rig.handle(streaming(command, 9));
    let outputs = rig.outputs();
    assert!(matches!(
        outputs[0],
        Output::Completed { result: Err(RequestFailure::Refused(_)), .. }
    ));
    rig.assert_nothing_left();
}
