//! The target role of a connection: the values at its border, and the machine.

mod command;
mod data_time;
mod full_feature;
mod limits;
mod machine;
mod numbering;
mod response;
mod retired;
mod service;
mod task;
mod transfer;

pub use data_time::{DATA_OUT_BYTES_PER_SECOND_MIN, DATA_OUT_COUNTED_BYTES_MAX};
pub use limits::ConnectionLimits;
pub use machine::TargetConnection;
pub use transfer::Fault;

use crate::framing::{Header, Pdu, Place, TaskId};
use crate::login::{Claim, Identified, Join, Joined};
use crate::pdu::{LoginStatus, TaskAttribute};
use crate::session::target::{ToConnection, ToSession};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Deref;
use lunar_wire::{Lun, Time};

type Outputs = VecDeque<Output>;

/// What a target connection is told.
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
    /// The answer to [`Output::Identify`].
    Identified(Box<Identified>),
    /// The answer to [`Output::Join`].
    Joined(Result<Joined, LoginStatus>),
    /// The answer to [`Output::ListTargets`].
    Targets {
        /// In the order of names.
        records: Vec<TargetRecord>,
        /// There are others behind the last one.
        more: bool,
    },
    /// The session speaks to this connection.
    Session(ToConnection),
    /// The executor has planned a task and wants this many bytes of data-out before it can run.
    Wants {
        /// A task that was started.
        task: TaskId,
        /// At most its ExpectedDataTransferLength; more is asked for as a residual, never sent.
        data_out_bytes: u32,
    },
    /// The executor is through with a task: started and ended by itself, or told to abort. Its
    /// buffer is gone: of a data segment that is on its way there, the rest is discarded.
    Done {
        /// Which.
        task: TaskId,
        /// How it ended.
        outcome: Outcome,
    },
    /// The answer to [`Output::Fail`], once the task can have no effect any more.
    Failed {
        /// Which.
        task: TaskId,
        /// CHECK CONDITION with the sense data of the fault.
        outcome: Outcome,
    },
    /// The time of [`Output::Wait`] has come.
    Deadline,
    /// The peer takes what is sent, though there is a lot of it and it says nothing itself: it is
    /// alive, and a ping or an R2T may be long on its way.
    PeerTakes {
        /// So much of it.
        bytes: u64,
    },
    /// The peer closed its side, or the socket failed.
    PeerClosed,
    /// The target is being stopped or the session ended by an operator: ask the initiator to log
    /// out (Asynchronous Message 1), or tell it that the session drops (3), then close in time.
    Shutdown {
        /// Seconds the initiator is given.
        within_seconds: u16,
    },
}

/// What a target connection asks of its driver.
#[derive(Clone, Debug)]
pub enum Output {
    /// Where the data segment of the header just handed in goes. Exactly once for each header
    /// with DataSegmentLength > 0, unless `Close` comes instead.
    Receive(Place),
    /// Send it, in this order.
    Send(Pdu),
    /// Who is this, and what must it prove? Answer with `Input::Identified`.
    Identify(Box<Claim>),
    /// Make or find the session. Answer with `Input::Joined`.
    Join(Box<Join>),
    /// SendTargets: which targets may this initiator see? Answer with `Input::Targets`.
    ListTargets {
        /// One name, or all.
        only: Option<String>,
        /// Those behind this one in the order of names; `None`: from the first on.
        after: Option<String>,
        /// How much text of them is wanted, at least; see [`TargetRecord::text_bytes`].
        text_bytes: usize,
    },
    /// For the session this connection belongs to.
    ToSession(ToSession),
    /// It is this command's turn: plan it, then answer `Wants` or `Done`.
    Start(Task),
    /// All the data-out it wanted lies in its buffer: run it, then answer `Done`.
    Run(TaskId),
    /// Stop it if that can be done, run it no further if it is not running; free its buffer. The
    /// executor answers `Done` (the outcome is ignored) once the task can have no effect any more.
    /// Also comes for a task that was never started but for which there was a `Receive`: then it
    /// only frees the buffer, and an answer is welcome but not waited for.
    Abort(TaskId),
    /// It failed on its way here: stop it as with `Abort`, then answer `Input::Failed` with CHECK
    /// CONDITION and sense data of `fault`, as the unit lays them out. What it ended with by itself
    /// does not count.
    Fail {
        /// Which; perhaps one that was never started.
        task: TaskId,
        /// Its unit.
        lun: Lun,
        /// What went wrong.
        fault: Fault,
    },
    /// Text that arrived is over, the login is through: the driver switches digests on now, in
    /// both directions, after what was sent so far.
    FullFeature(crate::text::ConnectionParameters),
    /// The last output: flush what was sent, then close the socket. It comes after every task is
    /// quiet and the session was told `ConnectionClosed`; the machine may be dropped.
    Close(CloseReason),
    /// Nothing to do until then (`None`: until the next input).
    Wait(Option<Time>),
}

