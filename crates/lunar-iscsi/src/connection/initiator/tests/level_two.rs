//! Effects of RFC 7144 and TaskReporting=FastAbort (RFC 7143 §4.2.3.4) on the initiator.

use super::bench::{Bench, command, limits};
use crate::connection::initiator::{CommandResult, Input, Management, Output, RequestFailure};
use crate::framing::TaskId;
use crate::pdu::{ManagementFunction as Function, ManagementResponse as Response, *};
use crate::text::{Offer, TaskReporting};
use lunar_wire::{Lun, SerialNumber, U24};
use std::vec;
use std::vec::Vec;

fn manage(bench: &mut Bench, id: u64, function: Function, referenced: Option<u64>) {
    let (id, referenced) = (TaskId(id), referenced.map(TaskId));
    bench.handle(Input::Manage(Management { id, function, lun: Lun::new(3), referenced }));
}

fn sent_management(bench: &mut Bench) -> TaskManagementRequest {
    TaskManagementRequest::decode(&bench.sent(Opcode::TASK_MANAGEMENT_REQUEST).bhs)
}

fn level_1() -> Bench {
    Bench::with(Offer { protocol_level: 1, ..Offer::initiator() }, limits())
}

/// Answers the function with this tag.
fn answer(bench: &mut Bench, tag: u32, response: Response, information: [u8; 3]) {
    let bhs = bench.management(tag, response);
    let answer = TaskManagementResponse { information, ..TaskManagementResponse::decode(&bhs) };
    bench.target(answer.encode(), &[]);
}

fn managed(bench: &mut Bench) -> (Result<Response, RequestFailure>, [u8; 3]) {
    match bench.outputs().pop() {
        Some(Output::Managed { result, information, .. }) => (result, information),
        other => panic!("{other:?}"),
    }
}

/// Goal: below level 2 its functions are not sent, priorities are zero on the wire, and its fields
/// in PDUs of the target are ignored. RFC 7144 §5.1.1, §5.2.1, §6.3.
#[test]
fn level_1_has_no_functions_of_rfc_7144() {
    let mut bench = level_1();
    for function in [9, 10, 11, 12].map(Function) {
        manage(&mut bench, 1, function, None);
        let refused = Err(RequestFailure::Refused("the function requires iSCSIProtocolLevel 2"));
        assert_eq!(managed(&mut bench), (refused, [0; 3]));
    }
    bench.handle(Input::Execute(crate::connection::initiator::Command {
        priority: 5,
        ..command(2, &[], 0)
    }));
    let sent = bench.sent_command();
    assert_eq!(sent.priority, 0);
    let response = bench.response(sent.initiator_task_tag);
    let busy = ScsiResponse { status: 8, status_qualifier: 7, ..response };
    bench.target(busy.encode(), &[]);
    assert_eq!(status_of(&mut bench), (8, 0));
    manage(&mut bench, 3, Function::LOGICAL_UNIT_RESET, None);
    let tag = sent_management(&mut bench).initiator_task_tag;
    answer(&mut bench, tag, Response::FUNCTION_COMPLETE, [1, 2, 3]);
    assert_eq!(managed(&mut bench), (Ok(Response::FUNCTION_COMPLETE), [0; 3]));
    bench.assert_nothing_left();
}

fn status_of(bench: &mut Bench) -> (u8, u16) {
    match &bench.outputs()[..] {
        [
            Output::Completed {
                result: Ok(CommandResult { status, status_qualifier, .. }), ..
            },
        ] => (*status, *status_qualifier),
        other => panic!("{other:?}"),
    }
}

/// Goal: priority and status qualifier are transmitted at level 2.
#[test]
fn priority_and_status_qualifier() {
    let mut bench = Bench::new();
    bench.handle(Input::Execute(crate::connection::initiator::Command {
        priority: 5,
        ..command(2, &[], 0)
    }));
    let sent = bench.sent_command();
    assert_eq!(sent.priority, 0x50);
    let response = bench.response(sent.initiator_task_tag);
    let busy = ScsiResponse { status: 8, status_qualifier: 7, ..response };
    bench.target(busy.encode(), &[]);
    assert_eq!(status_of(&mut bench), (8, 7));
    bench.assert_nothing_left();
}

