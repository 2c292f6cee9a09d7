//! Parameter data of LIST, READ MAP and QUERY.

use lunar_scsi::osd::{
    AttributeName, AttributeValue, ListCompletion, ListResponse, ListResponseBuilder, ListedKind,
    MapEntry, MapResponse, MapResponseBuilder, MapType, MatchesResponse, MatchesResponseBuilder,
    ObjectRange, ObjectType, OsdResponseError, OsdVersion, TaskManagementResponseCode,
    TaskManagementResult,
};
use lunar_scsi::sense::SenseKey;
use proptest::prelude::*;
use proptest::sample::select;

const VALUE: AttributeValue<'_> = AttributeValue { name: AttributeName::new(1, 2), value: &[5] };
const KINDS: [ListedKind; 3] =
    [ListedKind::Partitions, ListedKind::Collections, ListedKind::UserObjects];

/// Goal: lists have the layouts of both versions.
#[test]
fn lists() {
    let completion = ListCompletion {
        continuation: Some(0x1_0007),
        list_identifier: 0x0102_0304,
        is_changed: true,
    };
    let list = |version, kind, with_attributes| {
        let mut builder = ListResponseBuilder::new(version, kind, with_attributes, 1000);
        builder.push(0x1_0001, &[VALUE]);
        builder.push(0x1_0002, &[]);
        builder.finish(completion)
    };
    let osd1 = list(OsdVersion::Osd1, ListedKind::Partitions, false);
    assert_eq!(osd1[..8], 32_u64.to_be_bytes());
    assert_eq!(osd1[8..16], 0x1_0007_u64.to_be_bytes());
    assert_eq!(osd1[16..24], [1, 2, 3, 4, 0, 0, 0, 3]);
    assert_eq!(osd1[24..32], 0x1_0001_u64.to_be_bytes());
    assert_eq!(osd1.len(), 40);
    for (kind, with_attributes, format) in [
        (ListedKind::Partitions, false, 0x01),
        (ListedKind::Partitions, true, 0x02),
        (ListedKind::Collections, false, 0x11),
        (ListedKind::Collections, true, 0x12),
        (ListedKind::UserObjects, false, 0x21),
        (ListedKind::UserObjects, true, 0x22),
    ] {
        let osd2 = list(OsdVersion::Osd2, kind, with_attributes);
        assert_eq!(osd2[23], format << 2 | 2, "{kind:?}");
        assert_eq!(osd2.len(), if with_attributes { 24 + 40 + 16 } else { 40 });
        let decoded = ListResponse::decode(OsdVersion::Osd2, &osd2).unwrap();
        assert_eq!((decoded.kind, decoded.completion), (kind, completion));
        let ids: Vec<_> = decoded.objects.iter().map(|object| object.object).collect();
        assert_eq!((ids, decoded.is_truncated), (vec![0x1_0001, 0x1_0002], false));
        let values: &[_] = if with_attributes { &[VALUE] } else { &[] };
        assert_eq!(decoded.objects[0].values, values);
    }
    let user = list(OsdVersion::Osd2, ListedKind::UserObjects, true);
    assert_eq!(user[24..40], [0, 0, 0, 0, 0, 1, 0, 1, ObjectType::USER.0, 0, 0, 0, 0, 0, 0, 24]);
}

/// Goal: lengths that lie are refused, and a format that no version has.
#[test]
fn invalid_lists() {
    let mut list = ListResponseBuilder::new(OsdVersion::Osd2, ListedKind::UserObjects, false, 1000);
    list.push(1, &[]);
    list.push(2, &[]);
    let mut list = list.finish(ListCompletion::default());
    let decode = |list: &[u8]| ListResponse::decode(OsdVersion::Osd2, list).map(|_| ());
    assert_eq!(decode(&list[..23]), Err(OsdResponseError::Header));
    list[7] = 15;
    assert_eq!(decode(&list), Err(OsdResponseError::Length));
    list[7] = 17;
    assert_eq!(decode(&list), Err(OsdResponseError::Length));
    list[7] = 24;
    let one = ListResponse::decode(OsdVersion::Osd2, &list).unwrap();
    assert_eq!((one.objects.len(), one.is_truncated), (1, false), "bytes behind the list");
    list[..8].fill(0xff);
    assert!(ListResponse::decode(OsdVersion::Osd2, &list).unwrap().is_truncated, "overflow");
    list[23] = 0x31 << 2;
    assert_eq!(decode(&list), Err(OsdResponseError::Format(0x31)));
    let mut list = ListResponseBuilder::new(OsdVersion::Osd2, ListedKind::UserObjects, true, 1000);
    list.push(1, &[VALUE]);
    let mut list = list.finish(ListCompletion::default());
    list[39] = 23;
    assert!(matches!(decode(&list), Err(OsdResponseError::Attributes(_))));
    list[39] = 32;
    assert!(matches!(decode(&list), Err(OsdResponseError::Attributes(_))));
}

