//! Data transfer in both directions.

use super::rig::{Rig, limits};
use crate::connection::initiator::{CommandResult, Input, Output, Residual};
use crate::framing::{DataDestination, Header, Pdu};
use crate::pdu::*;
use crate::text::Offer;
use std::vec;
use std::vec::Vec;

fn offer(initial_r2t: bool, immediate_data: bool) -> Offer {
    Offer {
        initial_r2t,
        immediate_data,
        first_burst_bytes: 4096,
        max_burst_bytes: 8192,
        max_recv_data_segment_bytes: 1024,
        max_outstanding_r2t: 2,
        ..Offer::initiator()
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 % 251) as u8).collect()
}

fn data_outs(rig: &mut Rig) -> Vec<(DataOut, Vec<u8>)> {
    let decoded = |pdu: Pdu| {
        assert_eq!(pdu.opcode(), Opcode::DATA_OUT);
        (DataOut::decode(&pdu.bhs), pdu.data.to_vec())
    };
    rig.sent.drain(..).map(decoded).collect()
}

fn completed(rig: &mut Rig) -> CommandResult {
    match rig.outputs().pop() {
        Some(Output::Completed { result: Ok(result), .. }) => result,
        other => panic!("{other:?}"),
    }
}

/// Goal: immediate and unsolicited data are exactly as negotiated, for every size around the
/// limits. Method: each combination of InitialR2T and ImmediateData; the peer's
/// MaxRecvDataSegmentLength is 1,024, FirstBurstLength 4,096.
#[test]
fn a_write_sends_negotiated_data() {
    for (initial_r2t, immediate) in [(true, true), (true, false), (false, true), (false, false)] {
        for bytes in [1, 1023, 1024, 1025, 4095, 4096, 4097, 9000] {
            let mut rig = Rig::with(offer(initial_r2t, immediate), limits());
            let data = pattern(bytes);
            rig.execute(1, &data, 0);
            let pdu = rig.sent(Opcode::SCSI_COMMAND);
            let sent = ScsiCommand::decode(&pdu.bhs);
            let in_command = if immediate { bytes.min(1024) } else { 0 };
            assert_eq!(pdu.data, data[..in_command]);
            let unasked = if initial_r2t { in_command } else { bytes.min(4096) };
            assert_eq!(sent.flags.has(CommandFlags::FINAL), unasked == in_command);
            let rest = data_outs(&mut rig);
            let mut at = in_command;
            for (number, (header, piece)) in rest.iter().enumerate() {
                assert_eq!(header.data_sn as usize, number);
                assert_eq!(header.target_transfer_tag, TAG_RESERVED);
                assert_eq!(header.buffer_offset_bytes as usize, at);
                assert_eq!(piece[..], data[at..at + piece.len()]);
                at += piece.len();
                assert_eq!(header.flags.has(FinalFlag::FINAL), at == unasked);
            }
            assert_eq!(at, unasked, "{initial_r2t} {immediate} {bytes}");
        }
    }
}

/// Goal: unsolicited Data-Out follows in the order of the commands, also when the commands are sent
/// before any of their data. RFC 7143 §4.2.5.2.
#[test]
fn unsolicited_data_in_order() {
    let mut rig = Rig::with(offer(false, false), limits());
    let data = pattern(3000);
    let now = rig.now;
    let execute = |id| Input::Execute(super::rig::command(id, &data, 0));
    rig.machine.handle(now, execute(1));
    rig.machine.handle(now, execute(2));
    rig.handle(execute(3));
    let tags = [(); 3].map(|()| rig.sent_command().initiator_task_tag);
    let sent = data_outs(&mut rig);
    let order: Vec<u32> = sent.iter().map(|(header, _)| header.initiator_task_tag).collect();
    let expected: Vec<u32> = tags.iter().flat_map(|tag| [*tag; 3]).collect();
    assert_eq!(order, expected);
    for tag in tags {
        let response = rig.response(tag);
        rig.target(response.encode(), &[]);
    }
    assert_eq!(rig.outputs().len(), 3);
    rig.assert_nothing_left();
}

/// Goal: no data follows a Logout Request, neither queued data nor data requested later: the target
/// has terminated its tasks. RFC 7143 §11.14.
#[test]
fn no_data_follows_a_logout() {
    let mut rig = Rig::with(offer(true, false), limits());
    rig.execute(1, &pattern(9000), 0);
    let tag = rig.sent_command().initiator_task_tag;
    rig.session_is_prompt = true;
    let now = rig.now;
    let r2t = rig.r2t(tag, 0, 0, 4096);
    rig.machine.handle(now, Input::Header(Header::new(r2t.encode())));
    rig.handle(Input::Logout { reason: LogoutReason::CLOSE_SESSION, cid: None });
    rig.sent(Opcode::LOGOUT_REQUEST);
    assert_eq!(rig.sent.len(), 0);
    let late = rig.r2t(tag, 1, 4096, 4096);
    rig.target(late.encode(), &[]);
    assert_eq!(rig.sent.len(), 0);
}

