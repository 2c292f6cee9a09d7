//! TaskReporting=FastAbort at the target. RFC 7143 §4.2.3.4, §4.2.3.5, §11.9.1.

use super::super::{Input, Outcome};
use super::requests::*;
use super::rig::Rig;
use crate::framing::{Pdu, TaskId};
use crate::pdu::{
    AsyncEvent, AsyncMessage, DataOut, FirstByte, ManagementFunction as Function,
    ManagementResponse as Response, NopIn, NopOut, Opcode, ReadyToTransfer, ScsiCommand,
    ScsiResponse, TAG_RESERVED, TaskManagementResponse,
};
use crate::session::target as session;
use alloc::vec::Vec;
use lunar_wire::Lun;

const FAST: &str = "TaskReporting=FastAbort MaxConnections=3";

fn fast(connections: u16) -> Rig {
    let mut rig = Rig::normal(FAST);
    for cid in 2..=connections {
        rig.login(cid, FAST);
    }
    rig
}

/// Starts a write of 1000 bytes on this connection up to its R2T; returns the task and the R2T's
/// tag.
fn asked(rig: &mut Rig, cid: u16, number: u32, tag: u32) -> (TaskId, u32) {
    rig.send(cid, write(number, tag, 1000).encode(), &[]);
    let task = rig.started(cid).id;
    rig.wants(cid, task, 1000);
    (task, ReadyToTransfer::decode(&rig.sent_one(cid).bhs).target_transfer_tag)
}

/// Returns the only Asynchronous Message among these PDUs.
fn terminated(sent: &[Pdu]) -> AsyncMessage {
    let mut messages = sent.iter().filter(|pdu| pdu.opcode() == Opcode::ASYNC_MESSAGE);
    let message = AsyncMessage::decode(&messages.next().expect("a message").bhs);
    assert!(messages.next().is_none(), "one message for each unit");
    assert_eq!(message.event, AsyncEvent::TASKS_TERMINATED);
    assert_eq!(message.initiator_task_tag, TAG_RESERVED);
    message
}

/// Builds the acknowledgement of an initiator for the message.
fn acknowledgement(number: u32, message: &AsyncMessage) -> NopOut {
    NopOut { lun: message.lun, ..pong(number, TAG_RESERVED, message.stat_sn.next()) }
}

fn answer(pdu: &Pdu) -> (u32, Response) {
    assert_eq!(pdu.opcode(), Opcode::TASK_MANAGEMENT_RESPONSE);
    let answer = TaskManagementResponse::decode(&pdu.bhs);
    (answer.initiator_task_tag, answer.response)
}

/// Goal: on one connection nothing is awaited and no message is sent; requested data would be
/// discarded.
#[test]
fn one_connection_needs_no_acknowledgement() {
    let mut rig = fast(1);
    let (task, ttt) = asked(&mut rig, 1, 0, 5);
    rig.send(1, management(1, 7, Function::ABORT_TASK_SET).encode(), &[]);
    assert_eq!(rig.link(1).aborts, [task]);
    let (id, ..) = rig.managed.pop().expect("at once");
    rig.managed(id);
    assert_eq!(answer(&rig.sent_one(1)), (7, Response::FUNCTION_COMPLETE));
    rig.send(1, data_out(5, ttt, 0, 0, true).encode(), &[1; 1000]);
    assert!(rig.sent(1).is_empty());
    rig.assert_nothing_left();
}

