//! Revisions of the standard that differ in CDBs and lists.

use lunar_wire::Field;

/// A revision of the standard; CDBs of each have their own length.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum OsdVersion {
    /// OSD-1 (INCITS 400-2004): 200 bytes.
    Osd1,
    /// Revision 3 of OSD-2: 224 bytes. Such CDBs are decoded, but not built.
    Osd2R03,
    /// Revisions 4 and 5 of OSD-2, and INCITS 458-2011: 236 bytes.
    Osd2,
}

impl OsdVersion {
    /// All versions.
    pub const ALL: [Self; 3] = [Self::Osd1, Self::Osd2R03, Self::Osd2];

    /// Length of a CDB.
    pub const fn cdb_bytes(self) -> usize {
        match self {
            Self::Osd1 => 200,
            Self::Osd2R03 => 224,
            Self::Osd2 => 236,
        }
    }

    /// Length of an integrity check value.
    pub const fn integrity_value_bytes(self) -> usize {
        match self {
            Self::Osd1 | Self::Osd2R03 => 20,
            Self::Osd2 => 32,
        }
    }

    /// True for the formats of OSD-2: offsets of any eight bytes, aligned lists.
    pub const fn is_osd2(self) -> bool {
        !matches!(self, Self::Osd1)
    }
}

/// A time in the six-byte format of the standard: milliseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct OsdTime(u64);

impl OsdTime {
    /// The latest time: 2^48 − 1 milliseconds.
    pub const MAX: Self = Self((1 << 48) - 1);

    /// Creates a time; one that needs more than 48 bits becomes [`MAX`](Self::MAX).
    pub const fn from_millis(millis: u64) -> Self {
        if millis > Self::MAX.0 { Self::MAX } else { Self(millis) }
    }

    /// Milliseconds since 1970-01-01 UTC.
    pub const fn millis(self) -> u64 {
        self.0
    }
}

impl Field for OsdTime {
    const SIZE: usize = 6;

    fn get(bytes: &[u8]) -> Self {
        let mut padded = [0; 8];
        padded[2..].copy_from_slice(bytes);
        Self(u64::from_be_bytes(padded))
    }

    fn put(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.to_be_bytes()[2..]);
    }
}
