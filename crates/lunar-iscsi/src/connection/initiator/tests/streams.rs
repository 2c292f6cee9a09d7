//! Streaming commands: data-in that is handed over as it arrives, and data-out that is given as it
//! comes.

use super::bench::{Bench, command, limits};
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

fn bench(digests: bool) -> Bench {
    Bench::with(offer(true, digests), limits())
}

fn streaming(command: Command, data_out_bytes: usize) -> Input {
    let data_out_bytes = data_out_bytes as u32;
    Input::Stream(Box::new(StreamingCommand { command, data_out_bytes }))
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

impl Bench {
    /// Starts a streaming command of which the first `prefix_bytes` are there; returns its tag.
    fn stream(&mut self, id: u64, data: &[u8], prefix_bytes: usize, data_in: u32) -> u32 {
        let command = command(id, &data[..prefix_bytes], data_in);
        self.handle(streaming(command, data.len()));
        self.sent_command().initiator_task_tag
    }

    fn asks(&mut self, tag: u32, r2t_sn: u32, offset: u32, bytes: u32) -> Vec<(u32, u32)> {
        let r2t = self.r2t(tag, r2t_sn, offset, bytes);
        self.target(r2t.encode(), &[]);
        let wants = self.outputs().into_iter().map(|output| match output {
            Output::Wants { offset_bytes, bytes, .. } => (offset_bytes, bytes),
            other => panic!("{other:?}"),
        });
        wants.collect()
    }

    fn gives(&mut self, id: u64, offset_bytes: u32, data: &[u8]) {
        let data = Bytes::copy_from_slice(data);
        self.handle(Input::DataOut { id: TaskId(id), offset_bytes, data });
    }

    fn begins(&mut self, id: u64, offset_bytes: u32, bytes: u32) {
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
    fn ends(&mut self, tag: u32) -> CommandResult {
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
            let mut bench = Bench::with(offer(initial_r2t, false), limits());
            let data = pattern(4000);
            let command = command(1, &data[..prefix_bytes], 0);
            bench.handle(streaming(command, 4000));
            let pdu = bench.sent(Opcode::SCSI_COMMAND);
            let header = ScsiCommand::decode(&pdu.bhs);
            assert_eq!(header.expected_data_transfer_length, 4000);
            assert_eq!(pdu.data, data[..prefix_bytes.min(1024)]);
            let unsolicited = !initial_r2t && prefix_bytes >= 2048;
            assert_eq!(header.flags.has(CommandFlags::FINAL), !unsolicited);
            let tag = header.initiator_task_tag;
            let sent = bench.data_outs(&data);
            assert_eq!(sent, if unsolicited { vec![(tag, 1024, 1024, true)] } else { vec![] });
            assert!(bench.outputs().is_empty(), "the target has not asked");
        }
    }
}

/// Goal: an R2T is answered from the prefix as far as it reaches; the rest is asked of the caller
/// and sent as it is given.
#[test]
fn an_r2t_is_answered_in_pieces() {
    let mut bench = bench(false);
    let data = pattern(6000);
    let tag = bench.stream(1, &data, 2500, 0);
    assert_eq!(bench.asks(tag, 0, 1024, 3000), [(2500, 1524)]);
    let sent = bench.data_outs(&data);
    assert_eq!(sent, [(tag, 1024, 1024, false), (tag, 2048, 452, false)]);
    bench.gives(1, 2500, &data[2500..2600]);
    bench.gives(1, 2600, &[]);
    bench.gives(1, 2600, &data[2600..4024]);
    let sent = bench.data_outs(&data);
    assert_eq!(sent, [(tag, 2500, 100, false), (tag, 2600, 1024, false), (tag, 3624, 400, true)]);
    assert_eq!(bench.asks(tag, 1, 4024, 1976), [(4024, 1976)]);
    bench.gives(1, 4024, &data[4024..]);
    let sent = bench.data_outs(&data);
    assert_eq!(sent, [(tag, 4024, 1024, false), (tag, 5048, 952, true)]);
    bench.ends(tag);
    bench.assert_nothing_left();
}

/// Goal: an R2T whose data is not there holds up no other task; R2Ts of one task are answered in
/// their order. RFC 7143 §11.8.
#[test]
fn other_tasks_are_not_held_up() {
    let mut bench = bench(false);
    let data = pattern(4000);
    let first = bench.stream(1, &data, 0, 0);
    let second = bench.stream(2, &data, 0, 0);
    bench.execute(3, &data, 0);
    let plain = bench.sent_command().initiator_task_tag;
    assert_eq!(bench.asks(first, 0, 0, 1000), [(0, 1000)]);
    assert_eq!(bench.asks(first, 1, 1000, 500), [(1000, 500)]);
    assert_eq!(bench.asks(second, 0, 0, 700), [(0, 700)]);
    assert_eq!(bench.asks(plain, 0, 1024, 800), []);
    assert_eq!(bench.data_outs(&data), [(plain, 1024, 800, true)]);
    bench.gives(2, 0, &data[..700]);
    assert_eq!(bench.data_outs(&data), [(second, 0, 700, true)]);
    bench.gives(1, 0, &data[..1000]);
    bench.gives(1, 1000, &data[1000..1500]);
    assert_eq!(bench.data_outs(&data), [(first, 0, 1000, true), (first, 1000, 500, true)]);
    for tag in [first, second, plain] {
        bench.ends(tag);
    }
    bench.assert_nothing_left();
}

/// Goal: data-in of a streaming command has no buffer; each segment is reported once it is checked,
/// before the result. A damaged one ends the connection.
#[test]
fn data_in_is_handed_over() {
    for good in [true, false] {
        let mut bench = bench(true);
        let tag = bench.stream(1, &[], 0, 1500);
        let data = pattern(1500);
        let pdu = bench.data_in(tag, 0, 0);
        bench.target(pdu.encode(), &data[..1000]);
        let place = DataDestination::Stream { task: TaskId(1), offset_bytes: 0 };
        assert!(matches!(bench.outputs[0], Output::Receive(found) if found == place));
        let last = DataIn {
            flags: DataInFlags::FINAL | DataInFlags::STATUS,
            stat_sn: bench.stat_sn,
            ..bench.data_in(tag, 1, 1000)
        };
        let bhs = Pdu::with_data(last.encode(), Bytes::copy_from_slice(&data[1000..])).bhs;
        bench.handle(Input::Header(Header::new(bhs)));
        let digest = if good { SegmentDigest::Matched(5) } else { SegmentDigest::Mismatched };
        bench.handle(Input::Payload { data: Bytes::new(), digest });
        let outputs = bench.outputs();
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
        bench.stat_sn.take();
        bench.assert_nothing_left();
    }
}

/// Goal: the header of announced data is sent before it, cut at the limits of the target; the
/// digest is used if the range is one PDU. Other tasks are served meanwhile.
#[test]
fn data_out_that_is_announced() {
    let mut bench = bench(true);
    let data = pattern(3500);
    let tag = bench.stream(1, &data, 0, 0);
    assert_eq!(bench.asks(tag, 0, 0, 3500), [(0, 3500)]);
    bench.begins(1, 0, 1000);
    assert_eq!((bench.sent[0].data_segment_bytes(), bench.sent[0].data.len()), (1000, 0));
    bench.execute(2, &[], 512);
    bench.part(1, &data[..999], Some(3));
    bench.part(1, &data[999..1000], Some(4));
    bench.begins(1, 1000, 2000);
    bench.part(1, &data[1000..2500], None);
    bench.part(1, &data[2500..3000], Some(5));
    bench.gives(1, 3000, &data[3000..]);
    assert_eq!(bench.digests, [Some(4), None, None]);
    let read = bench.sent.remove(1).expect("a command");
    assert_eq!(read.opcode(), Opcode::SCSI_COMMAND);
    let sent = bench.data_outs(&data);
    assert_eq!(
        sent,
        [
            (tag, 0, 1000, false),
            (tag, 1000, 1024, false),
            (tag, 2024, 976, false),
            (tag, 3000, 500, true),
        ]
    );
    bench.ends(tag);
}

/// Goal: an open PDU of a command that the target has ended is completed with zeroes, which the
/// target ignores.
#[test]
fn the_target_ends_a_command_in_an_open_pdu() {
    for digests in [false, true] {
        let mut bench = bench(digests);
        let data = pattern(2000);
        let tag = bench.stream(1, &data, 0, 0);
        bench.asks(tag, 0, 0, 2000);
        bench.begins(1, 0, 2000);
        bench.part(1, &data[..10], None);
        let response = ScsiResponse { status: 8, ..bench.response(tag) };
        bench.target(response.encode(), &[]);
        assert_eq!(bench.digests, [None]);
        let pdu = bench.sent(Opcode::DATA_OUT);
        assert_eq!((pdu.missing_bytes(), pdu.data.len()), (0, 1024));
        assert_eq!(pdu.data[10..], [0; 1014]);
        bench.part(1, &data[10..], None);
        bench.outputs();
        bench.assert_nothing_left();
    }
}

/// Goal: data that does not come in time, or at the wrong position, fails its command and aborts it
/// at the target. An open PDU is never accepted there: its digest is wrong, or the connection ends.
#[test]
fn data_that_does_not_come() {
    type Mistake = fn(&mut Bench);
    let mistakes: [(bool, Mistake); 5] = [
        (true, |bench| {
            bench.begins(1, 0, 2000);
            bench.later(10);
        }),
        (true, |bench| {
            bench.begins(1, 0, 2000);
            bench.gives(1, 2000, &[1; 10]);
        }),
        (true, |bench| {
            bench.begins(1, 0, 1000);
            bench.part(1, &[1; 1001], None);
        }),
        (false, |bench| bench.gives(1, 1, &[1; 10])),
        (false, |bench| bench.gives(1, 0, &[1; 3001])),
    ];
    for digests in [true, false] {
        for (is_open, mistake) in mistakes {
            let mut bench = bench(digests);
            let data = pattern(4000);
            let tag = bench.stream(1, &data, 0, 0);
            bench.asks(tag, 0, 0, 3000);
            mistake(&mut bench);
            if is_open && !digests {
                let outputs = bench.outputs();
                assert!(matches!(
                    outputs[0],
                    Output::Completed { result: Err(RequestFailure::DataMissing), .. }
                ));
                assert!(matches!(outputs[1], Output::Close(CloseReason::DataMissing)));
                assert!(bench.sent[0].missing_bytes() > 0, "the target cannot accept it");
                continue;
            }
            if is_open {
                assert!(bench.digests[0].is_some(), "a digest that does not match");
                assert_eq!(bench.sent(Opcode::DATA_OUT).missing_bytes(), 0);
            }
            let abort =
                TaskManagementRequest::decode(&bench.sent(Opcode::TASK_MANAGEMENT_REQUEST).bhs);
            assert_eq!(abort.referenced_task_tag, tag);
            assert!(bench.outputs().is_empty(), "until the target has ended it");
            bench.gives(1, 0, &data[..10]);
            let complete = ManagementResponse::FUNCTION_COMPLETE;
            let response = bench.management(abort.initiator_task_tag, complete);
            bench.target(response, &[]);
            let outputs = bench.outputs();
            assert_eq!(outputs.len(), 1, "the abort is not reported: {outputs:?}");
            assert!(matches!(
                outputs[0],
                Output::Completed { result: Err(RequestFailure::DataMissing), .. }
            ));
            bench.assert_nothing_left();
        }
    }
}

/// Goal: a caller that aborts a command gives no more data for it: an open PDU is completed with a
/// wrong digest, and the abort follows.
#[test]
fn an_aborted_stream() {
    let mut bench = bench(true);
    let data = pattern(4000);
    let tag = bench.stream(1, &data, 0, 0);
    bench.asks(tag, 0, 0, 3000);
    bench.begins(1, 0, 1000);
    bench.handle(abort());
    assert!(bench.digests[0].is_some());
    assert_eq!(bench.sent(Opcode::DATA_OUT).missing_bytes(), 0);
    let abort = bench.sent(Opcode::TASK_MANAGEMENT_REQUEST).initiator_task_tag();
    bench.part(1, &data[..10], None);
    let response = bench.management(abort, ManagementResponse::FUNCTION_COMPLETE);
    bench.target(response, &[]);
    let outputs = bench.outputs();
    let aborted = Err(RequestFailure::Aborted);
    assert!(matches!(&outputs[0], Output::Completed { result, .. } if *result == aborted));
    assert!(matches!(outputs[1], Output::Managed { .. }));
    bench.assert_nothing_left();
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
        [true, false].into_iter().flat_map(|of| ends.map(|e| (of, e)))
    {
        let mut bench = bench(true);
        let tag = bench.stream(1, &pattern(4000), 0, 0);
        bench.asks(tag, 0, 0, 3000);
        if is_spoiled {
            bench.begins(1, 0, 1000);
        }
        bench.handle(abort());
        assert_eq!(bench.digests.len(), usize::from(is_spoiled));
        let response = ScsiResponse { status: 2, ..bench.response(tag) };
        bench.target(response.encode(), &[&[0, sense.len() as u8], sense].concat());
        let outputs = bench.outputs();
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
    let mut bench = bench(false);
    let data = pattern(4000);
    let tag = bench.stream(1, &data, 0, 0);
    bench.asks(tag, 0, 0, 3000);
    bench.gives(1, 0, &data[..10]);
    assert_eq!(bench.data_outs(&data), [(tag, 0, 10, false)]);
    bench.machine.handle(bench.now, abort());
    bench.begins(1, 10, 1000);
    let abort = TaskManagementRequest::decode(&bench.sent(Opcode::TASK_MANAGEMENT_REQUEST).bhs);
    assert_eq!(abort.referenced_task_tag, tag);
    bench.part(1, &data[10..20], None);
    assert!(bench.sent.is_empty() && bench.outputs().is_empty());
    let complete = ManagementResponse::FUNCTION_COMPLETE;
    let response = bench.management(abort.initiator_task_tag, complete);
    bench.target(response, &[]);
    let outputs = bench.outputs();
    let aborted = Err(RequestFailure::Aborted);
    assert!(matches!(&outputs[0], Output::Completed { result, .. } if *result == aborted));
    bench.assert_nothing_left();
}

/// Goal: the rest of a PDU that is open when its command is aborted may come until the abort is
/// sent; the connection then continues without digests, too.
#[test]
fn an_open_pdu_is_completed_before_its_abort() {
    let mut bench = bench(false);
    let data = pattern(4000);
    let tag = bench.stream(1, &data, 0, 0);
    bench.asks(tag, 0, 0, 3000);
    bench.begins(1, 0, 3000);
    bench.machine.handle(bench.now, abort());
    bench.part(1, &data[..2000], None);
    let pdu = bench.sent(Opcode::DATA_OUT);
    assert_eq!((pdu.missing_bytes(), &pdu.data[..]), (0, &data[..1024]));
    bench.sent(Opcode::TASK_MANAGEMENT_REQUEST);
    assert!(bench.sent.is_empty() && bench.outputs().is_empty());
}

/// Goal: an abort that the session refuses was never sent: the data of its command goes on.
#[test]
fn a_refused_abort_leaves_a_stream_as_it_was() {
    let mut bench = bench(false);
    let data = pattern(1000);
    let tag = bench.stream(1, &data, 0, 0);
    bench.asks(tag, 0, 0, 1000);
    bench.machine.handle(bench.now, abort());
    let Output::ToSession(ToSession::Request { ticket, .. }) = bench.machine.poll() else {
        panic!("a request for numbers")
    };
    bench.gives(1, 0, &data);
    assert!(bench.sent.is_empty());
    bench.handle(Input::Session(ToConnection::Refused { ticket }));
    assert!(matches!(
        bench.outputs()[..],
        [Output::Managed { result: Err(RequestFailure::Refused(_)), .. }]
    ));
    assert_eq!(bench.data_outs(&data), [(tag, 0, 1000, true)]);
    bench.ends(tag);
    bench.assert_nothing_left();
}

/// Goal: a logout ends the data of streaming commands like that of others: after the rest of the
/// PDU that is open, nothing is sent.
#[test]
fn a_logout_ends_streams() {
    let mut bench = bench(true);
    let tag = bench.stream(1, &pattern(4000), 0, 0);
    bench.asks(tag, 0, 0, 3000);
    bench.begins(1, 0, 1000);
    bench.handle(Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None });
    bench.gives(1, 1000, &[1; 10]);
    bench.part(1, &[2; 400], None);
    bench.part(1, &[2; 600], Some(6));
    assert_eq!(bench.digests, [Some(6)]);
    assert_eq!(bench.sent(Opcode::DATA_OUT).missing_bytes(), 0);
    bench.sent(Opcode::LOGOUT_REQUEST);
    bench.gives(1, 1000, &[1; 10]);
    bench.part(1, &[1; 10], None);
    assert!(bench.sent.is_empty() && bench.outputs().is_empty());
}

/// Fault: an R2T that the target sent before it received the Logout Request was taken for one too
/// many: the open PDU had ended the sequence of the R2T before it, which was not counted.
#[test]
fn an_r2t_crosses_a_logout() {
    let offer = Offer { max_outstanding_r2t: 1, ..offer(true, false) };
    let mut bench = Bench::with(offer, limits());
    let data = pattern(2000);
    let tag = bench.stream(1, &data, 0, 0);
    bench.asks(tag, 0, 0, 1000);
    bench.begins(1, 0, 1000);
    bench.part(1, &data[..100], None);
    bench.handle(Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None });
    bench.part(1, &data[100..1000], None);
    assert!(bench.asks(tag, 1, 1000, 1000).is_empty(), "no more data is sent");
}

/// Goal: a command with more data at hand than it announces is refused.
#[test]
fn a_prefix_longer_than_the_data() {
    let mut bench = bench(false);
    let command = Command { data_out: Bytes::from_static(&[1; 10]), ..command(1, &[], 0) };
    bench.handle(streaming(command, 9));
    let outputs = bench.outputs();
    assert!(matches!(
        outputs[0],
        Output::Completed { result: Err(RequestFailure::Refused(_)), .. }
    ));
    bench.assert_nothing_left();
}
