//! The target role of a session: the values at its border, and the machine.

mod fences;
mod machine;
mod management;
mod others;
mod plain;
mod queries;
mod window;

pub use machine::{SessionLimits, TargetSession};

use crate::framing::TaskId;
use crate::pdu::{LogoutResult, ManagementFunction, ManagementResponse, TaskAttribute};
use lunar_wire::{Lun, SerialNumber};

/// A connection speaks to its session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToSession {
    /// A request with a CmdSN arrived, its data segment whole: one that was damaged does not count
    /// as received, RFC 7143 §7.3.
    Arrived {
        /// The connection's own number for this request, to recognise the answer.
        ticket: u64,
        /// The I bit.
        immediate: bool,
        /// CmdSN.
        cmd_sn: SerialNumber,
        /// What it is.
        request: Arrival,
    },
    /// A task of this connection is over for good: answered, or aborted and quiet.
    TaskEnded(TaskId),
    /// The response of this task is ready, and no other may pass it. Answered by
    /// [`ToConnection::SendFenced`], unless the task is aborted. RFC 7143 §4.2.2.3.4.
    FenceResponse(TaskId),
    /// The connection is gone; its tasks are aborted and quiet.
    ConnectionClosed,
    /// This connection's Logout asks that the session (or another connection) be closed.
    Logout {
        /// `None`: the whole session.
        cid: Option<u16>,
    },
    /// This connection met a format error: all connections must go. RFC 7143 §7.7.
    DropSession,
    /// The initiator has acknowledged all that was sent before [`ToConnection::Fence`] of this id.
    Fenced(u64),
}

/// What kind of request arrived, as far as the session must know.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// A SCSI command, now a task.
    Command {
        /// The task.
        task: TaskId,
        /// Its Initiator Task Tag.
        initiator_task_tag: u32,
        /// Its unit.
        lun: Lun,
        /// SIMPLE, ORDERED …
        attribute: TaskAttribute,
    },
    /// A task management function.
    Management {
        /// To recognise the answer.
        initiator_task_tag: u32,
        /// Function, unit, referenced task and CmdSN.
        function: ManagementFunction,
        /// Its unit.
        lun: Lun,
        /// The task meant by ABORT TASK or QUERY TASK.
        referenced_task_tag: u32,
        /// Its CmdSN.
        ref_cmd_sn: SerialNumber,
    },
    /// NOP-Out, Text, Logout: only their order matters.
    Other,
}

/// The session speaks to one of its connections.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToConnection {
    /// The answer to `Arrived`, at once, unless `Deliver` is: accepted, to be delivered later, or
    /// to be dropped without a word (outside the window, or a duplicate). RFC 7143 §4.2.2.1.
    Verdict {
        /// Which request.
        ticket: u64,
        /// `false`: discard it silently.
        accepted: bool,
    },
    /// It is this request's turn. Its answer is to carry the window as it is now. Requests are
    /// delivered in the order of their CmdSNs, but two connections may come to theirs in any order:
    /// [`TargetSession::command`] says what of a command the order of its unit depends on.
    Deliver {
        /// Which request.
        ticket: u64,
        /// ExpCmdSN, as in `Window`.
        exp_cmd_sn: SerialNumber,
        /// MaxCmdSN, likewise.
        max_cmd_sn: SerialNumber,
    },
    /// ExpCmdSN and MaxCmdSN to be stamped from now on. Never moves back. Comes before whatever
    /// this connection's next answer follows from, not with each step of the others.
    Window {
        /// ExpCmdSN.
        exp_cmd_sn: SerialNumber,
        /// MaxCmdSN.
        max_cmd_sn: SerialNumber,
    },
    /// Abort this task; send no response for it; say `TaskEnded` once it is quiet.
    AbortTask {
        /// Which.
        task: TaskId,
        /// What becomes of data it has asked for.
        data: DataDue,
    },
    /// Tasks on this unit were aborted with [`DataDue::Retired`]: tell the initiator by an
    /// Asynchronous Message. RFC 7143 §4.2.3.4 d), §11.9.1.
    TasksTerminated {
        /// Which unit.
        lun: Lun,
    },
    /// Send the response of a task management function.
    ManagementDone {
        /// Of which request.
        initiator_task_tag: u32,
        /// How it ended.
        response: ManagementResponse,
        /// Additional Response Information.
        information: [u8; 3],
    },
    /// The answer to [`ToSession::Logout`]: send the Logout Response. If it was this connection or
    /// the session that was logged out, then close.
    LogoutDone(LogoutResult),
    /// Say [`ToSession::Fenced`] once the initiator has acknowledged all that was sent so far, and
    /// send no SCSI response until `Release`. RFC 7143 §4.2.2.3.3.
    Fence {
        /// To be told back.
        id: u64,
    },
    /// The answer to [`ToSession::FenceResponse`]: send that response now, whatever is held.
    SendFenced {
        /// Whose.
        task: TaskId,
    },
    /// The fence is gone.
    Release,
    /// Close; the session ends, or this connection is replaced.
    Close,
}

