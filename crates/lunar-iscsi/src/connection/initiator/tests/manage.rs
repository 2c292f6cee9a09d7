//! Task management functions and their effect on tasks.

use super::bench::{Bench, limits};
use crate::connection::initiator::{Input, Management, Output, RequestFailure};
use crate::framing::{SegmentDigest, TaskId};
use crate::pdu::*;
use crate::text::{Offer, TaskReporting};
use lunar_wire::Lun;
use std::vec;

impl Bench {
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
    let mut bench = Bench::new();
    bench.execute(1, &[], 512);
    bench.execute(2, &[], 512);
    let (first, second) = (bench.sent_command(), bench.sent_command());
    bench.manage(3, ManagementFunction::ABORT_TASK, Some(2));
    let sent = bench.sent_management();
    assert!(sent.first.is_immediate());
    assert_eq!(sent.referenced_task_tag, second.initiator_task_tag);
    assert_eq!((sent.ref_cmd_sn, sent.lun), (second.cmd_sn, second.lun));
    assert!(bench.outputs().is_empty(), "the task lives until the response");
    let answer = bench.management(sent.initiator_task_tag, ManagementResponse::FUNCTION_COMPLETE);
    bench.target(answer, &[]);
    let outputs = bench.outputs();
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
    bench.target(bench.data_in(first.initiator_task_tag, 0, 0).encode(), &[1; 512]);
    let response = bench.response(first.initiator_task_tag);
    bench.target(response.encode(), &[]);
    bench.outputs();
    bench.assert_nothing_left();
}

/// Goal: ABORT TASK of a task of an immediate command has a RefCmdSN equal to its own CmdSN,
/// however far the numbers have advanced since. RFC 7143 §11.5.5.
#[test]
fn abort_of_an_immediate_task() {
    let mut bench = Bench::new();
    let mut urgent = super::bench::command(1, &[], 0);
    urgent.immediate = true;
    bench.handle(Input::Execute(urgent));
    let sent = bench.sent_command();
    bench.execute(2, &[], 0);
    let later = bench.sent_command();
    bench.manage(3, ManagementFunction::ABORT_TASK, Some(1));
    let abort = bench.sent_management();
    assert_eq!(abort.referenced_task_tag, sent.initiator_task_tag);
    assert_eq!((abort.ref_cmd_sn, abort.cmd_sn), (later.cmd_sn.next(), later.cmd_sn.next()));
    let answer = bench.management(abort.initiator_task_tag, ManagementResponse::FUNCTION_COMPLETE);
    bench.target(answer, &[]);
    let response = bench.response(later.initiator_task_tag);
    bench.target(response.encode(), &[]);
    assert_eq!(bench.outputs().len(), 3);
    bench.assert_nothing_left();
}

/// Goal: a task that ends before its abort is answered ends with the status of the target.
#[test]
fn a_response_may_overtake_the_abort() {
    let mut bench = Bench::new();
    bench.execute(1, &[], 0);
    let tag = bench.sent_command().initiator_task_tag;
    bench.manage(2, ManagementFunction::ABORT_TASK, Some(1));
    let sent = bench.sent_management();
    let response = bench.response(tag);
    bench.target(response.encode(), &[]);
    let answer = bench.management(sent.initiator_task_tag, ManagementResponse::TASK_DOES_NOT_EXIST);
    bench.target(answer, &[]);
    let outputs = bench.outputs();
    let [Output::Completed { result: Ok(_), .. }, Output::Managed { result: Ok(response), .. }] =
        &outputs[..]
    else {
        panic!("{outputs:?}")
    };
    assert_eq!(*response, ManagementResponse::TASK_DOES_NOT_EXIST);
    bench.assert_nothing_left();
}

