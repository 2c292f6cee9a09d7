//! The initiator role of a connection: the types of its interface. Mirrors
//! [`target`](super::target); the state machine is [`InitiatorConnection`].

mod cdb;
mod data_out_stream;
mod ending;
mod machine;
mod notice;
mod read;
mod request;
mod response;
mod submit;
mod task;
#[cfg(test)]
mod tests;
mod violation;
mod write;

pub use cdb::Cdb;
pub use machine::InitiatorConnection;
pub use violation::Violation;

use super::target::TargetRecord;
use crate::framing::{DataDestination, Header, Pdu, SegmentDigest, TaskId};
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

/// Start parameters of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Names, credentials and proposals of the login. ISID, TSIH and CmdSN come from
    /// [`InitiatorSession::open`](crate::session::initiator::InitiatorSession::open).
    pub login: InitiatorLoginOptions,
    /// `None` on the leading connection; on further ones, the parameters that it negotiated.
    pub session: Option<SessionParameters>,
    /// Limits of memory and time.
    pub limits: ConnectionLimits,
}

/// Limits of one connection in the initiator role.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Time from the first Login Request to full feature phase.
    pub login_time: Duration,
    /// Idle time after which the target is pinged; `None`: never.
    pub ping_interval: Option<Duration>,
    /// Time without any input after a ping, after which the target is considered dead.
    pub ping_time: Duration,
    /// Time from the Logout Request to its response.
    pub logout_time: Duration,
    /// Commands and other requests open at once, including those that wait for the window.
    pub requests_max: u32,
    /// Maximum text gathered over the Text Responses of one exchange, in bytes.
    pub text_bytes_max: u32,
    /// Time for which a Data-Out PDU may wait for the next part of its data, while others wait
    /// behind it. Its command then fails.
    pub data_out_part_time: Duration,
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
            data_out_part_time: Duration::from_secs(10),
        }
    }
}

/// A SCSI command to execute. RFC 7143 §11.3.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Command {
    /// The caller's id of the command in later inputs and outputs; never reused on a connection.
    pub id: TaskId,
    /// Logical unit that the command addresses.
    pub lun: Lun,
    /// 1 to 1,020 bytes; a CDB shorter than 16 bytes is padded with zeroes, a longer one continues
    /// in an extended CDB header segment (RFC 7143 §11.2.2.3).
    pub cdb: Cdb,
    /// Task attribute: SIMPLE, ORDERED …
    pub attribute: TaskAttribute,
    /// Command priority, 0 to 15: 0 means none, 1 is the highest. Not sent below iSCSIProtocolLevel
    /// 2. RFC 7144 §5.1.1.
    pub priority: u8,
    /// Data for the target; its length is the ExpectedDataTransferLength. Sent without copying.
    pub data_out: Bytes,
    /// Maximum data expected from the target: the length of the driver's buffer. A command that
    /// also has data-out is bidirectional.
    pub data_in_bytes_max: u32,
    /// True to send the command ahead of waiting commands, whether or not the window is open.
    pub immediate: bool,
}

/// A SCSI command whose data moves in pieces.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StreamingCommand {
    /// The command; `data_out` is the start of the data-out, as far as it is there.
    pub command: Command,
    /// Length of the data-out: the ExpectedDataTransferLength.
    pub data_out_bytes: u32,
    /// Digest with which that start came as one data segment. Sent on if it is one PDU; otherwise,
    /// and if `None`, digests are calculated.
    pub prefix_digest: Option<u32>,
}

/// A task management function to carry out. RFC 7143 §11.5.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Management {
    /// The caller's id of the function, from the same number space as those of commands.
    pub id: TaskId,
    /// Function to carry out. TASK REASSIGN is refused because it needs ErrorRecoveryLevel 2; the
    /// functions of RFC 7144 are refused below iSCSIProtocolLevel 2. After I_T NEXUS RESET the
    /// target ends the session.
    pub function: ManagementFunction,
    /// Logical unit of the function; zero for functions on all units.
    pub lun: Lun,
    /// Task that ABORT TASK or QUERY TASK refers to; it was executed on this connection.
    pub referenced: Option<TaskId>,
}

