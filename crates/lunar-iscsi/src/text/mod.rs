//! Text keys: format, table, negotiation. RFC 7143 §6.1, §6.2, §13.

mod continuation;
pub mod exchange;
mod negotiate;
mod pairs;
mod report;
mod table;
pub mod value;

pub use continuation::{Emitter, Reassembler, TEXT_BYTES_MAX};
pub(crate) use negotiate::receive_unknown;
pub use negotiate::{Negotiation, Role};
pub use pairs::{
    IRRELEVANT, KEY_BYTES_MAX, NOT_UNDERSTOOD, PAIRS_MAX, Pair, REJECT, Seen, TextBuilder,
    Violation, is_answer_constant, parse, parse_up_to,
};
pub use report::markdown;
pub use table::{
    CHAP_BYTES_MAX, KEYS, Key, KeyInfo, KeyStage, Kind, NAME_BYTES_MAX, Rule, Scope, Senders, Use,
    VALUE_BYTES_MAX,
};

use crate::framing::Digests;
use crate::login::SessionType;
use alloc::vec;
use alloc::vec::Vec;

/// One way to protect headers or data. RFC 7143 §13.1.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Digest {
    /// None.
    None,
    /// CRC32C.
    Crc32c,
}

/// How multi-task aborts are reported. RFC 7143 §13.23.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum TaskReporting {
    /// As RFC 3720 said.
    #[default]
    Rfc3720,
    /// Responses are fenced, RFC 7143 §4.2.2.3.3.
    ResponseFence,
    /// Fast multi-task abort, RFC 7143 §4.2.3.4.
    FastAbort,
}

/// What one side is willing to negotiate: the values it proposes, and the bounds within which it
/// accepts. Both roles use it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Offer {
    /// HeaderDigest values in order of preference.
    pub header_digest: Vec<Digest>,
    /// DataDigest values in order of preference.
    pub data_digest: Vec<Digest>,
    /// MaxConnections, at most.
    pub max_connections: u16,
    /// InitialR2T wanted.
    pub initial_r2t: bool,
    /// ImmediateData wanted.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength declared by us.
    pub max_recv_data_segment_bytes: u32,
    /// MaxBurstLength, at most.
    pub max_burst_bytes: u32,
    /// FirstBurstLength, at most.
    pub first_burst_bytes: u32,
    /// DefaultTime2Wait in seconds.
    pub time_to_wait_seconds: u16,
    /// DefaultTime2Retain in seconds.
    pub time_to_retain_seconds: u16,
    /// MaxOutstandingR2T, at most.
    pub max_outstanding_r2t: u16,
    /// DataPDUInOrder wanted.
    pub data_pdu_in_order: bool,
    /// DataSequenceInOrder wanted.
    pub data_sequence_in_order: bool,
    /// ErrorRecoveryLevel, at most.
    pub error_recovery_level: u8,
    /// TaskReporting values in order of preference.
    pub task_reporting: Vec<TaskReporting>,
    /// iSCSIProtocolLevel, at most.
    pub protocol_level: u8,
}

impl Offer {
    /// What a target of this project offers unless told otherwise.
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

    /// What an initiator of this project proposes unless told otherwise: as the target, with
    /// digests left to the configuration.
    pub fn initiator() -> Self {
        Self {
            header_digest: vec![Digest::None],
            data_digest: vec![Digest::None],
            max_connections: 1,
            ..Self::target()
        }
    }

    /// The same without the keys that RFC 3720 does not know, TaskReporting and
    /// iSCSIProtocolLevel: some old targets close the connection over them.
    #[must_use]
    pub fn without_newer_keys(self) -> Self {
        let task_reporting = vec![TaskReporting::Rfc3720];
        Self { task_reporting, protocol_level: PROTOCOL_LEVEL_RFC_7143, ..self }
    }
}

/// The target's.
impl Default for Offer {
    fn default() -> Self {
        Self::target()
    }
}

/// The iSCSIProtocolLevel of RFC 7143, which holds where none is named. RFC 7143 §13.24.
pub const PROTOCOL_LEVEL_RFC_7143: u8 = 1;

/// The iSCSIProtocolLevel of RFC 7144, the highest that this implementation speaks. RFC 7144
/// §7.1.1.
pub const PROTOCOL_LEVEL_MAX: u8 = 2;

/// What holds for a session after login. RFC 7143 §13; defaults are the RFC's.
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

/// What holds for one connection after login.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionParameters {
    /// Digests in both directions.
    pub digests: Digests,
    /// The peer's MaxRecvDataSegmentLength: the longest data segment we may send.
    pub send_data_segment_bytes_max: u32,
    /// Ours: the longest data segment the peer may send.
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
