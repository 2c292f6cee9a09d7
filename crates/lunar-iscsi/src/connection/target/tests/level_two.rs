//! iSCSIProtocolLevel 2 at the target, and its absence at level 1. RFC 7144.

use super::super::{CloseReason, Outcome};
use super::requests::*;
use super::rig::Rig;
use crate::pdu::{
    ManagementFunction as Function, ManagementResponse as Response, Opcode, ScsiCommand,
    ScsiResponse, TaskManagementRequest, TaskManagementResponse,
};
use lunar_wire::Lun;

const LEVEL_2: &str = "iSCSIProtocolLevel=2";

fn done(rig: &mut Rig, cid: u16) -> (u32, Response, [u8; 3]) {
    let pdu = rig.sent_one(cid);
    assert_eq!(pdu.opcode(), Opcode::TASK_MANAGEMENT_RESPONSE);
    let answer = TaskManagementResponse::decode(&pdu.bhs);
    (answer.initiator_task_tag, answer.response, answer.information)
}

/// Builds QUERY TASK of task `of` with the CmdSN of the `referenced_number`th command.
fn query_task(
    number: u32,
    tag: u32,
    referenced_tag: u32,
    referenced_number: u32,
) -> TaskManagementRequest {
    TaskManagementRequest {
        referenced_task_tag: referenced_tag,
        ref_cmd_sn: cmd_sn(referenced_number),
        ..management(number, tag, Function::QUERY_TASK)
    }
}

/// Answers the only open query as the executor: the unit exists.
fn unit_is_there(rig: &mut Rig) {
    let (id, ..) = rig.managed.pop().expect("an open query");
    rig.managed(id);
}

/// Goal: at level 1, negotiated or not, each function of level 2 is answered "function not
/// supported", the priority is ignored and the status qualifier is zero. RFC 7144 §5.1.1, §5.2.1.
#[test]
fn level_1_has_no_functions_of_rfc_7144() {
    for keys in ["", "iSCSIProtocolLevel=1", "iSCSIProtocolLevel=0"] {
        let mut rig = Rig::normal(keys);
        for (tag, function) in [(1, 9), (2, 10), (3, 11), (4, 12), (5, 13)] {
            rig.send(1, management(0, tag, Function(function)).encode(), &[]);
            assert_eq!(done(&mut rig, 1), (tag, Response::FUNCTION_NOT_SUPPORTED, [0; 3]));
        }
        assert!(rig.managed.is_empty() && !rig.ended);
        let command = ScsiCommand { priority: 0x70, ..read(0, 9, 0) };
        rig.send(1, command.encode(), &[]);
        let task = rig.started(1);
        assert_eq!(task.priority, 0);
        let outcome = Outcome { status: 8, status_qualifier: 1, ..Outcome::default() };
        rig.done(1, task.id, outcome);
        assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status_qualifier, 0);
        rig.assert_nothing_left();
    }
}

/// Goal: the priority is read from the four high bits of byte 2 (RFC 7144 §5.1), and the executor's
/// status qualifier is sent.
#[test]
fn priority_and_status_qualifier() {
    let mut rig = Rig::normal(LEVEL_2);
    let command = ScsiCommand { priority: 0x7f, ..read(0, 9, 0) };
    rig.send(1, command.encode(), &[]);
    let task = rig.started(1);
    assert_eq!(task.priority, 7);
    let outcome = Outcome { status: 8, status_qualifier: 0x4001, ..Outcome::default() };
    rig.done(1, task.id, outcome);
    let response = rig.sent_one(1);
    assert_eq!(response.bhs[8..12], [0x40, 1, 0, 0]);
    rig.assert_nothing_left();
}

/// Goal: TASK SET FULL carries the delay before a retry.
#[test]
fn task_set_full_carries_the_retry_delay() {
    let mut rig = Rig::new();
    rig.limits.tasks_max = 1;
    rig.login(1, LEVEL_2);
    rig.send(1, read(0, 1, 0).encode(), &[]);
    let task = rig.started(1).id;
    rig.send(1, read(1, 2, 0).encode(), &[]);
    let response = ScsiResponse::decode(&rig.sent_one(1).bhs);
    assert_eq!((response.status, response.status_qualifier), (0x28, 1));
    rig.good(1, task);
    rig.assert_nothing_left();
}

