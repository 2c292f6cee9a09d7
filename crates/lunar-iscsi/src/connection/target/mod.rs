//! The target role of a connection: the types of its interface, and the state machine.

mod command;
mod data_time;
mod full_feature;
mod limits;
mod machine;
mod numbering;
mod pieces;
mod resend;
mod response;
mod service;
mod task;
mod terminated_tags;
mod transfer;

pub use data_time::{DATA_OUT_BYTES_PER_SECOND_MIN, DATA_OUT_COUNTED_BYTES_MAX};
pub use limits::ConnectionLimits;
pub use machine::TargetConnection;
pub use transfer::TransferFault;

use crate::framing::{DataDestination, Header, Pdu, SegmentDigest, TaskId};
use crate::login::{AdmissionDecision, Claim, Join, Joined};
use crate::pdu::{LoginStatus, TaskAttribute};
use crate::session::target::{ToConnection, ToSession};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::num::NonZeroU32;
use core::ops::Deref;
use lunar_wire::{Lun, Time};

type Outputs = VecDeque<Output>;

/// Input of a target connection.
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
    /// The answer to [`Output::Identify`].
    Identified(Box<AdmissionDecision>),
    /// The answer to [`Output::Join`].
    Joined(Result<Joined, LoginStatus>),
    /// The answer to [`Output::ListTargets`].
    Targets {
        /// Targets in the order of their names.
        records: Vec<TargetRecord>,
        /// True if there are further targets behind the last one.
        more: bool,
    },
    /// A message of the session to this connection.
    Session(ToConnection),
    /// The executor wants a range of the data-out of a task. Most tasks want one range, which
    /// begins at 0, and get [`Output::Run`] once all of it is in the buffer.
    ///
    /// A task may want several ranges, each beginning at the end of the one before; the first may
    /// begin anywhere within the data that came unsolicited. No R2T crosses the end of a range.
    Wants {
        /// A task that was started.
        task: TaskId,
        /// Start of the range in the data-out.
        offset_bytes: u32,
        /// Length of the range. The part beyond the ExpectedDataTransferLength becomes a residual
        /// and is never sent.
        bytes: u32,
    },
    /// The executor takes the data-out of a task as it arrives, instead of [`Output::Run`] at the
    /// end. Given after [`Output::Start`], before the first `Wants`.
    ///
    /// From now on data-out of the task has the destination [`DataDestination::Stream`], and
    /// [`Output::DataOut`] follows each segment that was checked. Data that has come before lies in
    /// the task's buffer, and so does the rest of a segment that is being received there;
    /// `DataOut` reports both. The data-out of such a task may be longer than
    /// [`ConnectionLimits::data_out_bytes_max`].
    Stream(TaskId),
    /// A piece of the data-in of a task that was started and has not ended. Sent at once, cut into
    /// PDUs and sequences as negotiated; the last PDU of the piece ends a sequence. Data beyond the
    /// expected length is not sent and becomes a residual; a piece of an aborted task is dropped.
    ///
    /// Pieces are in order if DataSequenceInOrder was negotiated, and never overlap; otherwise the
    /// task fails with [`TransferFault::Internal`].
    DataIn {
        /// Id of the task.
        task: TaskId,
        /// Position of the piece in the data-in.
        offset_bytes: u32,
        /// The piece.
        data: Bytes,
        /// Digest with which the piece came as one data segment. Sent on if the piece is one PDU:
        /// within the initiator's MaxRecvDataSegmentLength, MaxBurstLength and the expected
        /// length. Otherwise, and if `None`, digests are calculated.
        digest: Option<u32>,
    },
    /// Announces a range of the data-in of a task whose data is not there yet. Its first Data-In
    /// header is sent at once, and the data follows by [`Input::DataInPart`] as it arrives. A task
    /// has one such range at a time; the rules of `DataIn` hold for its position.
    ///
    /// The data of the task is passed on, and not kept to be sent again: from now on a SNACK for it
    /// is rejected.
    ///
    /// Other PDUs of the connection wait behind an incomplete one. If no part comes for
    /// [`ConnectionLimits::data_in_part_seconds`], or the task ends before the range is complete,
    /// the PDU is filled with zeroes, and the task does not end GOOD: with
    /// [`TransferFault::Internal`], unless it was aborted or ended with an error.
    ///
    /// From now on the status of the task is sent in a PDU of its own, so that the executor may
    /// send data that it has not checked yet, and report the result of the check.
    DataInBegin {
        /// Id of the task.
        task: TaskId,
        /// Position of the range in the data-in.
        offset_bytes: u32,
        /// Length of the range.
        bytes: u32,
    },
    /// The next part of the range that `DataInBegin` announced.
    DataInPart {
        /// Id of the task.
        task: TaskId,
        /// The part; never beyond the end of the range.
        data: Bytes,
        /// With the last part: the digest with which the whole range came as one data segment.
        /// Data that was not checked is sent on with it, so that a receiver that checks digests
        /// detects a fault. Used if the range is one PDU: within the initiator's
        /// MaxRecvDataSegmentLength, MaxBurstLength and the expected length. Otherwise the digests
        /// of its PDUs are calculated, so data that was not checked must not be announced then.
        digest: Option<u32>,
    },
    /// The executor has ended a task: a started one that completed, or an aborted one. Its buffer
    /// is gone: the rest of a data segment being received there is discarded.
    Done {
        /// Id of the task.
        task: TaskId,
        /// Result of the task.
        outcome: Outcome,
    },
    /// The answer to [`Output::Fail`], once the task can have no effect any more.
    Failed {
        /// Id of the task.
        task: TaskId,
        /// CHECK CONDITION with the sense data of the fault.
        outcome: Outcome,
    },
    /// The time given by [`Output::Wait`] has come.
    Deadline,
    /// The peer accepts data from a large send queue although it sends nothing itself: the peer is
    /// alive, and a ping or an R2T may take long to reach it.
    PeerAccepts {
        /// Number of bytes that the peer accepted.
        bytes: u64,
    },
    /// The peer closed its side, or the socket failed.
    PeerClosed,
    /// The target is being stopped, or an operator ends the session: request a logout from the
    /// initiator (Asynchronous Message 1), or announce that the session drops (3), then close in
    /// time.
    Shutdown {
        /// Time limit for the initiator, in seconds.
        within_seconds: u16,
    },
}

