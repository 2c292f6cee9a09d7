//! Tests of the session's messages and their receivers.

use super::{
    Arrival, DataDue, Input, Output, SessionLimits, TargetSession, ToConnection, ToSession,
};
use crate::framing::TaskId;
use crate::pdu::{MANAGEMENT_FUNCTIONS, ManagementFunction, ManagementResponse, TaskAttribute};
use crate::text::{SessionParameters, TaskReporting};
use alloc::vec::Vec;
use lunar_wire::{Lun, SerialNumber, Time};

const WINDOW: u32 = 4;

fn session(connections: u16) -> TargetSession {
    session_of(connections, WINDOW)
}

fn session_of(connections: u16, window_commands: u32) -> TargetSession {
    let limits = SessionLimits { window_commands };
    let parameters = SessionParameters::default();
    let mut session = TargetSession::new(1, parameters, SerialNumber(0), limits);
    for cid in 1..=connections {
        handle(&mut session, Input::Join(cid));
    }
    session
}

fn handle(session: &mut TargetSession, input: Input) -> Vec<(u16, ToConnection)> {
    session.handle(Time::default(), input);
    let outputs = core::iter::from_fn(|| session.poll());
    let messages = outputs.map(|output| match output {
        Output::ToConnection(cid, message) => (cid, message),
        other => panic!("{other:?}"),
    });
    messages.collect()
}

fn send_command(session: &mut TargetSession, cid: u16, number: u32) -> Vec<(u16, ToConnection)> {
    let request = Arrival::Command {
        task: TaskId(number.into()),
        initiator_task_tag: number,
        lun: Lun::ZERO,
        attribute: TaskAttribute::ORDERED,
    };
    let (ticket, cmd_sn) = (number.into(), SerialNumber(number));
    let arrived = ToSession::Arrived { ticket, immediate: false, cmd_sn, request };
    handle(session, Input::Connection(cid, arrived))
}

fn end_task(session: &mut TargetSession, cid: u16, number: u32) -> Vec<(u16, ToConnection)> {
    handle(session, Input::Connection(cid, ToSession::TaskEnded(TaskId(number.into()))))
}

fn window(exp_cmd_sn: u32, max_cmd_sn: u32) -> ToConnection {
    let [exp_cmd_sn, max_cmd_sn] = [exp_cmd_sn, max_cmd_sn].map(SerialNumber);
    ToConnection::Window { exp_cmd_sn, max_cmd_sn }
}

fn deliver(ticket: u64, exp: u32, max: u32) -> ToConnection {
    let (exp_cmd_sn, max_cmd_sn) = (SerialNumber(exp), SerialNumber(max));
    ToConnection::Deliver { ticket, exp_cmd_sn, max_cmd_sn }
}

/// Goal: a command that may start is accepted without a separate message; one that waits gets one.
#[test]
fn delivered_requests_are_accepted() {
    let mut session = session(1);
    let deliver = |ticket, exp, max| (1, deliver(ticket, exp, max));
    assert_eq!(send_command(&mut session, 1, 0), [deliver(0, 1, 3)]);
    let waits = (1, ToConnection::Verdict { ticket: 2, accepted: true });
    assert_eq!(send_command(&mut session, 1, 2), [waits]);
    assert_eq!(send_command(&mut session, 1, 1), [deliver(1, 3, 3), deliver(2, 3, 3)]);
    let refused = (1, ToConnection::Verdict { ticket: 9, accepted: false });
    assert_eq!(send_command(&mut session, 1, 9), [refused]);
}

/// Goal: an idle connection does not get a message for each command of another one; but it gets one
/// before its last reported window would mean a closed window, and when another connection ends.
#[test]
fn windows_are_reported_to_idle_connections_when_needed() {
    let mut session = session(2);
    let mut messages = Vec::new();
    for number in 0..3 * WINDOW {
        messages.extend(send_command(&mut session, 1, number));
        messages.extend(end_task(&mut session, 1, number));
    }
    let to_other: Vec<_> =
        messages.iter().filter(|(cid, _)| *cid == 2).map(|(_, what)| what).collect();
    assert_eq!(to_other, [&window(4, 6), &window(7, 9), &window(10, 12)]);
    let closed = handle(&mut session, Input::Connection(1, ToSession::ConnectionClosed));
    assert_eq!(closed, [(2, window(12, 15))]);
    // A connection always receives the results of its own messages.
    assert_eq!(send_command(&mut session, 2, 12), [(2, deliver(12, 13, 15))]);
    assert_eq!(end_task(&mut session, 2, 12), [(2, window(13, 16))]);
}

