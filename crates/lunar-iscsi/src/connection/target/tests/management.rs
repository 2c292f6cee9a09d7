//! Task management. RFC 7143 §4.2.2.3, §4.2.3, §11.5, §11.6.

use super::super::Input;
use super::requests::*;
use super::rig::Rig;
use crate::framing::TaskId;
use crate::pdu::{
    FirstByte, ManagementFunction as Function, ManagementResponse as Response, NopIn, Opcode,
    ReadyToTransfer, ScsiResponse, TAG_RESERVED, TaskManagementRequest, TaskManagementResponse,
};
use crate::session::target as session;
use core::time::Duration;
use lunar_wire::{Lun, SerialNumber};

fn management_response(rig: &mut Rig, cid: u16) -> (u32, Response) {
    let pdu = rig.sent_one(cid);
    assert_eq!(pdu.opcode(), Opcode::TASK_MANAGEMENT_RESPONSE);
    let response = TaskManagementResponse::decode(&pdu.bhs);
    (response.initiator_task_tag, response.response)
}

fn not_immediate(pdu: TaskManagementRequest) -> TaskManagementRequest {
    TaskManagementRequest { first: FirstByte::plain(Opcode::TASK_MANAGEMENT_REQUEST), ..pdu }
}

/// Starts a write of 1000 bytes up to its R2T; returns the task and the R2T's tag.
fn start_write(rig: &mut Rig, number: u32, tag: u32) -> (TaskId, u32) {
    rig.send(1, write(number, tag, 1000).encode(), &[]);
    let task = rig.started(1).id;
    rig.wants(1, task, 1000);
    (task, ReadyToTransfer::decode(&rig.sent_one(1).bhs).target_transfer_tag)
}

/// Goal: ABORT TASK is answered once the task has ended; the task gets no response.
#[test]
fn abort_task_waits_for_the_executor() {
    let mut rig = Rig::normal("");
    rig.aborts_at_once = false;
    rig.send(1, read(0, 5, 512).encode(), &[]);
    let task = rig.started(1).id;
    rig.send(1, abort_task(1, 6, 5, 0).encode(), &[]);
    assert_eq!(rig.link(1).aborts, [task]);
    assert!(rig.sent(1).is_empty());
    rig.good(1, task);
    assert_eq!(management_response(&mut rig, 1), (6, Response::FUNCTION_COMPLETE));
    rig.assert_nothing_left();
}

/// Goal: ABORT TASK does not wait for data, because initiators stop sending it. Late data is
/// discarded.
#[test]
fn abort_task_of_a_write() {
    let mut rig = Rig::normal("");
    let (_, ttt) = start_write(&mut rig, 0, 5);
    rig.send(1, abort_task(1, 6, 5, 0).encode(), &[]);
    assert_eq!(management_response(&mut rig, 1), (6, Response::FUNCTION_COMPLETE));
    rig.send(1, data_out(5, ttt, 0, 0, true).encode(), &[1; 1000]);
    assert!(rig.sent(1).is_empty());
    rig.assert_nothing_left();
}

/// Goal: the three responses of RFC 7143 §11.6.1 for a task that does not exist are sent.
#[test]
fn abort_task_of_unknown_tasks() {
    let mut rig = Rig::normal("");
    rig.send(1, read(0, 5, 512).encode(), &[]);
    let task = rig.started(1).id;
    rig.good(1, task);
    rig.sent(1);
    rig.send(1, abort_task(1, 6, 5, 0).encode(), &[]);
    assert_eq!(
        management_response(&mut rig, 1).1,
        Response::TASK_DOES_NOT_EXIST,
        "the command has its response"
    );
    rig.send(1, abort_task(2, 6, 5, 0x1000_0000).encode(), &[]);
    assert_eq!(
        management_response(&mut rig, 1).1,
        Response::TASK_DOES_NOT_EXIST,
        "outside the window"
    );
    // The command with CmdSN 1 has not arrived: it counts as received from now on.
    rig.send(1, read(2, 8, 0).encode(), &[]);
    assert!(rig.link(1).started.is_empty());
    rig.send(1, abort_task(3, 6, 7, 1).encode(), &[]);
    assert_eq!(management_response(&mut rig, 1).1, Response::FUNCTION_COMPLETE);
    let task = rig.started(1).id;
    rig.send(1, read(1, 7, 512).encode(), &[]);
    assert!(rig.link(1).started.is_empty(), "the command arrived after its abort");
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).exp_cmd_sn, cmd_sn(3));
    rig.assert_nothing_left();
}