/// Goal: a command that moves no data has neither R nor W, expects zero bytes, and is final.
/// RFC 7143 §11.3.1.
#[test]
fn a_command_without_data() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 0);
    let sent = rig.sent_command();
    assert!(!sent.flags.has(CommandFlags::READ) && !sent.flags.has(CommandFlags::WRITE));
    assert!(sent.flags.has(CommandFlags::FINAL));
    assert_eq!(sent.expected_data_transfer_length, 0);
    let response = rig.response(sent.initiator_task_tag);
    rig.target(response.encode(), &[]);
    assert_eq!(completed(&mut rig).status, 0);
    rig.assert_nothing_left();
}

/// Goal: Data-In of length 0 is accepted, with and without a status, and counts in DataSN.
/// RFC 7143 §11.7.7.
#[test]
fn data_in_without_data() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 512);
    let tag = rig.sent_command().initiator_task_tag;
    rig.target(rig.data_in(tag, 0, 0).encode(), &[]);
    rig.target(rig.data_in(tag, 1, 0).encode(), &[1; 512]);
    let mut last = rig.data_in(tag, 2, 512);
    last.flags = DataInFlags::FINAL | DataInFlags::STATUS;
    last.stat_sn = rig.stat_sn.take();
    rig.target(last.encode(), &[]);
    let result = completed(&mut rig);
    assert_eq!((result.status, result.data_in_bytes), (0, 512));
    rig.assert_nothing_left();
}

/// Goal: if the response is not "completed at target", status and residuals have no meaning.
/// RFC 7143 §11.4.2, §11.4.3.
#[test]
fn a_target_failure_has_no_residual() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 512);
    let tag = rig.sent_command().initiator_task_tag;
    let mut response = rig.response(tag);
    response.response = ServiceResponse::TARGET_FAILURE;
    response.flags = ResponseFlags::FINAL | ResponseFlags::UNDERFLOW;
    response.residual_bytes = 512;
    rig.target(response.encode(), &[]);
    let result = completed(&mut rig);
    assert_eq!(result.response, ServiceResponse::TARGET_FAILURE);
    assert_eq!((result.residual, result.data_in_bytes), (Residual::None, 0));
    rig.assert_nothing_left();
}

/// Goal: R2Ts are answered in order, two may be open, and the tags come back; also when both arrive
/// before any data is sent.
#[test]
fn ready_to_transfer_is_answered_in_order() {
    for together in [false, true] {
        let mut rig = Rig::with(offer(true, false), limits());
        let data = pattern(3000);
        rig.execute(1, &data, 0);
        let tag = rig.sent_command().initiator_task_tag;
        let (first, second) = (rig.r2t(tag, 0, 0, 1500), rig.r2t(tag, 1, 1500, 1500));
        if together {
            rig.machine.handle(rig.now, Input::Header(Header::new(first.encode())));
        } else {
            rig.target(first.encode(), &[]);
        }
        rig.target(second.encode(), &[]);
        let sent = data_outs(&mut rig);
        let shape: Vec<_> = sent
            .iter()
            .map(|(header, piece)| {
                let is_final = header.flags.has(FinalFlag::FINAL);
                (
                    header.target_transfer_tag,
                    header.data_sn,
                    header.buffer_offset_bytes,
                    piece.len(),
                    is_final,
                )
            })
            .collect();
        let want = [
            (0x100, 0, 0, 1024, false),
            (0x100, 1, 1024, 476, true),
            (0x101, 0, 1500, 1024, false),
            (0x101, 1, 2524, 476, true),
        ];
        assert_eq!(shape, want);
        assert_eq!(sent.concat_data(), data);
        let response = rig.response(tag);
        rig.target(response.encode(), &[]);
        assert_eq!(completed(&mut rig).status, 0);
        rig.assert_nothing_left();
    }
}

trait ConcatData {
    fn concat_data(&self) -> Vec<u8>;
}

impl ConcatData for Vec<(DataOut, Vec<u8>)> {
    fn concat_data(&self) -> Vec<u8> {
        self.iter().flat_map(|(_, piece)| piece.clone()).collect()
    }
}

/// Goal: Data-In is placed in its buffer, and its last PDU may carry the status and an underflow.
#[test]
fn status_with_the_data() {
    let mut rig = Rig::new();
    rig.execute(4, &[], 4096);
    let tag = rig.sent_command().initiator_task_tag;
    rig.target(rig.data_in(tag, 0, 0).encode(), &[1; 1000]);
    let mut last = rig.data_in(tag, 1, 1000);
    last.flags = DataInFlags::FINAL | DataInFlags::STATUS | DataInFlags::UNDERFLOW;
    last.residual_bytes = 96;
    last.stat_sn = rig.stat_sn.take();
    rig.target(last.encode(), &[2; 3000]);
    let destinations: Vec<DataDestination> = rig
        .outputs
        .iter()
        .filter_map(|output| match output {
            Output::Receive(destination) => Some(*destination),
            _ => None,
        })
        .collect();
    let task = crate::framing::TaskId(4);
    let destination =
        |offset_bytes| DataDestination::Task { task, offset_bytes, buffer_bytes: 4096 };
    assert_eq!(destinations, [destination(0), destination(1000)]);
    let result = completed(&mut rig);
    assert_eq!((result.data_in_bytes, result.residual), (4000, Residual::Underflow(96)));
    rig.assert_nothing_left();
}