/// Goal: a serial number is given again only when neither its connection nor a task that came on it
/// is left, so ids of tasks stay unique.
#[test]
fn serial_numbers_in_use_are_skipped() {
    let mut session = session(2);
    let task = TaskId(TaskId::before_first(3).0 + 1);
    let (lun, attribute) = (Lun::ZERO, TaskAttribute::SIMPLE);
    let request = Arrival::Command { task, initiator_task_tag: 7, lun, attribute };
    let (ticket, cmd_sn) = (task.0, SerialNumber(0));
    let arrived = ToSession::Arrived { ticket, immediate: false, cmd_sn, request };
    handle(&mut session, Input::Connection(1, arrived));
    session.last_serial = u16::MAX - 1;
    (3..=4).for_each(|cid| drop(handle(&mut session, Input::Join(cid))));
    let serials =
        |session: &TargetSession| [1, 2, 3, 4].map(|cid| session.joined(cid).connection_serial);
    assert_eq!(serials(&session), [1, 2, u16::MAX, 4], "0 is no serial number");
    handle(&mut session, Input::Connection(1, ToSession::TaskEnded(task)));
    handle(&mut session, Input::Connection(2, ToSession::ConnectionClosed));
    session.last_serial = 1;
    handle(&mut session, Input::Join(2));
    handle(&mut session, Input::Connection(3, ToSession::ConnectionClosed));
    handle(&mut session, Input::Join(3));
    assert_eq!(serials(&session), [1, 2, 3, 4], "2 and 3 are free");
}

/// Goal: target resets by an initiator that is not an administrator are refused before they abort
/// anything, and the session continues; all other functions are carried out.
#[test]
fn resets_of_the_target_are_for_administrators() {
    for info in MANAGEMENT_FUNCTIONS {
        let resets = [ManagementFunction::TARGET_WARM_RESET, ManagementFunction::TARGET_COLD_RESET];
        assert_eq!(info.is_administration, resets.contains(&info.function), "{}", info.name);
        for (administers, immediate) in [(false, false), (false, true), (true, false)] {
            let mut session = session(1);
            session.set_administers(administers);
            send_command(&mut session, 1, 0);
            let request = Arrival::Management {
                initiator_task_tag: 7,
                function: info.function,
                lun: Lun::ZERO,
                referenced_task_tag: u32::MAX,
                ref_cmd_sn: SerialNumber(0),
            };
            let arrived =
                ToSession::Arrived { ticket: 1, immediate, cmd_sn: SerialNumber(1), request };
            session.handle(Time::default(), Input::Connection(1, arrived));
            let outputs: Vec<_> = core::iter::from_fn(|| session.poll()).collect();
            let refused = outputs.iter().any(|output| {
                let Output::ToConnection(1, ToConnection::ManagementDone { response, .. }) = output
                else {
                    return false;
                };
                *response == ManagementResponse::AUTHORIZATION_FAILED
            });
            let aborts = outputs.iter().any(|output| {
                matches!(output, Output::ToConnection(_, ToConnection::AbortTask { .. }))
            });
            assert_eq!(refused, info.is_administration && !administers, "{}", info.name);
            assert!(!(refused && aborts), "{}", info.name);
            assert_eq!(session.tasks(), 1, "the task is there until it has ended");
            if refused {
                assert_eq!(send_command(&mut session, 1, 2 - u32::from(immediate)).len(), 1);
            }
        }
    }
}

/// Goal: a task affected by many functions is aborted once, and again only if its requested data is
/// to be treated differently; each function is still answered when the task has ended.
#[test]
fn a_task_is_aborted_once() {
    const RESETS: u64 = 100;
    let mut session = session(1);
    send_command(&mut session, 1, 0);
    let abort_task_set = Arrival::Management {
        initiator_task_tag: 7,
        function: ManagementFunction::ABORT_TASK_SET,
        lun: Lun::ZERO,
        referenced_task_tag: u32::MAX,
        ref_cmd_sn: SerialNumber(0),
    };
    let cmd_sn = SerialNumber(1);
    let arrived =
        ToSession::Arrived { ticket: 1, immediate: true, cmd_sn, request: abort_task_set };
    let mut messages = handle(&mut session, Input::Connection(1, arrived));
    for id in 0..RESETS {
        messages.extend(handle(&mut session, Input::AbortedByOther { id, lun: Some(Lun::ZERO) }));
    }
    messages.retain(|(_, message)| matches!(message, ToConnection::AbortTask { .. }));
    let abort = |data| (1, ToConnection::AbortTask { task: TaskId(0), data });
    assert_eq!(messages, [abort(DataDue::Awaited), abort(DataDue::Discarded)]);
    session.handle(Time::default(), Input::Connection(1, ToSession::TaskEnded(TaskId(0))));
    let answers = core::iter::from_fn(|| session.poll())
        .filter(|output| matches!(output, Output::OthersAborted { tasks: 1, .. }));
    assert_eq!(answers.count() as u64, RESETS);
}

