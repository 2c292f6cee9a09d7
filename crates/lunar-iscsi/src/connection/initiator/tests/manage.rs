//! Task management functions and their effect on tasks.

use super::rig::{Rig, limits};
use crate::connection::initiator::{Input, Management, Output, RequestFailure};
use crate::framing::{SegmentDigest, TaskId};
use crate::pdu::*;
use crate::text::{Offer, TaskReporting};
use lunar_wire::Lun;
use std::vec;

impl Rig {
    fn manage(&mut self, id: u64, function: ManagementFunction, referenced: Option<u64>) {
        let (id, referenced) = (TaskId(id), referenced.map(TaskId));
        self.handle(Input::Manage(Management { id, function, lun: Lun::new(3), referenced }));
    }

    fn sent_management(&mut self) -> TaskManagementRequest {
        TaskManagementRequest::decode(&self.sent(Opcode::TASK_MANAGEMENT_REQUEST).bhs)
    }
}

/// Goal: ABORT TASK carries the tag, CmdSN and unit of its task, which ends with the response; the
/// function is reported after the task.
#[test]
fn abort_task() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 512);
    rig.execute(2, &[], 512);
    let (first, second) = (rig.sent_command(), rig.sent_command());
    rig.manage(3, ManagementFunction::ABORT_TASK, Some(2));
    let sent = rig.sent_management();
    assert!(sent.first.is_immediate());
    assert_eq!(sent.referenced_task_tag, second.initiator_task_tag);
    assert_eq!((sent.ref_cmd_sn, sent.lun), (second.cmd_sn, second.lun));
    assert!(rig.outputs().is_empty(), "the task lives until the response");
    let answer = rig.management(sent.initiator_task_tag, ManagementResponse::FUNCTION_COMPLETE);
    rig.target(answer, &[]);
    let outputs = rig.outputs();
    assert!(
        matches!(
            outputs[..],
            [
                Output::Completed { id: TaskId(2), result: Err(RequestFailure::Aborted) },
                Output::Managed {
                    id: TaskId(3),
                    result: Ok(ManagementResponse::FUNCTION_COMPLETE),
                    ..
                }
            ]
        ),
        "{outputs:?}"
    );
    rig.target(rig.data_in(first.initiator_task_tag, 0, 0).encode(), &[1; 512]);
    let response = rig.response(first.initiator_task_tag);
    rig.target(response.encode(), &[]);
    rig.outputs();
    rig.assert_nothing_left();
}

/// Goal: ABORT TASK of a task of an immediate command has a RefCmdSN equal to its own CmdSN,
/// however far the numbers have advanced since. RFC 7143 §11.5.5.
#[test]
fn abort_of_an_immediate_task() {
    let mut rig = Rig::new();
    let mut urgent = super::rig::command(1, &[], 0);
    urgent.immediate = true;
    rig.handle(Input::Execute(urgent));
    let sent = rig.sent_command();
    rig.execute(2, &[], 0);
    let later = rig.sent_command();
    rig.manage(3, ManagementFunction::ABORT_TASK, Some(1));
    let abort = rig.sent_management();
    assert_eq!(abort.referenced_task_tag, sent.initiator_task_tag);
    assert_eq!((abort.ref_cmd_sn, abort.cmd_sn), (later.cmd_sn.next(), later.cmd_sn.next()));
    let answer = rig.management(abort.initiator_task_tag, ManagementResponse::FUNCTION_COMPLETE);
    rig.target(answer, &[]);
    let response = rig.response(later.initiator_task_tag);
    rig.target(response.encode(), &[]);
    assert_eq!(rig.outputs().len(), 3);
    rig.assert_nothing_left();
}

/// Goal: a task that ends before its abort is answered ends with the status of the target.
#[test]
fn a_response_may_overtake_the_abort() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 0);
    let tag = rig.sent_command().initiator_task_tag;
    rig.manage(2, ManagementFunction::ABORT_TASK, Some(1));
    let sent = rig.sent_management();
    let response = rig.response(tag);
    rig.target(response.encode(), &[]);
    let answer = rig.management(sent.initiator_task_tag, ManagementResponse::TASK_DOES_NOT_EXIST);
    rig.target(answer, &[]);
    let outputs = rig.outputs();
    let [Output::Completed { result: Ok(_), .. }, Output::Managed { result: Ok(response), .. }] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(*response, ManagementResponse::TASK_DOES_NOT_EXIST);
    rig.assert_nothing_left();
}

/// Goal: a command that still waits for the window is withdrawn without a PDU.
#[test]
fn a_waiting_command_is_withdrawn() {
    let mut rig = Rig::new();
    for id in 0..17 {
        rig.execute(id, &[], 0);
    }
    let tags: std::vec::Vec<u32> = (0..16).map(|_| rig.sent_command().initiator_task_tag).collect();
    rig.manage(20, ManagementFunction::ABORT_TASK, Some(16));
    assert!(rig.sent.is_empty());
    let outputs = rig.outputs();
    assert!(
        matches!(
            outputs[..],
            [
                Output::Completed { id: TaskId(16), result: Err(RequestFailure::Aborted) },
                Output::Managed {
                    id: TaskId(20),
                    result: Ok(ManagementResponse::FUNCTION_COMPLETE),
                    ..
                }
            ]
        ),
        "{outputs:?}"
    );
    rig.exp_cmd_sn = rig.exp_cmd_sn.plus(16);
    for tag in tags {
        let response = rig.response(tag);
        rig.target(response.encode(), &[]);
    }
    rig.outputs();
    rig.assert_nothing_left();
}

