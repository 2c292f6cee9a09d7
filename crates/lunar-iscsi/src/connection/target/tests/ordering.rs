//! CmdSN, the window, immediate requests, several connections. RFC 7143 §4.2.2.1.

use super::requests::*;
use super::rig::Rig;
use crate::connection::target::{ConnectionLimits, Input, Output};
use crate::framing::{DataDestination, Header};
use crate::pdu::{
    FirstByte, LogoutReason, ManagementFunction, NopIn, NopOut, Opcode, ReadyToTransfer, Reject,
    RejectReason, ScsiCommand, ScsiResponse, TAG_RESERVED,
};
use crate::session::target::{Arrival, DataDue, SessionLimits, ToConnection, ToSession};
use alloc::vec::Vec;
use lunar_wire::{SerialNumber, Time};

fn immediate(pdu: ScsiCommand) -> ScsiCommand {
    ScsiCommand { first: FirstByte::immediate(Opcode::SCSI_COMMAND), ..pdu }
}

fn windowed(window_commands: u32) -> Rig {
    let mut rig = Rig::new();
    rig.session_limits = SessionLimits { window_commands };
    rig.login(1, "MaxConnections=4");
    rig
}

/// Goal: requests outside the window or with an old CmdSN are ignored with their data, without a
/// response, and the connection stays usable. Method: libiscsi's CmdSN tests, and a duplicate of
/// each kind.
#[test]
fn outside_the_window_is_ignored() {
    let mut rig = windowed(4);
    for number in [4, 5, 1 << 30, u32::MAX, u32::MAX - 5, 1 << 31] {
        rig.send(1, write(number, 50, 512).encode(), &[1; 512]);
        rig.send(1, nop_out(number, 51).encode(), &[2; 8]);
        assert!(rig.sent(1).is_empty(), "{number}");
        assert!(rig.link(1).buffers.is_empty(), "{number}");
    }
    rig.send(1, read(0, 5, 512).encode(), &[]);
    let task = rig.started(1).id;
    rig.send(1, read(0, 5, 512).encode(), &[]);
    rig.send(1, read(0, 6, 512).encode(), &[]);
    rig.send(1, read(2, 7, 512).encode(), &[]);
    rig.send(1, read(2, 8, 512).encode(), &[]);
    assert!(rig.sent(1).is_empty() && rig.link(1).started.is_empty());
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).exp_cmd_sn, cmd_sn(1));
    rig.send(1, read(1, 9, 512).encode(), &[]);
    let tags: Vec<_> = core::mem::take(&mut rig.link(1).started).iter().map(|t| t.id).collect();
    assert_eq!(tags.len(), 2, "the gap is filled, the duplicate was dropped");
    tags.into_iter().for_each(|task| rig.good(1, task));
    rig.assert_nothing_left();
}

/// Goal: commands start in CmdSN order across connections.
#[test]
fn order_across_connections() {
    let mut rig = windowed(16);
    rig.login(2, "MaxConnections=4");
    rig.login(3, "MaxConnections=4");
    for (number, cid) in [(3, 2), (1, 3), (4, 1), (2, 2)] {
        rig.send(cid, read(number, 40 + number, 512).encode(), &[]);
        assert!(rig.links.values().all(|link| link.started.is_empty()));
    }
    rig.send(1, read(0, 40, 512).encode(), &[]);
    let mut tasks = Vec::new();
    for (cid, expected) in [(1, 2), (2, 2), (3, 1)] {
        let started = core::mem::take(&mut rig.link(cid).started);
        assert_eq!(started.len(), expected);
        tasks.extend(started.into_iter().map(|task| (cid, task.id)));
    }
    for (cid, task) in tasks {
        rig.good(cid, task);
        assert_eq!(ScsiResponse::decode(&rig.sent_one(cid).bhs).exp_cmd_sn, cmd_sn(5));
    }
    rig.assert_nothing_left();
}