/// An immediate command for this unit; `number` is its tag, ticket and task.
fn immediate(number: u32, cmd_sn: u32, unit: u16) -> Input {
    let request = Arrival::Command {
        task: TaskId(number.into()),
        initiator_task_tag: number,
        lun: Lun::new(unit),
        attribute: TaskAttribute::SIMPLE,
    };
    let (ticket, cmd_sn) = (number.into(), SerialNumber(cmd_sn));
    Input::Connection(1, ToSession::Arrived { ticket, immediate: true, cmd_sn, request })
}

fn outputs(session: &mut TargetSession, input: Input) -> Vec<Output> {
    session.handle(Time::default(), input);
    core::iter::from_fn(|| session.poll()).collect()
}

/// Fault: immediate commands that a session with FastAbort sent during another initiator's LUN
/// RESET were begun, and aborted in one of 16 further rounds. Each round waited for the writes that
/// had begun meanwhile: with a slow disk the reset took up to 4.8 s.
///
/// RFC 7143 §11.9.1: the message reports the end of all active tasks of the unit, so none of them
/// continues after it.
#[test]
fn a_reset_of_another_session_does_not_wait_for_later_commands() {
    let mut session = session(1);
    session.parameters.task_reporting = TaskReporting::FastAbort;
    let reset = |id| Input::AbortedByOther { id, lun: Some(Lun::ZERO) };
    let to = |message| Output::ToConnection(1, message);
    let abort = |number: u32| {
        let task = TaskId(number.into());
        to(ToConnection::AbortTask { task, data: DataDue::Retired })
    };
    let waits = |ticket: u64| to(ToConnection::Verdict { ticket, accepted: true });
    assert_eq!(send_command(&mut session, 1, 0), [(1, deliver(0, 1, 3))]);
    assert_eq!(outputs(&mut session, reset(7)), [abort(0)]);
    let arrived = outputs(&mut session, immediate(100, 1, 0));
    assert_eq!(arrived, [waits(100)], "it would be aborted when it has begun");
    let arrived = send_command(&mut session, 1, 1);
    assert!(
        arrived.iter().all(|(_, outputs_now)| !matches!(outputs_now, ToConnection::Deliver { .. }))
    );
    let arrived = outputs(&mut session, immediate(200, 2, 1));
    assert_eq!(arrived, [to(deliver(200, 2, 3))], "the function is of another unit");
    let ended = Input::Connection(1, ToSession::TaskEnded(TaskId(0)));
    let mut outputs_now = outputs(&mut session, ended);
    outputs_now
        .retain(|output| !matches!(output, Output::ToConnection(_, ToConnection::Window { .. })));
    let terminated = to(ToConnection::TasksTerminated { lun: Lun::ZERO });
    let done = Output::OthersAborted { id: 7, tasks: 3 };
    assert_eq!(outputs_now, [abort(1), abort(100), terminated, done], "it waits for neither");
    end_task(&mut session, 1, 1);
    end_task(&mut session, 1, 100);
    let arrived = outputs(&mut session, immediate(101, 2, 0));
    assert_eq!(arrived, [to(deliver(101, 2, 5))]);
    assert!(session.ready.is_empty() && session.tasks() == 2 && session.managements.are_none());
}

/// Goal: a function of another session that begins during an earlier one waits only for commands
/// that had begun, too.
#[test]
fn a_second_foreign_reset_waits_for_no_command_that_has_not_begun() {
    let mut session = session(1);
    session.parameters.task_reporting = TaskReporting::FastAbort;
    let reset = |id| Input::AbortedByOther { id, lun: Some(Lun::ZERO) };
    send_command(&mut session, 1, 0);
    outputs(&mut session, reset(7));
    send_command(&mut session, 1, 1);
    outputs(&mut session, reset(8));
    let said = outputs(&mut session, Input::Connection(1, ToSession::TaskEnded(TaskId(0))));
    let done = said.iter().filter_map(|output| match output {
        Output::OthersAborted { id, .. } => Some(*id),
        _ => None,
    });
    assert_eq!(done.collect::<Vec<_>>(), [7, 8], "{said:?}");
    end_task(&mut session, 1, 1);
    assert!(session.ready.is_empty() && session.tasks() == 0 && session.managements.are_none());
}