/// Goal: until a function on several tasks is answered, R2Ts of the tasks it covers are answered,
/// including R2Ts that arrive after its request; then nothing more is sent for these tasks.
/// RFC 7143 §4.2.3.3 a).
#[test]
fn r2ts_are_answered_during_a_reset() {
    let offer = Offer {
        immediate_data: false,
        initial_r2t: true,
        task_reporting: vec![TaskReporting::ResponseFence],
        ..Offer::initiator()
    };
    let mut rig = Rig::with(offer, limits());
    rig.execute(1, &[5; 1000], 0);
    let tag = rig.sent_command().initiator_task_tag;
    rig.manage(2, ManagementFunction::LOGICAL_UNIT_RESET, None);
    let reset = rig.sent_management();
    rig.target(rig.r2t(tag, 0, 0, 600).encode(), &[]);
    let sent = rig.sent(Opcode::DATA_OUT);
    assert_eq!(DataOut::decode(&sent.bhs).target_transfer_tag, 0x100);
    assert_eq!(sent.data, [5; 600][..]);
    let answer = rig.management(reset.initiator_task_tag, ManagementResponse::FUNCTION_COMPLETE);
    rig.target(answer, &[]);
    rig.target(rig.r2t(tag, 1, 600, 400).encode(), &[]);
    assert!(rig.sent.is_empty(), "the task is over");
    let outputs = rig.outputs();
    assert!(
        matches!(
            outputs[..],
            [
                Output::Completed { result: Err(RequestFailure::Aborted), .. },
                Output::Managed { .. }
            ]
        ),
        "{outputs:?}"
    );
    rig.assert_nothing_left();
}

/// Goal: LOGICAL UNIT RESET ends exactly the tasks on its unit that were sent before it.
#[test]
fn a_reset_ends_the_older_tasks_of_its_unit() {
    let mut rig = Rig::new();
    rig.execute(1, &[], 0);
    let mut elsewhere = super::rig::command(2, &[], 0);
    elsewhere.lun = Lun::new(4);
    rig.handle(Input::Execute(elsewhere));
    rig.manage(3, ManagementFunction::LOGICAL_UNIT_RESET, None);
    rig.execute(4, &[], 0);
    let (_, other) = (rig.sent_command(), rig.sent_command());
    let reset = rig.sent_management();
    assert!(rig.sent.is_empty(), "a newer command waits until the reset is over");
    assert_eq!(reset.referenced_task_tag, TAG_RESERVED);
    let answer = rig.management(reset.initiator_task_tag, ManagementResponse::FUNCTION_COMPLETE);
    rig.target(answer, &[]);
    let outputs = rig.outputs();
    assert!(
        matches!(
            outputs[..],
            [
                Output::Completed { id: TaskId(1), result: Err(RequestFailure::Aborted) },
                Output::Managed { id: TaskId(3), .. }
            ]
        ),
        "{outputs:?}"
    );
    let later = rig.sent_command();
    for tag in [other.initiator_task_tag, later.initiator_task_tag] {
        let response = rig.response(tag);
        rig.target(response.encode(), &[]);
    }
    assert_eq!(rig.outputs().len(), 2);
    rig.assert_nothing_left();
}

/// Goal: a function on another connection ends tasks here as well; while data of a task arrives,
/// its buffer is kept until the segment is complete, and late PDUs are no violation.
#[test]
fn another_connections_function_ends_tasks() {
    use crate::session::initiator::ToConnection;
    let mut rig = Rig::new();
    rig.execute(1, &[], 512);
    let sent = rig.sent_command();
    let mut data_in = rig.data_in(sent.initiator_task_tag, 0, 0);
    data_in.data_segment_length = lunar_wire::U24::truncate(512);
    rig.handle(Input::Header(crate::framing::Header::new(data_in.encode())));
    let before = sent.cmd_sn.next();
    rig.handle(Input::Session(ToConnection::TasksEnded { lun: None, before }));
    assert!(rig.outputs().is_empty(), "the buffer is in use");
    rig.handle(Input::Payload { data: bytes::Bytes::new(), digest: SegmentDigest::None });
    let outputs = rig.outputs();
    assert!(
        matches!(outputs[..], [Output::Completed { result: Err(RequestFailure::Aborted), .. }]),
        "{outputs:?}"
    );
    rig.target(rig.data_in(sent.initiator_task_tag, 1, 0).encode(), &[1; 8]);
    let response = rig.response(sent.initiator_task_tag);
    rig.target(response.encode(), &[]);
    assert!(rig.outputs().is_empty());
    rig.assert_nothing_left();
}
