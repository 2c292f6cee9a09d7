//! Sense data of OSD commands.

use lunar_scsi::osd::{
    AttributeListError, AttributeName, CommandFunctions, OSD_SENSES, ObjectAddress,
    ObjectIdentification, OsdVersion, SENSE_ATTRIBUTES_MAX,
};
use lunar_scsi::sense::{SENSE_BYTES_MAX, Sense, SenseFormat, SenseKey};
use proptest::prelude::*;
use std::collections::BTreeSet;

const OBJECT: ObjectAddress = ObjectAddress::new(0x1_0000, 0x1_0005);

/// Goal: every descriptor has the layout of the standard.
#[test]
fn descriptors() {
    let identification = ObjectIdentification {
        not_initiated: CommandFunctions::SET_ATTRIBUTES,
        completed: CommandFunctions::VALIDATION,
        object: OBJECT,
    };
    let sense = Sense::invalid_field_in_cdb(24, None).with_object_identification(&identification);
    let bytes = sense.encode(SenseFormat::Descriptor);
    assert_eq!(bytes[..8], [0x72, 5, 0x24, 0, 0, 0, 0, 40]);
    assert_eq!(bytes[8..16], [2, 6, 0, 0, 0xc0, 0, 24, 0]);
    assert_eq!(bytes[16..24], [6, 0x1e, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[24..32], [0, 0, 0x10, 0, 0x80, 0, 0, 0]);
    assert_eq!(bytes[32..40], OBJECT.partition.to_be_bytes());
    assert_eq!(bytes[40..], OBJECT.object.to_be_bytes());
    let quota = AttributeName::new(2, 1);
    let bytes = Sense::quota_error(quota).encode(SenseFormat::Descriptor);
    assert_eq!(bytes[..8], [0x72, 7, 0x55, 7, 0, 0, 0, 12]);
    assert_eq!(bytes[8..], [8, 10, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]);
    let bytes = Sense::read_past_end(0x0203).encode(SenseFormat::Descriptor);
    assert_eq!(bytes[..4], [0x72, 1, 0x3b, 0x17]);
    assert_eq!(bytes[8..], [1, 10, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3]);
    for (version, length) in [(OsdVersion::Osd1, 20), (OsdVersion::Osd2, 32)] {
        let sense = Sense::NONCE_NOT_UNIQUE.with_response_integrity_value(version, &[9; 32]);
        let bytes = sense.encode(SenseFormat::Descriptor);
        assert_eq!((bytes[8], usize::from(bytes[9]), bytes.len()), (7, length, 10 + length));
        assert_eq!(sense.response_integrity_value(), Some(&[9; 32][..length]));
    }
    let all = CommandFunctions::VALIDATION
        | CommandFunctions::COMMAND_CAPABILITY
        | CommandFunctions::COMMAND
        | CommandFunctions::IMPLICIT_SET_ATTRIBUTES
        | CommandFunctions::SET_CAPABILITY
        | CommandFunctions::SET_ATTRIBUTES
        | CommandFunctions::GET_CAPABILITY
        | CommandFunctions::GET_ATTRIBUTES;
    assert_eq!(all, CommandFunctions::ALL);
}

/// Goal: the most descriptors that a command can have fit, so that none is lost.
#[test]
fn all_descriptors_fit() {
    let names = vec![AttributeName::new(1, 2); SENSE_ATTRIBUTES_MAX + 1];
    let identification = ObjectIdentification {
        not_initiated: CommandFunctions::NONE,
        completed: CommandFunctions::ALL,
        object: OBJECT,
    };
    let sense = Sense::invalid_field_in_parameter_list(7, None)
        .with_object_identification(&identification)
        .with_response_integrity_value(OsdVersion::Osd2, &[1; 32])
        .with_command_specific_information(3)
        .with_attributes(&names);
    let bytes = sense.encode(SenseFormat::Descriptor);
    assert!(bytes.len() <= SENSE_BYTES_MAX && !sense.descriptors.is_cut());
    let decoded = Sense::decode(&bytes).unwrap();
    assert_eq!(decoded, sense);
    assert_eq!(decoded.attributes().len(), SENSE_ATTRIBUTES_MAX);
    assert!(decoded.field.is_some(), "Linux needs the pointer");
}

/// Goal: the table has each sense once, with a name, and success is only what initiators take for
/// it.
#[test]
fn the_table_of_senses() {
    let codes: BTreeSet<_> =
        OSD_SENSES.iter().map(|entry| (entry.sense.key.0, entry.sense.code)).collect();
    assert_eq!(codes.len(), OSD_SENSES.len());
    for entry in &OSD_SENSES {
        assert!(entry.sense.name().is_some() && !entry.when.is_empty(), "{}", entry.sense);
        let is_success = entry.sense.key == SenseKey::RECOVERED_ERROR;
        assert_eq!(entry.sense.is_success(), is_success, "{}", entry.sense);
    }
}

/// Goal: a refused attribute is named.
#[test]
fn refused_attributes_are_named() {
    let name = AttributeName::new(1, 2);
    let sense = AttributeListError::Value { at: 8, name }.sense(64);
    assert_eq!((sense.field.unwrap().byte, sense.attributes()), (72, vec![name]));
}

proptest! {
    /// Goal: no descriptor of a device server causes a panic in an initiator.
    #[test]
    fn hostile_descriptors(
        kind in 1_u8..9, body in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let sense = Sense::INVALID_FIELD_IN_CDB.with_descriptor(kind, &body);
        let decoded = Sense::decode(&sense.encode(SenseFormat::Descriptor)).unwrap();
        let whole_names = body.len().saturating_sub(2) / 8;
        prop_assert_eq!(decoded.attributes().len(), if kind == 8 { whole_names } else { 0 });
        let has_object = kind == 6 && body.len() >= 30;
        prop_assert_eq!(decoded.object_identification().is_some(), has_object);
        let has_information = kind == 1 && body.len() >= 10;
        prop_assert_eq!(decoded.command_specific_information().is_some(), has_information);
        prop_assert_eq!(decoded.response_integrity_value().is_some(), kind == 7);
    }
}