/// Output of a target connection: a request to its driver.
#[derive(Clone, Debug)]
pub enum Output {
    /// Destination of the data segment of the header just handled. Comes exactly once for each
    /// header with DataSegmentLength > 0, unless `Close` comes instead.
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
    /// Identify the initiator and its required authentication. Answer with `Input::Identified`.
    Identify(Box<Claim>),
    /// Create or find the session. Answer with `Input::Joined`.
    Join(Box<Join>),
    /// SendTargets: list the targets this initiator may see. Answer with `Input::Targets`.
    ListTargets {
        /// Name of the only target to list; `None` for all.
        only: Option<String>,
        /// Start behind this name in the order of names; `None`: at the first.
        after: Option<String>,
        /// Minimum length of the requested text; see [`TargetRecord::text_bytes`].
        text_bytes: usize,
    },
    /// A message to the session of this connection.
    ToSession(ToSession),
    /// The session delivers this command: plan it, then answer `Wants` or `Done`.
    Start(Task),
    /// All the requested data-out is in the buffer: run the task, then answer `Done`.
    Run(TaskId),
    /// A range of the data-out of a task that takes it as it arrives is complete and checked.
    DataOut {
        /// Id of the task.
        task: TaskId,
        /// Position of the range in the data-out. Ranges begin where the one before ended, unless
        /// several R2Ts are open and the initiator answers them alternately.
        offset_bytes: u32,
        /// Length of the range.
        bytes: u32,
        /// Digest of the range if it is one data segment; `None` also if several segments came
        /// before [`Input::Stream`].
        digest: SegmentDigest,
    },
    /// Stop the task if possible, or do not run it; free its buffer. The executor answers `Done`
    /// (the outcome is ignored) once the task can have no effect any more. Also comes for a task
    /// that was never started but was the destination of a `Receive`: then it only frees the
    /// buffer, and an answer is optional.
    Abort(TaskId),
    /// The transfer of the task failed: stop the task as with `Abort`, then answer `Input::Failed`
    /// with CHECK CONDITION and sense data of `fault` in the format of the unit. If the task ended
    /// by itself, that result does not count.
    Fail {
        /// Id of the task; it may never have been started.
        task: TaskId,
        /// Logical unit of the task.
        lun: Lun,
        /// The error.
        fault: TransferFault,
    },
    /// Login complete: the driver enables digests now, in both directions, after the PDUs sent so
    /// far.
    FullFeature(crate::text::ConnectionParameters),
    /// Flush the PDUs sent so far, then close the socket. Comes after every task has ended or was
    /// left to the session, which has received `ConnectionClosed`. The last output, unless tasks
    /// were left: the machine may be dropped when they have ended.
    Close(CloseReason),
    /// A task that was left to the session has ended, after `Close`: give the session
    /// [`Input::TaskEnded`](crate::session::target::Input::TaskEnded).
    DetachedTaskEnded(TaskId),
    /// Nothing to do until this time (`None`: until the next input).
    Wait(Option<Time>),
}

