//! Vital product data: identity and capabilities of a unit. SPC-4 §7.8.
//!
//! The pages here are those that all types of units may have; a type lists the ones it has, and its
//! own, in [`DeviceServer::VPD_PAGES`].

mod block;

pub(crate) use block::BLOCK_PAGES;
pub use block::{
    BlockLimits, BlockLimitsPage, COMPARE_AND_WRITE_BLOCKS_MAX, Characteristics, Provisioning,
    UNMAP_BLOCKS_MAX, UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BLOCKS_MAX,
};

use crate::commands::Offered::{self, Always};
use crate::inquiry::VENDOR;
use crate::ports::PORTS_MAX;
use crate::primary::{Context, DeviceServer, TargetPort, UnitIdentity};
use crate::reported_identity::{ReportedIdentity, UnitDesignator};
use crate::sense::Sense;
use crate::unit::BlockUnit;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// Maximum length of an iSCSI name, RFC 7143 §4.2.7.1.
const NAME_BYTES_MAX: usize = 223;

/// One page of units of type `U`: its code, its name and section in the standard, the units that
/// support it, and its bytes after the header of four bytes.
pub struct VpdPage<U: DeviceServer> {
    code: u8,
    name: &'static str,
    standard: &'static str,
    offered: Offered,
    body: fn(&U, &Context<'_>) -> Vec<u8>,
}

impl<U: DeviceServer> VpdPage<U> {
    /// 00h.
    pub const SUPPORTED_PAGES: Self =
        Self::new(0x00, "Supported VPD Pages", "SPC-4 §7.8.13", Always, supported_pages);
    /// 80h.
    pub const UNIT_SERIAL_NUMBER: Self =
        Self::new(0x80, "Unit Serial Number", "SPC-4 §7.8.15", Always, unit_serial_number);
    /// 83h.
    pub const DEVICE_IDENTIFICATION: Self =
        Self::new(0x83, "Device Identification", "SPC-4 §7.8.6", Always, device_identification);
    /// 86h.
    pub const EXTENDED_INQUIRY: Self =
        Self::new(0x86, "Extended INQUIRY Data", "SPC-4 §7.8.7", Always, extended_inquiry);
    /// 88h.
    pub const SCSI_PORTS: Self = Self::new(0x88, "SCSI Ports", "SPC-4 §7.8.14", Always, scsi_ports);
    /// 8Fh, of units that support EXTENDED COPY.
    pub const THIRD_PARTY_COPY: Self =
        Self::new(0x8f, "Third-party Copy", "SPC-4 §7.8.17", Always, third_party_copy);

    /// Creates a page.
    pub const fn new(
        code: u8,
        name: &'static str,
        standard: &'static str,
        offered: Offered,
        body: fn(&U, &Context<'_>) -> Vec<u8>,
    ) -> Self {
        Self { code, name, standard, offered, body }
    }
}

impl<U: DeviceServer> fmt::Debug for VpdPage<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x} {}", self.code, self.name)
    }
}

/// Formats the pages of block units as Markdown for CONFORMANCE.md, with one row per page.
pub fn markdown() -> String {
    let mut text = String::from("| Code | Page | Standard | Units |\n|---|---|---|---|\n");
    for VpdPage { code, name, standard, offered, .. } in BlockUnit::VPD_PAGES {
        text.push_str(&format!("| {code:02x} | {name} | {standard} | {offered} |\n"));
    }
    text
}

/// Returns a whole page for INQUIRY with EVPD, not yet truncated to the allocation length. Every
/// page begins with the peripheral device type of the unit. SPC-4 §7.8.2.
///
/// # Errors
/// INVALID FIELD IN CDB, pointing at the page code, if the unit does not have the page.
pub fn page<U: DeviceServer>(unit: &U, context: &Context<'_>, code: u8) -> Result<Vec<u8>, Sense> {
    let page =
        offered(unit).find(|page| page.code == code).ok_or(Sense::invalid_field_in_cdb(2, None))?;
    let body = (page.body)(unit, context);
    // Page 88h is the longest: `PORTS_MAX` ports of at most 252 bytes.
    let mut data = vec![unit.primary().identity().device_type.0, code];
    data.extend_from_slice(&(body.len() as u16).to_be_bytes());
    data.extend_from_slice(&body);
    Ok(data)
}