/// Goal: QUERY TASK refers to its task as ABORT TASK does, to an immediate one with its own CmdSN
/// (RFC 7144 §6.3.3), and ends nothing; a query of a task that has ended or was never sent is
/// answered locally.
#[test]
fn query_task() {
    let mut bench = Bench::new();
    bench.execute(1, &[], 0);
    let first = bench.sent_command();
    manage(&mut bench, 2, Function::QUERY_TASK, Some(1));
    let query = sent_management(&mut bench);
    assert_eq!(query.referenced_task_tag, first.initiator_task_tag);
    assert_eq!((query.ref_cmd_sn, query.lun), (first.cmd_sn, first.lun));
    answer(&mut bench, query.initiator_task_tag, Response::FUNCTION_SUCCEEDED, [0; 3]);
    assert_eq!(managed(&mut bench).0, Ok(Response::FUNCTION_SUCCEEDED));
    let mut urgent = command(3, &[], 0);
    urgent.immediate = true;
    bench.handle(Input::Execute(urgent));
    let urgent = bench.sent_command();
    bench.execute(4, &[], 0);
    bench.sent_command();
    manage(&mut bench, 5, Function::QUERY_TASK, Some(3));
    let query = sent_management(&mut bench);
    assert_eq!(
        (query.referenced_task_tag, query.ref_cmd_sn),
        (urgent.initiator_task_tag, query.cmd_sn)
    );
    answer(&mut bench, query.initiator_task_tag, Response::FUNCTION_SUCCEEDED, [0; 3]);
    bench.outputs();
    for tag in [first.initiator_task_tag, urgent.initiator_task_tag, urgent.initiator_task_tag + 1]
    {
        let response = bench.response(tag);
        bench.target(response.encode(), &[]);
    }
    assert_eq!(bench.outputs().len(), 3);
    manage(&mut bench, 6, Function::QUERY_TASK, Some(1));
    assert_eq!(managed(&mut bench).0, Ok(Response::FUNCTION_COMPLETE));
    assert!(bench.sent.is_empty());
    bench.assert_nothing_left();
}

/// Goal: QUERY TASK SET and QUERY ASYNCHRONOUS EVENT neither delay nor end tasks; the information
/// of the latter is passed on.
#[test]
fn queries_end_no_tasks() {
    let mut bench = Bench::new();
    bench.execute(1, &[], 0);
    let first = bench.sent_command().initiator_task_tag;
    for function in [Function::QUERY_TASK_SET, Function::QUERY_ASYNCHRONOUS_EVENT] {
        manage(&mut bench, 2, function, None);
        let tag = sent_management(&mut bench).initiator_task_tag;
        bench.execute(3, &[], 0);
        let meanwhile = bench.sent_command().initiator_task_tag;
        answer(&mut bench, tag, Response::FUNCTION_SUCCEEDED, [0x16, 0x29, 0]);
        let succeeded = (Ok(Response::FUNCTION_SUCCEEDED), [0x16, 0x29, 0]);
        assert_eq!(managed(&mut bench), succeeded);
        let response = bench.response(meanwhile);
        bench.target(response.encode(), &[]);
        assert_eq!(bench.outputs().len(), 1);
    }
    let response = bench.response(first);
    bench.target(response.encode(), &[]);
    bench.outputs();
    bench.assert_nothing_left();
}

