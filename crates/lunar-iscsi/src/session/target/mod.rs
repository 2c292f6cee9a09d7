//! The target role of a session: the types of its interface, and the state machine.

mod allegiance;
mod fast_path;
mod fences;
mod foreign_abort;
mod machine;
mod management;
mod queries;
mod window;

pub use machine::{SessionLimits, TargetSession};

use crate::framing::TaskId;
use crate::pdu::{LogoutResult, ManagementFunction, ManagementResponse, TaskAttribute};
use lunar_wire::{Lun, SerialNumber};

/// Messages of a connection to its session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToSession {
    /// A request with a CmdSN arrived, with its complete data segment: a damaged one does not count
    /// as received, RFC 7143 §7.3.
    Arrived {
        /// The connection's own number of the request, to match the answer.
        ticket: u64,
        /// The I bit.
        immediate: bool,
        /// CmdSN.
        cmd_sn: SerialNumber,
        /// Kind of the request.
        request: Arrival,
    },
    /// A task of this connection has ended: answered, or aborted without further effect.
    TaskEnded(TaskId),
    /// The response of this task is ready, and no other response may overtake it. Answered by
    /// [`ToConnection::SendFenced`], unless the task is aborted. RFC 7143 §4.2.2.3.4.
    FenceResponse(TaskId),
    /// The connection is lost or closes. The session answers with [`ToConnection::AbortTask`] for
    /// each of its tasks that ends with it, then with [`ToConnection::DetachTasks`].
    ConnectionClosing,
    /// The connection has ended. Its tasks can have no further effect, except those that it left to
    /// the session: [`Input::TaskEnded`] reports their ends.
    ConnectionClosed,
    /// A Logout on this connection requests the end of the session or of a connection.
    Logout {
        /// Connection to close; `None` for the whole session.
        cid: Option<u16>,
    },
    /// This connection received a format error: all connections must close. RFC 7143 §7.7.
    DropSession,
    /// The initiator has acknowledged everything sent before [`ToConnection::Fence`] with this id.
    Fenced(u64),
}

/// The kind of a request, as far as the session needs it.
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
        /// Initiator Task Tag of the request, to match the answer.
        initiator_task_tag: u32,
        /// The function.
        function: ManagementFunction,
        /// Logical unit of the function.
        lun: Lun,
        /// Tag of the task that ABORT TASK or QUERY TASK refers to.
        referenced_task_tag: u32,
        /// CmdSN of that task.
        ref_cmd_sn: SerialNumber,
    },
    /// NOP-Out, Text, Logout: only their order matters.
    Other,
}

/// Messages of the session to one of its connections.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ToConnection {
    /// The immediate answer to `Arrived`, unless that is `Deliver`: the request is accepted for
    /// later delivery, or to be dropped without a response (outside the window, or a duplicate).
    /// RFC 7143 §4.2.2.1.
    Verdict {
        /// Ticket of the request.
        ticket: u64,
        /// `false`: drop it without a response.
        accepted: bool,
    },
    /// Process this request now. Its answer must carry the current window. Requests are delivered
    /// in the order of their CmdSNs, but two connections may process theirs in any order:
    /// [`TargetSession::command`] returns the values of a command that determine the order in its
    /// unit.
    Deliver {
        /// Ticket of the request.
        ticket: u64,
        /// ExpCmdSN, as in `Window`.
        exp_cmd_sn: SerialNumber,
        /// MaxCmdSN, as in `Window`.
        max_cmd_sn: SerialNumber,
    },
    /// Stamp these values of ExpCmdSN and MaxCmdSN from now on. They never move back. Sent before
    /// the event that causes this connection's next PDU, not with each step of the other
    /// connections.
    Window {
        /// ExpCmdSN.
        exp_cmd_sn: SerialNumber,
        /// MaxCmdSN.
        max_cmd_sn: SerialNumber,
    },
    /// Abort this task; send no response for it; send `TaskEnded` once it has ended.
    AbortTask {
        /// Id of the task.
        task: TaskId,
        /// Treatment of the data it has requested.
        data: DataDue,
    },
    /// The answer to [`ToSession::ConnectionClosing`]: all tasks that end with the connection were
    /// aborted. The others stay in the session, which does not need their transfers.
    DetachTasks,
    /// Tasks on this unit were aborted with [`DataDue::Retired`]: inform the initiator by an
    /// Asynchronous Message. RFC 7143 §4.2.3.4 d), §11.9.1.
    TasksTerminated {
        /// Logical unit of the tasks.
        lun: Lun,
    },
    /// Send the response of a task management function.
    ManagementDone {
        /// Tag of the request.
        initiator_task_tag: u32,
        /// Result of the function.
        response: ManagementResponse,
        /// Additional Response Information.
        information: [u8; 3],
    },
    /// The answer to [`ToSession::Logout`]: send the Logout Response. If this connection or the
    /// session was logged out, close afterwards.
    LogoutDone(LogoutResult),
    /// Send [`ToSession::Fenced`] once the initiator has acknowledged everything sent so far, and
    /// send no SCSI response until `Release`. RFC 7143 §4.2.2.3.3.
    Fence {
        /// Id to send back.
        id: u64,
    },
    /// The answer to [`ToSession::FenceResponse`]: send that response now, even if others are held.
    SendFenced {
        /// Task of the response.
        task: TaskId,
    },
    /// The fence has ended.
    Release,
    /// Close; the session ends, or this connection is replaced.
    Close,
}

