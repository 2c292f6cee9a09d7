//! PDUs in the relay: the end and the kind of each.
//!
//! Written from RFC 7143 alone and independent of the crates that it tests.

use super::PduDirection;
use lunar_testkit::raw::opcode;
use std::fmt;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Basic header segment, RFC 7143 §11.2.1.
pub const HEADER_BYTES: usize = 48;
const DIGEST_BYTES: usize = 4;
/// Task Management Function Response. RFC 7143 §11.5.
const MANAGEMENT_RESPONSE: u8 = 0x22;
/// Logout Response. RFC 7143 §11.15.
const LOGOUT_RESPONSE: u8 = 0x26;

/// Kind of a PDU, as far as it matters for the position of a cut.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[allow(missing_docs)] // each is the PDU of that name
pub enum PduKind {
    LoginRequest,
    LoginResponse,
    /// A SCSI Command that reads.
    CommandRead,
    /// A SCSI Command that writes, with immediate data.
    CommandImmediate,
    /// A SCSI Command that writes, without immediate data.
    CommandWrite,
    /// A SCSI Command that moves no data.
    CommandOther,
    DataOutUnsolicited,
    DataOutSolicited,
    ReadyToTransfer,
    DataIn,
    ScsiResponse,
    NopOut,
    NopIn,
    TextRequest,
    TextResponse,
    ManagementRequest,
    ManagementResponse,
    LogoutRequest,
    LogoutResponse,
    AsyncMessage,
    Reject,
    /// An opcode that RFC 7143 does not define.
    Unknown,
}

impl fmt::Display for PduKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{self:?}"))
    }
}

/// A whole PDU, as it was on the wire.
#[derive(Debug)]
pub struct RelayedPdu {
    /// Header, header segments, digests, data, padding.
    pub bytes: Vec<u8>,
    /// Range of the data segment in `bytes`.
    pub data: std::ops::Range<usize>,
    /// Kind of the PDU.
    pub kind: PduKind,
}

/// Negotiated values that determine the form of the PDUs after a login.
#[derive(Clone, Debug, Default)]
pub struct NegotiatedForm {
    /// True once the full feature phase has begun.
    pub full_feature: bool,
    /// True if HeaderDigest is CRC32C.
    pub header_digest: bool,
    /// True if DataDigest is CRC32C.
    pub data_digest: bool,
    text: Vec<u8>,
}

impl NegotiatedForm {
    /// Reads a Login Response. RFC 7143 §11.13.
    pub fn read_login_response(&mut self, pdu: &RelayedPdu) {
        if pdu.kind != PduKind::LoginResponse {
            return;
        }
        self.text.extend_from_slice(&pdu.bytes[pdu.data.clone()]);
        let (flags, status_class) = (pdu.bytes[1], pdu.bytes[36]);
        if flags & 0x83 == 0x83 && status_class == 0 {
            self.full_feature = true;
            self.header_digest = self.chose(b"HeaderDigest=CRC32C");
            self.data_digest = self.chose(b"DataDigest=CRC32C");
        }
    }

    /// True if the target answered with this pair.
    fn chose(&self, pair: &[u8]) -> bool {
        self.text.split(|byte| *byte == 0).any(|answered| answered == pair)
    }
}

/// Reads one PDU; `None`: the connection ended.
pub async fn read(
    from: &mut (impl AsyncRead + Unpin),
    way: PduDirection,
    form: &std::cell::RefCell<NegotiatedForm>,
) -> Option<RelayedPdu> {
    let mut header = [0; HEADER_BYTES];
    from.read_exact(&mut header).await.ok()?;
    // Read after the header has arrived, so that a login response sent before it counts.
    let now = form.borrow().clone();
    let protected = now.full_feature && !matches!(header[0] & 0x3f, 0x03 | 0x23);
    let header_digest = if protected && now.header_digest { DIGEST_BYTES } else { 0 };
    let segments = usize::from(header[4]) * 4;
    let length = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
    let data_digest = if protected && now.data_digest && length > 0 { DIGEST_BYTES } else { 0 };
    let start = HEADER_BYTES + segments + header_digest;
    // Zeroed memory; resize() would write byte by byte in builds that are not optimized.
    let mut bytes = vec![0; start + length.next_multiple_of(4) + data_digest];
    bytes[..HEADER_BYTES].copy_from_slice(&header);
    from.read_exact(&mut bytes[HEADER_BYTES..]).await.ok()?;
    let kind = kind(&bytes[..HEADER_BYTES], way);
    Some(RelayedPdu { bytes, data: start..start + length, kind })
}