/// Targets that a SendTargets request covers. RFC 7143 Appendix C.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SendTargets {
    /// All targets this initiator may see; discovery sessions only.
    All,
    /// The target of this name.
    Name(String),
    /// The target of this session.
    This,
}

/// Input of an initiator connection.
#[derive(Clone, Debug)]
pub enum Input {
    /// A PDU header whose digest was correct.
    Header(Header),
    /// The data segment of that PDU is complete, at the destination that `Receive` named. `data`
    /// holds it for [`DataDestination::Control`] and is empty otherwise.
    Payload {
        /// The data segment, for [`DataDestination::Control`] only.
        data: Bytes,
        /// Result of the check of the data digest.
        digest: SegmentDigest,
    },
    /// A header with a wrong digest arrived; framing is lost (ERL 0). RFC 7143 §7.8.
    HeaderDigestError,
    /// Execute a SCSI command. Answered by exactly one [`Output::Completed`].
    Execute(Command),
    /// Execute a SCSI command whose data moves in pieces. Answered by exactly one
    /// [`Output::Completed`].
    ///
    /// Its data-in has the destination [`DataDestination::Stream`], and [`Output::DataIn`] follows
    /// each segment that was checked. [`Output::Wants`] asks for the data-out that did not come
    /// with the command.
    Stream(Box<StreamingCommand>),
    /// Data-out of a streaming command: all or the first part of the oldest range that
    /// [`Output::Wants`] asked for and that was not given yet. Data at another position fails the
    /// command with [`RequestFailure::DataMissing`].
    DataOut {
        /// Id of the command.
        id: TaskId,
        /// Position of the data in the data-out.
        offset_bytes: u32,
        /// The data.
        data: Bytes,
        /// Digest with which the data came as one data segment. Sent on if the data is one PDU:
        /// within a range and the target's MaxRecvDataSegmentLength. Otherwise, and if `None`,
        /// digests are calculated.
        digest: Option<u32>,
    },
    /// Announces such data before it is there: the header of its first PDU is sent at once, and the
    /// data follows by [`Input::DataOutPart`] as it arrives.
    ///
    /// Other PDUs of the connection wait behind an incomplete one. If no part comes for
    /// [`ConnectionLimits::data_out_part_time`], or the command is aborted before, the target must
    /// not take the PDU for data: it is filled up with a wrong digest; without data digests the
    /// connection is dropped ([`CloseReason::DataMissing`]).
    DataOutBegin {
        /// Id of the command.
        id: TaskId,
        /// Position of the range in the data-out.
        offset_bytes: u32,
        /// Length of the range.
        bytes: u32,
    },
    /// The next part of the range that `DataOutBegin` announced last.
    DataOutPart {
        /// Id of the command.
        id: TaskId,
        /// The part; never beyond the end of the range.
        data: Bytes,
        /// With the last part: the digest with which the whole range came as one data segment. Used
        /// if the range is one PDU: within the target's MaxRecvDataSegmentLength. Otherwise the
        /// digests of its PDUs are calculated, so data that was not checked must not be announced
        /// then.
        digest: Option<u32>,
    },
    /// Carry out a task management function. Answered by exactly one [`Output::Managed`].
    Manage(Management),
    /// Ping the target. Answered by exactly one [`Output::Pong`].
    Ping {
        /// The caller's id of the ping.
        id: TaskId,
        /// Data to echo; at most the target's MaxRecvDataSegmentLength.
        data: Bytes,
    },
    /// Request the list of targets. Answered by exactly one [`Output::Targets`].
    SendTargets {
        /// The caller's id of the request.
        id: TaskId,
        /// Targets to list.
        which: SendTargets,
    },
    /// Send a text request. Answered by exactly one [`Output::Text`].
    Text {
        /// The caller's id of the request.
        id: TaskId,
        /// Keys and values, each pair terminated by NUL; at most the target's
        /// MaxRecvDataSegmentLength.
        text: Bytes,
    },
    /// Log out. Answered by exactly one [`Output::LoggedOut`]. Unless the logout is for another
    /// connection, requests that are still open fail with [`RequestFailure::LoggedOut`], then the
    /// connection closes.
    Logout {
        /// Scope of the logout.
        reason: LogoutReason,
        /// Connection to close; `None`: this one.
        cid: Option<u16>,
    },
    /// A message of the session to this connection.
    Session(ToConnection),
    /// The time given by [`Output::Wait`] has come.
    Deadline,
    /// The peer closed its side, or the socket failed.
    PeerClosed,
}

