//! Logical unit numbers.

use crate::Field;

/// The 8-byte LUN field of a PDU or CDB in the layout of SAM-5 §4.7.
#[derive(Clone, Copy, Default, Eq, PartialEq, Hash, Ord, PartialOrd)]
pub struct Lun(pub [u8; 8]);

/// The meaning of a LUN field.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LunForm {
    /// The number of a unit: peripheral device or flat space addressing of one level.
    Unit(u16),
    /// A well known logical unit (C1h, then its number): 01h is REPORT LUNS.
    WellKnown(u8),
    /// Any other address method, or more than one level; no unit of Lunar has such a LUN.
    Other,
}

impl Lun {
    /// LUN 0.
    pub const ZERO: Self = Self([0; 8]);
    /// The largest number the single-level forms can carry.
    pub const UNIT_MAX: u16 = 0x3fff;
    /// The REPORT LUNS well known logical unit.
    pub const REPORT_LUNS: Self = Self([0xc1, 0x01, 0, 0, 0, 0, 0, 0]);

    /// Encodes the LUN `number`, whose low 14 bits are used: peripheral device addressing up to
    /// 255, flat space addressing above. SAM-5 §4.7.
    pub const fn new(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        let first = if number > 0xff { 0x40 | (high & 0x3f) } else { 0 };
        Self([first, low, 0, 0, 0, 0, 0, 0])
    }

    /// Decodes the field. Both single-level forms of one number mean the same unit.
    pub const fn form(self) -> LunForm {
        // Compared as one number, because every command needs it.
        const SECOND_LEVEL: u64 = 0x0000_ffff_ffff_ffff;
        if u64::from_be_bytes(self.0) & SECOND_LEVEL != 0 {
            return LunForm::Other;
        }
        match [self.0[0], self.0[1]] {
            [0, low] => LunForm::Unit(low as u16),
            [high @ 0x40..=0x7f, low] => LunForm::Unit(u16::from_be_bytes([high & 0x3f, low])),
            [0xc1, number] => LunForm::WellKnown(number),
            _ => LunForm::Other,
        }
    }
}

impl core::fmt::Debug for Lun {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.form() {
            LunForm::Unit(number) => write!(f, "Lun({number})"),
            _ => write!(f, "Lun({:#018x})", u64::from_be_bytes(self.0)),
        }
    }
}

impl Field for Lun {
    const SIZE: usize = 8;
    fn get(bytes: &[u8]) -> Self {
        Self(<[u8; 8]>::get(bytes))
    }
    fn put(self, bytes: &mut [u8]) {
        self.0.put(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_level_luns_round_trip() {
        for number in 0..=Lun::UNIT_MAX {
            assert_eq!(Lun::new(number).form(), LunForm::Unit(number));
        }
    }

    #[test]
    fn peripheral_and_flat_space_forms_mean_one_unit() {
        assert_eq!(Lun([0x40, 7, 0, 0, 0, 0, 0, 0]).form(), LunForm::Unit(7));
        assert_eq!(Lun::new(7).form(), LunForm::Unit(7));
        assert_eq!(Lun([0, 7, 0, 1, 0, 0, 0, 0]).form(), LunForm::Other, "two levels");
    }
}
