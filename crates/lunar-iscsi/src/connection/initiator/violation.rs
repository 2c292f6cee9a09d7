//! What a target can do wrong towards an initiator.

use crate::pdu::Opcode;

/// Something the target did wrong. At ErrorRecoveryLevel 0 each one ends the connection, which is
/// the session recovery of RFC 7143 §7.1.4.4.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A field of a PDU holds what it never may.
    #[error("malformed {pdu:?}: {what}")]
    Malformed {
        /// The PDU.
        pdu: Opcode,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A PDU that has no place in this state.
    #[error("{got:?} is not allowed {state}")]
    Misplaced {
        /// The PDU.
        got: Opcode,
        /// Where it came.
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
    #[error("{pdu:?} carries {bytes} bytes, more than the {bytes_max} declared")]
    TooLong {
        /// The PDU.
        pdu: Opcode,
        /// DataSegmentLength.
        bytes: u32,
        /// What we declared.
        bytes_max: u32,
    },
    /// StatSN skips or repeats: a response was lost. RFC 7143 §4.2.2.2.
    #[error("StatSN {got} where {expected} was due")]
    StatSn {
        /// What came.
        got: u32,
        /// What was due.
        expected: u32,
    },
    /// DataSN or R2TSN skips or repeats. RFC 7143 §4.2.2.4.
    #[error("{pdu:?} number {got} where {expected} was due")]
    DataSn {
        /// The PDU.
        pdu: Opcode,
        /// What came.
        got: u32,
        /// What was due.
        expected: u32,
    },
    /// An Initiator Task Tag that stands for nothing in hand, or for something else.
    #[error("{pdu:?} for the tag {tag:#x}, which is not in use for that")]
    UnknownTag {
        /// The PDU.
        pdu: Opcode,
        /// The tag.
        tag: u32,
    },
    /// A command was reported good, yet data is missing.
    #[error("status GOOD after {got} of {expected} bytes")]
    MissingData {
        /// What arrived.
        got: u32,
        /// What the residual says should have arrived.
        expected: u32,
    },
    /// A text answer beyond the limit.
    #[error("a text answer of more than {bytes_max} bytes")]
    TextTooLong {
        /// The limit.
        bytes_max: u32,
    },
}