/// Goal: a full window is closed, opens with each response, and never moves back.
#[test]
fn window_closes_and_opens() {
    let mut rig = windowed(4);
    (0..4).for_each(|number| rig.send(1, read(number, number, 0).encode(), &[]));
    let started = core::mem::take(&mut rig.link(1).started);
    assert_eq!(started.len(), 4);
    assert_eq!(rig.session.as_ref().unwrap().window(), (cmd_sn(4), cmd_sn(3)));
    rig.send(1, read(4, 4, 0).encode(), &[]);
    assert!(rig.link(1).started.is_empty(), "the window is closed");
    let mut last = cmd_sn(3);
    for task in started {
        rig.good(1, task.id);
        for pdu in rig.sent(1) {
            let response = ScsiResponse::decode(&pdu.bhs);
            assert!(!response.max_cmd_sn.before(last));
            last = response.max_cmd_sn;
        }
    }
    assert!(last == cmd_sn(6) || last == cmd_sn(7));
    assert_eq!(rig.session.as_ref().unwrap().window(), (cmd_sn(4), cmd_sn(7)));
}

/// Goal: an initiator that received a closed window is informed when it opens. RFC 7143 §11.4.11.
#[test]
fn a_reopened_window_is_reported() {
    let mut rig = windowed(1);
    for number in 0..3 {
        rig.send(1, read(number, 5, 0).encode(), &[]);
        let task = rig.started(1).id;
        rig.good(1, task);
        let sent = rig.sent(1);
        let max = sent.iter().map(|pdu| ScsiResponse::decode(&pdu.bhs).max_cmd_sn).last();
        assert_eq!(max, Some(cmd_sn(number + 1)));
        if let [_, notice] = &sent[..] {
            let notice = NopIn::decode(&notice.bhs);
            assert_eq!(notice.first.opcode(), Opcode::NOP_IN);
            assert_eq!(notice.initiator_task_tag, TAG_RESERVED);
            assert_eq!(notice.target_transfer_tag, TAG_RESERVED, "no answer is wanted");
        }
    }
}

/// Goal: immediate requests are accepted at once, outside the window, and do not advance CmdSN; too
/// many are rejected. RFC 7143 §4.2.2.1.
#[test]
fn immediate_requests() {
    let mut rig = Rig::new();
    rig.limits.immediate_commands_max = 2;
    rig.session_limits = SessionLimits { window_commands: 1 };
    rig.login(1, "");
    rig.send(1, read(0, 5, 0).encode(), &[]);
    rig.started(1);
    rig.send(1, immediate(read(1, 6, 0)).encode(), &[]);
    let first = rig.started(1).id;
    rig.send(1, immediate(read(77, 7, 0)).encode(), &[]);
    let second = rig.started(1).id;
    rig.send(1, immediate(write(1, 8, 512)).encode(), &[1; 512]);
    let reject = rig.sent_one(1);
    assert_eq!(Reject::decode(&reject.bhs).reason, RejectReason::IMMEDIATE_COMMAND_REJECT);
    assert_eq!(rig.link(1).receives.last(), Some(&DataDestination::Discard));
    assert_eq!(reject.data.len(), 48, "the whole header");
    let function = management(1, 10, ManagementFunction::CLEAR_ACA);
    rig.send(1, function.encode(), &[]);
    let (id, ..) = rig.managed.pop().expect("task management has room of its own");
    rig.managed(id);
    assert_eq!(rig.sent_one(1).opcode(), Opcode::TASK_MANAGEMENT_RESPONSE);
    rig.good(1, first);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).exp_cmd_sn, cmd_sn(1));
    rig.send(1, immediate(read(1, 9, 0)).encode(), &[]);
    let third = rig.started(1).id;
    rig.send(1, logout(1, 11, LogoutReason::CLOSE_CONNECTION, 1).encode(), &[]);
    assert_eq!(rig.link(1).aborts.len(), 3, "a logout needs no room");
    assert_eq!(rig.sent_one(1).opcode(), Opcode::LOGOUT_RESPONSE);
    assert!(rig.link(1).aborts.contains(&second) && rig.link(1).aborts.contains(&third));
    rig.assert_nothing_left();
}

