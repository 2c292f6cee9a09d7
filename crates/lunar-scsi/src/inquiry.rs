//! INQUIRY: the description of a unit. SPC-4 §6.6.

use crate::commands::Offered;
use crate::primary::{Context, DeviceServer, DeviceType, UnitIdentity};
use crate::sense::Sense;
use crate::vpd;
use alloc::vec::Vec;

/// T10 VENDOR IDENTIFICATION, padded.
pub const VENDOR: [u8; 8] = *b"LUNAR   ";

/// PRODUCT REVISION LEVEL: major and minor version of this program.
pub const REVISION: &str =
    concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));

lunar_wire::wire_struct! {
    /// Standard data. SPC-4 §6.6.2. The version descriptors name no version.
    pub struct Standard [96] {
        /// PERIPHERAL QUALIFIER and DEVICE TYPE.
        0  => peripheral: u8,
        /// RMB.
        1  => removable: u8,
        2  => version: u8,
        /// NORMACA, HISUP, RESPONSE DATA FORMAT.
        3  => format: u8,
        4  => additional_bytes: u8,
        /// TPGS 30h, 3PC 08h.
        5  => groups_and_copy: u8,
        /// MULTIP.
        6  => multiple_ports: u8,
        /// CMDQUE.
        7  => queuing: u8,
        8  => vendor: [u8; 8],
        16 => product: [u8; 16],
        32 => revision: [u8; 4],
        58 => architecture: u16,
        60 => primary_commands: u16,
        62 => command_set: u16,
        64 => transport: u16,
    }
}

const SAM_5: u16 = 0x00a0;
const SPC_4: u16 = 0x0460;
/// Version descriptor of block units.
pub const SBC_3: u16 = 0x04c0;
/// iSCSI; the session's protocol level is added, RFC 7144 §4.2.
const ISCSI: u16 = 0x0960;
/// The highest level for which T10 reserved numbers.
const PROTOCOL_LEVEL_MAX: u16 = 31;

const VERSION_SPC_4: u8 = 0x06;
const REMOVABLE: u8 = 0x80;
/// HISUP, and RESPONSE DATA FORMAT 2.
const HIERARCHICAL_FORMAT_2: u8 = 0x12;
/// TPGS 11b: states are set explicitly, and change implicitly when the program restarts. With 10b
/// the states would have to survive a restart, SPC-4 §5.15.2.9.
const EXPLICIT_AND_IMPLICIT: u8 = 0x30;
const MULTIP: u8 = 0x10;
/// Flag for support of EXTENDED COPY and RECEIVE COPY RESULTS.
const THIRD_PARTY_COPY: u8 = 0x08;
const COMMAND_QUEUING: u8 = 0x02;
/// PERIPHERAL QUALIFIER 011b: the LUN cannot have a unit.
const NO_UNIT: u8 = 0x60;

/// The fields of an INQUIRY.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct InquiryRequest {
    /// EVPD: true for a vital product data page instead of the standard data.
    pub is_vpd: bool,
    /// PAGE CODE.
    pub page: u8,
    /// ALLOCATION LENGTH in bytes.
    pub allocation_bytes: u16,
}

/// Answers an INQUIRY, truncated to its allocation length. Length fields inside are not changed, as
/// SPC-4 §4.2.5.6 requires.
///
/// # Errors
/// INVALID FIELD IN CDB, pointing at the page code: a page without EVPD, or one the unit does not
/// have.
pub fn reply<U: DeviceServer>(
    unit: &U,
    context: &Context<'_>,
    request: InquiryRequest,
) -> Result<Vec<u8>, Sense> {
    let mut data = if request.is_vpd {
        vpd::page(unit, context, request.page)?
    } else if request.page == 0 {
        standard(unit, context.ports.len(), context.protocol_level)
    } else {
        return Err(Sense::invalid_field_in_cdb(2, None));
    };
    data.truncate(usize::from(request.allocation_bytes));
    Ok(data)
}

/// Standard data of a unit of a target with `ports` ports; `protocol_level` is the session's
/// iSCSIProtocolLevel.
pub fn standard<U: DeviceServer>(unit: &U, ports: usize, protocol_level: u16) -> Vec<u8> {
    let UnitIdentity { device_type, command_set, product, reported, features, .. } =
        unit.primary().identity();
    let own = (VENDOR, padded(product), padded(REVISION));
    let (vendor, product, revision) =
        reported.as_ref().map_or(own, |unit| (unit.vendor, unit.product, unit.revision));
    let copies = U::commands().commands().iter().any(|command| command.third_party_copy);
    let unit = Standard {
        peripheral: device_type.0,
        removable: if features.include(Offered::Removable) { REMOVABLE } else { 0 },
        groups_and_copy: EXPLICIT_AND_IMPLICIT | if copies { THIRD_PARTY_COPY } else { 0 },
        multiple_ports: if ports > 1 { MULTIP } else { 0 },
        vendor,
        product,
        revision,
        command_set: *command_set,
        ..common(protocol_level)
    };
    unit.encode().to_vec()
}

