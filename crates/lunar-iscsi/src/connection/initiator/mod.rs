//! The initiator role of a connection: the values at its border. Mirrors
//! [`target`](super::target); the machine itself is [`InitiatorConnection`].

mod asking;
mod cdb;
mod ending;
mod machine;
mod notice;
mod read;
mod request;
mod response;
mod task;
#[cfg(test)]
mod tests;
mod violation;
mod write;

pub use cdb::Cdb;
pub use machine::InitiatorConnection;
pub use violation::Violation;

use super::target::TargetRecord;
use crate::framing::{Header, Pdu, Place, TaskId};
use crate::login::initiator::{Established, InitiatorLoginOptions, LoginFailure};
use crate::pdu::{
    AsyncEvent, LogoutReason, LogoutResult, ManagementFunction, ManagementResponse, RejectReason,
    ServiceResponse, TaskAttribute,
};
use crate::session::initiator::{ToConnection, ToSession};
use crate::text::{ConnectionParameters, SessionParameters};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::time::Duration;
use lunar_wire::{Lun, Time};

/// How a connection starts.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Who logs in where, and what is negotiated. ISID, TSIH and CmdSN come from
    /// [`InitiatorSession::open`](crate::session::initiator::InitiatorSession::open).
    pub login: InitiatorLoginOptions,
    /// `None` on the leading connection; what it negotiated on every further one.
    pub session: Option<SessionParameters>,
    /// How much and how long.
    pub limits: ConnectionLimits,
}

/// Limits of one connection in the initiator role.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// From the first Login Request to full feature phase.
    pub login_time: Duration,
    /// When nothing has arrived for so long, ping the target; `None`: never.
    pub ping_interval: Option<Duration>,
    /// A pinged target that sends nothing for so long is taken for dead.
    pub ping_time: Duration,
    /// From the Logout Request to its response.
    pub logout_time: Duration,
    /// Commands and other requests in hand at once, those that wait for the window included.
    pub requests_max: u32,
    /// Text gathered over the Text Responses of one exchange.
    pub text_bytes_max: u32,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            login_time: Duration::from_secs(15),
            ping_interval: Some(Duration::from_secs(5)),
            ping_time: Duration::from_secs(5),
            logout_time: Duration::from_secs(5),
            requests_max: 1024,
            text_bytes_max: 1 << 20,
        }
    }
}

/// A SCSI command to execute. RFC 7143 §11.3.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Command {
    /// The caller's name for it in all that follows; never used twice on one connection.
    pub id: TaskId,
    /// For which unit.
    pub lun: Lun,
    /// 1 to 1,020 bytes; shorter than 16 is padded with zeroes, longer goes on in an extended CDB
    /// header segment (RFC 7143 §11.2.2.3).
    pub cdb: Cdb,
    /// SIMPLE, ORDERED …
    pub attribute: TaskAttribute,
    /// Command priority, 0 to 15: 0 says nothing, else 1 is the highest. Not sent below
    /// iSCSIProtocolLevel 2. RFC 7144 §5.1.1.
    pub priority: u8,
    /// Data for the target; its length is the ExpectedDataTransferLength. Sent as slices.
    pub data_out: Bytes,
    /// How much data is expected from the target: the length of the buffer that the driver holds
    /// ready. With data-out as well, the command is bidirectional.
    pub data_in_bytes_max: u32,
    /// Ahead of the commands that wait, whether the window is open or not.
    pub immediate: bool,
}

/// A task management function to carry out. RFC 7143 §11.5.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Management {
    /// The caller's name for it, from the same set as those of commands.
    pub id: TaskId,
    /// Which. TASK REASSIGN is refused: it needs ErrorRecoveryLevel 2; so are those of RFC 7144
    /// below iSCSIProtocolLevel 2. After I_T NEXUS RESET the target ends the session.
    pub function: ManagementFunction,
    /// On which unit; zero for those that mean all units.
    pub lun: Lun,
    /// The task meant by ABORT TASK or QUERY TASK; it was executed on this connection.
    pub referenced: Option<TaskId>,
}

/// Which targets a SendTargets asks for. RFC 7143 Appendix C.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SendTargets {
    /// All that this initiator may see; discovery sessions only.
    All,
    /// The one of this name.
    Name(String),
    /// The one this session is logged in to.
    This,
}

/// What an initiator connection is told.
#[derive(Clone, Debug)]
pub enum Input {
    /// A PDU's header; its digest was right.
    Header(Header),
    /// The data segment of that PDU is complete and lies where `Receive` said. `data` holds it for
    /// [`Place::Control`] and is empty otherwise.
    Payload {
        /// For [`Place::Control`].
        data: Bytes,
        /// `false`: the data digest did not match.
        digest_ok: bool,
    },
    /// A header arrived whose digest did not match; framing is lost (ERL 0). RFC 7143 §7.8.
    HeaderDigestError,
    /// Execute a SCSI command. Answered by exactly one [`Output::Completed`].
    Execute(Command),
    /// Carry out a task management function. Answered by exactly one [`Output::Managed`].
    Manage(Management),
    /// Ping the target. Answered by exactly one [`Output::Pong`].
    Ping {
        /// The caller's name for it.
        id: TaskId,
        /// To be echoed; at most the target's MaxRecvDataSegmentLength.
        data: Bytes,
    },
    /// Ask which targets there are. Answered by exactly one [`Output::Targets`].
    SendTargets {
        /// The caller's name for it.
        id: TaskId,
        /// Which targets.
        which: SendTargets,
    },
    /// Send any text. Answered by exactly one [`Output::Text`].
    Text {
        /// The caller's name for it.
        id: TaskId,
        /// Keys and values, each pair ended by NUL; at most the target's
        /// MaxRecvDataSegmentLength.
        text: Bytes,
    },
    /// Log out. Answered by exactly one [`Output::LoggedOut`]; unless another connection was
    /// meant, what is still in hand fails with [`Failure::LoggedOut`], then the connection closes.
    Logout {
        /// What is to be closed.
        reason: LogoutReason,
        /// Which connection; `None`: this one.
        cid: Option<u16>,
    },
    /// The session speaks to this connection.
    Session(ToConnection),
    /// The time of [`Output::Wait`] has come.
    Deadline,
    /// The peer closed its side, or the socket failed.
    PeerClosed,
}

