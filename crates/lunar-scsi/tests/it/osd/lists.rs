//! Lists of attributes, and the segments of the buffers.

use super::strategies;
use lunar_scsi::osd::{
    ATTRIBUTE_ENTRIES_MAX, AttributeListError, AttributeListType, AttributeName,
    AttributeParameters, AttributeToSet, AttributeValue, BufferRange, BufferSegment, ListToGet,
    ObjectAddress, ObjectRange, ObjectType, OsdCapability, OsdCdb, OsdCommand, OsdOffset,
    OsdSecurityParameters, OsdVersion, PageToGet, RetrievedListBuilder, SecurityMethod,
    SegmentError, decode_get_list, decode_multi_object_list, decode_retrieved_list,
    decode_set_list, encode_get_list, encode_set_list,
};
use lunar_scsi::sense::Sense;
use proptest::prelude::*;
use proptest::sample::select;

const NAME: AttributeName = AttributeName::new(0x9000_0001, 4);
const BOTH: [OsdVersion; 2] = [OsdVersion::Osd1, OsdVersion::Osd2];

/// Goal: lists to read have the layouts of both versions, whatever the length in the header.
#[test]
fn lists_to_read() {
    let osd1 = [1, 0, 0, 0, 0x90, 0, 0, 1, 0, 0, 0, 4];
    let osd2 = [1, 0, 0, 0, 0, 0, 0, 0, 0x90, 0, 0, 1, 0, 0, 0, 4];
    assert_eq!(encode_get_list(OsdVersion::Osd1, &[NAME]), osd1);
    assert_eq!(encode_get_list(OsdVersion::Osd2, &[NAME]), osd2);
    let mut filled = osd2;
    (filled[0], filled[7]) = (0xf1, 8);
    assert_eq!(decode_get_list(OsdVersion::Osd2, &filled).unwrap(), [NAME], "high nibble too");
    for cut in 0..osd1.len() {
        let valid = cut == 4;
        assert_eq!(decode_get_list(OsdVersion::Osd1, &osd1[..cut]).is_ok(), valid, "{cut}");
    }
    let error = decode_get_list(OsdVersion::Osd2, &osd2[..12]).unwrap_err();
    assert_eq!(error, AttributeListError::Length { at: 8 });
    assert_eq!(error.sense(0), Sense::PARAMETER_LIST_LENGTH_ERROR);
    let error = decode_set_list(OsdVersion::Osd2, &osd2).unwrap_err();
    assert_eq!(error, AttributeListError::Type(AttributeListType::NAMES));
    assert_eq!(error.sense(512), Sense::invalid_field_in_parameter_list(512, None));
    let many = vec![NAME; ATTRIBUTE_ENTRIES_MAX + 1];
    for version in BOTH {
        let list = encode_get_list(version, &many);
        assert_eq!(decode_get_list(version, &list), Err(AttributeListError::TooMany));
        let list = encode_get_list(version, &many[1..]);
        assert_eq!(decode_get_list(version, &list).unwrap().len(), ATTRIBUTE_ENTRIES_MAX);
    }
}

