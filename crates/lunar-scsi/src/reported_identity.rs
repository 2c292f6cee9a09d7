//! The identity that a unit of another target reports, for a unit that reports the same.

use crate::vpd::{self, DesignatorType};
use alloc::vec::Vec;
use core::fmt;

/// Maximum number of designators that are passed on; further ones are dropped.
pub const DESIGNATORS_MAX: usize = 32;
/// Maximum length of a serial number that is passed on: the page then fits in 255 bytes.
pub const SERIAL_NUMBER_BYTES_MAX: usize = 251;

/// Length of T10 VENDOR IDENTIFICATION.
const VENDOR_BYTES: usize = 8;
/// Serial number that is not available, SPC-4 §7.8.15.
const NO_SERIAL_NUMBER: &[u8] = b"    ";
const BINARY: u8 = 1;
const ASCII: u8 = 2;
const UTF_8: u8 = 3;

/// The parts of a unit's INQUIRY data by which hosts identify it: vendor, product, revision, serial
/// number, and the designators of the unit itself, as the unit reports them.
///
/// The data comes from another machine. Texts are printable ASCII; each designator has the form
/// that its type requires.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReportedIdentity {
    pub(crate) vendor: [u8; VENDOR_BYTES],
    pub(crate) product: [u8; 16],
    pub(crate) revision: [u8; 4],
    pub(crate) serial_number: Vec<u8>,
    pub(crate) designators: Vec<UnitDesignator>,
}

/// A designator of a logical unit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct UnitDesignator {
    pub(crate) code_set: u8,
    pub(crate) kind: DesignatorType,
    pub(crate) designator: Vec<u8>,
}

/// A reason why INQUIRY data does not identify a unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NoIdentity(&'static str);

impl fmt::Display for NoIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for NoIdentity {}

impl ReportedIdentity {
    /// Reads the identity from standard INQUIRY data, and from the bodies of pages 83h and 80h,
    /// without their headers. Designators of ports, of the target and of other types are dropped,
    /// and so are malformed ones; a serial number with unprintable characters counts as not
    /// available.
    ///
    /// # Errors
    /// Fails if no designator identifies the unit, or the standard data is too short.
    pub fn parse(
        standard: &[u8],
        device_identification: Option<&[u8]>,
        serial_number: Option<&[u8]>,
    ) -> Result<Self, NoIdentity> {
        let designators = designators(device_identification.unwrap_or_default());
        if designators.is_empty() {
            return Err(NoIdentity(
                "it reports no designator of the unit (NAA, EUI-64, UUID, T10 vendor or name) in \
                 VPD page 83h",
            ));
        }
        let text = |at: usize, bytes: usize| standard.get(at..at + bytes);
        let (Some(vendor), Some(product), Some(revision)) = (text(8, 8), text(16, 16), text(32, 4))
        else {
            return Err(NoIdentity("its standard INQUIRY data is too short"));
        };
        Ok(Self {
            vendor: printable(vendor),
            product: printable(product),
            revision: printable(revision),
            serial_number: usable_serial_number(serial_number.unwrap_or_default()),
            designators,
        })
    }

    /// True if both have a designator in common, so that hosts take their units for one.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.designators.iter().any(|one| {
            other.designators.iter().any(|other| is_same(one.kind, &one.designator, other))
        })
    }

    /// True if one of the designators is that of a unit with this UUID and no other identity.
    pub fn includes_that_of(&self, uuid: &[u8; 16]) -> bool {
        let own = vpd::unit_designators(uuid);
        own.iter().any(|(kind, designator)| {
            self.designators.iter().any(|other| is_same(*kind, designator, other))
        })
    }

    /// True if the designators contain this one.
    pub fn has(&self, code_set: u8, kind: DesignatorType, designator: &[u8]) -> bool {
        let mut own = self.designators.iter();
        own.any(|own| (own.code_set, own.kind, &own.designator[..]) == (code_set, kind, designator))
    }
}

