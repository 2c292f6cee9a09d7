//! CDB continuation segments.

use super::strategies;
use lunar_scsi::osd::{
    AttributeName, ContinuationDescriptor, ContinuationDescriptorType, ContinuationError,
    ContinuationSegment, CopySource, CopySourceFlags, EXTENSION_CAPABILITIES_MAX, ObjectAddress,
    ObjectRange, OsdAction, OsdVersion, QUERY_CRITERIA_MAX, QueryCriterion, QueryList,
    QueryListError, QueryMatch, SCATTER_GATHER_ENTRIES_MAX,
};
use lunar_scsi::sense::Sense;
use proptest::prelude::*;
use proptest::sample::select;

const OBJECT: ObjectAddress = ObjectAddress::new(0x1_0000, 0x1_0005);

fn segment(action: OsdAction, descriptors: Vec<ContinuationDescriptor>) -> ContinuationSegment {
    ContinuationSegment { action, integrity_value: [7; 32], descriptors }
}

fn ranges(list: &[(u64, u64)]) -> ContinuationDescriptor {
    let range = |&(start, length): &(u64, u64)| ObjectRange { start, length };
    ContinuationDescriptor::ScatterGather(list.iter().map(range).collect())
}

fn criterion(minimum: &[u8], maximum: &[u8]) -> QueryCriterion {
    let name = AttributeName::new(0x1_0000, 3);
    QueryCriterion { name, minimum: minimum.to_vec(), maximum: maximum.to_vec() }
}

/// Goal: a scatter/gather list has the layout of the standard, and its sum is compared.
#[test]
fn scatter_gather_lists() {
    let write = segment(OsdAction::Write, vec![ranges(&[(4096, 10), (0, 5)])]);
    let bytes = write.encode().unwrap();
    assert_eq!(bytes.len(), 40 + 8 + 32);
    assert_eq!(bytes[..8], [1, 0, 0x88, 0x86, 0, 0, 0, 0]);
    assert_eq!(bytes[8..40], [7; 32]);
    assert_eq!(bytes[40..48], [0, 1, 0, 0, 0, 0, 0, 32]);
    assert_eq!(bytes[48..56], 4096_u64.to_be_bytes());
    assert_eq!(ContinuationSegment::decode(&bytes, OsdAction::Write), Ok(write.clone()));
    assert!(write.has_length(15) && !write.has_length(14));
    let empty = segment(OsdAction::Write, Vec::new());
    assert_eq!(empty.encode().unwrap().len(), 48);
    assert!(empty.has_length(14) && empty.scatter_gather().is_none());
}

/// Goal: a length that lies, or exceeds a limit, is refused. Method: one change to a valid segment
/// each.
#[test]
fn lengths_that_lie() {
    let bytes = segment(OsdAction::Write, vec![ranges(&[(0, 8)])]).encode().unwrap();
    let after = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        ContinuationSegment::decode(&bytes, OsdAction::Write).unwrap_err()
    };
    let length = |at| ContinuationError::Length { at };
    assert_eq!(after(&|bytes| bytes[47] = 24), length(44), "beyond the segment");
    assert_eq!(after(&|bytes| bytes[47] = 15), length(44), "not aligned");
    assert_eq!(after(&|bytes| bytes[44..48].fill(0xff)), length(44), "2^32 − 1");
    assert_eq!(after(&|bytes| bytes[47] = 8), length(44), "half an entry");
    assert_eq!(after(&|bytes| (bytes[43], bytes[47]) = (7, 9)), length(44), "padded");
    assert_eq!(after(&|bytes| bytes[47] = 0), length(44), "no entry");
    assert_eq!(after(&|bytes| bytes.truncate(60)), length(0));
    assert_eq!(after(&|bytes| bytes.truncate(40)), length(0));
    assert_eq!(after(&|bytes| bytes.resize(65_544, 0)), length(0));
    assert_eq!(length(44).sense(), Sense::PARAMETER_LIST_LENGTH_ERROR);
    let value = ContinuationError::Value { at: 48 };
    assert_eq!(after(&|bytes| bytes[48..56].fill(0xff)), value, "beyond 2^64");
    assert_eq!(value.sense(), Sense::invalid_field_in_parameter_list(48, None));
    let sum = ranges(&[(0, u64::MAX), (0, 1)]);
    assert_eq!(segment(OsdAction::Write, vec![sum]).encode(), None);
    let many = ranges(&vec![(0, 1); SCATTER_GATHER_ENTRIES_MAX + 1]);
    assert_eq!(segment(OsdAction::Write, vec![many]).encode(), None);
    let most = ranges(&vec![(0, 1); SCATTER_GATHER_ENTRIES_MAX]);
    assert!(segment(OsdAction::Write, vec![most]).encode().is_some());
    let capabilities = vec![Default::default(); EXTENSION_CAPABILITIES_MAX + 1];
    let many = ContinuationDescriptor::ExtensionCapabilities(capabilities);
    assert_eq!(segment(OsdAction::CreateClone, vec![many]).encode(), None);
}