/// Goal: I_T NEXUS RESET ends all tasks of the session, on every unit.
#[test]
fn i_t_nexus_reset() {
    let mut bench = Bench::new();
    bench.execute(1, &[], 0);
    let mut elsewhere = command(2, &[], 0);
    elsewhere.lun = Lun::new(4);
    bench.handle(Input::Execute(elsewhere));
    manage(&mut bench, 3, Function::I_T_NEXUS_RESET, None);
    bench.sent.drain(..2);
    let tag = sent_management(&mut bench).initiator_task_tag;
    answer(&mut bench, tag, Response::FUNCTION_COMPLETE, [0; 3]);
    let outputs = bench.outputs();
    let aborted = |output: &Output| {
        matches!(output, Output::Completed { result: Err(RequestFailure::Aborted), .. })
    };
    assert_eq!(outputs.iter().filter(|output| aborted(output)).count(), 2, "{outputs:?}");
    assert!(matches!(outputs[2], Output::Managed { result: Ok(_), .. }), "{outputs:?}");
    bench.assert_nothing_left();
}

fn fast(reporting: TaskReporting) -> Bench {
    let offer = Offer {
        task_reporting: vec![reporting],
        initial_r2t: true,
        immediate_data: false,
        ..Offer::initiator()
    };
    Bench::with(offer, limits())
}

fn data_outs(bench: &mut Bench) -> Vec<DataOut> {
    let all: Vec<_> = bench.sent.drain(..).collect();
    let data = all.iter().filter(|pdu| pdu.opcode() == Opcode::DATA_OUT);
    data.map(|pdu| DataOut::decode(&pdu.bhs)).collect()
}

/// Goal: with FastAbort no data is sent for tasks covered by a function once the function is sent;
/// other tasks continue. Without FastAbort every R2T is answered. RFC 7143 §4.2.3.4 a), §4.2.3.3
/// a).
#[test]
fn data_stops_with_the_function() {
    for (reporting, stops) in
        [(TaskReporting::FastAbort, true), (TaskReporting::ResponseFence, false)]
    {
        let mut bench = fast(reporting);
        bench.execute(1, &[7; 600], 0);
        let meant = bench.sent_command().initiator_task_tag;
        let mut elsewhere = command(2, &[8; 600], 0);
        elsewhere.lun = Lun::new(4);
        bench.handle(Input::Execute(elsewhere));
        let other = bench.sent_command().initiator_task_tag;
        manage(&mut bench, 3, Function::ABORT_TASK_SET, None);
        let function = sent_management(&mut bench).initiator_task_tag;
        bench.target(bench.r2t(meant, 0, 0, 600).encode(), &[]);
        bench.target(bench.r2t(other, 0, 0, 600).encode(), &[]);
        let sent: Vec<u32> =
            data_outs(&mut bench).iter().map(|data| data.initiator_task_tag).collect();
        assert_eq!(sent, if stops { vec![other] } else { vec![meant, other] });
        answer(&mut bench, function, Response::FUNCTION_COMPLETE, [0; 3]);
        assert!(data_outs(&mut bench).is_empty());
        let response = bench.response(other);
        bench.target(response.encode(), &[]);
        assert_eq!(bench.outputs().len(), 3);
        bench.assert_nothing_left();
    }
}

/// Goal: a function that fails has ended nothing: data that was held back is sent after all.
#[test]
fn data_continues_after_a_failed_function() {
    for refused in [false, true] {
        let mut bench = fast(TaskReporting::FastAbort);
        bench.execute(1, &[7; 600], 0);
        let tag = bench.sent_command().initiator_task_tag;
        manage(&mut bench, 3, Function::LOGICAL_UNIT_RESET, None);
        let request = bench.sent(Opcode::TASK_MANAGEMENT_REQUEST);
        let function = TaskManagementRequest::decode(&request.bhs).initiator_task_tag;
        bench.target(bench.r2t(tag, 0, 0, 600).encode(), &[]);
        assert!(data_outs(&mut bench).is_empty());
        if refused {
            let reject = Reject {
                first: FirstByte::plain(Opcode::REJECT),
                flags: FinalFlag::FINAL,
                reason: RejectReason::IMMEDIATE_COMMAND_REJECT,
                total_ahs_words: 0,
                data_segment_length: U24::truncate(48),
                initiator_task_tag: TAG_RESERVED,
                stat_sn: bench.stat_sn.take(),
                exp_cmd_sn: bench.exp_cmd_sn,
                max_cmd_sn: bench.max_cmd_sn,
                data_sn: 0,
            };
            bench.target(reject.encode(), &request.bhs);
        } else {
            answer(&mut bench, function, Response::FUNCTION_REJECTED, [0; 3]);
        }
        assert_eq!(data_outs(&mut bench).len(), 1, "refused: {refused}");
        let response = bench.response(tag);
        bench.target(response.encode(), &[]);
        assert_eq!(bench.outputs().len(), 2);
        bench.assert_nothing_left();
    }
}