/// Goal: an immediate command that waits for the end of another session's function is forgotten
/// with its connection.
#[test]
fn a_held_immediate_command_ends_with_its_connection() {
    let mut session = session(2);
    session.parameters.task_reporting = TaskReporting::FastAbort;
    send_command(&mut session, 2, 0);
    outputs(&mut session, Input::AbortedByOther { id: 7, lun: Some(Lun::ZERO) });
    outputs(&mut session, immediate(100, 1, 0));
    assert_eq!((session.tasks(), session.ready.len()), (2, 1));
    outputs(&mut session, Input::Connection(1, ToSession::ConnectionClosed));
    assert_eq!((session.tasks(), session.ready.len()), (1, 0));
    let ended = Input::Connection(2, ToSession::TaskEnded(TaskId(0)));
    let outputs_now = outputs(&mut session, ended);
    assert!(outputs_now.contains(&Output::OthersAborted { id: 7, tasks: 1 }), "{outputs_now:?}");
    assert_eq!(session.window(), (SerialNumber(1), SerialNumber(4)), "it took up no number");
}

/// Goal: a session that is ended repeatedly informs each connection once.
#[test]
fn a_connection_is_informed_once_of_the_end_of_the_session() {
    let mut session = session(2);
    let mut messages = handle(&mut session, Input::End);
    (0..100).for_each(|_| messages.extend(handle(&mut session, Input::End)));
    assert_eq!(messages, [(1, ToConnection::Close), (2, ToConnection::Close)]);
}

/// Fault: memory of 126 commands that had waited behind a LUN RESET was kept until the session
/// ended, and charged to nobody: 9 KiB. The same holds for functions that waited.
#[test]
fn requests_that_waited_leave_no_memory() {
    const COMMANDS: u32 = 126;
    const FUNCTIONS: u32 = 100;
    let mut session = session_of(1, COMMANDS + 1);
    session.parameters.protocol_level = 2; // with QUERY TASK
    for number in 1..=FUNCTIONS {
        for function in [ManagementFunction::LOGICAL_UNIT_RESET, ManagementFunction::QUERY_TASK] {
            let request = Arrival::Management {
                initiator_task_tag: 1000 + number,
                function,
                lun: Lun::ZERO,
                referenced_task_tag: 0,
                ref_cmd_sn: SerialNumber(0),
            };
            let ticket = (1000 + number).into();
            let cmd_sn = SerialNumber(0);
            let arrived = ToSession::Arrived { ticket, immediate: true, cmd_sn, request };
            session.handle(Time::default(), Input::Connection(1, arrived));
        }
    }
    let mut asked = managed(&mut session);
    (0..COMMANDS).for_each(|number| drop(send_command(&mut session, 1, number)));
    assert!(session.ready.capacity() >= COMMANDS as usize, "they wait behind the first reset");
    let functions: usize = session.managements.capacities().iter().sum();
    assert!(functions >= 2 * FUNCTIONS as usize);
    for number in 0..COMMANDS {
        while let Some(id) = asked.pop() {
            let (response, information) = (ManagementResponse::FUNCTION_COMPLETE, [0; 3]);
            session.handle(Time::default(), Input::Managed { id, response, information });
            asked.extend(managed(&mut session));
        }
        let ended = ToSession::TaskEnded(TaskId(number.into()));
        session.handle(Time::default(), Input::Connection(1, ended));
        asked.extend(managed(&mut session));
    }
    assert!(session.tasks() == 0 && session.ready.is_empty() && session.managements.are_none());
    assert!(session.ready.capacity() <= 4, "{}", session.ready.capacity());
    let kept = session.managements.capacities();
    assert!(kept.iter().all(|capacity| *capacity <= 4), "{kept:?}");
}

/// Returns the functions that the executor is asked for; other messages are discarded.
fn managed(session: &mut TargetSession) -> Vec<u64> {
    let outputs = core::iter::from_fn(|| session.poll());
    let functions = outputs.filter_map(|output| match output {
        Output::Manage { id, .. } => Some(id),
        _ => None,
    });
    functions.collect()
}