/// Goal: header and types are those of the command, each type once.
#[test]
fn descriptors_belong_to_commands() {
    let list = ranges(&[(0, 8)]);
    let bytes = segment(OsdAction::Write, vec![list.clone()]).encode().unwrap();
    let header = |at| Err(ContinuationError::Header { at });
    assert_eq!(ContinuationSegment::decode(&bytes, OsdAction::Read), header(2));
    let mut other = bytes.clone();
    other[0] = 2;
    assert_eq!(ContinuationSegment::decode(&other, OsdAction::Write), header(0));
    let unexpected = |at| Err(ContinuationError::Unexpected { at });
    let mut twice = bytes.clone();
    twice.extend_from_slice(&bytes[40..]);
    assert_eq!(ContinuationSegment::decode(&twice, OsdAction::Write), unexpected(64));
    // A descriptor after the end is not read.
    twice[40..42].fill(0);
    let empty = ContinuationSegment::decode(&twice, OsdAction::Write).unwrap();
    assert!(empty.descriptors.is_empty());
    let mut append = bytes;
    append[3] = 0x87;
    assert_eq!(ContinuationSegment::decode(&append, OsdAction::Append), unexpected(40));
    append[3] = 0xa0;
    assert_eq!(ContinuationSegment::decode(&append, OsdAction::Query), unexpected(40));
    append[40..42].fill(0);
    let missing = ContinuationError::Missing(ContinuationDescriptorType::QUERY);
    assert_eq!(ContinuationSegment::decode(&append, OsdAction::Query), Err(missing));
    assert_eq!(missing.sense(), Sense::invalid_field_in_parameter_list(40, None));
}