/// Goal: lists to set have the layouts of both versions, and entries that cannot be set are named.
#[test]
fn lists_to_set() {
    let value = AttributeValue { name: NAME, value: b"abc" };
    let osd1 = encode_set_list(OsdVersion::Osd1, &[value, value]).unwrap();
    assert_eq!(osd1[..4], [9, 0, 0, 0]);
    assert_eq!(osd1[4..17], *b"\x90\0\0\x01\0\0\0\x04\0\x03abc");
    assert_eq!(osd1[17..], osd1[4..17], "no padding");
    let osd2 = encode_set_list(OsdVersion::Osd2, &[value]).unwrap();
    assert_eq!(osd2[8..], *b"\x90\0\0\x01\0\0\0\x04\0\0\0\0\0\0\0\x03abc\0\0\0\0\0");
    for (version, list) in [(OsdVersion::Osd1, &osd1[..17]), (OsdVersion::Osd2, &osd2)] {
        assert_eq!(decode_set_list(version, list).unwrap(), [value]);
        for cut in 5..list.len() {
            // OSD-2: the empty list is aligned.
            let result = decode_set_list(version, &list[..cut]);
            assert_eq!(result.is_ok(), version.is_osd2() && cut == 8, "{version:?} {cut}");
        }
    }
    let at = 8;
    let all = AttributeName::new(1, AttributeName::ALL_NUMBERS);
    let mut list = osd2.clone();
    list[8..16].copy_from_slice(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
    let error = decode_set_list(OsdVersion::Osd2, &list).unwrap_err();
    assert_eq!(error, AttributeListError::Value { at, name: all });
    let mut list = osd2;
    list[22..24].fill(0xff);
    let error = decode_set_list(OsdVersion::Osd2, &list).unwrap_err();
    assert_eq!(error, AttributeListError::Value { at, name: NAME });
    let long = vec![0; 0xffff];
    let value = AttributeValue { name: NAME, value: &long };
    let error = encode_set_list(OsdVersion::Osd2, &[value]).unwrap_err();
    assert_eq!(error, AttributeListError::Value { at, name: NAME });
    assert_eq!(error.sense(1 << 20).field, None, "no pointer beyond 64 KiB");
}

/// Goal: results are cut at the allocation length, show their whole length, and say what is not
/// defined.
#[test]
fn results_are_cut_but_keep_their_length() {
    let defined = AttributeValue { name: NAME, value: &[1, 2] };
    let undefined = AttributeValue { name: AttributeName::new(1, 2), value: &[] };
    for (version, whole, length_at) in [(OsdVersion::Osd1, 26, 3), (OsdVersion::Osd2, 48, 7)] {
        for allocation in 0..60 {
            let mut builder = RetrievedListBuilder::new(version, allocation);
            builder.push(&defined);
            builder.push(&undefined);
            let list = builder.finish();
            assert_eq!(list.len(), allocation.min(whole));
            let decoded = decode_retrieved_list(version, &list).unwrap();
            assert_eq!(decoded.is_truncated, allocation < whole, "{version:?} {allocation}");
            if let Some(length) = list.get(length_at) {
                assert_eq!(usize::from(*length), whole - length_at - 1);
            }
            if allocation >= whole {
                assert_eq!(decoded.values, [defined, undefined]);
            }
        }
    }
    let mut builder = RetrievedListBuilder::new(OsdVersion::Osd1, 100);
    builder.push(&undefined);
    assert_eq!(builder.finish()[12..14], [0xff, 0xff]);
    let long = vec![5; 40_000];
    let mut builder = RetrievedListBuilder::new(OsdVersion::Osd1, usize::MAX);
    let value = AttributeValue { name: NAME, value: &long };
    builder.push(&value);
    builder.push(&value);
    let list = builder.finish();
    assert_eq!(list[2..4], [0xff, 0xff], "longer than OSD-1 can say");
    assert_eq!(decode_retrieved_list(OsdVersion::Osd1, &list).unwrap().values.len(), 2);
    let short = [9, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4];
    let error = decode_retrieved_list(OsdVersion::Osd2, &short).unwrap_err();
    assert_eq!(error, AttributeListError::Length { at: 8 }, "a length inside an entry");
}

/// Goal: lists of several objects have the layouts of both versions.
#[test]
fn lists_of_several_objects() {
    let value = AttributeValue { name: NAME, value: &[7] };
    for version in BOTH {
        let mut builder = RetrievedListBuilder::for_objects(version, 1000);
        builder.push_object(0x1_0000, ObjectType::USER, &[value, value]);
        builder.push_object(0x1_0001, ObjectType::USER, &[value]);
        let list = builder.finish();
        if version.is_osd2() {
            assert_eq!((list[0], list.len()), (0x0e, 8 + 16 + 48 + 16 + 24));
            assert_eq!(list[8..24], [0, 0, 0, 0, 0, 1, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 48]);
        } else {
            assert_eq!((list[0], list.len()), (0x0f, 4 + 3 * 19));
            assert_eq!(list[4..12], 0x1_0000_u64.to_be_bytes());
        }
        let decoded = decode_multi_object_list(version, &list).unwrap();
        let counts: Vec<_> =
            decoded.objects.iter().map(|object| (object.object, object.values.len())).collect();
        assert_eq!((counts, decoded.is_truncated), (vec![(0x1_0000, 2), (0x1_0001, 1)], false));
        let object_type = version.is_osd2().then_some(ObjectType::USER);
        assert_eq!(decoded.objects[0].object_type, object_type);
        let other = RetrievedListBuilder::new(version, 100).finish();
        assert!(decode_multi_object_list(version, &other).is_err());
    }
}

const OBJECT: ObjectAddress = ObjectAddress::new(0x1_0000, 0x1_0005);

fn write(length: u64) -> OsdCdb {
    let range = ObjectRange { start: 0, length };
    OsdCdb::new(OsdVersion::Osd2, OsdCommand::Write { object: OBJECT, range })
}

fn buffer(offset: u64, length: u32) -> BufferRange {
    BufferRange { offset, length }
}

/// Goal: segments may lie in any order, and two that share a byte are refused at the field of the
/// later one.
#[test]
fn overlapping_segments() {
    let mut cdb = write(512);
    cdb.continuation_bytes = 64;
    let list = |set, get| AttributeParameters::List {
        get: Some(ListToGet { list: get, retrieved: buffer(8, 16) }),
        set: Some(set),
    };
    cdb.attributes = list(buffer(608, 8), buffer(576, 32));
    let segments = cdb.data_out_segments().unwrap();
    let all: Vec<_> = segments.iter().map(|range| (range.segment, range.start)).collect();
    let expected = [
        (BufferSegment::Continuation, 0),
        (BufferSegment::CommandData, 64),
        (BufferSegment::GetAttributes, 576),
        (BufferSegment::SetAttributes, 608),
    ];
    assert_eq!((all.as_slice(), segments.bytes()), (expected.as_slice(), 616));
    assert_eq!(segments.get(BufferSegment::GetAttributes).unwrap().bytes, 32);
    let cases = [
        (list(buffer(600, 8), buffer(576, 32)), BufferSegment::SetAttributes, 72),
        (list(buffer(576, 8), buffer(576, 32)), BufferSegment::GetAttributes, 56),
        (list(buffer(568, 8), buffer(576, 32)), BufferSegment::SetAttributes, 72),
        (list(buffer(1000, 8), buffer(0, 32)), BufferSegment::GetAttributes, 56),
    ];
    for (attributes, segment, byte) in cases {
        let error = OsdCdb { attributes, ..cdb.clone() }.data_out_segments().unwrap_err();
        assert!(matches!(error, SegmentError::Overlap { segment: found, .. } if found == segment));
        assert_eq!(error.sense(), Sense::invalid_field_in_cdb(byte, None));
    }
    assert!(cdb.data_in_segments().unwrap().get(BufferSegment::CommandData).is_none());
    let mut read = write(0);
    read.command = OsdCommand::Read { object: OBJECT, range: ObjectRange { start: 0, length: 9 } };
    read.attributes = cdb.attributes;
    let error = read.data_in_segments().unwrap_err();
    assert_eq!(error.sense(), Sense::invalid_field_in_cdb(64, None));
    let get = Some(PageToGet { page: 1, retrieved: buffer(8, 16) });
    let name = AttributeName::new(1, 1);
    let set = Some(AttributeToSet { name, value: buffer(8, 4) });
    read.attributes = AttributeParameters::Page { get, set };
    let error = read.data_in_segments().unwrap_err();
    assert_eq!(error.sense(), Sense::invalid_field_in_cdb(60, None));
    assert_eq!(read.data_out_segments().unwrap().bytes(), 12);
}

/// Goal: lengths near 2^64 and integrity information are checked as well.
#[test]
fn long_segments_and_integrity_information() {
    let mut cdb = write(u64::MAX);
    assert_eq!(cdb.data_out_segments().unwrap().bytes(), u64::MAX);
    cdb.continuation_bytes = 48;
    let error = cdb.data_out_segments().unwrap_err();
    assert_eq!(error.sense(), Sense::invalid_field_in_cdb(32, None));
    let mut cdb = write(512);
    let security_method = SecurityMethod::ALLDATA;
    cdb.capability = OsdCapability { security_method, ..OsdCapability::default() };
    let security = |code| OsdSecurityParameters {
        data_out_integrity_offset: OsdOffset(code),
        ..OsdSecurityParameters::default()
    };
    cdb.security = security(0xb000_0040);
    assert_eq!(cdb.data_out_segments().unwrap().bytes(), 512 + 24 + 32);
    cdb.security = security(0xb000_003f);
    let error = cdb.data_out_segments().unwrap_err();
    assert_eq!(error.sense(), Sense::invalid_field_in_cdb(232, None), "overlap");
    cdb.security = security(0x8000_0000);
    let error = cdb.data_out_segments().unwrap_err();
    assert!(matches!(error, SegmentError::Offset { field: 232, .. }));
    cdb.capability = OsdCapability::default();
    assert_eq!(cdb.data_out_segments().unwrap().bytes(), 512, "ignored by other methods");
}

fn values() -> impl Strategy<Value = Vec<(AttributeName, Vec<u8>)>> {
    let name = (0..u32::MAX, 0..u32::MAX).prop_map(|(page, number)| AttributeName { page, number });
    proptest::collection::vec((name, proptest::collection::vec(any::<u8>(), 0..40)), 0..20)
}

fn borrowed(values: &[(AttributeName, Vec<u8>)]) -> Vec<AttributeValue<'_>> {
    values.iter().map(|(name, value)| AttributeValue { name: *name, value }).collect()
}

