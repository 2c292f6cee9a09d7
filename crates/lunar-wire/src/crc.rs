//! CRC32C (Castagnoli) for the digests of RFC 7143 §13.1; uses the CPU's CRC instruction if there
//! is one.

use crc_fast::{CrcAlgorithm, Digest};

/// Calculates the CRC32C of `bytes`. On the wire the least significant byte comes first (examples
/// in RFC 7143 Appendix A.4): [`digest_bytes`](Crc32c::digest_bytes) returns that form.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// A CRC32C calculated incrementally, over data that arrives in pieces.
#[derive(Clone)]
pub struct Crc32c(Digest);

impl Crc32c {
    /// Creates the CRC of no data.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The CRC of all pieces so far.
    pub fn value(&self) -> u32 {
        self.0.clone().finalize() as u32
    }

    /// The four bytes on the wire for `crc`.
    #[allow(clippy::little_endian_bytes)] // the one field of iSCSI in this order
    pub const fn digest_bytes(crc: u32) -> [u8; 4] {
        crc.to_le_bytes()
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Crc32c({:#010x})", self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the CRCs match the examples of RFC 7143 Appendix A.4 (also RFC 3720 B.4).
    #[test]
    fn rfc_examples() {
        let ascending: [u8; 32] = core::array::from_fn(|i| i as u8);
        let descending: [u8; 32] = core::array::from_fn(|i| 31 - i as u8);
        let cases: [(&[u8], [u8; 4]); 4] = [
            (&[0; 32], [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], [0x43, 0xab, 0xa8, 0x62]),
            (&ascending, [0x4e, 0x79, 0xdd, 0x46]),
            (&descending, [0x5c, 0xdb, 0x3f, 0x11]),
        ];
        for (bytes, wire) in cases {
            assert_eq!(Crc32c::digest_bytes(crc32c(bytes)), wire);
            let mut pieces = Crc32c::new();
            bytes.chunks(5).for_each(|piece| pieces.update(piece));
            assert_eq!(Crc32c::digest_bytes(pieces.value()), wire);
        }
    }
}