/// The pages of a unit.
fn offered<U: DeviceServer>(unit: &U) -> impl Iterator<Item = &'static VpdPage<U>> {
    let features = unit.primary().identity().features;
    U::VPD_PAGES.iter().filter(move |page| features.include(page.offered))
}

/// NAA 3, locally assigned: 60 bits of a hash of the whole UUID, so that manually numbered UUIDs do
/// not collide. The same UUID always gives the same name.
pub fn naa(uuid: &[u8; 16]) -> u64 {
    let hash = uuid.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    0x3000_0000_0000_0000 | ((hash ^ (hash >> 60)) & 0x0fff_ffff_ffff_ffff)
}

/// Serial number: the UUID as 32 hexadecimal digits.
pub fn serial_number(uuid: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*uuid))
}

/// 00h. SPC-4 §7.8.13.
fn supported_pages<U: DeviceServer>(unit: &U, _: &Context<'_>) -> Vec<u8> {
    offered(unit).map(|page| page.code).collect()
}

/// 80h. SPC-4 §7.8.15.
fn unit_serial_number<U: DeviceServer>(unit: &U, _: &Context<'_>) -> Vec<u8> {
    let UnitIdentity { uuid, reported, .. } = unit.primary().identity();
    match reported {
        Some(reported) => reported.serial_number.clone(),
        None => serial_number(uuid).into_bytes(),
    }
}

lunar_wire::wire_enum! {
    /// Designator type. SPC-4 §7.8.6.1; UUID is SPC-5's.
    pub struct DesignatorType(u8) {
        T10_VENDOR_ID = 0x1, EUI_64 = 0x2, NAA = 0x3, RELATIVE_TARGET_PORT = 0x4,
        TARGET_PORT_GROUP = 0x5, SCSI_NAME_STRING = 0x8, UUID = 0xa,
    }
}

#[derive(Clone, Copy)]
enum CodeSet {
    Binary = 1,
    Ascii = 2,
    Utf8 = 3,
}

/// The object that a designator identifies; with the protocol identifier (iSCSI, 5h) where
/// applicable.
#[derive(Clone, Copy)]
enum Association {
    LogicalUnit = 0x00,
    TargetPort = 0x90,
    TargetDevice = 0xa0,
}

const PROTOCOL_ISCSI: u8 = 0x50;

/// 83h. SPC-4 §7.8.6.
fn device_identification<U: DeviceServer>(unit: &U, context: &Context<'_>) -> Vec<u8> {
    use Association::{TargetDevice, TargetPort as Port};
    use CodeSet::{Binary, Utf8};
    use DesignatorType as Type;
    let port = context.port;
    let mut data = unit_designations(unit.primary().identity());
    let mut add = |association, code_set, kind, designator: &[u8]| {
        data.extend_from_slice(&designation(association, code_set as u8, kind, designator));
    };
    let [high, low] = port.relative_id.to_be_bytes();
    add(Port, Binary, Type::RELATIVE_TARGET_PORT, &[0, 0, high, low]);
    let [high, low] = port.portal_group_tag.to_be_bytes();
    add(Port, Binary, Type::TARGET_PORT_GROUP, &[0, 0, high, low]);
    add(Port, Utf8, Type::SCSI_NAME_STRING, &port_name(port));
    add(TargetDevice, Utf8, Type::SCSI_NAME_STRING, &name_string(target_name(port)));
    data
}