fn terminated(bench: &mut Bench, lun: Lun, exp_cmd_sn: SerialNumber) -> AsyncMessage {
    AsyncMessage {
        first: FirstByte::plain(Opcode::ASYNC_MESSAGE),
        flags: FinalFlag::FINAL,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun,
        initiator_task_tag: TAG_RESERVED,
        stat_sn: bench.stat_sn.take(),
        exp_cmd_sn,
        max_cmd_sn: bench.max_cmd_sn,
        event: AsyncEvent::TASKS_TERMINATED,
        vendor_code: 0,
        parameter_1: 0,
        parameter_2: 0,
        parameter_3: 0,
    }
}

/// Goal: an Asynchronous Message 5 ends the tasks of its unit that the target had received, no data
/// follows for them, and the message is acknowledged by a NOP-Out with its LUN. RFC 7143 §11.9.1.
#[test]
fn terminated_tasks_end_and_are_acknowledged() {
    let mut bench = fast(TaskReporting::FastAbort);
    bench.execute(1, &[7; 600], 0);
    let meant = bench.sent_command();
    let mut elsewhere = command(2, &[], 0);
    elsewhere.lun = Lun::new(4);
    bench.handle(Input::Execute(elsewhere));
    let other = bench.sent_command().initiator_task_tag;
    bench.execute(3, &[], 0);
    let on_its_way = bench.sent_command();
    let message = terminated(&mut bench, Lun::new(3), on_its_way.cmd_sn);
    bench.target(message.encode(), &[]);
    let outputs = bench.outputs();
    let [Output::Event(event), Output::Completed { id, result: Err(RequestFailure::Aborted) }] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((event.event, *id), (AsyncEvent::TASKS_TERMINATED, TaskId(1)));
    let nop = NopOut::decode(&bench.sent(Opcode::NOP_OUT).bhs);
    assert!(nop.first.is_immediate());
    assert_eq!((nop.initiator_task_tag, nop.target_transfer_tag), (TAG_RESERVED, TAG_RESERVED));
    assert_eq!((nop.lun, nop.exp_stat_sn), (message.lun, message.stat_sn.next()));
    // An R2T that crossed the message: no violation, no data.
    bench.target(bench.r2t(meant.initiator_task_tag, 0, 0, 600).encode(), &[]);
    assert!(data_outs(&mut bench).is_empty());
    for tag in [other, on_its_way.initiator_task_tag] {
        let response = bench.response(tag);
        bench.target(response.encode(), &[]);
    }
    assert_eq!(bench.outputs().len(), 2);
    bench.assert_nothing_left();
}

/// Goal: in a session that did not negotiate FastAbort the message is reported but has no effect.
#[test]
fn terminated_without_agreement() {
    let mut bench = fast(TaskReporting::ResponseFence);
    bench.execute(1, &[], 0);
    let tag = bench.sent_command().initiator_task_tag;
    let message = terminated(&mut bench, Lun::new(3), SerialNumber(100));
    bench.target(message.encode(), &[]);
    assert!(matches!(bench.outputs()[..], [Output::Event(_)]));
    assert!(bench.sent.is_empty());
    let response = bench.response(tag);
    bench.target(response.encode(), &[]);
    assert_eq!(bench.outputs().len(), 1);
    bench.assert_nothing_left();
}
