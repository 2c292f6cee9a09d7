//! The initiator role of a session: the values at its border. Mirrors
//! [`target`](super::target); the machine itself is [`InitiatorSession`].

mod isid;
mod machine;
#[cfg(test)]
mod tests;

pub use isid::{Isid, IsidPool};
pub use machine::InitiatorSession;

use crate::text::SessionParameters;
use lunar_wire::{Lun, SerialNumber};

/// How a session starts.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Our part of the session identifier; see [`IsidPool`].
    pub isid: Isid,
    /// CmdSN of the leading login and of the first command.
    pub cmd_sn: SerialNumber,
    /// How many requests may wait for the command window to open.
    pub queue_requests_max: u32,
}

/// The numbers a Login Request of this session carries. RFC 7143 §11.12.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LoginNumbers {
    /// ISID.
    pub isid: Isid,
    /// TSIH: 0 for the leading connection.
    pub tsih: u16,
    /// CmdSN.
    pub cmd_sn: SerialNumber,
}

/// A connection speaks to its session.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToSession {
    /// Its login is through; it is now one of the session's.
    Joined {
        /// From the final Login Response.
        tsih: u16,
        /// What was negotiated; counts on the leading connection.
        parameters: SessionParameters,
    },
    /// It wants to send a request. Answered once, with `Grant` or `Refused`, in this order for
    /// all that are not immediate.
    Request {
        /// The connection's own number for it, to recognise the answer.
        ticket: u64,
        /// The I bit: gets the current CmdSN and never waits.
        immediate: bool,
        /// It needs an Initiator Task Tag; all do but the answer to a ping.
        tag: bool,
    },
    /// It no longer wants to send that one. Answered with `Refused`, unless `Grant` has come
    /// before.
    Withdraw {
        /// From `Request`.
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
    /// A task management function on several tasks is about to be asked for: no connection gets a
    /// new CmdSN before `Release`, so that there is no command of which nobody can tell whether
    /// the function met it. RFC 7143 §11.5.1 lets resets end newer commands as well.
    Hold,
    /// That function is over.
    Release,
    /// A task management function on several tasks was completed: those that other connections
    /// hold are over as well. RFC 7143 §4.2.3.3.
    TasksEnded {
        /// On which unit; `None`: on all.
        lun: Option<Lun>,
        /// CmdSN of the function: older tasks are meant.
        before: SerialNumber,
    },
    /// A Logout Request for the whole session was sent: no connection may send requests now.
    LoggingOut,
    /// The connection sends nothing any more: none of its requests waits, and none is answered.
    WithdrawAll,
    /// The connection is gone.
    Closed {
        /// How.
        ending: Ending,
    },
}

/// How a connection went, as far as its session must know.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ending {
    /// By a logout of this connection alone.
    ConnectionLogout,
    /// By a logout of the session.
    SessionLogout,
    /// Before its login was through.
    NotJoined,
    /// The transport failed, or the target fell silent.
    Lost,
    /// The target broke the protocol: all connections must go. RFC 7143 §7.7.
    Violation,
}

/// The session speaks to one of its connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToConnection {
    /// Send the request now, with these numbers.
    Grant {
        /// From `Request`.
        ticket: u64,
        /// CmdSN.
        cmd_sn: SerialNumber,
        /// Unique in the session until `TagFree`; the reserved tag if none was asked for.
        initiator_task_tag: u32,
    },
    /// Do not send it: too many wait, it was withdrawn, or the session ends.
    Refused {
        /// From `Request`.
        ticket: u64,
    },
    /// These tasks were ended by a function on another connection; from `TasksEnded`.
    TasksEnded {
        /// On which unit; `None`: on all.
        lun: Option<Lun>,
        /// CmdSN of the function: older tasks are meant.
        before: SerialNumber,
    },
    /// The session is being logged out on another connection: send no more requests.
    LoggingOut,
    /// Close; the session ends.
    Close,
}

/// What a session is told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Input {
    /// From connection `cid`.
    Connection(u16, ToSession),
    /// The session is to end now, without a logout.
    End,
}

/// What a session asks of its driver, or tells it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Output {
    /// To connection `cid`.
    ToConnection(u16, ToConnection),
    /// The leading login is through: the session stands.
    Established {
        /// From the target.
        tsih: u16,
        /// What was negotiated.
        parameters: SessionParameters,
    },
    /// No connection is left. A new session has to be made (session recovery, RFC 7143 §7.1.4.4).
    Ended(Ending),
}