/// A SCSI command as the executor gets it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Task {
    /// Names it in `Wants`, `Done`, `Run`, `Abort`.
    pub id: TaskId,
    /// Of which unit.
    pub lun: Lun,
    /// 16 bytes, or longer with an extended CDB header segment.
    pub cdb: Cdb,
    /// SIMPLE, ORDERED …
    pub attribute: TaskAttribute,
    /// Command priority, 0 to 15: 0 says nothing, else 1 is the highest. 0 below protocol level 2.
    /// RFC 7144 §5.1.1.
    pub priority: u8,
    /// R bit.
    pub read: bool,
    /// W bit.
    pub write: bool,
    /// ExpectedDataTransferLength: of data-out if W is set, else of data-in.
    pub expected_bytes: u32,
    /// Expected bidirectional read length, if the header segment was there.
    pub expected_read_bytes: Option<u32>,
}

impl Task {
    /// Data-out that the initiator announces. RFC 7143 §11.3.4.
    pub fn expected_data_out_bytes(&self) -> u32 {
        if self.write { self.expected_bytes } else { 0 }
    }

    /// Data-in that the initiator has room for. RFC 7143 §11.2.2.4, §11.3.4.
    pub fn expected_data_in_bytes(&self) -> u32 {
        match (self.read, self.write) {
            (true, true) => self.expected_read_bytes.unwrap_or(0),
            (true, false) => self.expected_bytes,
            (false, _) => 0,
        }
    }
}

/// A command descriptor block: 16 bytes, of which short ones use the first, or more with an
/// extended CDB header segment. RFC 7143 §11.2.2.3.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cdb {
    short: [u8; 16],
    /// All of a longer one.
    long: Option<Box<[u8]>>,
}

impl Cdb {
    /// What stands in the header, and what an additional segment adds to it.
    #[inline]
    pub fn new(in_header: [u8; 16], extended: &[u8]) -> Self {
        let long = match extended {
            [] => None,
            more => Some([&in_header, more].concat().into()),
        };
        Self { short: in_header, long }
    }
}

impl Cdb {
    /// What stood in the header: all of a short one.
    #[inline]
    pub fn in_header(&self) -> [u8; 16] {
        self.short
    }
}

impl Deref for Cdb {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.long.as_deref().unwrap_or(&self.short)
    }
}

/// How a SCSI command ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Outcome {
    /// SAM status byte.
    pub status: u8,
    /// Status qualifier, SAM-5 §5.3.2: with BUSY and TASK SET FULL, after how many tenths of a
    /// second to try again. Sent at protocol level 2 only (RFC 7144 §5.2.1), never with GOOD and
    /// data-in.
    pub status_qualifier: u16,
    /// No other response of the session may pass it: unit attentions that may tell of aborted
    /// tasks, and PREEMPT AND ABORT. RFC 7143 §4.2.2.3.4 a), f).
    pub fenced: bool,
    /// Sense data, without the SenseLength field.
    pub sense: Bytes,
    /// The data of the command. What the initiator does not expect is not sent, and becomes a
    /// residual.
    pub data_in: Bytes,
    /// How many bytes of data-in the command would have moved, for the residual, where `data_in`
    /// is shorter because the rest is not expected.
    pub data_in_bytes: u32,
    /// How many bytes of data-out the command would have moved, for the residual.
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
    /// How long it is as text.
    pub fn text_bytes(&self) -> usize {
        let key = |name: &str, value: &str| name.len() + value.len() + 2;
        let address = |(address, _): &(String, u16)| key("TargetAddress", address) + ",65535".len();
        key("TargetName", &self.name) + self.addresses.iter().map(address).sum::<usize>()
    }
}

/// Why a connection ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CloseReason {
    /// The peer logged out, or its side closed.
    Ended,
    /// The login was refused.
    LoginRefused {
        /// As the peer was told.
        status: LoginStatus,
        /// In words, for the log.
        why: String,
    },
    /// The peer broke the protocol; the text says how.
    Violation(String),
    /// No answer to a ping, data that did not come, or a login that took too long.
    TimedOut(&'static str),
    /// We are stopping, or another login took the session's or the connection's place.
    Dropped,
}

#[cfg(test)]
mod tests;