/// Goal: a request counts as undecided until the session has answered or the request is gone; in
/// whatever order this happens, no request is counted forever, and none twice.
#[test]
fn undecided_requests_are_counted_once() {
    let mut rig = windowed(1024);
    let connection = &mut rig.link(1).machine;
    let now = Time::from_nanos(2_000_000_000);
    let mut send = |input| {
        connection.handle(now, input);
        let mut arrived = None;
        loop {
            match connection.poll() {
                Output::Wait(_) => return (arrived, connection.can_receive()),
                Output::ToSession(ToSession::Arrived { ticket, request, .. }) => {
                    let Arrival::Command { task, .. } = request else { panic!("{request:?}") };
                    arrived = Some((ticket, task));
                }
                _ => {}
            }
        }
    };
    let header = |number| Input::Header(Header::new(read(number, number, 0).encode()));
    let verdict = |ticket, accepted| ToConnection::Verdict { ticket, accepted };
    let abort = |task| ToConnection::AbortTask { task, data: DataDue::Discarded };
    for number in 0..300 {
        let (Some((ticket, task)), true) = send(header(number)) else { panic!("{number}") };
        let (exp_cmd_sn, max_cmd_sn) = (cmd_sn(0), cmd_sn(400)); // unchanged
        let deliver = ToConnection::Deliver { ticket, exp_cmd_sn, max_cmd_sn };
        let messages = match number % 3 {
            0 => [abort(task), deliver],
            1 => [deliver, verdict(ticket, true)],
            _ => [verdict(ticket, true), abort(task)],
        };
        for message in messages {
            send(Input::Session(message));
        }
    }
    let undecided = (300..400).position(|number| !send(header(number)).1);
    let limit = ConnectionLimits::default().undecided_requests_max;
    assert_eq!(
        undecided,
        Some(limit - 1),
        "the initiator has not received that many window updates"
    );
}

/// Goal: with every limit there is room for one immediate task management function and one other
/// immediate request. RFC 7143 §4.2.2.1.
#[test]
fn immediate_requests_have_a_separate_limit() {
    for function_first in [true, false] {
        let mut rig = Rig::new();
        rig.limits.immediate_commands_max = 0;
        rig.login(1, "");
        let function = |tag| management(0, tag, ManagementFunction::CLEAR_ACA).encode();
        let command = |tag| immediate(read(0, tag, 0)).encode();
        let requests = [function(5), command(6), function(7), command(8)];
        let order = if function_first { [0, 1, 2, 3] } else { [1, 0, 3, 2] };
        order.into_iter().for_each(|at| rig.send(1, requests[at], &[]));
        let rejected: Vec<_> = rig.sent(1).iter().map(|pdu| Reject::decode(&pdu.bhs)).collect();
        assert_eq!(rejected.len(), 2, "one more of each is too many");
        let reason = RejectReason::IMMEDIATE_COMMAND_REJECT;
        assert!(rejected.iter().all(|reject| reject.reason == reason), "{rejected:?}");
        let task = rig.started(1).id;
        let (id, ..) = rig.managed.pop().expect("it is carried out");
        rig.managed(id);
        assert_eq!(rig.sent_one(1).opcode(), Opcode::TASK_MANAGEMENT_RESPONSE);
        rig.good(1, task);
        assert_eq!(rig.sent_one(1).opcode(), Opcode::SCSI_RESPONSE);
        rig.assert_nothing_left();
    }
}

/// Goal: a task belongs to the connection of its command: data for it on another connection is
/// discarded and does not count. RFC 7143 §4.2.5.1.
#[test]
fn data_on_another_connection() {
    let mut rig = windowed(8);
    rig.login(2, "MaxConnections=4");
    rig.send(1, write(0, 5, 512).encode(), &[]);
    let task = rig.started(1).id;
    rig.wants(1, task, 512);
    let tag = ReadyToTransfer::decode(&rig.sent_one(1).bhs).target_transfer_tag;
    rig.send(2, data_out(5, tag, 0, 0, true).encode(), &[1; 512]);
    assert_eq!(rig.link(2).receives.last(), Some(&DataDestination::Discard));
    assert!(rig.link(1).runs.is_empty() && rig.link(2).runs.is_empty());
    rig.send(1, data_out(5, tag, 0, 0, true).encode(), &[2; 512]);
    assert_eq!(rig.link(1).runs, [task]);
    assert_eq!(rig.link(1).buffers[&task], [2; 512]);
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).initiator_task_tag, 5);
    assert!(rig.sent(2).is_empty());
    rig.assert_nothing_left();
}