/// The descriptors of the unit itself: those that another unit reports, or its own.
fn unit_designations(identity: &UnitIdentity) -> Vec<u8> {
    let of_unit = Association::LogicalUnit;
    let mut data = Vec::new();
    match &identity.reported {
        Some(reported) => {
            for UnitDesignator { code_set, kind, designator } in &reported.designators {
                data.extend_from_slice(&designation(of_unit, *code_set, *kind, designator));
            }
        }
        None => {
            for (code_set, kind) in UNIT_DESIGNATORS {
                let designator = unit_designator(&identity.uuid, kind);
                data.extend_from_slice(&designation(of_unit, code_set as u8, kind, &designator));
            }
        }
    }
    data
}

fn target_name(port: &TargetPort) -> &str {
    &port.name[..port.name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// Name of a port. RFC 7143 §4.4.3: iSCSI name, `,t,`, portal group tag.
fn port_name(port: &TargetPort) -> Vec<u8> {
    name_string(&format!("{},t,0x{:04x}", target_name(port), port.portal_group_tag))
}

/// The designators of the unit itself, which are the same on every port.
const UNIT_DESIGNATORS: [(CodeSet, DesignatorType); 4] = [
    (CodeSet::Binary, DesignatorType::NAA),
    (CodeSet::Binary, DesignatorType::UUID),
    (CodeSet::Ascii, DesignatorType::T10_VENDOR_ID),
    (CodeSet::Utf8, DesignatorType::SCSI_NAME_STRING),
];

/// Returns the designators of the unit with this UUID.
pub(crate) fn unit_designators(uuid: &[u8; 16]) -> Vec<(DesignatorType, Vec<u8>)> {
    UNIT_DESIGNATORS.iter().map(|(_, kind)| (*kind, unit_designator(uuid, *kind))).collect()
}

/// Builds one of [`UNIT_DESIGNATORS`].
fn unit_designator(uuid: &[u8; 16], kind: DesignatorType) -> Vec<u8> {
    match kind {
        DesignatorType::NAA => naa(uuid).to_be_bytes().to_vec(),
        DesignatorType::UUID => [&[0x10, 0], &uuid[..]].concat(),
        DesignatorType::T10_VENDOR_ID => [&VENDOR, serial_number(uuid).as_bytes()].concat(),
        _ => name_string(&format!("naa.{:016X}", naa(uuid))),
    }
}

/// True if page 83h of the unit with this UUID, or of one that reports the identity `reported`,
/// contains this designator, with the association of a logical unit.
pub fn designates_unit(
    uuid: &[u8; 16],
    reported: Option<&ReportedIdentity>,
    code_set: u8,
    kind: DesignatorType,
    designator: &[u8],
) -> bool {
    if let Some(reported) = reported {
        return reported.has(code_set, kind, designator);
    }
    UNIT_DESIGNATORS.iter().any(|(own_code_set, own_kind)| {
        *own_code_set as u8 == code_set
            && *own_kind == kind
            && unit_designator(uuid, kind) == designator
    })
}

fn designation(
    association: Association,
    code_set: u8,
    kind: DesignatorType,
    designator: &[u8],
) -> Vec<u8> {
    let protocol = match association {
        Association::LogicalUnit => 0,
        Association::TargetPort | Association::TargetDevice => PROTOCOL_ISCSI,
    };
    let length = designator.len() as u8;
    let mut data = vec![protocol | code_set, association as u8 | kind.0, 0, length];
    data.extend_from_slice(designator);
    data
}

/// A name, NUL-terminated, padded to a multiple of four. SPC-4 §7.8.6.9.
fn name_string(name: &str) -> Vec<u8> {
    let mut bytes = Vec::from(name);
    bytes.resize((bytes.len() + 1).next_multiple_of(4), 0);
    bytes
}

lunar_wire::wire_struct! {
    /// 86h after the header. SPC-4 §7.8.7.
    pub struct ExtendedInquiry [60] {
        /// UASK_SUP, GROUP_SUP, PRIOR_SUP, HEADSUP, ORDSUP, SIMPSUP.
        1 => task_attributes: u8,
        /// WU_SUP, CRD_SUP, NV_SUP, V_SUP.
        2 => volatile_cache: u8,
        9 => sense_bytes_max: u8,
    }
}

/// 86h. The task attributes are supported (`target`'s task set), V_SUP reports the cache, and sense
/// data is never longer than reported. All other fields are 0: no protection information, no
/// referrals, no microcode to activate; no sense-key specific data with a unit attention; GROUP
/// NUMBER and command priority have no effect; a self-test has no extended form; and LUICLR: each
/// unit clears a unit attention of changed LUNs for itself.
fn extended_inquiry<U: DeviceServer>(unit: &U, _: &Context<'_>) -> Vec<u8> {
    const HEAD_OF_QUEUE_ORDERED_SIMPLE: u8 = 0x04 | 0x02 | 0x01;
    const V_SUP: u8 = 0x01;
    let UnitIdentity { volatile_cache, sense_bytes_max, .. } = unit.primary().identity();
    let page = ExtendedInquiry {
        task_attributes: HEAD_OF_QUEUE_ORDERED_SIMPLE,
        volatile_cache: if *volatile_cache { V_SUP } else { 0 },
        sense_bytes_max: *sense_bytes_max,
    };
    page.encode().to_vec()
}

lunar_wire::wire_struct! {
    /// One port in page 88h; its designators follow. SPC-4 §7.8.14.
    pub struct PortDesignation [12] {
        2  => relative_id: u16,
        /// Always 0: there are no initiator ports here, so no name of one follows.
        6  => initiator_name_bytes: u16,
        10 => designators_bytes: u16,
    }
}

/// 88h: every port of the target with its name.
fn scsi_ports<U: DeviceServer>(_: &U, context: &Context<'_>) -> Vec<u8> {
    let mut data = Vec::new();
    for port in context.ports.iter().take(PORTS_MAX) {
        let kind = DesignatorType::SCSI_NAME_STRING;
        let name =
            designation(Association::TargetPort, CodeSet::Utf8 as u8, kind, &port_name(port));
        let head = PortDesignation {
            relative_id: port.relative_id,
            initiator_name_bytes: 0,
            designators_bytes: name.len() as u16, // at most 4 + 236
        };
        data.extend_from_slice(&head.encode());
        data.extend_from_slice(&name);
    }
    data
}

/// 8Fh. SPC-4 §7.8.17.
fn third_party_copy<U: DeviceServer>(_: &U, _: &Context<'_>) -> Vec<u8> {
    crate::copy::vpd_descriptors(U::commands())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::reported_identity::tests::{descriptor, standard};
    use crate::sense::BLOCK_SENSE_BYTES_MAX;
    use crate::unit::{AtomicBlocks, Threshold, UnitOptions};
    use alloc::sync::Arc;
    use lunar_wire::Field;

    pub(crate) fn options() -> UnitOptions {
        UnitOptions {
            uuid: core::array::from_fn(|at| 0x10 + at as u8),
            product: "DISK".into(),
            block_bytes: 512,
            block_count: 0x20_0000,
            physical_block_bytes: 4096,
            transfer_blocks_max: 16_384,
            optimal_transfer_blocks: 2048,
            unmap_granularity_blocks: Some(8),
            ..UnitOptions::default()
        }
    }

    pub(crate) fn port() -> TargetPort {
        TargetPort {
            name: "iqn.2026-11.org.lunarsan:a".into(),
            portal_group_tag: 0x0102,
            relative_id: 3,
        }
    }

    /// Goal: the list for CONFORMANCE.md has every page, in order, with the units that support it.
    #[test]
    fn the_pages_as_text() {
        let text = markdown();
        assert_eq!(text.lines().count(), BLOCK_PAGES.len() + 2);
        assert!(text.lines().all(|line| line.matches('|').count() == 5), "{text}");
        assert!(BLOCK_PAGES.is_sorted_by_key(|page| page.code));
        let last = "| b2 | Logical Block Provisioning | SBC-3 §6.5.4 | thin |";
        assert!(text.lines().any(|line| line == last), "{text}");
    }

    /// Returns a page as reported on the only port of a target.
    fn page(options: &UnitOptions, port: &TargetPort, code: u8) -> Result<Vec<u8>, Sense> {
        super::page(&BlockUnit::new(options.clone()), &Context::new(&[], port), code)
    }

    fn thick() -> UnitOptions {
        UnitOptions { unmap_granularity_blocks: None, ..options() }
    }

    /// Goal: page 00h is correct. Method: request all 256 pages, thin and thick.
    #[test]
    fn page_00h_lists_exactly_the_existing_pages() {
        for options in [options(), thick()] {
            let listed = page(&options, &port(), 0).unwrap()[4..].to_vec();
            assert!(listed.is_sorted());
            for code in 0..=255 {
                match page(&options, &port(), code) {
                    Ok(data) => {
                        assert!(listed.contains(&code), "{code:#x}");
                        assert_eq!(data[..2], [0, code]);
                        assert_eq!(usize::from(u16::get(&data[2..4])), data.len() - 4);
                    }
                    Err(sense) => {
                        assert!(!listed.contains(&code), "{code:#x}");
                        assert_eq!(sense, Sense::invalid_field_in_cdb(2, None));
                    }
                }
            }
        }
        let thin = page(&options(), &port(), 0).unwrap();
        assert_eq!(thin, [0, 0, 0, 9, 0, 0x80, 0x83, 0x86, 0x88, 0x8f, 0xb0, 0xb1, 0xb2]);
        assert_eq!(page(&thick(), &port(), 0).unwrap()[3], 8);
    }

    #[test]
    fn serial_is_the_uuid() {
        let data = page(&options(), &port(), 0x80).unwrap();
        assert_eq!(&data[4..], b"101112131415161718191a1b1c1d1e1f");
    }

    /// Goal: assigned names never change: a changed hash would rename every disk.
    #[test]
    fn naa_known_answers() {
        assert_eq!(naa(&[0; 16]), 0x3820_1fb9_60ff_646d);
        assert_eq!(naa(&options().uuid), 0x3091_c81a_e28d_2c7a);
        let (ones, twos) = ([0x11; 16], [0x22; 16]);
        assert_ne!(naa(&ones), naa(&twos));
    }

    /// Splits page 83h into (association, type, code set, designator).
    fn designators(data: &[u8]) -> Vec<(u8, u8, u8, Vec<u8>)> {
        let mut rest = &data[4..];
        let mut found = Vec::new();
        while let [first, second, 0, length, ..] = *rest {
            let (designator, after) = rest[4..].split_at(usize::from(length));
            let association = (second >> 4) & 3;
            let iscsi = second & 0x80 != 0;
            assert_eq!(iscsi, association != 0);
            assert_eq!(first >> 4, if iscsi { 5 } else { 0 });
            found.push((association, second & 0xf, first & 0xf, designator.to_vec()));
            rest = after;
        }
        assert!(rest.is_empty());
        found
    }

    #[test]
    fn designators_name_unit_port_and_target() {
        let data = page(&options(), &port(), 0x83).unwrap();
        let name = naa(&options().uuid);
        let uuid: Vec<u8> = [0x10, 0].into_iter().chain(options().uuid).collect();
        let unit_name = format!("naa.{name:016X}\0\0\0\0").into_bytes();
        let expected = [
            (0, 3, 1, name.to_be_bytes().to_vec()),
            (0, 0xa, 1, uuid),
            (0, 1, 2, b"LUNAR   101112131415161718191a1b1c1d1e1f".to_vec()),
            (0, 8, 3, unit_name),
            (1, 4, 1, vec![0, 0, 0, 3]),
            (1, 5, 1, vec![0, 0, 1, 2]),
            (1, 8, 3, b"iqn.2026-11.org.lunarsan:a,t,0x0102\0".to_vec()),
            (2, 8, 3, b"iqn.2026-11.org.lunarsan:a\0\0".to_vec()),
        ];
        assert_eq!(designators(&data), expected);
    }

    /// Goal: a unit that reports the identity of another unit has the designators and the serial
    /// number of that unit, and none of its own; ports and target are its own. It is named in
    /// third-party copies by the same designators.
    #[test]
    fn the_identity_of_another_unit() {
        let naa_6: [u8; 16] = core::array::from_fn(|at| 0x60 + at as u8);
        let body = [descriptor(1, 3, &naa_6), descriptor(2, 1, b"ACME    x")].concat();
        let other = ReportedIdentity::parse(&standard(), Some(&body), Some(b"S-1")).unwrap();
        let reported_identity = Some(Arc::new(other.clone()));
        let passed_on = UnitOptions { reported_identity, ..options() };
        let data = page(&passed_on, &port(), 0x83).unwrap();
        assert_eq!(data[4..4 + body.len()], body);
        let (found, own) =
            (designators(&data), designators(&page(&options(), &port(), 0x83).unwrap()));
        assert_eq!(found[2..], own[4..], "ports and target");
        assert_eq!(page(&passed_on, &port(), 0x80).unwrap()[4..], *b"S-1");
        for (code_set, kind, designator) in
            found[..2].iter().map(|(_, kind, set, d)| (*set, *kind, d))
        {
            let named = |reported| {
                designates_unit(
                    &options().uuid,
                    reported,
                    code_set,
                    DesignatorType(kind),
                    designator,
                )
            };
            assert!(named(Some(&other)) && !named(None));
        }
        let own_naa = naa(&options().uuid).to_be_bytes();
        assert!(!designates_unit(&options().uuid, Some(&other), 1, DesignatorType::NAA, &own_naa));
    }

    #[test]
    fn the_longest_name_fits() {
        for length in [223, 224, 5000] {
            let long = TargetPort { name: "n".repeat(length), ..port() };
            let found = designators(&page(&options(), &long, 0x83).unwrap());
            assert_eq!(found.len(), 8);
            assert_eq!(found[7].3, name_string(&"n".repeat(223)));
        }
    }

    #[test]
    fn block_limits_bytes() {
        let data = page(&options(), &port(), 0xb0).unwrap();
        assert_eq!(data.len(), 64);
        assert_eq!(data[..8], [0, 0xb0, 0, 0x3c, 1, 255, 0, 8]);
        assert_eq!(data[8..20], [0, 0, 0x40, 0, 0, 0, 8, 0, 0, 0, 0, 0]);
        assert_eq!(data[20..28], [0, 0x10, 0, 0, 0, 0, 1, 0]);
        assert_eq!(data[28..36], [0, 0, 0, 8, 0x80, 0, 0, 0]);
        assert_eq!(data[36..44], [0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(data[44..], [0; 20]);
        let data = page(&thick(), &port(), 0xb0).unwrap();
        assert_eq!(data[20..36], [0; 16], "nothing can be unmapped");
        // A unit that one WRITE SAME can cover has no limit for it, and no reason to refuse 0.
        for (block_count, wsnz, most) in [(0xffff, 0, 0), (0x1_0000, 1, 0xff)] {
            let data = page(&UnitOptions { block_count, ..options() }, &port(), 0xb0).unwrap();
            assert_eq!(data[4], wsnz, "{block_count} blocks");
            assert_eq!(data[36..44], [0, 0, 0, 0, 0, 0, most, most], "{block_count} blocks");
        }
        let atomic = Some(AtomicBlocks { unit_blocks: 8, blocks_max: 0x0800 });
        let data = page(&UnitOptions { atomic, ..options() }, &port(), 0xb0).unwrap();
        let expected = [0, 0, 8, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(data[44..], expected);
        let long = UnitOptions { block_bytes: 4096, ..options() };
        let data = page(&long, &port(), 0xb0).unwrap();
        assert_eq!(data[24..32], [0, 0, 1, 0, 0, 0, 0, 0], "UNMAP, and no map of QEMU's");
    }

    #[test]
    fn compare_and_write_is_no_longer_than_a_transfer() {
        let options = UnitOptions { transfer_blocks_max: 100, ..options() };
        assert_eq!(BlockLimits::of(&options).compare_and_write_blocks_max, 100);
    }

    #[test]
    fn characteristics_and_provisioning_bytes() {
        let data = page(&options(), &port(), 0xb1).unwrap();
        assert_eq!(data.len(), 64);
        assert_eq!(data[..10], [0, 0xb1, 0, 0x3c, 0, 1, 0, 0x40, 1, 0]);
        let data = page(&thick(), &port(), 0xb1).unwrap();
        assert_eq!(data[..10], [0, 0xb1, 0, 0x3c, 0, 1, 0, 0, 1, 0], "no BLOCK ERASE");
        let data = page(&options(), &port(), 0xb2).unwrap();
        assert_eq!(data, [0, 0xb2, 0, 4, 0, 0xe4, 2, 0]);
        let threshold = Some(Threshold { set_exponent: 11, available_sets: 9 });
        let data = page(&UnitOptions { threshold, ..options() }, &port(), 0xb2).unwrap();
        assert_eq!(data, [0, 0xb2, 0, 4, 11, 0xe4, 2, 0]);
    }

    #[test]
    fn extended_inquiry_bytes() {
        let data = page(&options(), &port(), 0x86).unwrap();
        assert_eq!(data.len(), 64);
        assert_eq!(data[..8], [0, 0x86, 0, 0x3c, 0, 7, 0, 0]);
        assert_eq!(data[8..14], [0, 0, 0, 0, 0, BLOCK_SENSE_BYTES_MAX as u8]);
        assert_eq!(data[14..], [0; 50]);
        let cached = UnitOptions { write_back: true, ..options() };
        assert_eq!(page(&cached, &port(), 0x86).unwrap()[6], 1);
    }

    /// Goal: page 88h contains every port, up to the maximum, and page 83h only the one in use,
    /// with the same name; the designators of the unit are the same on each.
    #[test]
    fn ports_by_their_names() {
        let ports: Vec<_> = (1..=PORTS_MAX as u16)
            .map(|tag| TargetPort {
                name: "n".repeat(223),
                portal_group_tag: tag,
                relative_id: tag,
            })
            .collect();
        let through = |at: usize, code| {
            let context = Context { ports: &ports, ..Context::new(&[], &ports[at]) };
            super::page(&BlockUnit::new(options()), &context, code).unwrap()
        };
        let all = through(0, 0x88);
        assert_eq!(through(200, 0x88), all);
        assert_eq!(usize::from(u16::get(&all[2..4])), all.len() - 4);
        let mut rest = &all[4..];
        for (at, port) in ports.iter().enumerate() {
            let (head, after) = rest.split_at(12);
            assert_eq!(u16::get(&head[2..4]), port.relative_id);
            assert_eq!(head[4..8], [0; 4]);
            let (designator, after) = after.split_at(usize::from(u16::get(&head[10..12])));
            let own = designators(&through(at, 0x83));
            let named = designators(&[&[0; 4], designator].concat());
            assert_eq!(named, own[6..7]);
            assert_eq!(own[..4], designators(&through(0, 0x83))[..4], "the unit's own");
            rest = after;
        }
        assert!(rest.is_empty());
        let one = page(&options(), &port(), 0x88).unwrap();
        assert_eq!(one[..16], [0, 0x88, 0, 52, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 40]);
        assert_eq!(&one[16..], b"\x53\x98\0\x24iqn.2026-11.org.lunarsan:a,t,0x0102\0");
    }
}
