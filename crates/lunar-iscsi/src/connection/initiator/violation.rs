//! Protocol violations by a target.

use crate::pdu::Opcode;

/// A protocol violation by the target. At ErrorRecoveryLevel 0 each one ends the connection, which
/// is the session recovery of RFC 7143 §7.1.4.4.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A field of a PDU holds an invalid value.
    #[error("malformed {pdu:?}: {what}")]
    Malformed {
        /// The PDU.
        pdu: Opcode,
        /// Description of the error.
        what: &'static str,
    },
    /// A PDU that is not allowed in this state.
    #[error("{got:?} is not allowed {state}")]
    Misplaced {
        /// The PDU.
        got: Opcode,
        /// State of the connection.
        state: &'static str,
    },
    /// A header did not match its digest. RFC 7143 §7.8.
    #[error("a header digest does not match")]
    HeaderDigest,
    /// A data segment did not match its digest. RFC 7143 §7.8.
    #[error("the data digest of {pdu:?} does not match")]
    DataDigest {
        /// The PDU.
        pdu: Opcode,
    },
    /// A data segment is longer than our MaxRecvDataSegmentLength.
    #[error("{pdu:?} has {bytes} bytes of data, more than the declared maximum of {bytes_max}")]
    TooLong {
        /// The PDU.
        pdu: Opcode,
        /// DataSegmentLength.
        bytes: u32,
        /// Length we declared.
        bytes_max: u32,
    },
    /// StatSN skips or repeats: a response was lost. RFC 7143 §4.2.2.2.
    #[error("StatSN {got} instead of {expected}")]
    StatSn {
        /// Received number.
        got: u32,
        /// Expected number.
        expected: u32,
    },
    /// DataSN or R2TSN skips or repeats. RFC 7143 §4.2.2.4.
    #[error("{pdu:?} has number {got} instead of {expected}")]
    DataSn {
        /// The PDU.
        pdu: Opcode,
        /// Received number.
        got: u32,
        /// Expected number.
        expected: u32,
    },
    /// An Initiator Task Tag that belongs to no open request, or to one of another kind.
    #[error("{pdu:?} has the Initiator Task Tag {tag:#x}, which belongs to no matching request")]
    UnknownTag {
        /// The PDU.
        pdu: Opcode,
        /// The tag.
        tag: u32,
    },
    /// A command was reported as good although data is missing.
    #[error("status GOOD after only {got} of {expected} bytes")]
    MissingData {
        /// Number of bytes that arrived.
        got: u32,
        /// Number of bytes that should have arrived according to the residual.
        expected: u32,
    },
    /// A text answer exceeds the limit.
    #[error("a text response is longer than {bytes_max} bytes")]
    TextTooLong {
        /// The limit.
        bytes_max: u32,
    },
}