/// Goal: the other connections receive one message per unit, after the executor has finished and
/// before the response, which waits for the acknowledgement.
#[test]
fn other_connections_are_informed() {
    let mut rig = fast(3);
    asked(&mut rig, 1, 0, 4);
    let (_, ttt) = asked(&mut rig, 2, 1, 5);
    asked(&mut rig, 2, 2, 6);
    rig.send(1, management(3, 7, Function::LOGICAL_UNIT_RESET).encode(), &[]);
    let (id, ..) = rig.managed.pop().expect("no data is waited for");
    assert!(rig.sent(2).is_empty(), "the unit is not reset yet");
    rig.managed(id);
    let sent = rig.sent(2);
    let message = terminated(&sent);
    assert_eq!((message.lun, message.exp_cmd_sn), (Lun::new(1), cmd_sn(3)));
    assert!(rig.sent(3).is_empty(), "it has no task there");
    assert!(rig.sent(1).is_empty(), "the message is not acknowledged");
    // Data for the old command does not affect a new command with the same Initiator Task Tag.
    rig.send(2, read(3, 5, 0).encode(), &[]);
    rig.send(2, data_out(5, ttt, 0, 0, true).encode(), &[1; 1000]);
    assert!(rig.sent(2).is_empty(), "discarded without a word");
    rig.send(2, acknowledgement(4, &message).encode(), &[]);
    let sent = rig.sent(1);
    assert_eq!(answer(&sent[0]), (7, Response::FUNCTION_COMPLETE));
    let ping = NopIn::decode(&sent[1].bhs);
    rig.send(1, pong(4, ping.target_transfer_tag, ping.stat_sn).encode(), &[]);
    let task = rig.started(2).id;
    rig.good(2, task);
    let response = ScsiResponse::decode(&rig.sent_one(2).bhs);
    assert_eq!((response.initiator_task_tag, response.status), (5, 0));
    rig.assert_nothing_left();
}

/// Goal: the acknowledgement frees a tag: data for it afterwards belongs to no task, or is an error
/// of the command whose Initiator Task Tag it carries.
#[test]
fn tags_are_freed_by_the_acknowledgement() {
    let mut rig = fast(2);
    let (_, ttt) = asked(&mut rig, 2, 0, 5);
    rig.send(1, management(1, 7, Function::CLEAR_TASK_SET).encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    let message = terminated(&rig.sent(2));
    rig.send(2, acknowledgement(1, &message).encode(), &[]);
    let ping = NopIn::decode(&rig.sent(1)[1].bhs);
    rig.send(1, pong(1, ping.target_transfer_tag, ping.stat_sn).encode(), &[]);
    rig.send(2, write(1, 5, 1000).encode(), &[]);
    let task = rig.started(2).id;
    rig.wants(2, task, 1000);
    rig.sent(2);
    rig.send(2, data_out(5, ttt, 0, 0, true).encode(), &[1; 1000]);
    assert_eq!(rig.sent(2)[0].opcode(), Opcode::REJECT);
}

/// Goal: a reset of all units sends one message per unit on each affected connection.
#[test]
fn each_unit_has_its_message() {
    let mut rig = fast(2);
    for (number, unit) in [(0, 1), (1, 2), (2, 1)] {
        let mut command = read(number, 10 + number, 0);
        command.lun = Lun::new(unit);
        rig.send(2, command.encode(), &[]);
    }
    rig.send(1, management(3, 7, Function::TARGET_WARM_RESET).encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    let sent = rig.sent(2);
    let messages = sent.iter().filter(|pdu| pdu.opcode() == Opcode::ASYNC_MESSAGE);
    let units: Vec<Lun> = messages.map(|pdu| AsyncMessage::decode(&pdu.bhs).lun).collect();
    assert_eq!(units, [Lun::new(1), Lun::new(2)]);
}

/// Goal: a function of another session is reported on every connection that lost tasks, also if
/// there is only one; sessions that did not negotiate this receive no message. RFC 7143 §4.2.3.5.
#[test]
fn third_parties_are_informed() {
    let other = session::Input::AbortedByOther { id: 44, lun: Some(Lun::new(1)) };
    let mut rig = fast(1);
    rig.aborts_at_once = false;
    let (task, ttt) = asked(&mut rig, 1, 0, 5);
    rig.at_session(other.clone());
    assert!(rig.sent(1).is_empty() && rig.others_aborted.is_empty(), "the task still runs");
    rig.send(1, read(1, 6, 0).encode(), &[]);
    rig.good(1, task);
    let message = terminated(&rig.sent(1));
    // The message ends all active tasks of the unit, and shows that command 1 has arrived.
    assert_eq!((message.lun, message.exp_cmd_sn), (Lun::new(1), cmd_sn(2)));
    assert!(rig.link(1).started.is_empty(), "so that one ends as well");
    assert_eq!(rig.others_aborted, [(44, 2)]);
    rig.send(1, read(2, 8, 0).encode(), &[]);
    let later = rig.started(1).id;
    rig.send(1, data_out(5, ttt, 0, 0, true).encode(), &[1; 1000]);
    rig.send(1, acknowledgement(3, &message).encode(), &[]);
    rig.good(1, later);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).initiator_task_tag, 8);
    rig.assert_nothing_left();

    let mut rig = Rig::normal("TaskReporting=ResponseFence");
    asked(&mut rig, 1, 0, 5);
    rig.at_session(other);
    assert!(rig.sent(1).is_empty());
    assert_eq!(rig.others_aborted, [(44, 1)]);
    rig.assert_nothing_left();
}