/// Goal: a map has descriptors of 16 bytes; a range that is too long for one gets several, and one
/// that needs billions is only counted.
#[test]
fn maps() {
    let written =
        MapEntry { map_type: MapType::WRITTEN, range: ObjectRange { start: 4096, length: 512 } };
    let hole = MapEntry {
        map_type: MapType::HOLE,
        range: ObjectRange { start: 4608, length: 0x1_0000_0000 },
    };
    let mut builder = MapResponseBuilder::new(1000);
    builder.push(&written);
    builder.push(&hole);
    let map = builder.finish();
    assert_eq!(map[..8], 48_u64.to_be_bytes());
    assert_eq!(map[8..24], [0, 0, 0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    let decoded = MapResponse::decode(&map).unwrap();
    assert_eq!((decoded.entries[0], decoded.entries.len()), (written, 3));
    let [.., first, second] = &decoded.entries[..] else { panic!("two parts") };
    assert_eq!(first.range.start + first.range.length, second.range.start);
    assert_eq!(first.range.length + second.range.length, hole.range.length);
    let mut builder = MapResponseBuilder::new(24);
    builder.push(&MapEntry { range: ObjectRange { start: 0, length: u64::MAX }, ..hole });
    assert!(builder.is_full());
    let map = builder.finish();
    let descriptors = u64::MAX.div_ceil(0xffff_f000);
    assert_eq!((map.len(), &map[..8]), (24, &(descriptors * 16).to_be_bytes()[..]));
    assert!(MapResponse::decode(&map).unwrap().is_truncated);
    assert_eq!(MapResponse::decode(&map[..7]), Err(OsdResponseError::Header));
    let odd = [0, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4];
    assert_eq!(MapResponse::decode(&odd), Err(OsdResponseError::Length));
}

/// Goal: the ids of QUERY follow the format byte, where each revision has it.
#[test]
fn matches() {
    for (version, format_at) in [(OsdVersion::Osd2R03, 12), (OsdVersion::Osd2, 11)] {
        let mut builder = MatchesResponseBuilder::new(version, 1000);
        builder.push(0x0102_0304_0506_0708);
        assert!(!builder.is_full());
        let mut data = builder.finish();
        assert_eq!((data.len(), data[format_at]), (format_at + 9, 0x84));
        assert_eq!(usize::from(data[7]), data.len() - 8);
        assert_eq!(data[format_at + 1..], [1, 2, 3, 4, 5, 6, 7, 8]);
        let decoded = MatchesResponse::decode(version, &data).unwrap();
        assert_eq!(
            (decoded.objects.as_slice(), decoded.is_truncated),
            (&[0x0102_0304_0506_0708][..], false)
        );
        assert_eq!(MatchesResponse::decode(version, &data[..11]), Err(OsdResponseError::Header));
        data[7] = 3;
        assert_eq!(MatchesResponse::decode(version, &data), Err(OsdResponseError::Length));
        data[format_at] = 0x80;
        let error = Err(OsdResponseError::Format(0x20));
        assert_eq!(MatchesResponse::decode(version, &data), error);
    }
}

/// Goal: the result of a task management function has the layout of the standard.
#[test]
fn results_of_task_management() {
    let result = TaskManagementResult::new(TaskManagementResponseCode::FUNCTION_SUCCEEDED);
    assert_eq!(result.encode(), [0, 6, 0, 0, 5, 0, 0, 0]);
    let found = TaskManagementResult::decode(&[0, 6, 0, 0, 5, 0x16, 0x29, 0]);
    assert_eq!((found.sense_key(), found.sense_code), (SenseKey::UNIT_ATTENTION, 0x2900));
}

proptest! {
    /// Goal: lists and matches round-trip, cut at any allocation length or whole.
    #[test]
    fn responses_round_trip(
        version in select(&[OsdVersion::Osd1, OsdVersion::Osd2]), kind in select(&KINDS),
        with_attributes: bool, ids in proptest::collection::vec(any::<u64>(), 0..20),
        allocation in 24_usize..2000, continuation in 1_u64.., list_identifier: u32,
        is_changed: bool,
    ) {
        let continuation = Some(continuation);
        let completion = ListCompletion { continuation, list_identifier, is_changed };
        let build = |allocation| {
            let mut list = ListResponseBuilder::new(version, kind, with_attributes, allocation);
            ids.iter().for_each(|id| list.push(*id, &[VALUE]));
            let mut matches = MatchesResponseBuilder::new(version, allocation);
            ids.iter().for_each(|id| matches.push(*id));
            (list.finish(completion), matches.finish())
        };
        let ((list, matches), (whole_list, whole_matches)) = (build(allocation), build(usize::MAX));
        prop_assert_eq!(&list[..], &whole_list[..whole_list.len().min(allocation)]);
        let decoded = ListResponse::decode(version, &list).unwrap();
        prop_assert_eq!(decoded.completion, completion);
        prop_assert_eq!(decoded.is_truncated, list.len() < whole_list.len());
        let found: Vec<_> = decoded.objects.iter().map(|object| object.object).collect();
        prop_assert_eq!(&found[..], &ids[..found.len()]);
        prop_assert!(decoded.is_truncated || found.len() == ids.len());
        let decoded = MatchesResponse::decode(version, &matches).unwrap();
        prop_assert_eq!(&decoded.objects[..], &ids[..decoded.objects.len()]);
        prop_assert_eq!(decoded.is_truncated, matches.len() < whole_matches.len());
        prop_assert!(decoded.is_truncated || decoded.objects.len() == ids.len());
    }

    /// Goal: no parameter data cause a panic.
    #[test]
    fn hostile_responses(
        version in select(&OsdVersion::ALL),
        mut data in proptest::collection::vec(prop_oneof![Just(0), any::<u8>()], 24..120),
        length in 0_u8..120, format in select(&[0x05_u8, 0x0a, 0x45, 0x4a, 0x84, 0x88]),
    ) {
        data[..8].copy_from_slice(&u64::from(length).to_be_bytes());
        (data[11], data[12], data[23]) = (format, format, format);
        for cut in 0..=data.len() {
            let _ = ListResponse::decode(version, &data[..cut]);
            let _ = MapResponse::decode(&data[..cut]);
            let _ = MatchesResponse::decode(version, &data[..cut]);
        }
    }
}