/// Goal: a command that still waits for the window is withdrawn without a PDU.
#[test]
fn a_waiting_command_is_withdrawn() {
    let mut bench = Bench::new();
    for id in 0..17 {
        bench.execute(id, &[], 0);
    }
    let tags: std::vec::Vec<u32> =
        (0..16).map(|_| bench.sent_command().initiator_task_tag).collect();
    bench.manage(20, ManagementFunction::ABORT_TASK, Some(16));
    assert!(bench.sent.is_empty());
    let outputs = bench.outputs();
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
    bench.exp_cmd_sn = bench.exp_cmd_sn.plus(16);
    for tag in tags {
        let response = bench.response(tag);
        bench.target(response.encode(), &[]);
    }
    bench.outputs();
    bench.assert_nothing_left();
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
    let mut bench = Bench::with(offer, limits());
    bench.execute(1, &[5; 1000], 0);
    let tag = bench.sent_command().initiator_task_tag;
    bench.manage(2, ManagementFunction::LOGICAL_UNIT_RESET, None);
    let reset = bench.sent_management();
    bench.target(bench.r2t(tag, 0, 0, 600).encode(), &[]);
    let sent = bench.sent(Opcode::DATA_OUT);
    assert_eq!(DataOut::decode(&sent.bhs).target_transfer_tag, 0x100);
    assert_eq!(sent.data, [5; 600][..]);
    let answer = bench.management(reset.initiator_task_tag, ManagementResponse::FUNCTION_COMPLETE);
    bench.target(answer, &[]);
    bench.target(bench.r2t(tag, 1, 600, 400).encode(), &[]);
    assert!(bench.sent.is_empty(), "the task is over");
    let outputs = bench.outputs();
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
    bench.assert_nothing_left();
}

/// Goal: LOGICAL UNIT RESET ends exactly the tasks on its unit that were sent before it.
#[test]
fn a_reset_ends_the_older_tasks_of_its_unit() {
    let mut bench = Bench::new();
    bench.execute(1, &[], 0);
    let mut elsewhere = super::bench::command(2, &[], 0);
    elsewhere.lun = Lun::new(4);
    bench.handle(Input::Execute(elsewhere));
    bench.manage(3, ManagementFunction::LOGICAL_UNIT_RESET, None);
    bench.execute(4, &[], 0);
    let (_, other) = (bench.sent_command(), bench.sent_command());
    let reset = bench.sent_management();
    assert!(bench.sent.is_empty(), "a newer command waits until the reset is over");
    assert_eq!(reset.referenced_task_tag, TAG_RESERVED);
    let answer = bench.management(reset.initiator_task_tag, ManagementResponse::FUNCTION_COMPLETE);
    bench.target(answer, &[]);
    let outputs = bench.outputs();
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
    let later = bench.sent_command();
    for tag in [other.initiator_task_tag, later.initiator_task_tag] {
        let response = bench.response(tag);
        bench.target(response.encode(), &[]);
    }
    assert_eq!(bench.outputs().len(), 2);
    bench.assert_nothing_left();
}

/// Goal: a function on another connection ends tasks here as well; while data of a task arrives,
/// its buffer is kept until the segment is complete, and late PDUs are no violation.
#[test]
fn another_connections_function_ends_tasks() {
    use crate::session::initiator::ToConnection;
    let mut bench = Bench::new();
    bench.execute(1, &[], 512);
    let sent = bench.sent_command();
    let mut data_in = bench.data_in(sent.initiator_task_tag, 0, 0);
    data_in.data_segment_length = lunar_wire::U24::truncate(512);
    bench.handle(Input::Header(crate::framing::Header::new(data_in.encode())));
    let before = sent.cmd_sn.next();
    bench.handle(Input::Session(ToConnection::TasksEnded { lun: None, before }));
    assert!(bench.outputs().is_empty(), "the buffer is in use");
    bench.handle(Input::Payload { data: bytes::Bytes::new(), digest: SegmentDigest::None });
    let outputs = bench.outputs();
    assert!(
        matches!(outputs[..], [Output::Completed { result: Err(RequestFailure::Aborted), .. }]),
        "{outputs:?}"
    );
    bench.target(bench.data_in(sent.initiator_task_tag, 1, 0).encode(), &[1; 8]);
    let response = bench.response(sent.initiator_task_tag);
    bench.target(response.encode(), &[]);
    assert!(bench.outputs().is_empty());
    bench.assert_nothing_left();
}