/// What becomes of data that an aborted task has asked for. Each includes what those before it do:
/// a task that is being aborted with one of them need not be told of a lesser one.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DataDue {
    /// The task is not quiet before the initiator has sent it. RFC 7143 §4.2.3.3 a).
    Awaited,
    /// It is discarded: the initiator knows better than to send it, or did so before.
    Discarded,
    /// It may come, and is discarded, until the initiator acknowledges
    /// [`ToConnection::TasksTerminated`]. RFC 7143 §4.2.3.4 c), g).
    Retired,
}

/// What a session is told, besides [`ToSession`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// From connection `cid`.
    Connection(u16, ToSession),
    /// A connection, once its login is through, the leading one as well. The driver has closed an
    /// older one with that CID.
    Join(u16),
    /// Another login takes the place of connection `cid`, RFC 7143 §6.3.4: it is to close, and the
    /// session stays, even without connections, for the `Join` that follows. If none will, `End`.
    Replace(u16),
    /// The executor is through with a management function.
    Managed {
        /// From [`Output::Manage`].
        id: u64,
        /// How it ended. For QUERY TASK and QUERY TASK SET, FUNCTION COMPLETE says that the unit is
        /// there; the session knows the rest.
        response: ManagementResponse,
        /// Additional Response Information, RFC 7144 §6.4: of QUERY ASYNCHRONOUS EVENT, else zero.
        information: [u8; 3],
    },
    /// Another initiator's LOGICAL UNIT RESET, target reset or PREEMPT AND ABORT hits this
    /// session's tasks on these units (`None`: on all).
    AbortedByOther {
        /// To answer with [`Output::OthersAborted`].
        id: u64,
        /// Which unit.
        lun: Option<Lun>,
    },
    /// The session is to end now: reinstated, logged out by an operator, or the target stops.
    End,
}

/// What a session asks of its driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Output {
    /// To connection `cid`.
    ToConnection(u16, ToConnection),
    /// All this session's affected tasks are quiet: do the rest of the function (reset the unit,
    /// abort other sessions' tasks, set unit attentions), then answer `Input::Managed`. After
    /// I_T NEXUS RESET and TARGET COLD RESET this session ends by itself.
    Manage {
        /// To recognise the answer.
        id: u64,
        /// Which function: never ABORT TASK or TASK REASSIGN, which end here.
        function: ManagementFunction,
        /// Its unit.
        lun: Lun,
    },
    /// The answer to `Input::AbortedByOther`: those tasks are quiet.
    OthersAborted {
        /// From the input.
        id: u64,
        /// How many tasks were aborted; a unit attention is due if any.
        tasks: u32,
    },
    /// No connection and no task is left.
    Ended,
}

#[cfg(test)]
mod tests;