/// Goal: sense data and an overflow are reported.
#[test]
fn check_condition_with_sense() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 100);
    let tag = rig.sent_command().initiator_task_tag;
    let mut response = rig.response(tag);
    response.status = 2;
    response.flags = ResponseFlags::FINAL | ResponseFlags::OVERFLOW;
    response.residual_bytes = 412;
    rig.target(response.encode(), &[0, 3, 0x70, 0, 5, 0xff, 0xff]);
    let result = completed(&mut rig);
    assert_eq!(result.sense[..], [0x70, 0, 5]);
    assert_eq!((result.status, result.residual), (2, Residual::Overflow(412)));
    rig.assert_nothing_left();
}

/// Goal: a bidirectional command carries its read length in a header segment, counts R2T and
/// Data-In in one sequence, and has a residual for each direction.
#[test]
fn both_directions() {
    let mut rig = Rig::with(offer(true, false), limits());
    let data = pattern(600);
    let mut command = super::rig::command(1, &data, 700);
    command.cdb = (0u8..40).collect::<Vec<u8>>().into();
    rig.handle(Input::Execute(command));
    let pdu = rig.sent(Opcode::SCSI_COMMAND);
    let sent = ScsiCommand::decode(&pdu.bhs);
    assert!(sent.flags.has(CommandFlags::READ | CommandFlags::WRITE));
    assert_eq!(sent.expected_data_transfer_length, 600);
    assert_eq!(usize::from(sent.total_ahs_words) * 4, pdu.ahs.len());
    let segments = crate::framing::ahs::CommandSegments::decode(&pdu.ahs).expect("segments");
    assert_eq!(segments.expected_read_bytes, Some(700));
    assert_eq!(segments.extended_cdb, Some(&(16u8..40).collect::<Vec<u8>>()[..]));
    let tag = sent.initiator_task_tag;
    rig.target(rig.r2t(tag, 0, 0, 600).encode(), &[]);
    assert_eq!(data_outs(&mut rig).concat_data(), data);
    rig.target(rig.data_in(tag, 1, 0).encode(), &vec![3; 500]);
    let mut response = rig.response(tag);
    response.flags = ResponseFlags::FINAL | ResponseFlags::BIDI_READ_UNDERFLOW;
    response.bidi_read_residual_bytes = 200;
    rig.target(response.encode(), &[]);
    let result = completed(&mut rig);
    assert_eq!(result.data_in_bytes, 500);
    assert_eq!((result.residual, result.read_residual), (Residual::None, Residual::Underflow(200)));
    rig.assert_nothing_left();
}

/// Goal: without negotiated order, pieces may come in any order, but each only once.
#[test]
fn data_in_out_of_order() {
    let unordered =
        Offer { data_pdu_in_order: false, data_sequence_in_order: false, ..Offer::initiator() };
    let mut rig = Rig::with(unordered, limits());
    rig.execute(1, &[], 3000);
    let tag = rig.sent_command().initiator_task_tag;
    for (number, offset) in [2000, 0, 1000].into_iter().enumerate() {
        rig.target(rig.data_in(tag, number as u32, offset).encode(), &[1; 1000]);
    }
    let response = rig.response(tag);
    rig.target(response.encode(), &[]);
    assert_eq!(completed(&mut rig).data_in_bytes, 3000);
    rig.assert_nothing_left();
}

/// Goal: commands wait while the window is closed and are sent in order when it opens, across the
/// wrap of CmdSN; immediate commands do not wait.
#[test]
fn a_closed_window_holds_commands_back() {
    let mut rig = Rig::new();
    for id in 0..20 {
        rig.execute(id, &[], 0);
    }
    let mut next = super::rig::CMD_SN;
    let mut tags = Vec::new();
    for _ in 0..16 {
        let sent = rig.sent_command();
        assert_eq!(sent.cmd_sn, next.take());
        tags.push(sent.initiator_task_tag);
    }
    assert!(rig.sent.is_empty(), "the window is closed");
    let mut urgent = super::rig::command(99, &[], 0);
    urgent.immediate = true;
    rig.handle(Input::Execute(urgent));
    let sent = rig.sent_command();
    assert!(sent.first.is_immediate());
    assert_eq!(sent.cmd_sn, next, "the current CmdSN, which is not used up");
    tags.push(sent.initiator_task_tag);
    rig.exp_cmd_sn = next;
    rig.max_cmd_sn = next.plus(15);
    for tag in tags {
        let response = rig.response(tag);
        rig.target(response.encode(), &[]);
    }
    for _ in 0..4 {
        let sent = rig.sent_command();
        assert_eq!(sent.cmd_sn, next.take());
        let response = rig.response(sent.initiator_task_tag);
        rig.target(response.encode(), &[]);
    }
    assert_eq!(rig.outputs().len(), 21);
    rig.assert_nothing_left();
}