fn kind(header: &[u8], way: PduDirection) -> PduKind {
    let has_data = header[5..8] != [0, 0, 0];
    match (way, header[0] & 0x3f) {
        (PduDirection::ToTarget, opcode::NOP_OUT) => PduKind::NopOut,
        (PduDirection::ToTarget, opcode::SCSI_COMMAND) => match header[1] & 0x60 {
            0x40 => PduKind::CommandRead,
            0x20 | 0x60 if has_data => PduKind::CommandImmediate,
            0x20 | 0x60 => PduKind::CommandWrite,
            _ => PduKind::CommandOther,
        },
        (PduDirection::ToTarget, opcode::TASK_MANAGEMENT) => PduKind::ManagementRequest,
        (PduDirection::ToTarget, opcode::LOGIN) => PduKind::LoginRequest,
        (PduDirection::ToTarget, opcode::TEXT) => PduKind::TextRequest,
        (PduDirection::ToTarget, opcode::DATA_OUT) if header[20..24] == [0xff; 4] => {
            PduKind::DataOutUnsolicited
        }
        (PduDirection::ToTarget, opcode::DATA_OUT) => PduKind::DataOutSolicited,
        (PduDirection::ToTarget, opcode::LOGOUT) => PduKind::LogoutRequest,
        (PduDirection::ToInitiator, opcode::NOP_IN) => PduKind::NopIn,
        (PduDirection::ToInitiator, opcode::SCSI_RESPONSE) => PduKind::ScsiResponse,
        (PduDirection::ToInitiator, MANAGEMENT_RESPONSE) => PduKind::ManagementResponse,
        (PduDirection::ToInitiator, opcode::LOGIN_RESPONSE) => PduKind::LoginResponse,
        (PduDirection::ToInitiator, opcode::TEXT_RESPONSE) => PduKind::TextResponse,
        (PduDirection::ToInitiator, opcode::DATA_IN) => PduKind::DataIn,
        (PduDirection::ToInitiator, LOGOUT_RESPONSE) => PduKind::LogoutResponse,
        (PduDirection::ToInitiator, opcode::R2T) => PduKind::ReadyToTransfer,
        (PduDirection::ToInitiator, opcode::ASYNC_MESSAGE) => PduKind::AsyncMessage,
        (PduDirection::ToInitiator, opcode::REJECT) => PduKind::Reject,
        _ => PduKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn login_response(flags: u8, text: &[u8]) -> Vec<u8> {
        let mut pdu = vec![0; HEADER_BYTES];
        (pdu[0], pdu[1], pdu[7]) = (0x23, flags, text.len() as u8);
        pdu.extend_from_slice(text);
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        pdu
    }

    /// Goal: PDUs are separated correctly also with digests after their parts, as the login
    /// negotiated.
    #[test]
    fn pdus_end_where_they_end() {
        let mut stream = login_response(0x04, b"HeaderDigest=CRC3");
        stream.extend(login_response(0x87, b"2C\0DataDigest=None\0"));
        let mut write = vec![0; HEADER_BYTES];
        (write[0], write[1], write[4], write[7]) = (0x01, 0xa0, 2, 5);
        write.extend([7; 8 + 4 + 8]); // header segments, their digest, data with padding
        stream.extend(&write);
        let mut ping = vec![0; HEADER_BYTES + 4];
        ping[0] = 0x40;
        stream.extend(&ping);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (form, mut from) = (RefCell::default(), &stream[..]);
            let mut seen = Vec::new();
            for way in [
                PduDirection::ToInitiator,
                PduDirection::ToInitiator,
                PduDirection::ToTarget,
                PduDirection::ToTarget,
            ] {
                let pdu = read(&mut from, way, &form).await.unwrap();
                form.borrow_mut().read_login_response(&pdu);
                seen.push((pdu.kind, pdu.bytes.len(), pdu.data.len()));
            }
            let expected = [
                (PduKind::LoginResponse, 68, 17),
                (PduKind::LoginResponse, 68, 19),
                (PduKind::CommandImmediate, 68, 5),
                (PduKind::NopOut, 52, 0),
            ];
            assert_eq!(seen, expected);
            assert!(read(&mut from, PduDirection::ToTarget, &form).await.is_none(), "all was read");
        });
    }
}