/// Goal: a command with a tag in use is refused, and the task with this tag continues.
#[test]
fn a_tag_in_use() {
    let mut rig = windowed(8);
    rig.send(1, read(0, 5, 512).encode(), &[]);
    let task = rig.started(1).id;
    rig.send(1, write(1, 5, 512).encode(), &[1; 512]);
    let reject = Reject::decode(&rig.sent_one(1).bhs);
    assert_eq!((reject.reason, reject.exp_cmd_sn), (RejectReason::TASK_IN_PROGRESS, cmd_sn(1)));
    rig.good(1, task);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).initiator_task_tag, 5);
    rig.send(1, read(1, 5, 512).encode(), &[]);
    let task = rig.started(1).id;
    rig.good(1, task);
    rig.assert_nothing_left();
}

/// Goal: data that waits for delivery is bounded. Method: pings with data behind a gap.
#[test]
fn waiting_data_is_bounded() {
    let mut rig = Rig::new();
    rig.limits.control_bytes_max = 1000;
    rig.login(1, "");
    rig.send(1, nop_out(1, 5).encode(), &[1; 600]);
    rig.send(1, nop_out(2, 6).encode(), &[1; 600]);
    let reject = Reject::decode(&rig.sent_one(1).bhs);
    assert_eq!(reject.reason, RejectReason::LONG_OPERATION_REJECT);
    rig.send(1, nop_out(0, 7).encode(), &[]);
    assert_eq!(rig.sent(1).len(), 2);
}

/// Goal: a command beyond the task limit of a connection ends with TASK SET FULL instead of using
/// memory.
#[test]
fn too_many_tasks() {
    let mut rig = Rig::new();
    rig.limits.tasks_max = 2;
    rig.login(1, "");
    (0..2).for_each(|number| rig.send(1, read(number, number, 0).encode(), &[]));
    assert_eq!(core::mem::take(&mut rig.link(1).started).len(), 2);
    rig.send(1, read(2, 2, 0).encode(), &[]);
    assert_eq!(ScsiResponse::decode(&rig.sent_one(1).bhs).status, 0x28);
}

/// Goal: a session ends if a missing command was lost with its connection, because no recovery
/// level was negotiated. A connection lost without a gap only ends its own tasks.
#[test]
fn lost_connections() {
    let mut rig = windowed(8);
    rig.login(2, "MaxConnections=4");
    rig.send(2, read(0, 5, 0).encode(), &[]);
    rig.started(2);
    rig.input(2, super::super::Input::PeerClosed);
    assert!(rig.link(2).closed.is_some() && rig.link(1).closed.is_none() && !rig.ended);
    rig.login(2, "MaxConnections=4");
    rig.send(1, read(2, 6, 0).encode(), &[]);
    rig.input(2, super::super::Input::PeerClosed);
    assert!(rig.link(1).closed.is_some() && rig.ended);
    rig.assert_nothing_left();
}

/// Goal: a NOP-Out that is not a ping has no number and no answer; a ping comes back with its data.
#[test]
fn pings() {
    let mut rig = windowed(8);
    rig.send(1, pong(0, TAG_RESERVED, SerialNumber(0)).encode(), &[1; 4]);
    assert!(rig.sent(1).is_empty());
    rig.send(1, nop_out(0, 5).encode(), b"are you there?");
    let pdu = rig.sent_one(1);
    let answer = NopIn::decode(&pdu.bhs);
    assert_eq!(&pdu.data[..], b"are you there?");
    assert_eq!((answer.initiator_task_tag, answer.target_transfer_tag), (5, TAG_RESERVED));
    assert_eq!((answer.stat_sn, answer.exp_cmd_sn), (SerialNumber(0), cmd_sn(1)));
    let ping = NopOut { first: FirstByte::immediate(Opcode::NOP_OUT), ..nop_out(1, 6) };
    rig.send(1, ping.encode(), &[]);
    let answer = NopIn::decode(&rig.sent_one(1).bhs);
    assert_eq!((answer.stat_sn, answer.exp_cmd_sn), (SerialNumber(1), cmd_sn(1)));
}