/// Fault: a command that arrived before the one with the number ahead of it, on another connection,
/// was terminated by a message whose ExpCmdSN did not cover it: its initiator waited without end.
#[test]
fn the_message_covers_all_commands_that_it_terminates() {
    let other = session::Input::AbortedByOther { id: 44, lun: Some(Lun::new(1)) };
    let mut rig = fast(2);
    rig.aborts_at_once = false;
    rig.send(1, read(0, 5, 0).encode(), &[]);
    let first = rig.started(1).id;
    rig.at_session(other);
    rig.send(2, read(2, 7, 0).encode(), &[]);
    rig.send(1, read(1, 6, 0).encode(), &[]);
    rig.good(1, first);
    assert_eq!(rig.others_aborted, [(44, 3)]);
    for cid in [1, 2] {
        let message = terminated(&rig.sent(cid));
        assert_eq!((message.lun, message.exp_cmd_sn), (Lun::new(1), cmd_sn(3)), "{cid}");
        rig.send(cid, acknowledgement(3, &message).encode(), &[]);
    }
    rig.assert_nothing_left();
}

/// Goal: an initiator that keeps sending immediate commands does not delay the reset of another:
/// those that arrive during the reset do not begin, and are reported as terminated.
#[test]
fn immediate_commands_do_not_hold_up_a_reset() {
    let mut rig = fast(1);
    rig.aborts_at_once = false;
    let send = |rig: &mut Rig, tag| {
        let command =
            ScsiCommand { first: FirstByte::immediate(Opcode::SCSI_COMMAND), ..read(0, tag, 0) };
        rig.send(1, command.encode(), &[]);
    };
    send(&mut rig, 5);
    let first = rig.started(1).id;
    rig.at_session(session::Input::AbortedByOther { id: 44, lun: Some(Lun::new(1)) });
    (6..16).for_each(|tag| send(&mut rig, tag));
    assert!(rig.link(1).started.is_empty() && rig.others_aborted.is_empty());
    rig.good(1, first);
    assert_eq!(rig.others_aborted, [(44, 11)]);
    let message = terminated(&rig.sent(1));
    rig.send(1, acknowledgement(0, &message).encode(), &[]);
    send(&mut rig, 6);
    let later = rig.started(1).id;
    rig.good(1, later);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).initiator_task_tag, 6);
    rig.assert_nothing_left();
}

fn attention() -> Outcome {
    Outcome { status: 2, fenced: true, ..Outcome::default() }
}

/// Acknowledges everything on a connection by answering its latest NOP-In ping.
fn answer_ping(rig: &mut Rig, cid: u16, number: u32, sent: &[Pdu]) {
    let ping = sent.iter().rfind(|pdu| pdu.opcode() == Opcode::NOP_IN).expect("a ping");
    let ping = NopIn::decode(&ping.bhs);
    rig.send(cid, pong(number, ping.target_transfer_tag, ping.stat_sn).encode(), &[]);
}