/// What an initiator connection asks of its driver, or tells it.
///
/// A driver whose socket takes no more stops reading from it until the queue is short again; so
/// all that waits to be sent stays within what one read can ask for.
#[derive(Clone, Debug)]
pub enum Output {
    /// Where the data segment of the header just handed in goes. Exactly once for each header
    /// with DataSegmentLength > 0, unless `Close` comes instead. For [`Place::Task`] that is the
    /// data-in buffer of this command.
    Receive(Place),
    /// Send it, in this order.
    Send(Pdu),
    /// The login is through: the driver switches digests on now, in both directions, after what
    /// was sent so far.
    FullFeature(ConnectionParameters),
    /// What the login brought. Commands are welcome from now on.
    LoggedIn(Box<Established>),
    /// For the session this connection belongs to.
    ToSession(ToSession),
    /// A command is over; its data-in buffer is the caller's again.
    Completed {
        /// Which.
        id: TaskId,
        /// What the target answered, or why there is no answer.
        result: Result<CommandResult, Failure>,
    },
    /// A task management function is over. The tasks it ended have been reported before.
    Managed {
        /// Which.
        id: TaskId,
        /// What the target answered, or why there is no answer.
        result: Result<ManagementResponse, Failure>,
        /// Additional Response Information, RFC 7144 §6.4; zero where there is none.
        information: [u8; 3],
    },
    /// The answer to a ping: the data came back as it was sent, up to what we can receive.
    Pong {
        /// Which.
        id: TaskId,
        /// `Ok` if the target lives.
        result: Result<(), Failure>,
    },
    /// The answer to SendTargets, in the target's order.
    Targets {
        /// Which.
        id: TaskId,
        /// The records.
        result: Result<Vec<TargetRecord>, Failure>,
    },
    /// The answer to a text.
    Text {
        /// Which.
        id: TaskId,
        /// Keys and values, each pair ended by NUL.
        result: Result<Bytes, Failure>,
    },
    /// The answer to a logout.
    LoggedOut {
        /// What the target answered, or why there is no answer.
        result: Result<LogoutReply, Failure>,
    },
    /// The target tells something unasked. What the protocol asks of the initiator in return
    /// happens without the driver.
    Event(Event),
    /// Nothing more will be sent: flush what was, then close the socket.
    Close(CloseReason),
    /// Nothing to do until then (`None`: until the next input).
    Wait(Option<Time>),
}

/// How a SCSI command ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CommandResult {
    /// Whether it reached the SCSI layer of the target; if not, the status means nothing.
    pub response: ServiceResponse,
    /// SAM status byte.
    pub status: u8,
    /// Status qualifier, SAM-5 §5.3.2; 0 below iSCSIProtocolLevel 2 (RFC 7144 §5.2.1).
    pub status_qualifier: u16,
    /// Sense data, without the SenseLength field.
    pub sense: Bytes,
    /// How many bytes of the data-in buffer hold data of the target, from its start.
    pub data_in_bytes: u32,
    /// Of data-out if the command had any, else of data-in.
    pub residual: Residual,
    /// Of data-in, if the command is bidirectional.
    pub read_residual: Residual,
}

/// How the length of a transfer differs from what was expected. RFC 7143 §11.4.5.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Residual {
    /// It does not.
    #[default]
    None,
    /// So many bytes less were moved than expected.
    Underflow(u32),
    /// So many bytes more would have been moved had they been expected.
    Overflow(u32),
}

/// Why a request has no answer of the target. Whether a command that was sent had an effect is
/// then not known, except for `Refused`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Failure {
    /// Never sent: not logged in, logging out, too much in hand, or not valid as asked.
    Refused(&'static str),
    /// Ended by a task management function.
    Aborted,
    /// The target rejected it.
    Rejected(RejectReason),
    /// Ended by a logout.
    LoggedOut,
    /// The connection ended first.
    Lost,
}

/// The target's answer to a logout. RFC 7143 §11.15.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogoutReply {
    /// How it ended.
    pub result: LogoutResult,
    /// Time2Wait.
    pub time_to_wait_seconds: u16,
    /// Time2Retain.
    pub time_to_retain_seconds: u16,
}

/// An Asynchronous Message. RFC 7143 §11.9.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// Which kind.
    pub event: AsyncEvent,
    /// For a SCSI event.
    pub lun: Lun,
    /// For a vendor's event.
    pub vendor_code: u8,
    /// Parameter1 to Parameter3 as the kind defines them.
    pub parameters: [u16; 3],
    /// Sense data of a SCSI event, without the SenseLength field.
    pub sense: Bytes,
}

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq)]
pub enum CloseReason {
    /// Logged out.
    LoggedOut,
    /// The login failed.
    LoginFailed(LoginFailure),
    /// The target broke the protocol.
    Violation(Violation),
    /// The target did not answer in time; the text says to what.
    TimedOut(&'static str),
    /// The target closed its side, or the socket failed.
    PeerClosed,
    /// The same, where the target owed the first answer to proposals that name TaskReporting or
    /// iSCSIProtocolLevel: old targets do not know them.
    NewerKeysUnanswered,
    /// The session asked for it.
    Dropped,
}
