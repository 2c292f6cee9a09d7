//! A Command Descriptor Block to be sent.

use alloc::vec::Vec;
use bytes::Bytes;
use core::ops::Deref;

/// Number of CDB bytes that fit the header of a SCSI Command. RFC 7143 §11.3.
const IN_HEADER_BYTES: usize = 16;

/// A Command Descriptor Block. A CDB that fits the header of its PDU, as nearly all do, is stored
/// inline, so a command that is sent repeatedly needs no allocation for it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cdb(Kind);

#[derive(Clone, Debug, Eq, PartialEq)]
enum Kind {
    Short { bytes: [u8; IN_HEADER_BYTES], len: u8 },
    Long(Bytes),
}

impl Cdb {
    fn short(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; IN_HEADER_BYTES];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self(Kind::Short { bytes, len: from.len() as u8 }))
    }
}

impl Deref for Cdb {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Kind::Short { bytes, len } => bytes.get(..usize::from(*len)).unwrap_or(bytes),
            Kind::Long(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Cdb {
    fn from(bytes: &[u8]) -> Self {
        Self::short(bytes).unwrap_or_else(|| Self(Kind::Long(Bytes::copy_from_slice(bytes))))
    }
}

impl<const N: usize> From<[u8; N]> for Cdb {
    fn from(bytes: [u8; N]) -> Self {
        Self::from(&bytes[..])
    }
}

impl From<Bytes> for Cdb {
    fn from(bytes: Bytes) -> Self {
        Self::short(&bytes).unwrap_or(Self(Kind::Long(bytes)))
    }
}

impl From<Vec<u8>> for Cdb {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(Bytes::from(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: CDBs of every length are returned unchanged, and equal CDBs compare equal however they
    /// were made.
    #[test]
    fn every_length_is_kept() {
        for len in 0..64 {
            let bytes: Vec<u8> = (1..=len).collect();
            let cdb = Cdb::from(&bytes[..]);
            assert_eq!(*cdb, bytes);
            assert_eq!(cdb, Cdb::from(bytes.clone()));
            assert_eq!(cdb.clone(), Cdb::from(Bytes::from(bytes)));
        }
        assert_ne!(Cdb::from([0; 6]), Cdb::from([0; 10]));
    }
}