/// Goal: QUERY TASK is answered correctly for a running task, one that has ended, one of another
/// unit, and one of another connection or of task management. RFC 7144 §6.3, §6.4.2.
#[test]
fn query_task_finds_running_tasks() {
    let keys = "iSCSIProtocolLevel=2 MaxConnections=2";
    let mut rig = Rig::normal(keys);
    rig.login(2, keys);
    rig.send(1, read(0, 5, 0).encode(), &[]);
    let task = rig.started(1).id;
    rig.send(1, query_task(1, 6, 5, 0).encode(), &[]);
    let (id, function, lun) = rig.managed.pop().unwrap();
    assert_eq!((function, lun), (Function::QUERY_TASK, Lun::new(1)));
    rig.managed(id);
    assert_eq!(done(&mut rig, 1), (6, Response::FUNCTION_SUCCEEDED, [0; 3]));
    let of_unit_3 = TaskManagementRequest { lun: Lun::new(3), ..query_task(1, 7, 5, 0) };
    rig.send(1, of_unit_3.encode(), &[]);
    unit_is_there(&mut rig);
    assert_eq!(done(&mut rig, 1), (7, Response::FUNCTION_COMPLETE, [0; 3]));
    rig.send(1, of_unit_3.encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed_as(id, Response::LUN_DOES_NOT_EXIST, [0; 3]);
    assert_eq!(done(&mut rig, 1).1, Response::LUN_DOES_NOT_EXIST);
    rig.send(2, query_task(1, 8, 5, 0).encode(), &[]);
    unit_is_there(&mut rig);
    assert_eq!(done(&mut rig, 2), (8, Response::FUNCTION_REJECTED, [0; 3]));
    rig.send(1, query_task(1, 9, 9, 0).encode(), &[]);
    assert_eq!(done(&mut rig, 1), (9, Response::FUNCTION_REJECTED, [0; 3]), "itself");
    rig.aborts_at_once = false;
    rig.send(1, abort_task(1, 10, 5, 0).encode(), &[]);
    rig.send(1, query_task(1, 11, 10, 1).encode(), &[]);
    assert_eq!(done(&mut rig, 1), (11, Response::FUNCTION_REJECTED, [0; 3]), "an ABORT TASK");
    rig.send(1, query_task(1, 12, 5, 0).encode(), &[]);
    unit_is_there(&mut rig);
    let aborted = done(&mut rig, 1);
    assert_eq!(
        aborted,
        (12, Response::FUNCTION_SUCCEEDED, [0; 3]),
        "the task may still have an effect"
    );
    rig.good(1, task);
    assert_eq!(done(&mut rig, 1).1, Response::FUNCTION_COMPLETE);
    rig.send(1, query_task(1, 13, 5, 0).encode(), &[]);
    unit_is_there(&mut rig);
    assert_eq!(done(&mut rig, 1), (13, Response::FUNCTION_COMPLETE, [0; 3]));
    rig.assert_nothing_left();
}

/// Goal: the answer to QUERY TASK of a command that never arrived stays true, because its number
/// then counts as received. RFC 7144 §6.3.3.
#[test]
fn query_task_of_a_command_that_did_not_arrive() {
    let mut rig = Rig::normal(LEVEL_2);
    rig.send(1, read(1, 8, 0).encode(), &[]);
    assert!(rig.link(1).started.is_empty(), "the one before is missing");
    rig.send(1, query_task(2, 9, 7, 0).encode(), &[]);
    unit_is_there(&mut rig);
    let pdu = rig.sent(1).remove(0);
    let answer = TaskManagementResponse::decode(&pdu.bhs);
    assert_eq!((answer.response, answer.exp_cmd_sn), (Response::FUNCTION_COMPLETE, cmd_sn(2)));
    let task = rig.started(1).id;
    rig.send(1, read(0, 7, 0).encode(), &[]);
    assert!(rig.link(1).started.is_empty(), "too late");
    rig.good(1, task);
    rig.sent(1);
    rig.assert_nothing_left();
}

/// Goal: QUERY TASK SET counts the session's commands on the unit, over all connections; an
/// immediate query waits for the arrival of commands that it overtook, but not for the end of
/// others.
#[test]
fn query_task_set() {
    let keys = "iSCSIProtocolLevel=2 MaxConnections=2";
    let mut rig = Rig::normal(keys);
    rig.login(2, keys);
    let query = |number, tag| management(number, tag, Function::QUERY_TASK_SET).encode();
    rig.send(1, query(0, 5), &[]);
    unit_is_there(&mut rig);
    assert_eq!(done(&mut rig, 1), (5, Response::FUNCTION_COMPLETE, [0; 3]));
    rig.send(2, read(0, 6, 0).encode(), &[]);
    let task = rig.started(2).id;
    rig.send(1, query(1, 5), &[]);
    unit_is_there(&mut rig);
    assert_eq!(done(&mut rig, 1), (5, Response::FUNCTION_SUCCEEDED, [0; 3]));
    let of_unit_3 =
        TaskManagementRequest { lun: Lun::new(3), ..management(1, 5, Function::QUERY_TASK_SET) };
    rig.send(1, of_unit_3.encode(), &[]);
    unit_is_there(&mut rig);
    assert_eq!(done(&mut rig, 1), (5, Response::FUNCTION_COMPLETE, [0; 3]));
    rig.good(2, task);
    rig.sent(2);
    rig.send(1, query(2, 7), &[]);
    unit_is_there(&mut rig);
    assert!(rig.sent(1).is_empty(), "an earlier command has not arrived");
    rig.send(2, read(1, 8, 0).encode(), &[]);
    assert_eq!(done(&mut rig, 1), (7, Response::FUNCTION_SUCCEEDED, [0; 3]));
    let task = rig.started(2).id;
    rig.good(2, task);
    // A query that waits is forgotten with its connection.
    rig.send(1, query(4, 9), &[]);
    unit_is_there(&mut rig);
    assert!(rig.sent(1).is_empty());
    rig.input(1, super::super::Input::PeerClosed);
    rig.send(2, read(2, 8, 0).encode(), &[]);
    let task = rig.started(2).id;
    rig.good(2, task);
    rig.assert_nothing_left();
}

/// Goal: QUERY ASYNCHRONOUS EVENT returns the executor's answer, depending on the session's level.
#[test]
fn query_asynchronous_event() {
    let mut rig = Rig::normal(LEVEL_2);
    let query = management(0, 5, Function::QUERY_ASYNCHRONOUS_EVENT).encode();
    rig.send(1, query, &[]);
    let (id, function, lun) = rig.managed.pop().unwrap();
    assert_eq!((function, lun), (Function::QUERY_ASYNCHRONOUS_EVENT, Lun::new(1)));
    rig.managed_as(id, Response::FUNCTION_SUCCEEDED, [0x16, 0x29, 7]);
    let pdu = rig.sent_one(1);
    assert_eq!((pdu.bhs[2], &pdu.bhs[8..12]), (7, &[0x16, 0x29, 7, 0][..]));
    rig.assert_nothing_left();
}

/// Goal: I_T NEXUS RESET ends all tasks of the session on every unit, is answered, and then every
/// connection closes. RFC 7144 §6.3.
#[test]
fn i_t_nexus_reset() {
    let keys = "iSCSIProtocolLevel=2 MaxConnections=2 TaskReporting=RFC3720";
    let mut rig = Rig::normal(keys);
    rig.login(2, keys);
    rig.send(1, read(0, 5, 0).encode(), &[]);
    let elsewhere = ScsiCommand { lun: Lun::new(9), ..read(1, 6, 0) };
    rig.send(2, elsewhere.encode(), &[]);
    // The reset does not wait for a command that did not arrive.
    let reset =
        TaskManagementRequest { lun: Lun::ZERO, ..management(3, 7, Function::I_T_NEXUS_RESET) };
    rig.send(1, reset.encode(), &[]);
    assert_eq!((rig.link(1).aborts.len(), rig.link(2).aborts.len()), (1, 1));
    let (id, function, _) = rig.managed.pop().unwrap();
    assert_eq!(function, Function::I_T_NEXUS_RESET);
    assert!(!rig.ended);
    rig.managed(id);
    assert_eq!(done(&mut rig, 1), (7, Response::FUNCTION_COMPLETE, [0; 3]));
    assert!(rig.ended);
    for cid in [1, 2] {
        assert_eq!(rig.link(cid).closed, Some(CloseReason::Dropped));
    }
    rig.assert_nothing_left();
}

/// Goal: TARGET COLD RESET is answered before its session ends, also if the response has to wait
/// for acknowledgements. RFC 7143 §11.6.1.
#[test]
fn target_cold_reset_is_answered() {
    let keys = "MaxConnections=2 TaskReporting=ResponseFence";
    let mut rig = Rig::normal(keys);
    rig.login(2, keys);
    rig.send(2, read(0, 5, 0).encode(), &[]);
    let task = rig.started(2).id;
    rig.good(2, task);
    let response = ScsiResponse::decode(&rig.sent_one(2).bhs);
    rig.send(1, management(1, 7, Function::TARGET_COLD_RESET).encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    assert!(rig.sent(1).is_empty() && !rig.ended);
    let ping = crate::pdu::NopIn::decode(&rig.sent_one(2).bhs);
    rig.send(2, pong(1, ping.target_transfer_tag, response.stat_sn.next()).encode(), &[]);
    assert_eq!(done(&mut rig, 1), (7, Response::FUNCTION_COMPLETE, [0; 3]));
    assert!(rig.ended);
    rig.assert_nothing_left();
}
