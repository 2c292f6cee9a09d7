//! A log of the PDUs on all links.

use crate::framing::Pdu;
use crate::pdu::{HEADER_BYTES, Opcode};
use alloc::vec::Vec;
use bytes::Bytes;

/// Every header that was sent, in order, and the buffers that data segments were sent from.
#[derive(Debug, Default)]
pub struct Log {
    headers: Vec<[u8; HEADER_BYTES]>,
    sources: Vec<Bytes>,
    /// Number of bytes of Data-In, Data-Out and immediate data that were sent.
    pub data_bytes: u64,
    /// Number of these bytes that were not in the buffer of their owner: copied.
    pub foreign_bytes: u64,
}

impl Log {
    /// Records a buffer that data is sent from.
    pub(super) fn source(&mut self, buffer: &Bytes) {
        if !buffer.is_empty() {
            self.sources.push(buffer.clone());
        }
    }

    pub(super) fn sent(&mut self, pdu: &Pdu) {
        self.headers.push(pdu.bhs);
        let opcode = pdu.opcode();
        if [Opcode::DATA_IN, Opcode::DATA_OUT, Opcode::SCSI_COMMAND].contains(&opcode) {
            self.sent_data(&pdu.data);
        }
    }

    /// Records data of a command: a segment, or a part of one.
    pub(super) fn sent_data(&mut self, data: &Bytes) {
        let bytes = data.len() as u64;
        self.data_bytes += bytes;
        if bytes > 0 && !self.sources.iter().any(|source| lies_in(data, source)) {
            self.foreign_bytes += bytes;
        }
    }

    /// The headers of all PDUs of this kind, in the order of sending.
    pub fn headers(&self, opcode: Opcode) -> impl Iterator<Item = &[u8; HEADER_BYTES]> {
        self.headers.iter().filter(move |bhs| bhs[0] & 0x3f == opcode.0)
    }

    /// All headers.
    pub fn all(&self) -> &[[u8; HEADER_BYTES]] {
        &self.headers
    }
}

fn lies_in(part: &Bytes, whole: &Bytes) -> bool {
    let (part, whole) = (part.as_ptr_range(), whole.as_ptr_range());
    whole.start <= part.start && part.end <= whole.end
}
