//! Effects of RFC 7144 and TaskReporting=FastAbort (RFC 7143 §4.2.3.4) on the initiator.

use super::rig::{Rig, command, limits};
use crate::connection::initiator::{CommandResult, Input, Management, Output, RequestFailure};
use crate::framing::TaskId;
use crate::pdu::{ManagementFunction as Function, ManagementResponse as Response, *};
use crate::text::{Offer, TaskReporting};
use lunar_wire::{Lun, SerialNumber, U24};
use std::vec;
use std::vec::Vec;

fn manage(rig: &mut Rig, id: u64, function: Function, referenced: Option<u64>) {
    let (id, referenced) = (TaskId(id), referenced.map(TaskId));
    rig.handle(Input::Manage(Management { id, function, lun: Lun::new(3), referenced }));
}

fn sent_management(rig: &mut Rig) -> TaskManagementRequest {
    TaskManagementRequest::decode(&rig.sent(Opcode::TASK_MANAGEMENT_REQUEST).bhs)
}

fn level_1() -> Rig {
    Rig::with(Offer { protocol_level: 1, ..Offer::initiator() }, limits())
}

/// Answers the function with this tag.
fn answer(rig: &mut Rig, tag: u32, response: Response, information: [u8; 3]) {
    let bhs = rig.management(tag, response);
    let answer = TaskManagementResponse { information, ..TaskManagementResponse::decode(&bhs) };
    rig.target(answer.encode(), &[]);
}

fn managed(rig: &mut Rig) -> (Result<Response, RequestFailure>, [u8; 3]) {
    match rig.outputs().pop() {
        Some(Output::Managed { result, information, .. }) => (result, information),
        other => panic!("{other:?}"),
    }
}

/// Goal: below level 2 its functions are not sent, priorities are zero on the wire, and its fields
/// in PDUs of the target are ignored. RFC 7144 §5.1.1, §5.2.1, §6.3.
#[test]
fn level_1_has_no_functions_of_rfc_7144() {
    let mut rig = level_1();
    for function in [9, 10, 11, 12].map(Function) {
        manage(&mut rig, 1, function, None);
        let refused = Err(RequestFailure::Refused("the function requires iSCSIProtocolLevel 2"));
        assert_eq!(managed(&mut rig), (refused, [0; 3]));
    }
    rig.handle(Input::Execute(crate::connection::initiator::Command {
        priority: 5,
        ..command(2, &[], 0)
    }));
    let sent = rig.sent_command();
    assert_eq!(sent.priority, 0);
    let response = rig.response(sent.initiator_task_tag);
    let busy = ScsiResponse { status: 8, status_qualifier: 7, ..response };
    rig.target(busy.encode(), &[]);
    assert_eq!(status_of(&mut rig), (8, 0));
    manage(&mut rig, 3, Function::LOGICAL_UNIT_RESET, None);
    let tag = sent_management(&mut rig).initiator_task_tag;
    answer(&mut rig, tag, Response::FUNCTION_COMPLETE, [1, 2, 3]);
    assert_eq!(managed(&mut rig), (Ok(Response::FUNCTION_COMPLETE), [0; 3]));
    rig.assert_nothing_left();
}

fn status_of(rig: &mut Rig) -> (u8, u16) {
    match &rig.outputs()[..] {
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
    let mut rig = Rig::new();
    rig.handle(Input::Execute(crate::connection::initiator::Command {
        priority: 5,
        ..command(2, &[], 0)
    }));
    let sent = rig.sent_command();
    assert_eq!(sent.priority, 0x50);
    let response = rig.response(sent.initiator_task_tag);
    let busy = ScsiResponse { status: 8, status_qualifier: 7, ..response };
    rig.target(busy.encode(), &[]);
    assert_eq!(status_of(&mut rig), (8, 7));
    rig.assert_nothing_left();
}

/// Goal: QUERY TASK refers to its task as ABORT TASK does, to an immediate one with its own CmdSN
/// (RFC 7144 §6.3.3), and ends nothing; a query of a task that has ended or was never sent is
/// answered locally.
#[test]
fn query_task() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 0);
    let first = rig.sent_command();
    manage(&mut rig, 2, Function::QUERY_TASK, Some(1));
    let query = sent_management(&mut rig);
    assert_eq!(query.referenced_task_tag, first.initiator_task_tag);
    assert_eq!((query.ref_cmd_sn, query.lun), (first.cmd_sn, first.lun));
    answer(&mut rig, query.initiator_task_tag, Response::FUNCTION_SUCCEEDED, [0; 3]);
    assert_eq!(managed(&mut rig).0, Ok(Response::FUNCTION_SUCCEEDED));
    let mut urgent = command(3, &[], 0);
    urgent.immediate = true;
    rig.handle(Input::Execute(urgent));
    let urgent = rig.sent_command();
    rig.execute(4, &[], 0);
    rig.sent_command();
    manage(&mut rig, 5, Function::QUERY_TASK, Some(3));
    let query = sent_management(&mut rig);
    assert_eq!(
        (query.referenced_task_tag, query.ref_cmd_sn),
        (urgent.initiator_task_tag, query.cmd_sn)
    );
    answer(&mut rig, query.initiator_task_tag, Response::FUNCTION_SUCCEEDED, [0; 3]);
    rig.outputs();
    for tag in [first.initiator_task_tag, urgent.initiator_task_tag, urgent.initiator_task_tag + 1]
    {
        let response = rig.response(tag);
        rig.target(response.encode(), &[]);
    }
    assert_eq!(rig.outputs().len(), 3);
    manage(&mut rig, 6, Function::QUERY_TASK, Some(1));
    assert_eq!(managed(&mut rig).0, Ok(Response::FUNCTION_COMPLETE));
    assert!(rig.sent.is_empty());
    rig.assert_nothing_left();
}