/// Goal: a command aborted before its delivery never starts, and its number stays received.
#[test]
fn abort_task_before_delivery() {
    let mut rig = Rig::normal("");
    rig.send(1, write(1, 5, 512).encode(), &[1; 512]);
    rig.send(1, abort_task(2, 6, 5, 1).encode(), &[]);
    assert_eq!(management_response(&mut rig, 1).1, Response::FUNCTION_COMPLETE);
    rig.send(1, read(0, 7, 0).encode(), &[]);
    let task = rig.started(1).id;
    rig.good(1, task);
    let response = ScsiResponse::decode(&rig.sent_one(1).bhs);
    assert_eq!(response.exp_cmd_sn, cmd_sn(2));
    assert_eq!(rig.session.as_ref().unwrap().window(), (cmd_sn(2), cmd_sn(129)));
    rig.assert_nothing_left();
}

/// Goal: functions are refused for tasks of another connection or of task management, for the wrong
/// unit, for another level, or if unknown.
#[test]
fn refused_functions() {
    let mut rig = Rig::normal("MaxConnections=2");
    rig.login(2, "MaxConnections=2");
    rig.aborts_at_once = false;
    rig.send(1, read(0, 5, 0).encode(), &[]);
    let task = rig.started(1).id;
    rig.send(2, abort_task(1, 6, 5, 0).encode(), &[]);
    assert_eq!(management_response(&mut rig, 2), (6, Response::FUNCTION_REJECTED));
    let other_unit = TaskManagementRequest { lun: Lun::new(3), ..abort_task(1, 7, 5, 0) };
    rig.send(1, other_unit.encode(), &[]);
    assert_eq!(management_response(&mut rig, 1), (7, Response::TASK_DOES_NOT_EXIST));
    rig.send(1, abort_task(1, 8, 5, 0).encode(), &[]);
    rig.send(1, abort_task(1, 9, 8, 1).encode(), &[]);
    assert_eq!(
        management_response(&mut rig, 1),
        (9, Response::FUNCTION_REJECTED),
        "the tag of a task management request"
    );
    let reassign = TaskManagementRequest {
        referenced_task_tag: 5,
        ..management(1, 10, Function::TASK_REASSIGN)
    };
    rig.send(1, reassign.encode(), &[]);
    assert_eq!(management_response(&mut rig, 1), (10, Response::REASSIGNMENT_NOT_SUPPORTED));
    rig.send(1, management(1, 11, Function(9)).encode(), &[]);
    assert_eq!(management_response(&mut rig, 1), (11, Response::FUNCTION_NOT_SUPPORTED));
    rig.good(1, task);
    assert_eq!(management_response(&mut rig, 1), (8, Response::FUNCTION_COMPLETE));
    assert!(rig.managed.is_empty());
    rig.assert_nothing_left();
}

/// Goal: LOGICAL UNIT RESET aborts the tasks of its unit, waits for requested data, has the
/// executor reset the unit, and only then lets later commands start. RFC 7143 §4.2.3.3.
#[test]
fn logical_unit_reset() {
    let mut rig = Rig::normal("");
    let (write_task, ttt) = start_write(&mut rig, 0, 5);
    let mut elsewhere = read(1, 6, 0);
    elsewhere.lun = Lun::new(2);
    rig.send(1, elsewhere.encode(), &[]);
    let other = rig.started(1).id;
    rig.send(1, not_immediate(management(2, 7, Function::LOGICAL_UNIT_RESET)).encode(), &[]);
    rig.send(1, read(3, 8, 0).encode(), &[]);
    assert_eq!(rig.link(1).aborts, [write_task]);
    assert!(rig.managed.is_empty(), "the requested data has not arrived");
    assert!(rig.link(1).started.is_empty(), "the command follows the reset");
    rig.send(1, data_out(5, ttt, 0, 0, true).encode(), &[1; 1000]);
    let (id, function, lun) = rig.managed.pop().unwrap();
    assert_eq!((function, lun), (Function::LOGICAL_UNIT_RESET, Lun::new(1)));
    assert!(rig.sent(1).is_empty());
    rig.managed(id);
    assert_eq!(management_response(&mut rig, 1), (7, Response::FUNCTION_COMPLETE));
    let task = rig.started(1).id;
    rig.good(1, task);
    rig.good(1, other);
    assert_eq!(rig.sent(1).len(), 2);
    assert_eq!(rig.session.as_ref().unwrap().window().1, cmd_sn(131));
    rig.assert_nothing_left();
}