/// Goal: the source of a copy is padded, and both codes of user objects are read.
#[test]
fn sources_and_user_objects() {
    let source = CopySource {
        partition: OBJECT.partition,
        object: OBJECT.object,
        flags: CopySourceFlags::COPY_ATTRIBUTES,
        time_of_duplication: 9,
    };
    let copy = vec![ContinuationDescriptor::CopySource(source)];
    let copy = segment(OsdAction::CopyUserObjects, copy);
    let mut bytes = copy.encode().unwrap();
    assert_eq!(bytes[40..48], [1, 1, 0, 6, 0, 0, 0, 18]);
    assert_eq!(bytes[64..], [1, 9, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ContinuationSegment::decode(&bytes, OsdAction::CopyUserObjects), Ok(copy));
    (bytes[43], bytes[47]) = (0, 24);
    let error = ContinuationSegment::decode(&bytes, OsdAction::CopyUserObjects).unwrap_err();
    assert_eq!(error, ContinuationError::Length { at: 44 });
    let objects = vec![ContinuationDescriptor::UserObjects(vec![OBJECT])];
    let objects = segment(OsdAction::ReadMapsAndCompare, objects);
    let mut bytes = objects.encode().unwrap();
    assert_eq!(bytes[40..42], [1, 0]);
    bytes[40..42].copy_from_slice(&[0, 3]);
    let decoded = ContinuationSegment::decode(&bytes, OsdAction::ReadMapsAndCompare);
    assert_eq!(decoded, Ok(objects), "as Linux has it");
}

/// Goal: a query list has the layout of the standard; both meanings of the length of an entry are
/// accepted, and no other.
#[test]
fn query_lists() {
    let criteria = vec![criterion(b"a", b"bcd"), criterion(b"", b"")];
    let list = QueryList { query_match: QueryMatch::All, criteria };
    let mut bytes = list.encode();
    assert_eq!(bytes[..4], [1, 0, 0, 0]);
    assert_eq!(bytes[4..24], *b"\0\0\0\x10\0\x01\0\0\0\0\0\x03\0\x01a\0\x03bcd");
    assert_eq!(QueryList::decode(&bytes), Ok(list.clone()));
    for (length, valid) in [(15, false), (16, true), (17, false), (19, false), (20, true)] {
        bytes[7] = length;
        assert_eq!(QueryList::decode(&bytes) == Ok(list.clone()), valid, "{length}");
    }
    let length = |at| Err(QueryListError::Length { at });
    assert_eq!(QueryList::decode(&bytes[..3]), length(0));
    assert_eq!(QueryList::decode(&bytes[..30]), length(24));
    bytes[26..28].fill(0);
    assert_eq!(QueryList::decode(&bytes).unwrap().criteria.len(), 1, "an empty entry ends");
    let value = |at| Err(QueryListError::Value { at });
    bytes[12..16].fill(0xff);
    assert_eq!(QueryList::decode(&bytes), value(12), "all attributes");
    bytes[8] = 0x30;
    assert_eq!(QueryList::decode(&bytes), value(8), "a page of partitions");
    bytes[0] = 2;
    assert_eq!(QueryList::decode(&bytes), value(0));
    let sense = Sense::invalid_field_in_parameter_list(8, None);
    assert_eq!(QueryListError::Value { at: 8 }.sense(), sense);
    let criteria = vec![criterion(b"", b""); QUERY_CRITERIA_MAX + 1];
    let many = QueryList { query_match: QueryMatch::Any, criteria }.encode();
    assert_eq!(QueryList::decode(&many), Err(QueryListError::TooMany));
}

/// Goal: a criterion includes its limits, and attributes that are not defined never match.
#[test]
fn criteria_include_their_limits() {
    let both = criterion(b"b", b"d");
    let found: Vec<_> = [&b"a"[..], b"b", b"cc", b"d", b"d0", b""]
        .into_iter()
        .map(|value| both.includes(value))
        .collect();
    assert_eq!(found, [false, true, true, true, false, false]);
    assert!(criterion(b"", b"").includes(b"x") && !criterion(b"", b"").includes(b""));
}

fn any_segment() -> impl Strategy<Value = ContinuationSegment> {
    let bytes = || proptest::collection::vec(any::<u8>(), 0..30);
    let criterion = (0..0x3000_0000_u32, 0..u32::MAX, bytes(), bytes()).prop_map(
        |(page, number, minimum, maximum)| {
            let name = AttributeName { page, number };
            QueryCriterion { name, minimum, maximum }
        },
    );
    let criteria = proptest::collection::vec(criterion, 0..8);
    let query = (select(&[QueryMatch::Any, QueryMatch::All]), criteria)
        .prop_map(|(query_match, criteria)| QueryList { query_match, criteria });
    let capabilities = proptest::collection::vec(strategies::capability(OsdVersion::Osd2), 1..4);
    let query = (query, proptest::option::of(capabilities)).prop_map(|(query, capabilities)| {
        let mut all = vec![ContinuationDescriptor::Query(query)];
        all.extend(capabilities.map(ContinuationDescriptor::ExtensionCapabilities));
        (OsdAction::Query, all)
    });
    let list = proptest::collection::vec((any::<u32>(), any::<u32>()), 1..20).prop_map(|list| {
        let list: Vec<_> = list.into_iter().map(|(a, b)| (a.into(), b.into())).collect();
        (OsdAction::Read, vec![ranges(&list)])
    });
    let objects = proptest::collection::vec(strategies::object(), 1..5).prop_map(|objects| {
        (OsdAction::ReadMapsAndCompare, vec![ContinuationDescriptor::UserObjects(objects)])
    });
    (prop_oneof![query, list, objects], any::<[u8; 32]>()).prop_map(
        |((action, descriptors), integrity_value)| ContinuationSegment {
            action,
            integrity_value,
            descriptors,
        },
    )
}

proptest! {
    /// Goal: segments round-trip, and a changed one causes no panic.
    #[test]
    fn segments_round_trip(
        segment in any_segment(),
        changes in proptest::collection::vec(
            (any::<proptest::sample::Index>(), prop_oneof![Just(0), any::<u8>()]), 0..4,
        ),
    ) {
        let mut bytes = segment.encode().unwrap();
        let decoded = ContinuationSegment::decode(&bytes, segment.action);
        prop_assert_eq!(decoded, Ok(segment.clone()));
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for cut in (0..=bytes.len()).rev() {
            match ContinuationSegment::decode(&bytes[..cut], segment.action) {
                Ok(decoded) => prop_assert!(decoded.encode().is_some()),
                Err(error) => drop(error.sense()),
            }
        }
    }
}
