//! The initiator role of a session: the types of its interface. Mirrors [`target`](super::target);
//! the state machine is [`InitiatorSession`].

mod isid;
mod machine;
#[cfg(test)]
mod tests;

pub use isid::{Isid, IsidPool};
pub use machine::InitiatorSession;

use crate::text::SessionParameters;
use lunar_wire::{Lun, SerialNumber};

/// Start parameters of a session.
#[derive(Clone, Copy, Debug)]
pub struct InitiatorSessionOptions {
    /// The initiator's part of the session identifier; see [`IsidPool`].
    pub isid: Isid,
    /// CmdSN of the leading login and of the first command.
    pub cmd_sn: SerialNumber,
    /// Maximum number of requests that wait for the command window to open.
    pub queue_requests_max: u32,
}

/// Numbers for a Login Request of this session. RFC 7143 §11.12.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoginNumbers {
    /// ISID.
    pub isid: Isid,
    /// TSIH: 0 for the leading connection.
    pub tsih: u16,
    /// CmdSN.
    pub cmd_sn: SerialNumber,
}

/// Messages of a connection to its session.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToSession {
    /// The login of the connection is complete; it now belongs to the session.
    Joined {
        /// TSIH of the final Login Response.
        tsih: u16,
        /// Negotiated parameters; used on the leading connection.
        parameters: SessionParameters,
    },
    /// The connection has a request to send. Answered once, with `Grant` or `Refused`; answers to
    /// requests that are not immediate keep their order.
    Request {
        /// The connection's own number of the request, to match the answer.
        ticket: u64,
        /// The I bit: an immediate request gets the current CmdSN and never waits.
        immediate: bool,
        /// True if an Initiator Task Tag is needed; only answers to pings need none.
        tag: bool,
    },
    /// The connection withdraws the request. Answered with `Refused`, unless `Grant` was sent
    /// before.
    Withdraw {
        /// Ticket of the `Request`.
        ticket: u64,
    },
    /// An Initiator Task Tag is no longer in use.
    TagFree(u32),
    /// ExpCmdSN and MaxCmdSN as they arrived.
    Window {
        /// ExpCmdSN.
        exp_cmd_sn: SerialNumber,
        /// MaxCmdSN.
        max_cmd_sn: SerialNumber,
    },
    /// A task management function on several tasks is about to be sent: no connection gets a new
    /// CmdSN before `Release`, so that for every command it is certain whether the function covers
    /// it. RFC 7143 §11.5.1 lets resets end newer commands as well.
    Hold,
    /// The function has ended.
    Release,
    /// A task management function on several tasks was completed: its tasks on other connections
    /// have ended as well. RFC 7143 §4.2.3.3.
    TasksEnded {
        /// Logical unit of the tasks; `None` for all units.
        lun: Option<Lun>,
        /// CmdSN of the function, which covers older tasks.
        before: SerialNumber,
    },
    /// A Logout Request for the whole session was sent: no connection may send requests now.
    LoggingOut,
    /// The connection sends nothing any more: all its waiting requests are withdrawn without an
    /// answer.
    WithdrawAll,
    /// The connection has ended.
    Closed {
        /// Kind of the end.
        ending: ConnectionEnding,
    },
}

/// The end of a connection, as far as its session needs it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ConnectionEnding {
    /// A logout of this connection alone.
    ConnectionLogout,
    /// A logout of the session.
    SessionLogout,
    /// The connection ended before its login was complete.
    NotJoined,
    /// The transport failed, or the target stopped responding.
    Lost,
    /// The target broke the protocol: all connections must close. RFC 7143 §7.7.
    Violation,
}

/// Messages of the session to one of its connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToConnection {
    /// Send the request now, with these numbers.
    Grant {
        /// Ticket of the `Request`.
        ticket: u64,
        /// CmdSN.
        cmd_sn: SerialNumber,
        /// Unique in the session until `TagFree`; the reserved tag if none was requested.
        initiator_task_tag: u32,
    },
    /// The request must not be sent: too many wait, it was withdrawn, or the session ends.
    Refused {
        /// Ticket of the `Request`.
        ticket: u64,
    },
    /// A function on another connection ended these tasks; from `TasksEnded`.
    TasksEnded {
        /// Logical unit of the tasks; `None` for all units.
        lun: Option<Lun>,
        /// CmdSN of the function, which covers older tasks.
        before: SerialNumber,
    },
    /// The session is being logged out on another connection: send no more requests.
    LoggingOut,
    /// Close; the session ends.
    Close,
}

/// Input of a session.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Input {
    /// A message of connection `cid`.
    Connection(u16, ToSession),
    /// End the session now, without a logout.
    End,
}

/// Output of a session: a request to its driver, or a report.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Output {
    /// A message to connection `cid`.
    ToConnection(u16, ToConnection),
    /// The leading login is complete: the session is established.
    Established {
        /// TSIH assigned by the target.
        tsih: u16,
        /// Negotiated parameters.
        parameters: SessionParameters,
    },
    /// No connection is left. Create a new session to continue (session recovery,
    /// RFC 7143 §7.1.4.4).
    Ended(ConnectionEnding),
}