/// Treatment of data that an aborted task has requested. Each variant includes the earlier ones: a
/// task that is being aborted with one of them needs no abort with an earlier one.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum DataDue {
    /// The task does not end before the initiator has sent the data. RFC 7143 §4.2.3.3 a).
    Awaited,
    /// Data is discarded: the initiator must not send it any more, or sent it before.
    Discarded,
    /// Data is discarded until the initiator acknowledges [`ToConnection::TasksTerminated`].
    /// RFC 7143 §4.2.3.4 c), g).
    Retired,
    /// The connection is lost: no more data comes.
    Lost,
}

/// Input of a session.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Input {
    /// A message of connection `cid`.
    Connection(u16, ToSession),
    /// A connection whose login is complete, including the leading one. The driver has closed an
    /// older one with that CID.
    Join(u16),
    /// A task that was left to the session by a connection that has closed since has ended.
    TaskEnded(TaskId),
    /// Another login replaces connection `cid`, RFC 7143 §6.3.4: it must close, and the session
    /// stays, even without connections, for the `Join` that follows. If there will be none, `End`.
    Replace(u16),
    /// The executor has completed a management function.
    Managed {
        /// Id of the [`Output::Manage`].
        id: u64,
        /// Result of the function. For QUERY TASK and QUERY TASK SET, FUNCTION COMPLETE means that
        /// the unit exists; the session determines the rest.
        response: ManagementResponse,
        /// Additional Response Information, RFC 7144 §6.4: of QUERY ASYNCHRONOUS EVENT, else zero.
        information: [u8; 3],
    },
    /// A LOGICAL UNIT RESET, target reset or PREEMPT AND ABORT of another initiator affects this
    /// session's tasks on these units (`None`: all units).
    AbortedByOther {
        /// Id for [`Output::OthersAborted`].
        id: u64,
        /// Logical unit of the tasks.
        lun: Option<Lun>,
    },
    /// End the session now: reinstated, logged out by an operator, or the target stops.
    End,
}

/// Output of a session: a request to its driver.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Output {
    /// A message to connection `cid`.
    ToConnection(u16, ToConnection),
    /// All affected tasks of this session have ended: carry out the rest of the function (reset the
    /// unit, abort other sessions' tasks, set unit attentions), then answer `Input::Managed`. After
    /// I_T NEXUS RESET and TARGET COLD RESET this session ends by itself.
    Manage {
        /// Id for the answer.
        id: u64,
        /// The function: never ABORT TASK or TASK REASSIGN, which the session completes itself.
        function: ManagementFunction,
        /// Logical unit of the function.
        lun: Lun,
    },
    /// The answer to `Input::AbortedByOther`: the tasks have ended.
    OthersAborted {
        /// Id of the input.
        id: u64,
        /// Number of aborted tasks; a unit attention is due if it is not zero.
        tasks: u32,
    },
    /// No connection and no task is left.
    Ended,
}

#[cfg(test)]
mod tests;
