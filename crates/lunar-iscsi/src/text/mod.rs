//! Text keys: format, table, negotiation. RFC 7143 §6.1, §6.2, §13.

mod continuation;
pub mod exchange;
mod negotiate;
mod pairs;
mod report;
mod table;
pub mod value;

pub use continuation::{Reassembler, Segmenter, TEXT_BYTES_MAX};
pub(crate) use negotiate::receive_unknown;
pub use negotiate::{Negotiation, Role};
pub use pairs::{
    IRRELEVANT, KEY_BYTES_MAX, KeySet, NOT_UNDERSTOOD, PAIRS_MAX, Pair, REJECT, TextBuilder,
    Violation, is_answer_constant, parse, parse_up_to,
};
pub use report::markdown;
pub use table::{
    CHAP_BYTES_MAX, KEYS, Key, KeyInfo, KeyStage, NAME_BYTES_MAX, Rule, Scope, Senders, Use,
    VALUE_BYTES_MAX, ValueKind,
};

use crate::framing::Digests;
use crate::login::SessionType;
use alloc::vec;
use alloc::vec::Vec;

/// A digest for headers or data. RFC 7143 §13.1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Digest {
    /// None.
    None,
    /// CRC32C.
    Crc32c,
}

/// Reporting of aborts of several tasks. RFC 7143 §13.23.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum TaskReporting {
    /// The rules of RFC 3720.
    #[default]
    Rfc3720,
    /// Responses are fenced, RFC 7143 §4.2.2.3.3.
    ResponseFence,
    /// Fast multi-task abort, RFC 7143 §4.2.3.4.
    FastAbort,
}

/// Values that one side proposes, and the limits within which it accepts values. Used by both
/// roles.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Offer {
    /// HeaderDigest values in order of preference.
    pub header_digest: Vec<Digest>,
    /// DataDigest values in order of preference.
    pub data_digest: Vec<Digest>,
    /// Maximum MaxConnections.
    pub max_connections: u16,
    /// Preferred InitialR2T.
    pub initial_r2t: bool,
    /// Preferred ImmediateData.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength that we declare.
    pub max_recv_data_segment_bytes: u32,
    /// Maximum MaxBurstLength.
    pub max_burst_bytes: u32,
    /// Maximum FirstBurstLength.
    pub first_burst_bytes: u32,
    /// DefaultTime2Wait in seconds.
    pub time_to_wait_seconds: u16,
    /// DefaultTime2Retain in seconds.
    pub time_to_retain_seconds: u16,
    /// Maximum MaxOutstandingR2T.
    pub max_outstanding_r2t: u16,
    /// Preferred DataPDUInOrder.
    pub data_pdu_in_order: bool,
    /// Preferred DataSequenceInOrder.
    pub data_sequence_in_order: bool,
    /// Maximum ErrorRecoveryLevel.
    pub error_recovery_level: u8,
    /// TaskReporting values in order of preference.
    pub task_reporting: Vec<TaskReporting>,
    /// Maximum iSCSIProtocolLevel.
    pub protocol_level: u8,
}

impl Offer {
    /// Default offer of a target of this project.
    pub fn target() -> Self {
        Self {
            header_digest: vec![Digest::None, Digest::Crc32c],
            data_digest: vec![Digest::None, Digest::Crc32c],
            max_connections: 8,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_bytes: 262_144,
            max_burst_bytes: 1 << 20,
            first_burst_bytes: 262_144,
            time_to_wait_seconds: 2,
            time_to_retain_seconds: 20,
            max_outstanding_r2t: 8,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            task_reporting: vec![
                TaskReporting::FastAbort,
                TaskReporting::ResponseFence,
                TaskReporting::Rfc3720,
            ],
            protocol_level: PROTOCOL_LEVEL_MAX,
        }
    }

    /// Default offer of an initiator of this project: like the target's, with digests left to the
    /// configuration.
    pub fn initiator() -> Self {
        Self {
            header_digest: vec![Digest::None],
            data_digest: vec![Digest::None],
            max_connections: 1,
            ..Self::target()
        }
    }

    /// Returns the offer without the keys that RFC 3720 does not define, TaskReporting and
    /// iSCSIProtocolLevel: some old targets close the connection on them.
    #[must_use]
    pub fn without_newer_keys(self) -> Self {
        let task_reporting = vec![TaskReporting::Rfc3720];
        Self { task_reporting, protocol_level: PROTOCOL_LEVEL_RFC_7143, ..self }
    }
}

/// The default offer of a target.
impl Default for Offer {
    fn default() -> Self {
        Self::target()
    }
}

/// The iSCSIProtocolLevel of RFC 7143, which applies if none is negotiated. RFC 7143 §13.24.
pub const PROTOCOL_LEVEL_RFC_7143: u8 = 1;

/// The iSCSIProtocolLevel of RFC 7144, the highest that this implementation supports.
/// RFC 7144 §7.1.1.
pub const PROTOCOL_LEVEL_MAX: u8 = 2;

/// Parameters of a session after login. RFC 7143 §13; the defaults are those of the RFC.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(missing_docs)] // each is the key of that name, §13
pub struct SessionParameters {
    pub session_type: SessionType,
    pub max_connections: u16,
    pub initial_r2t: bool,
    pub immediate_data: bool,
    pub max_burst_bytes: u32,
    pub first_burst_bytes: u32,
    pub time_to_wait_seconds: u16,
    pub time_to_retain_seconds: u16,
    pub max_outstanding_r2t: u16,
    pub data_pdu_in_order: bool,
    pub data_sequence_in_order: bool,
    pub error_recovery_level: u8,
    pub task_reporting: TaskReporting,
    pub protocol_level: u8,
}

impl Default for SessionParameters {
    fn default() -> Self {
        Self {
            session_type: SessionType::Normal,
            max_connections: 1,
            initial_r2t: true,
            immediate_data: true,
            max_burst_bytes: 262_144,
            first_burst_bytes: 65_536,
            time_to_wait_seconds: 2,
            time_to_retain_seconds: 20,
            max_outstanding_r2t: 1,
            data_pdu_in_order: true,
            data_sequence_in_order: true,
            error_recovery_level: 0,
            task_reporting: TaskReporting::Rfc3720,
            protocol_level: PROTOCOL_LEVEL_RFC_7143,
        }
    }
}

/// Parameters of one connection after login.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionParameters {
    /// Digests in both directions.
    pub digests: Digests,
    /// The peer's MaxRecvDataSegmentLength: the longest data segment we may send.
    pub send_data_segment_bytes_max: u32,
    /// Our MaxRecvDataSegmentLength: the longest data segment the peer may send.
    pub receive_data_segment_bytes_max: u32,
}

impl Default for ConnectionParameters {
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            send_data_segment_bytes_max: 8192,
            receive_data_segment_bytes_max: 8192,
        }
    }
}

#[cfg(test)]
mod tests;