/// The usable designators of the unit, each once, up to the first incomplete one.
fn designators(mut body: &[u8]) -> Vec<UnitDesignator> {
    const ASSOCIATION: u8 = 0x30;
    let mut found: Vec<UnitDesignator> = Vec::new();
    while let [code_set, kind, _, length, rest @ ..] = body {
        let Some((designator, rest)) = rest.split_at_checked(usize::from(*length)) else { break };
        body = rest;
        let (code_set, of_unit) = (code_set & 0x0f, kind & ASSOCIATION == 0);
        let kind = DesignatorType(kind & 0x0f);
        if !of_unit || !is_usable(code_set, kind, designator) {
            continue;
        }
        let designator = UnitDesignator { code_set, kind, designator: designator.to_vec() };
        if found.len() < DESIGNATORS_MAX && !found.contains(&designator) {
            found.push(designator);
        }
    }
    found
}

/// True for a designator of a type that identifies a unit, in the form of its type.
fn is_usable(code_set: u8, kind: DesignatorType, designator: &[u8]) -> bool {
    let length = designator.len();
    let any = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    match kind {
        // SPC-4 §7.8.6.6: NAA 2h, 3h, 5h and 6h.
        DesignatorType::NAA => {
            let [first, rest @ ..] = designator else { return false };
            let known = matches!(first >> 4, 2 | 3 | 5 | 6);
            code_set == BINARY
                && matches!(length, 8 | 16)
                && known
                && (first & 15 != 0 || any(rest))
        }
        // SPC-4 §7.8.6.5.
        DesignatorType::EUI_64 => {
            code_set == BINARY && matches!(length, 8 | 12 | 16) && any(designator)
        }
        DesignatorType::UUID => {
            code_set == BINARY
                && length == 18
                && designator[..2] == [0x10, 0]
                && any(&designator[2..])
        }
        // SPC-4 §7.8.6.4; some units pad it with zeroes.
        DesignatorType::T10_VENDOR_ID => {
            let text = without_zeroes(designator);
            let specific = text.get(VENDOR_BYTES..).unwrap_or_default();
            code_set == ASCII && is_text(text) && specific.iter().any(|byte| *byte != b' ')
        }
        // SPC-4 §7.8.6.9: the name is followed by zeroes.
        DesignatorType::SCSI_NAME_STRING => {
            let name = without_zeroes(designator);
            let prefixed = ["naa.", "eui.", "iqn."].iter().any(|kind| {
                name.len() > kind.len() && name[..kind.len()].eq_ignore_ascii_case(kind.as_bytes())
            });
            let padded = length.is_multiple_of(4) && name.len() < length;
            code_set == UTF_8 && prefixed && padded && is_text(name) && !name.contains(&b' ')
        }
        _ => false,
    }
}

/// True if hosts would take the designators for the same: they compare texts without their padding,
/// and names without regard to the case.
fn is_same(kind: DesignatorType, designator: &[u8], other: &UnitDesignator) -> bool {
    let is_padding = |byte: &u8| matches!(byte, 0 | b' ');
    let text = |bytes: &[u8]| {
        let end = bytes.iter().rposition(|byte| !is_padding(byte)).map_or(0, |last| last + 1);
        bytes[..end].to_ascii_lowercase()
    };
    kind == other.kind
        && match kind {
            DesignatorType::T10_VENDOR_ID | DesignatorType::SCSI_NAME_STRING => {
                text(designator) == text(&other.designator)
            }
            _ => designator == other.designator,
        }
}

fn without_zeroes(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

/// True for printable ASCII.
fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, 0x20..=0x7e))
}

/// Copies a field of ASCII; unprintable characters become spaces.
fn printable<const N: usize>(field: &[u8]) -> [u8; N] {
    core::array::from_fn(|at| match field.get(at) {
        Some(byte @ 0x20..=0x7e) => *byte,
        _ => b' ',
    })
}