/// Goal: a unit attention, which may report aborted tasks, does not overtake earlier responses on
/// other connections, and later ones do not overtake it. RFC 7143 §4.2.2.3.3, §4.2.2.3.4 a).
#[test]
fn unit_attentions_are_fenced() {
    for (reporting, fences) in [("FastAbort", true), ("ResponseFence", true), ("RFC3720", false)] {
        let keys = alloc::format!("TaskReporting={reporting} MaxConnections=2");
        let mut rig = Rig::normal(&keys);
        rig.login(2, &keys);
        let mut tasks = Vec::new();
        for (number, cid) in [(0, 1), (1, 2), (2, 2), (3, 1)] {
            rig.send(cid, read(number, 5 + number, 0).encode(), &[]);
            tasks.push(rig.started(cid).id);
        }
        rig.good(1, tasks[0]);
        assert_eq!(rig.sent(1).len(), 1);
        rig.done(2, tasks[1], attention());
        rig.good(2, tasks[2]);
        rig.done(1, tasks[3], attention());
        if !fences {
            assert_eq!((rig.sent(1).len(), rig.sent(2).len()), (1, 2));
            rig.assert_nothing_left();
            continue;
        }
        let ping = rig.sent(1);
        assert_eq!((ping.len(), rig.sent(2).len()), (1, 0), "{reporting}: the first is not there");
        answer_ping(&mut rig, 1, 4, &ping);
        let sent = rig.sent(2);
        assert_eq!(ScsiResponse::decode(&sent[0].bhs).initiator_task_tag, 6, "the attention");
        assert_eq!(sent.len(), 2, "and a ping; the other response is held");
        assert!(rig.sent(1).is_empty());
        answer_ping(&mut rig, 2, 4, &sent);
        // The held responses come first, then the next unit attention with its own fence.
        let sent = rig.sent(2);
        assert_eq!(ScsiResponse::decode(&sent[0].bhs).initiator_task_tag, 7);
        assert!(rig.sent(1).is_empty());
        answer_ping(&mut rig, 2, 4, &sent);
        let sent = rig.sent(1);
        assert_eq!(ScsiResponse::decode(&sent[0].bhs).initiator_task_tag, 8);
        answer_ping(&mut rig, 1, 4, &sent);
        rig.assert_nothing_left();
    }
}

/// Goal: a session of one connection needs no fence: the stream keeps the order.
#[test]
fn one_connection_needs_no_fence() {
    let mut rig = fast(1);
    for number in 0..2 {
        rig.send(1, read(number, 5 + number, 0).encode(), &[]);
        let task = rig.started(1).id;
        rig.done(1, task, attention());
        assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).initiator_task_tag, 5 + number);
    }
    rig.assert_nothing_left();
}

/// Goal: a fence ends when its task is aborted before its response was sent, and when its
/// connection ends; held responses are then sent.
#[test]
fn a_fence_ends_with_its_task() {
    for closes in [false, true] {
        let mut rig = fast(3);
        for (number, cid) in [(0, 1), (1, 2), (2, 3)] {
            rig.send(cid, read(number, 5 + number, 0).encode(), &[]);
        }
        let tasks = [1, 2, 3].map(|cid| rig.started(cid).id);
        rig.good(1, tasks[0]);
        rig.sent(1);
        rig.done(2, tasks[1], attention());
        rig.good(3, tasks[2]);
        assert!(rig.sent(3).is_empty() && rig.sent(2).is_empty(), "held");
        if closes {
            rig.input(2, Input::PeerClosed);
        } else {
            rig.send(2, abort_task(3, 20, 6, 1).encode(), &[]);
            assert_eq!(answer(&rig.sent_one(2)), (20, Response::FUNCTION_COMPLETE));
        }
        assert_eq!(ScsiResponse::decode(&rig.sent_one(3).bhs).initiator_task_tag, 7);
        rig.assert_nothing_left();
    }
}

/// Goal: a connection that ends while its response awaits acknowledgement ends its fence: responses
/// of the other connections continue.
#[test]
fn a_fence_ends_with_its_connection() {
    let mut rig = fast(2);
    rig.send(2, read(0, 5, 0).encode(), &[]);
    let task = rig.started(2).id;
    let mut reset = management(1, 7, Function::ABORT_TASK_SET);
    reset.lun = Lun::new(9);
    rig.send(1, reset.encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    assert_eq!(answer(&rig.sent(1)[0]), (7, Response::FUNCTION_COMPLETE));
    rig.good(2, task);
    assert!(rig.sent(2).is_empty(), "the answer is not acknowledged");
    rig.input(1, Input::PeerClosed);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(2).bhs).initiator_task_tag, 5);
    rig.assert_nothing_left();
}

