//! Offsets of segments in the data-in and data-out buffers: a mantissa of 28 bits and an exponent
//! of 4 bits.

use super::OsdVersion;

/// An offset in its encoding: the byte offset is mantissa × 2^(exponent + 8). The exponent is
/// unsigned in OSD-1, and a two's complement number in OSD-2.
///
/// ```
/// use lunar_scsi::osd::{OsdOffset, OsdVersion};
///
/// let offset = OsdOffset::encode(OsdVersion::Osd2, 24).unwrap();
/// assert_eq!(offset, OsdOffset(0xb000_0003)); // 3 × 2^(−5 + 8)
/// assert_eq!(offset.decode(OsdVersion::Osd2), Some(24));
/// assert_eq!(OsdOffset::encode(OsdVersion::Osd1, 24), None); // not a multiple of 256
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OsdOffset(pub u32);

impl OsdOffset {
    /// The segment is not used.
    pub const UNUSED: Self = Self(u32::MAX);

    const MANTISSA: u32 = (1 << Self::MANTISSA_BITS) - 1;
    const MANTISSA_BITS: u32 = 28;

    /// Exponents in use, plus 8: the numbers of zero bits at the end of a byte offset.
    ///
    /// Interpretation: revision 3 is like the later revisions, with signed exponents.
    const fn shifts(version: OsdVersion) -> core::ops::RangeInclusive<u32> {
        if version.is_osd2() { 3..=15 } else { 8..=22 }
    }

    /// Encodes a byte offset with the smallest exponent; `None` if it is not a multiple of the
    /// least step (256 bytes in OSD-1, 8 bytes in OSD-2) or too large for its number of low zero
    /// bits.
    pub fn encode(version: OsdVersion, byte: u64) -> Option<Self> {
        let shift = Self::shifts(version).find(|shift| {
            byte.is_multiple_of(1 << shift) && byte >> shift <= u64::from(Self::MANTISSA)
        })?;
        if byte == 0 {
            return Some(Self(0));
        }
        let exponent = shift.wrapping_sub(8) & 0xf;
        let mantissa = u32::try_from(byte >> shift).ok()?;
        Some(Self(exponent << Self::MANTISSA_BITS | mantissa)).filter(|code| *code != Self::UNUSED)
    }

    /// Returns the byte offset; `None` if the offset is [`UNUSED`](Self::UNUSED), or the exponent
    /// is not one of the version.
    pub fn decode(self, version: OsdVersion) -> Option<u64> {
        if self == Self::UNUSED {
            return None;
        }
        let exponent = self.0 >> Self::MANTISSA_BITS;
        // Of a two's complement number, adding 8 inverts the sign bit.
        let shift = if version.is_osd2() { exponent ^ 8 } else { exponent + 8 };
        let is_used = Self::shifts(version).contains(&shift);
        is_used.then(|| u64::from(self.0 & Self::MANTISSA) << shift)
    }
}