/// Output of an initiator connection: a request to its driver, or a report.
///
/// A driver whose socket accepts no more data stops reading from it until the send queue is short
/// again; this bounds the data waiting to be sent to what one read can request.
#[derive(Clone, Debug)]
pub enum Output {
    /// Destination of the data segment of the header just handled. Comes exactly once for each
    /// header with DataSegmentLength > 0, unless `Close` comes instead. For
    /// [`DataDestination::Task`] it is the data-in buffer of this command.
    Receive(DataDestination),
    /// Send this PDU; PDUs go out in the order of the outputs. If the PDU is open, its data follows
    /// by `SendData`, and later PDUs wait behind it.
    Send(Pdu),
    /// The next part of the data of an open PDU.
    SendData {
        /// Initiator Task Tag of the PDU: several may be open, but only one of each task.
        initiator_task_tag: u32,
        /// The part; never more than the PDU misses.
        data: Bytes,
        /// With the last part: the data digest to send; `None`: that of the data.
        digest: Option<u32>,
    },
    /// The target asks for data-out of a streaming command. Answer with [`Input::DataOut`] or
    /// [`Input::DataOutBegin`], in the order of these outputs, in pieces or as a whole.
    Wants {
        /// Id of the command.
        id: TaskId,
        /// Position of the range in the data-out.
        offset_bytes: u32,
        /// Length of the range.
        bytes: u32,
    },
    /// A segment of the data-in of a streaming command is complete and checked.
    DataIn {
        /// Id of the command.
        id: TaskId,
        /// Position of the segment in the data-in.
        offset_bytes: u32,
        /// Length of the segment.
        bytes: u32,
        /// Digest of the segment.
        digest: SegmentDigest,
    },
    /// The login is complete: the driver enables digests now, in both directions, after the PDUs
    /// sent so far.
    FullFeature(ConnectionParameters),
    /// Result of the login. Commands are accepted from now on.
    LoggedIn(Box<Established>),
    /// A message to the session of this connection.
    ToSession(ToSession),
    /// A command ended; its data-in buffer belongs to the caller again.
    Completed {
        /// Id of the command.
        id: TaskId,
        /// The response of the target, or the reason why there is none.
        result: Result<CommandResult, RequestFailure>,
    },
    /// A task management function ended. The tasks that it ended have been reported before.
    Managed {
        /// Id of the function.
        id: TaskId,
        /// The response of the target, or the reason why there is none.
        result: Result<ManagementResponse, RequestFailure>,
        /// Additional Response Information, RFC 7144 §6.4; zero if there is none.
        information: [u8; 3],
    },
    /// The answer to a ping: the data came back unchanged, up to the length we can receive.
    Pong {
        /// Id of the ping.
        id: TaskId,
        /// `Ok` if the target answered.
        result: Result<(), RequestFailure>,
    },
    /// The answer to SendTargets, in the order of the target.
    Targets {
        /// Id of the request.
        id: TaskId,
        /// The records.
        result: Result<Vec<TargetRecord>, RequestFailure>,
    },
    /// The answer to a text request.
    Text {
        /// Id of the request.
        id: TaskId,
        /// Keys and values, each pair terminated by NUL.
        result: Result<Bytes, RequestFailure>,
    },
    /// The answer to a logout.
    LoggedOut {
        /// The response of the target, or the reason why there is none.
        result: Result<LogoutReply, RequestFailure>,
    },
    /// An Asynchronous Message of the target. The reaction that the protocol requires of the
    /// initiator needs no action by the driver.
    Event(Event),
    /// Nothing more will be sent: flush the PDUs sent so far, then close the socket.
    Close(CloseReason),
    /// Nothing to do until this time (`None`: until the next input).
    Wait(Option<Time>),
}