/// Goal: an initiator that stops sending data after a reset does not delay it forever.
#[test]
fn missing_data_delays_a_reset_briefly() {
    let mut rig = Rig::normal("");
    start_write(&mut rig, 0, 5);
    rig.send(1, management(1, 7, Function::ABORT_TASK_SET).encode(), &[]);
    assert!(rig.managed.is_empty());
    rig.wait(Duration::from_secs(3));
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    assert_eq!(management_response(&mut rig, 1), (7, Response::FUNCTION_COMPLETE));
    rig.assert_nothing_left();
}

/// Goal: an immediate function that overtook commands waits for them; a target reset does not, and
/// they count as received. RFC 7143 §4.2.3.3 b).
#[test]
fn overtaken_commands() {
    let mut rig = Rig::normal("");
    rig.send(1, management(2, 7, Function::CLEAR_TASK_SET).encode(), &[]);
    assert!(rig.managed.is_empty());
    rig.send(1, read(0, 5, 0).encode(), &[]);
    let task = rig.started(1).id;
    rig.send(1, read(1, 6, 0).encode(), &[]);
    assert_eq!(rig.link(1).aborts[0], task);
    assert_eq!(rig.link(1).aborts.len(), rig.link(1).started.len() + 1);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    assert_eq!(management_response(&mut rig, 1), (7, Response::FUNCTION_COMPLETE));
    rig.link(1).started.clear();

    rig.send(1, management(5, 8, Function::TARGET_WARM_RESET).encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    let pdu = rig.sent_one(1);
    assert_eq!(TaskManagementResponse::decode(&pdu.bhs).exp_cmd_sn, cmd_sn(5));
    rig.send(1, read(3, 9, 0).encode(), &[]);
    assert!(rig.link(1).started.is_empty());
    // A number that cannot be reached yet neither waits nor fills the window forever.
    rig.send(1, management(0x2000_0000, 9, Function::LOGICAL_UNIT_RESET).encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    assert_eq!(management_response(&mut rig, 1), (9, Response::FUNCTION_COMPLETE));
    rig.assert_nothing_left();
}

/// Goal: functions that wait for commands end with their connection; otherwise a session would keep
/// those of all connections it ever had. Functions from other connections are carried out.
#[test]
fn waiting_functions_end_with_their_connection() {
    let keys = "MaxConnections=2";
    let mut rig = Rig::normal(keys);
    rig.login(2, keys);
    for tag in [7, 8] {
        rig.send(2, management(1, tag, Function::LOGICAL_UNIT_RESET).encode(), &[]);
    }
    rig.send(1, management(1, 9, Function::ABORT_TASK_SET).encode(), &[]);
    rig.input(2, Input::PeerClosed);
    assert!(rig.managed.is_empty(), "command 0 has not arrived");
    rig.send(1, read(0, 5, 0).encode(), &[]);
    let functions: alloc::vec::Vec<_> =
        rig.managed.iter().map(|(_, function, _)| *function).collect();
    assert_eq!(functions, [Function::ABORT_TASK_SET]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    assert!(rig.managed.is_empty());
    assert_eq!(management_response(&mut rig, 1), (9, Response::FUNCTION_COMPLETE));
    rig.assert_nothing_left();
}

/// Goal: with several connections, a reset is answered only after all earlier responses are
/// acknowledged on all of them, and no response overtakes it. RFC 7143 §4.2.2.3.3.
#[test]
fn responses_are_fenced() {
    let keys = "MaxConnections=2 TaskReporting=ResponseFence";
    let mut rig = Rig::normal(keys);
    rig.login(2, keys);
    rig.send(2, read(0, 5, 0).encode(), &[]);
    let task = rig.started(2).id;
    rig.good(2, task);
    let response = ScsiResponse::decode(&rig.sent_one(2).bhs);
    let mut later = read(1, 6, 0);
    later.lun = Lun::new(2);
    rig.send(2, later.encode(), &[]);
    let task = rig.started(2).id;
    rig.send(1, management(2, 7, Function::LOGICAL_UNIT_RESET).encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    assert!(rig.sent(1).is_empty(), "a response of connection 2 is unacknowledged");
    let ping = NopIn::decode(&rig.sent_one(2).bhs);
    assert_ne!(ping.target_transfer_tag, TAG_RESERVED);
    rig.good(2, task);
    assert!(rig.sent(2).is_empty(), "held behind the fence");
    rig.send(2, pong(2, ping.target_transfer_tag, response.stat_sn.next()).encode(), &[]);
    let sent = rig.sent(1);
    let answer = TaskManagementResponse::decode(&sent[0].bhs);
    assert_eq!(answer.response, Response::FUNCTION_COMPLETE);
    let ping = NopIn::decode(&sent[1].bhs);
    assert!(rig.sent(2).is_empty(), "the answer is not acknowledged");
    rig.send(1, pong(2, ping.target_transfer_tag, answer.stat_sn.next()).encode(), &[]);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(2).bhs).initiator_task_tag, 6);
    rig.assert_nothing_left();
}

/// Goal: a fence does not wait for a connection that has ended, and a connection that does not
/// answer the ping is closed after its time limit.
#[test]
fn a_fence_ignores_ended_connections() {
    let keys = "MaxConnections=3 TaskReporting=ResponseFence";
    let mut rig = Rig::normal(keys);
    rig.login(2, keys);
    rig.login(3, keys);
    for (number, cid) in [(0, 2), (1, 3)] {
        rig.send(cid, read(number, 5, 0).encode(), &[]);
        let task = rig.started(cid).id;
        rig.good(cid, task);
    }
    rig.send(1, management(2, 7, Function::ABORT_TASK_SET).encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    assert!(rig.sent(1).is_empty());
    rig.input(2, Input::PeerClosed);
    assert!(rig.sent(1).is_empty());
    for _ in 0..6 {
        rig.wait(Duration::from_secs(10));
        // This connection is alive.
        let exp_stat_sn = SerialNumber(0);
        rig.send(1, pong(2, TAG_RESERVED, exp_stat_sn).encode(), &[]);
    }
    assert!(rig.link(3).closed.is_some() && rig.link(1).closed.is_none());
    let sent = rig.sent(1);
    let answers = sent.iter().filter(|p| p.opcode() == Opcode::TASK_MANAGEMENT_RESPONSE);
    assert_eq!(answers.count(), 1);
    rig.assert_nothing_left();
}

/// Goal: a reset by another initiator aborts exactly this session's tasks on that unit.
#[test]
fn aborted_by_another_session() {
    let mut rig = Rig::normal("");
    rig.aborts_at_once = false;
    let (task, _) = start_write(&mut rig, 0, 5);
    let mut elsewhere = read(1, 6, 0);
    elsewhere.lun = Lun::new(2);
    rig.send(1, elsewhere.encode(), &[]);
    let other = rig.started(1).id;
    rig.at_session(session::Input::AbortedByOther {
        id: 44,
        lun: Some(Lun([0x40, 1, 0, 0, 0, 0, 0, 0])),
    });
    assert_eq!(rig.link(1).aborts, [task]);
    assert!(rig.others_aborted.is_empty());
    rig.good(1, task);
    assert_eq!(rig.others_aborted, [(44, 1)]);
    assert!(rig.sent(1).is_empty(), "an aborted task gets no response");
    rig.at_session(session::Input::AbortedByOther { id: 45, lun: Some(Lun::new(9)) });
    assert_eq!(rig.others_aborted[1..], [(45, 0)]);
    rig.good(1, other);
    rig.assert_nothing_left();
}