/// Goal: data with a retired tag is discarded before any other check: not even its length does
/// harm, and a new task with that tag continues.
#[test]
fn retired_data_is_never_taken() {
    let mut rig = fast(2);
    let (_, ttt) = asked(&mut rig, 2, 0, 5);
    rig.send(1, management(1, 7, Function::CLEAR_TASK_SET).encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    rig.sent(2);
    for (data_sn, offset) in [(0, 0), (7, u32::MAX), (0, 512)] {
        let pdu = DataOut { lun: Lun::new(77), ..data_out(5, ttt, data_sn, offset, false) };
        rig.send(2, pdu.encode(), &[9; 100]);
        assert!(rig.sent(2).is_empty());
        let destination = rig.link(2).receives.pop();
        assert_eq!(destination, Some(crate::framing::DataDestination::Discard));
    }
}

/// Fault: the tags of terminated tasks were not counted as memory: sessions that acknowledged
/// nothing held three times the limit for all peers. And 4,096 tags per connection were kept, more
/// than it can ever have open at a time.
#[test]
fn retired_tags_count_as_memory() {
    const WRITES: u32 = 120;
    let keys = "TaskReporting=FastAbort MaxOutstandingR2T=8 MaxBurstLength=512";
    let mut rig = Rig::normal(keys);
    let (mut number, mut last) = (0, None);
    let mut memory = Vec::new();
    for id in 0..12 {
        for _ in 0..WRITES {
            rig.send(1, write(number, 5, 4096).encode(), &[]);
            let task = rig.started(1).id;
            rig.wants(1, task, 4096);
            assert_eq!(rig.sent(1).len(), 8, "R2Ts");
            number += 1;
            rig.at_session(session::Input::AbortedByOther { id, lun: Some(Lun::new(1)) });
            last = Some(terminated(&rig.sent(1)));
        }
        let machine = &mut rig.link(1).machine;
        machine.free_spare_memory();
        memory.push(machine.task_memory_bytes());
    }
    let tag_bytes = 12;
    assert!(memory[0] >= WRITES as usize * 8 * tag_bytes, "{memory:?}");
    assert_eq!(memory[11], memory[1], "memory for at most one window: {memory:?}");
    assert!(memory[11] < 64 << 10, "{memory:?}");
    rig.send(1, acknowledgement(number, &last.unwrap()).encode(), &[]);
    let after = rig.link(1).machine.task_memory_bytes();
    assert!(after < 4 << 10, "{after} bytes are left of {memory:?}");
    rig.assert_nothing_left();
}

/// Goal: the last of the requested data also frees a tag: an initiator that sends all of it needs
/// no further wait.
#[test]
fn tags_are_freed_by_the_last_of_their_data() {
    let mut rig = fast(2);
    let (_, ttt) = asked(&mut rig, 2, 0, 5);
    rig.send(1, management(1, 7, Function::CLEAR_TASK_SET).encode(), &[]);
    let (id, ..) = rig.managed.pop().unwrap();
    rig.managed(id);
    let message = terminated(&rig.sent(2));
    rig.send(2, data_out(5, ttt, 0, 0, false).encode(), &[1; 500]);
    rig.send(2, data_out(5, ttt, 1, 500, true).encode(), &[1; 500]);
    // The message was sent but not acknowledged: the acknowledgement would carry the unit's LUN.
    rig.send(2, pong(1, TAG_RESERVED, message.stat_sn.next()).encode(), &[]);
    let ping = NopIn::decode(&rig.sent(1)[1].bhs);
    rig.send(1, pong(1, ping.target_transfer_tag, ping.stat_sn).encode(), &[]);
    rig.send(2, write(1, 5, 1000).encode(), &[]);
    let task = rig.started(2).id;
    rig.wants(2, task, 1000);
    rig.sent(2);
    rig.send(2, data_out(5, ttt, 0, 0, true).encode(), &[1; 1000]);
    assert_eq!(rig.sent(2)[0].opcode(), Opcode::REJECT);
}