/// The result of a SCSI command.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CommandResult {
    /// Service response: whether the command reached the SCSI layer of the target; if not, the
    /// status has no meaning.
    pub response: ServiceResponse,
    /// SAM status byte.
    pub status: u8,
    /// Status qualifier, SAM-5 §5.3.2; 0 below iSCSIProtocolLevel 2 (RFC 7144 §5.2.1).
    pub status_qualifier: u16,
    /// Sense data, without the SenseLength field.
    pub sense: Bytes,
    /// Number of bytes at the start of the data-in buffer that hold data of the target.
    pub data_in_bytes: u32,
    /// Residual of data-out if the command had any, else of data-in.
    pub residual: Residual,
    /// Residual of data-in if the command is bidirectional.
    pub read_residual: Residual,
}

/// Difference between the transferred and the expected length. RFC 7143 §11.4.5.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Residual {
    /// Both lengths are equal.
    #[default]
    None,
    /// Number of bytes by which the transfer was shorter than expected.
    Underflow(u32),
    /// Number of bytes by which the transfer would have been longer if more had been expected.
    Overflow(u32),
}

/// The reason why a request has no answer of the target. Except for `Refused`, the effect of a
/// command that was sent is then unknown.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RequestFailure {
    /// Never sent: not logged in, logging out, too many open requests, or an invalid request.
    Refused(&'static str),
    /// Ended by a task management function, or by the target for a Data-Out PDU that the abort left
    /// incomplete ([`Input::DataOutBegin`]).
    Aborted,
    /// The target rejected the request.
    Rejected(RejectReason),
    /// Aborted, because data of a streaming command was at the wrong position or did not come in
    /// time.
    DataMissing,
    /// Ended by a logout.
    LoggedOut,
    /// The connection ended before the answer came.
    Lost,
}

/// The target's answer to a logout. RFC 7143 §11.15.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LogoutReply {
    /// Result code.
    pub result: LogoutResult,
    /// Time2Wait.
    pub time_to_wait_seconds: u16,
    /// Time2Retain.
    pub time_to_retain_seconds: u16,
}

/// An Asynchronous Message. RFC 7143 §11.9.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Event {
    /// Kind of event.
    pub event: AsyncEvent,
    /// Logical unit of a SCSI event.
    pub lun: Lun,
    /// Code of a vendor-specific event.
    pub vendor_code: u8,
    /// Parameter1 to Parameter3 as the kind defines them.
    pub parameters: [u16; 3],
    /// Sense data of a SCSI event, without the SenseLength field.
    pub sense: Bytes,
}

/// The reason why a connection ends.
#[derive(Clone, Debug, PartialEq)]
pub enum CloseReason {
    /// Logged out.
    LoggedOut,
    /// The login failed.
    LoginFailed(LoginFailure),
    /// The target broke the protocol.
    Violation(Violation),
    /// The target did not answer in time; the text names the missing answer.
    TimedOut(&'static str),
    /// The target closed its side, or the socket failed.
    PeerClosed,
    /// The same as `PeerClosed`, while the first answer to proposals of TaskReporting or
    /// iSCSIProtocolLevel was due: old targets do not support these keys.
    NewerKeysUnanswered,
    /// The session requested it.
    Dropped,
    /// The caller did not provide the data of a streaming command in time, after a part of its PDU
    /// was sent without a digest.
    DataMissing,
}