proptest! {
    /// Goal: lists round-trip in both versions.
    #[test]
    fn lists_round_trip(version in select(&BOTH), values in values(), object: u64) {
        let values = borrowed(&values);
        let names: Vec<_> = values.iter().map(|value| value.name).collect();
        let list = encode_get_list(version, &names);
        prop_assert_eq!(decode_get_list(version, &list), Ok(names));
        let list = encode_set_list(version, &values).unwrap();
        prop_assert_eq!(decode_set_list(version, &list).unwrap(), values.clone());
        let mut one = RetrievedListBuilder::new(version, usize::MAX);
        values.iter().for_each(|value| one.push(value));
        let list = one.finish();
        prop_assert_eq!(decode_retrieved_list(version, &list).unwrap().values, values.clone());
        let mut several = RetrievedListBuilder::for_objects(version, usize::MAX);
        several.push_object(object, ObjectType::USER, &values);
        let list = several.finish();
        let decoded = decode_multi_object_list(version, &list).unwrap();
        let found: Vec<_> = decoded.objects.iter().flat_map(|object| &object.values).collect();
        prop_assert_eq!(found, values.iter().collect::<Vec<_>>());
    }

    /// Goal: no list causes a panic. Method: random bytes after each type.
    #[test]
    fn hostile_lists(
        version in select(&OsdVersion::ALL), list_type in select(&[1_u8, 9, 14, 15]),
        mut bytes in proptest::collection::vec(prop_oneof![Just(0), Just(8), any::<u8>()], 1..200),
    ) {
        bytes[0] = list_type;
        for cut in 0..=bytes.len() {
            let list = &bytes[..cut];
            let _ = decode_get_list(version, list);
            let _ = decode_set_list(version, list);
            let _ = decode_retrieved_list(version, list);
            let _ = decode_multi_object_list(version, list);
        }
    }

    /// Goal: the segments of any command are found or refused without a panic, and never overlap.
    #[test]
    fn segments_of_any_command(cdb in strategies::cdb()) {
        for segments in [cdb.data_out_segments(), cdb.data_in_segments()].into_iter().flatten() {
            let all: Vec<_> = segments.iter().collect();
            prop_assert!(all.windows(2).all(|pair| pair[0].end() <= pair[1].start));
        }
    }
}