/// A SCSI command for the executor.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Task {
    /// Id used in `Wants`, `Done`, `Run`, `Abort`.
    pub id: TaskId,
    /// Logical unit that the command addresses.
    pub lun: Lun,
    /// The CDB: 16 bytes, or longer with an extended CDB header segment.
    pub cdb: HeaderCdb,
    /// Task attribute: SIMPLE, ORDERED …
    pub attribute: TaskAttribute,
    /// Command priority, 0 to 15: 0 means none, 1 is the highest. 0 below protocol level 2.
    /// RFC 7144 §5.1.1.
    pub priority: u8,
    /// R bit.
    pub read: bool,
    /// W bit.
    pub write: bool,
    /// ExpectedDataTransferLength: of data-out if W is set, else of data-in.
    pub expected_bytes: u32,
    /// Expected bidirectional read length, if the header segment was present.
    pub expected_read_bytes: Option<u32>,
    /// True if all announced data-out came unsolicited and is in the task's buffer: the executor
    /// may run the task without `Wants`.
    pub has_all_data: bool,
}

impl Task {
    /// Length of the data-out that the initiator announces. RFC 7143 §11.3.4.
    pub fn expected_data_out_bytes(&self) -> u32 {
        if self.write { self.expected_bytes } else { 0 }
    }

    /// Length of the data-in that the initiator's buffer can hold. RFC 7143 §11.2.2.4, §11.3.4.
    pub fn expected_data_in_bytes(&self) -> u32 {
        match (self.read, self.write) {
            (true, true) => self.expected_read_bytes.unwrap_or(0),
            (true, false) => self.expected_bytes,
            (false, _) => 0,
        }
    }
}

/// A command descriptor block: 16 bytes, of which a short CDB uses the first, or more with an
/// extended CDB header segment. RFC 7143 §11.2.2.3.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct HeaderCdb {
    short: [u8; 16],
    /// The whole CDB if it is longer.
    long: Option<Box<[u8]>>,
}

impl HeaderCdb {
    /// Creates a CDB from the bytes in the header and those of an additional segment.
    #[inline]
    pub fn new(in_header: [u8; 16], extended: &[u8]) -> Self {
        let long = match extended {
            [] => None,
            more => Some([&in_header, more].concat().into()),
        };
        Self { short: in_header, long }
    }
}

impl HeaderCdb {
    /// The 16 bytes from the header: all of a short CDB.
    #[inline]
    pub fn in_header(&self) -> [u8; 16] {
        self.short
    }
}

impl Deref for HeaderCdb {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.long.as_deref().unwrap_or(&self.short)
    }
}

/// The result of a SCSI command.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Outcome {
    /// SAM status byte.
    pub status: u8,
    /// Status qualifier, SAM-5 §5.3.2: with BUSY and TASK SET FULL, the delay before a retry in
    /// tenths of a second. Sent at protocol level 2 only (RFC 7144 §5.2.1), never with GOOD and
    /// data-in.
    pub status_qualifier: u16,
    /// True if no other response of the session may overtake this one: unit attentions that may
    /// report aborted tasks, and PREEMPT AND ABORT. RFC 7143 §4.2.2.3.4 a), f).
    pub fenced: bool,
    /// Sense data, without the SenseLength field.
    pub sense: Bytes,
    /// Data-in of the command, or the rest of it behind the pieces given by [`Input::DataIn`]. Data
    /// beyond the expected length is not sent and becomes a residual.
    pub data_in: Bytes,
    /// Digest with which `data_in` came as one data segment. Sent on if `data_in` is one PDU;
    /// otherwise, and if `None`, digests are calculated. A digest of 0 is given as `None`, so that
    /// outcomes are small.
    pub data_in_digest: Option<NonZeroU32>,
    /// Number of data-in bytes that the command would have transferred, for the residual, if the
    /// pieces and `data_in` are shorter because the rest is not expected.
    pub data_in_bytes: u32,
    /// Number of data-out bytes that the command would have transferred, for the residual.
    pub data_out_bytes: u32,
}

/// One target in a SendTargets answer. RFC 7143 Appendix C.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TargetRecord {
    /// iSCSI name.
    pub name: String,
    /// `host:port` (IPv6 in brackets) and portal group tag.
    pub addresses: Vec<(String, u16)>,
}

impl TargetRecord {
    /// Length of the record as text.
    pub fn text_bytes(&self) -> usize {
        let key = |name: &str, value: &str| name.len() + value.len() + 2;
        let address = |(address, _): &(String, u16)| key("TargetAddress", address) + ",65535".len();
        key("TargetName", &self.name) + self.addresses.iter().map(address).sum::<usize>()
    }
}

/// The reason why a connection ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CloseReason {
    /// The peer logged out, or its side closed.
    Ended,
    /// The login was refused.
    LoginRefused {
        /// Status sent to the peer.
        status: LoginStatus,
        /// Description for the log.
        why: String,
    },
    /// The peer broke the protocol; the text describes the violation.
    Violation(String),
    /// A ping was not answered, data did not arrive, or a login took too long.
    TimedOut(&'static str),
    /// The target is stopping, or another login replaced the session or the connection.
    Dropped,
}

#[cfg(test)]
mod tests;