/// Goal: QUERY TASK SET and QUERY ASYNCHRONOUS EVENT neither delay nor end tasks; the information
/// of the latter is passed on.
#[test]
fn queries_end_no_tasks() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 0);
    let first = rig.sent_command().initiator_task_tag;
    for function in [Function::QUERY_TASK_SET, Function::QUERY_ASYNCHRONOUS_EVENT] {
        manage(&mut rig, 2, function, None);
        let tag = sent_management(&mut rig).initiator_task_tag;
        rig.execute(3, &[], 0);
        let meanwhile = rig.sent_command().initiator_task_tag;
        answer(&mut rig, tag, Response::FUNCTION_SUCCEEDED, [0x16, 0x29, 0]);
        let succeeded = (Ok(Response::FUNCTION_SUCCEEDED), [0x16, 0x29, 0]);
        assert_eq!(managed(&mut rig), succeeded);
        let response = rig.response(meanwhile);
        rig.target(response.encode(), &[]);
        assert_eq!(rig.outputs().len(), 1);
    }
    let response = rig.response(first);
    rig.target(response.encode(), &[]);
    rig.outputs();
    rig.assert_nothing_left();
}

/// Goal: I_T NEXUS RESET ends all tasks of the session, on every unit.
#[test]
fn i_t_nexus_reset() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 0);
    let mut elsewhere = command(2, &[], 0);
    elsewhere.lun = Lun::new(4);
    rig.handle(Input::Execute(elsewhere));
    manage(&mut rig, 3, Function::I_T_NEXUS_RESET, None);
    rig.sent.drain(..2);
    let tag = sent_management(&mut rig).initiator_task_tag;
    answer(&mut rig, tag, Response::FUNCTION_COMPLETE, [0; 3]);
    let outputs = rig.outputs();
    let aborted = |output: &Output| {
        matches!(output, Output::Completed { result: Err(RequestFailure::Aborted), .. })
    };
    assert_eq!(outputs.iter().filter(|output| aborted(output)).count(), 2, "{outputs:?}");
    assert!(matches!(outputs[2], Output::Managed { result: Ok(_), .. }), "{outputs:?}");
    rig.assert_nothing_left();
}

fn fast(reporting: TaskReporting) -> Rig {
    let offer = Offer {
        task_reporting: vec![reporting],
        initial_r2t: true,
        immediate_data: false,
        ..Offer::initiator()
    };
    Rig::with(offer, limits())
}

fn data_outs(rig: &mut Rig) -> Vec<DataOut> {
    let all: Vec<_> = rig.sent.drain(..).collect();
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
        let mut rig = fast(reporting);
        rig.execute(1, &[7; 600], 0);
        let meant = rig.sent_command().initiator_task_tag;
        let mut elsewhere = command(2, &[8; 600], 0);
        elsewhere.lun = Lun::new(4);
        rig.handle(Input::Execute(elsewhere));
        let other = rig.sent_command().initiator_task_tag;
        manage(&mut rig, 3, Function::ABORT_TASK_SET, None);
        let function = sent_management(&mut rig).initiator_task_tag;
        rig.target(rig.r2t(meant, 0, 0, 600).encode(), &[]);
        rig.target(rig.r2t(other, 0, 0, 600).encode(), &[]);
        let sent: Vec<u32> =
            data_outs(&mut rig).iter().map(|data| data.initiator_task_tag).collect();
        assert_eq!(sent, if stops { vec![other] } else { vec![meant, other] });
        answer(&mut rig, function, Response::FUNCTION_COMPLETE, [0; 3]);
        assert!(data_outs(&mut rig).is_empty());
        let response = rig.response(other);
        rig.target(response.encode(), &[]);
        assert_eq!(rig.outputs().len(), 3);
        rig.assert_nothing_left();
    }
}