/// Standard data for a LUN without a unit, for which INQUIRY succeeds as well, SPC-4 §6.6.1.
pub fn standard_of_no_unit(protocol_level: u16) -> Vec<u8> {
    let peripheral = NO_UNIT | DeviceType::NONE.0;
    Standard { peripheral, ..common(protocol_level) }.encode().to_vec()
}

fn common(protocol_level: u16) -> Standard {
    Standard {
        peripheral: 0,
        removable: 0,
        version: VERSION_SPC_4,
        format: HIERARCHICAL_FORMAT_2,
        additional_bytes: (Standard::LEN - 5) as u8,
        groups_and_copy: 0,
        multiple_ports: 0,
        queuing: COMMAND_QUEUING,
        vendor: VENDOR,
        product: padded(""),
        revision: padded(REVISION),
        architecture: SAM_5,
        primary_commands: SPC_4,
        command_set: SBC_3,
        transport: ISCSI + protocol_level.min(PROTOCOL_LEVEL_MAX),
    }
}

/// A left-aligned ASCII field: truncated or padded with spaces; unprintable characters become dots.
fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (target, byte) in field.iter_mut().zip(text.bytes()) {
        *target = if matches!(byte, 0x20..=0x7e) { byte } else { b'.' };
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::{BlockUnit, UnitOptions};
    use crate::vpd::tests::{options, port};
    use alloc::format;

    fn unit() -> BlockUnit {
        BlockUnit::new(options())
    }

    #[test]
    fn standard_bytes() {
        let data = standard(&unit(), 1, 1);
        assert_eq!(data.len(), 96);
        assert_eq!(data[..8], [0, 0, 6, 0x12, 91, 0x38, 0, 2]);
        assert_eq!(standard(&unit(), 2, 1)[5..8], [0x38, 0x10, 2], "MULTIP");
        assert_eq!(&data[8..36], format!("LUNAR   DISK            {REVISION:<4}").as_bytes());
        assert_eq!(data[36..58], [0; 22]);
        assert_eq!(data[58..66], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x61]);
        assert_eq!(data[66..], [0; 30]);
    }

    #[test]
    fn removable_and_unprintable() {
        let product = "caf\u{e9} and far too long a name".into();
        let options = UnitOptions { removable: true, product, ..options() };
        let data = standard(&BlockUnit::new(options), 1, 0);
        assert_eq!(data[1], 0x80);
        assert_eq!(&data[16..32], b"caf.. and far to");
    }

    #[test]
    fn the_identity_of_another_unit() {
        use crate::reported_identity::{ReportedIdentity, tests};
        let naa = tests::descriptor(1, 3, &[0x30, 0, 0, 0, 0, 0, 0, 1]);
        let other = ReportedIdentity::parse(&tests::standard(), Some(&naa), None).unwrap();
        let options = UnitOptions { reported_identity: Some(other.into()), ..options() };
        let data = standard(&BlockUnit::new(options), 1, 1);
        assert_eq!(&data[8..36], b"ACME    Big  Array      9  a");
        let own = standard(&unit(), 1, 1);
        assert_eq!((&data[..8], &data[36..]), (&own[..8], &own[36..]));
    }

    #[test]
    fn inquiry_of_a_lun_without_a_unit() {
        let data = standard_of_no_unit(0);
        assert_eq!(data[..8], [0x7f, 0, 6, 0x12, 91, 0, 0, 2]);
        assert_eq!(data[64..66], [0x09, 0x60]);
        assert_eq!(standard_of_no_unit(31)[64..66], [0x09, 0x7f]);
        assert_eq!(
            standard_of_no_unit(255)[64..66],
            [0x09, 0x7f],
            "the next numbers belong to other standards"
        );
    }

    /// Goal: every allocation length truncates, and none changes the length fields inside.
    /// Method: all lengths up to past the end, standard data and one page.
    #[test]
    fn allocation_length_truncates() {
        for (is_vpd, page) in [(false, 0), (true, 0x83)] {
            let ask = |allocation_bytes| {
                let request = InquiryRequest { is_vpd, page, allocation_bytes };
                reply(&unit(), &Context::new(&[], &port()), request).unwrap()
            };
            let whole = ask(u16::MAX);
            for length in 0..300 {
                let cut = whole.len().min(usize::from(length));
                assert_eq!(ask(length), whole[..cut]);
            }
        }
    }

    /// Goal: a page code without EVPD is refused with a pointer to its byte. Method: all page
    /// codes.
    #[test]
    fn a_page_code_without_evpd_is_refused() {
        for page in 1..=255 {
            let request = InquiryRequest { is_vpd: false, page, allocation_bytes: 255 };
            let refused = reply(&unit(), &Context::new(&[], &port()), request);
            assert_eq!(refused, Err(Sense::invalid_field_in_cdb(2, None)));
        }
    }
}