fn usable_serial_number(body: &[u8]) -> Vec<u8> {
    let serial = without_zeroes(body);
    let blank = serial.iter().all(|byte| *byte == b' ');
    match is_text(serial) && !blank && serial.len() <= SERIAL_NUMBER_BYTES_MAX {
        true => serial.to_vec(),
        false => NO_SERIAL_NUMBER.to_vec(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use alloc::vec;

    /// Standard data with a vendor, product and revision.
    pub(crate) fn standard() -> Vec<u8> {
        [&[0; 8][..], b"ACME    ", b"Big \x01Array\0     ", b"9\xff a"].concat()
    }

    /// Builds one descriptor of page 83h.
    pub(crate) fn descriptor(code_set: u8, kind: u8, designator: &[u8]) -> Vec<u8> {
        [&[code_set, kind, 0, designator.len() as u8], designator].concat()
    }

    fn kept(code_set: u8, kind: u8, designator: &[u8]) -> bool {
        let body = descriptor(code_set, kind, designator);
        ReportedIdentity::parse(&standard(), Some(&body), None).is_ok()
    }

    const NAA_6: [u8; 16] = [0x60, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

    /// Goal: designators that identify the unit are kept, and no others.
    #[test]
    fn usable_designators() {
        let uuid = [&[0x10, 0][..], &[7; 16]].concat();
        for (code_set, kind, designator) in [
            (1, 3, &[0x30, 0, 0, 0, 0, 0, 0, 1][..]),
            (1, 3, &NAA_6),
            (0x51, 3, &NAA_6), // a protocol identifier without PIV
            (1, 2, &[0, 0, 0, 0, 0, 0, 0, 1]),
            (1, 2, &[1; 12]),
            (1, 2, &[1; 16]),
            (1, 0xa, &uuid),
            (2, 1, b"ACME    x"),
            (2, 1, b"IET     00010001\0\0\0\0"),
            (3, 8, b"naa.3000000000000001\0\0\0\0"),
        ] {
            assert!(kept(code_set, kind, designator), "{kind:x} {designator:02x?}");
        }
        for (code_set, kind, designator) in [
            (1, 0x13, &NAA_6[..]), // of the port
            (1, 0x23, &NAA_6),     // of the target
            (2, 3, &NAA_6),
            (1, 3, &NAA_6[..8][..7]),
            (1, 3, &[0x30, 0, 0, 0, 0, 0, 0, 0]),
            (1, 3, &[0x10, 0, 0, 0, 0, 0, 0, 1]),
            (1, 3, &[]),
            (1, 2, &[0; 8]),
            (1, 2, &[1; 9]),
            (1, 0xa, &uuid[..17]),
            (1, 0xa, &[&[0x20, 0][..], &[7; 16]].concat()),
            (1, 0xa, &[&[0x10, 0][..], &[0; 16]].concat()),
            (2, 1, b"ACME    "),
            (2, 1, b"ACME       \0"),
            (2, 1, b"ACME    a\x1b[2J"),
            (1, 1, b"ACME    x"),
            (3, 8, b"naa.3000000000000001"),
            (3, 8, b"http://x\0\0\0\0"),
            (3, 8, b"iqn.\0\0\0\0"),
            (1, 0, &[1; 8]),
            (1, 4, &[0, 0, 0, 1]),
            (1, 7, &[1; 16]),
        ] {
            assert!(!kept(code_set, kind, designator), "{kind:x} {designator:02x?}");
        }
    }

    /// Goal: texts are printable, and a serial number is passed on as it is or counts as not
    /// available.
    #[test]
    fn texts_are_printable() {
        let naa = descriptor(1, 3, &NAA_6);
        let parse = |serial| ReportedIdentity::parse(&standard(), Some(&naa), serial).unwrap();
        let identity = parse(None);
        assert_eq!(identity.vendor, *b"ACME    ");
        assert_eq!(identity.product, *b"Big  Array      ");
        assert_eq!(identity.revision, *b"9  a");
        assert_eq!(identity.serial_number, b"    ");
        for (serial, is) in [
            (&b"  123 "[..], &b"  123 "[..]),
            (b"123\0\0", b"123"),
            (b"", b"    "),
            (b"      ", b"    "),
            (b"1\n2", b"    "),
            (&[b'x'; 251], &[b'x'; 251]),
            (&[b'x'; 252], b"    "),
        ] {
            assert_eq!(parse(Some(serial)).serial_number, is, "{serial:?}");
        }
    }

    /// Goal: hostile pages are read without panic and within limits; data without an identity is
    /// refused. Method: truncation at each byte, bytes by a seed, and more designators than kept.
    #[test]
    fn hostile_pages_are_bounded() {
        let naa = |number: u8| descriptor(1, 3, &[0x30, 0, 0, 0, 0, 0, 1, number]);
        let many: Vec<u8> = (0..=255).flat_map(naa).collect();
        let parse = |body: &[u8]| ReportedIdentity::parse(&standard(), Some(body), None);
        assert_eq!(parse(&many).unwrap().designators.len(), DESIGNATORS_MAX);
        let twice = [naa(1), naa(1)].concat();
        assert_eq!(parse(&twice).unwrap().designators.len(), 1);
        for end in 0..twice.len() {
            assert_eq!(parse(&twice[..end]).is_ok(), end >= 12, "{end}");
        }
        assert!(parse(&[]).is_err());
        assert!(ReportedIdentity::parse(&standard(), None, Some(b"123")).is_err());
        for end in 0..36 {
            assert!(ReportedIdentity::parse(&standard()[..end], Some(&naa(1)), None).is_err());
        }
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..2000 {
            let body: Vec<u8> = (0..200)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state as u8) & 0x1f
                })
                .collect();
            let kept = parse(&body).map_or(vec![], |identity| identity.designators);
            assert!(kept.len() <= DESIGNATORS_MAX);
            assert!(kept.iter().all(|one| is_usable(one.code_set, one.kind, &one.designator)));
        }
    }

    /// Goal: identities overlap when hosts would take their units for one.
    #[test]
    fn overlapping_identities() {
        let of = |bodies: &[Vec<u8>]| {
            ReportedIdentity::parse(&standard(), Some(&bodies.concat()), None).unwrap()
        };
        let (a, b) = (descriptor(1, 3, &NAA_6), descriptor(2, 1, b"ACME    x"));
        let both = of(&[a.clone(), b.clone()]);
        let (one, other) = (of(&[a]), of(&[b]));
        assert!(both.overlaps(&one) && other.overlaps(&both) && !one.overlaps(&other));
        assert!(one.has(1, DesignatorType::NAA, &NAA_6));
        assert!(!one.has(1, DesignatorType::UUID, &NAA_6));
    }

    /// Fault: a storage that reported the T10 designator or the name of another one with more
    /// padding was served beside it, and hosts saw two disks as one.
    #[test]
    fn padding_distinguishes_no_identities() {
        let of = |kind: u8, text: &[u8]| {
            let code_set = if kind == 1 { 2 } else { 3 };
            ReportedIdentity::parse(&standard(), Some(&descriptor(code_set, kind, text)), None)
                .unwrap()
        };
        let vendor = of(1, b"ACME    x1");
        for same in [&b"ACME    x1\0"[..], b"ACME    x1  ", b"ACME    X1\0\0"] {
            assert!(vendor.overlaps(&of(1, same)), "{same:?}");
        }
        assert!(!vendor.overlaps(&of(1, b"ACME    x12")) && !vendor.overlaps(&of(1, b"ACME    x")));
        let name = of(8, b"naa.5000000000000001\0\0\0\0");
        assert!(name.overlaps(&of(8, b"NAA.5000000000000001\0\0\0\0\0\0\0\0")));
        assert!(!name.overlaps(&of(8, b"naa.5000000000000002\0\0\0\0")));
    }

    /// Goal: no padding hides that a storage reports the identity of a unit of this server.
    #[test]
    fn own_units_are_recognized_by_padded_designators() {
        let uuid = [7; 16];
        for (kind, designator) in vpd::unit_designators(&uuid) {
            let (code_set, padding) = match kind {
                DesignatorType::T10_VENDOR_ID => (2, 1),
                DesignatorType::SCSI_NAME_STRING => (3, 4),
                _ => (1, 0),
            };
            let padded = [&designator[..], &vec![0; padding]].concat();
            let body = descriptor(code_set, kind.0, &padded);
            let reported = ReportedIdentity::parse(&standard(), Some(&body), None).unwrap();
            assert!(reported.includes_that_of(&uuid), "{kind:?}");
            assert!(!reported.includes_that_of(&[8; 16]), "{kind:?}");
        }
    }
}