/// Goal: a function that fails has ended nothing: data that was held back is sent after all.
#[test]
fn data_continues_after_a_failed_function() {
    for refused in [false, true] {
        let mut rig = fast(TaskReporting::FastAbort);
        rig.execute(1, &[7; 600], 0);
        let tag = rig.sent_command().initiator_task_tag;
        manage(&mut rig, 3, Function::LOGICAL_UNIT_RESET, None);
        let request = rig.sent(Opcode::TASK_MANAGEMENT_REQUEST);
        let function = TaskManagementRequest::decode(&request.bhs).initiator_task_tag;
        rig.target(rig.r2t(tag, 0, 0, 600).encode(), &[]);
        assert!(data_outs(&mut rig).is_empty());
        if refused {
            let reject = Reject {
                first: FirstByte::plain(Opcode::REJECT),
                flags: FinalFlag::FINAL,
                reason: RejectReason::IMMEDIATE_COMMAND_REJECT,
                total_ahs_words: 0,
                data_segment_length: U24::truncate(48),
                initiator_task_tag: TAG_RESERVED,
                stat_sn: rig.stat_sn.take(),
                exp_cmd_sn: rig.exp_cmd_sn,
                max_cmd_sn: rig.max_cmd_sn,
                data_sn: 0,
            };
            rig.target(reject.encode(), &request.bhs);
        } else {
            answer(&mut rig, function, Response::FUNCTION_REJECTED, [0; 3]);
        }
        assert_eq!(data_outs(&mut rig).len(), 1, "refused: {refused}");
        let response = rig.response(tag);
        rig.target(response.encode(), &[]);
        assert_eq!(rig.outputs().len(), 2);
        rig.assert_nothing_left();
    }
}

fn terminated(rig: &mut Rig, lun: Lun, exp_cmd_sn: SerialNumber) -> AsyncMessage {
    AsyncMessage {
        first: FirstByte::plain(Opcode::ASYNC_MESSAGE),
        flags: FinalFlag::FINAL,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun,
        initiator_task_tag: TAG_RESERVED,
        stat_sn: rig.stat_sn.take(),
        exp_cmd_sn,
        max_cmd_sn: rig.max_cmd_sn,
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
    let mut rig = fast(TaskReporting::FastAbort);
    rig.execute(1, &[7; 600], 0);
    let meant = rig.sent_command();
    let mut elsewhere = command(2, &[], 0);
    elsewhere.lun = Lun::new(4);
    rig.handle(Input::Execute(elsewhere));
    let other = rig.sent_command().initiator_task_tag;
    rig.execute(3, &[], 0);
    let on_its_way = rig.sent_command();
    let message = terminated(&mut rig, Lun::new(3), on_its_way.cmd_sn);
    rig.target(message.encode(), &[]);
    let outputs = rig.outputs();
    let [Output::Event(event), Output::Completed { id, result: Err(RequestFailure::Aborted) }] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!((event.event, *id), (AsyncEvent::TASKS_TERMINATED, TaskId(1)));
    let nop = NopOut::decode(&rig.sent(Opcode::NOP_OUT).bhs);
    assert!(nop.first.is_immediate());
    assert_eq!((nop.initiator_task_tag, nop.target_transfer_tag), (TAG_RESERVED, TAG_RESERVED));
    assert_eq!((nop.lun, nop.exp_stat_sn), (message.lun, message.stat_sn.next()));
    // An R2T that crossed the message: no violation, no data.
    rig.target(rig.r2t(meant.initiator_task_tag, 0, 0, 600).encode(), &[]);
    assert!(data_outs(&mut rig).is_empty());
    for tag in [other, on_its_way.initiator_task_tag] {
        let response = rig.response(tag);
        rig.target(response.encode(), &[]);
    }
    assert_eq!(rig.outputs().len(), 2);
    rig.assert_nothing_left();
}

/// Goal: in a session that did not negotiate FastAbort the message is reported but has no effect.
#[test]
fn terminated_without_agreement() {
    let mut rig = fast(TaskReporting::ResponseFence);
    rig.execute(1, &[], 0);
    let tag = rig.sent_command().initiator_task_tag;
    let message = terminated(&mut rig, Lun::new(3), SerialNumber(100));
    rig.target(message.encode(), &[]);
    assert!(matches!(rig.outputs()[..], [Output::Event(_)]));
    assert!(rig.sent.is_empty());
    let response = rig.response(tag);
    rig.target(response.encode(), &[]);
    assert_eq!(rig.outputs().len(), 1);
    rig.assert_nothing_left();
}
