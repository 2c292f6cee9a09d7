//! Each command: its good case, and its refusals.

use super::{OBJECT, OsdRequest, PARTITION, RETRIEVED, TIME, TestOsd};
use lunar_scsi::osd::{
    AttributeName, CommandFunctions, ContainerFlushScope, FlushScope, IsolationMethod, KeyToSet,
    ListRequest, ListResponse, ListedKind, MapEntry, MapResponse, MapType, ObjectAddress,
    ObjectRange, OsdCdb, OsdCommand, OsdVersion, RemoveScope, SecurityMethod, pages,
};
use lunar_scsi::sense::{FieldPointer, Sense, SenseKey, Status};

const RANGE: ObjectRange = ObjectRange { start: 0, length: 3 };
const OTHER_PARTITION: u64 = 0x1_0099;
const OTHER: ObjectAddress = ObjectAddress::new(PARTITION, 0x1_0099);
const NOWHERE: ObjectAddress = ObjectAddress::new(OTHER_PARTITION, 0x1_0005);
const NAME: AttributeName = AttributeName::new(0x1_0003, 1);

fn read_map(object: ObjectAddress, start: u64) -> OsdCommand {
    OsdCommand::ReadMap { object, allocation_bytes: 64, start, map_type: MapType::ALL }
}

fn list(initial: u64, allocation_bytes: u64) -> ListRequest {
    ListRequest { allocation_bytes, initial, ..ListRequest::default() }
}

/// Goal: data that was written is read, at its offset and behind the end. Method: WRITE, APPEND and
/// READ of an object, beside the model in `model`.
#[tokio::test]
async fn data_is_written_and_read() {
    let device = TestOsd::with_object().await;
    let range = ObjectRange { start: 5, length: 2 };
    device.good(OsdCommand::Write { object: OBJECT, range }, b"de").await;
    let whole = ObjectRange { start: 0, length: 7 };
    let read = device.good(OsdCommand::Read { object: OBJECT, range: whole }, b"").await;
    assert_eq!(read, b"abc\0\0de");
    let page = pages::CURRENT_COMMAND;
    let append = OsdCommand::Append { object: OBJECT, length: 2 };
    let body = device.page(OsdVersion::Osd2, append, page).await;
    let body = pages::CurrentCommandPage::decode(body.first_chunk().unwrap());
    assert_eq!((body.append_start, body.object), (7, OBJECT.object));
}

/// Goal: READ beyond the end returns data and RECOVERED ERROR with the number of bytes, whatever
/// part is beyond it. Method: ranges of an object of three bytes.
#[tokio::test]
async fn a_read_beyond_the_end_says_how_much_was_read() {
    let device = TestOsd::with_object().await;
    for (start, length, read) in [(1, 4, 2), (3, 1, 0), (9, 2, 0)] {
        let range = ObjectRange { start, length };
        let command = OsdCommand::Read { object: OBJECT, range };
        let get = [pages::USER_LOGICAL_LENGTH];
        let outcome = device.with_lists(OsdVersion::Osd2, command, &[], &get).await;
        let sense = outcome.sense.clone().unwrap();
        assert_eq!((sense.key, sense.code), (SenseKey::RECOVERED_ERROR, 0x3b17));
        assert_eq!(sense.command_specific_information(), Some(read));
        assert!(sense.is_success());
        let mut expected = b"abc".get(start as usize..).unwrap_or(b"").to_vec();
        expected.resize(length as usize, 0);
        assert_eq!(outcome.data_in[..length as usize], expected);
        // The attributes follow nevertheless.
        let found = super::retrieved(OsdVersion::Osd2, &outcome);
        assert_eq!(found, [(get[0], 3_u64.to_be_bytes().to_vec())]);
    }
}

/// Goal: LIST returns ids in order, continues where the room ends, and counts all. Method: lists of
/// partitions and of three objects, with room for each number of ids.
#[tokio::test]
async fn lists_continue() {
    let device = TestOsd::with_object().await;
    let ids = [OBJECT.object, OBJECT.object + 1, OBJECT.object + 2];
    for id in &ids[1..] {
        let requested = ObjectAddress::new(PARTITION, *id);
        device.good(OsdCommand::Create { requested, count: 1 }, b"").await;
    }
    for shown in 0..=3 {
        let request = list(0, 24 + 8 * shown as u64 + 4);
        let data = device.good(OsdCommand::List { partition: PARTITION, list: request }, b"").await;
        let response = ListResponse::decode(OsdVersion::Osd2, &data).unwrap();
        assert_eq!(response.kind, ListedKind::UserObjects);
        let found: Vec<u64> = response.objects.iter().map(|object| object.object).collect();
        assert_eq!(found, ids[..shown]);
        assert_eq!(response.completion.continuation, ids.get(shown).copied());
        assert_eq!(response.completion.list_identifier == 0, shown == 3);
        assert_eq!(data[..8], 40_u64.to_be_bytes());
    }
    let root = device.good(OsdCommand::List { partition: 0, list: list(0, 100) }, b"").await;
    let response = ListResponse::decode(OsdVersion::Osd2, &root).unwrap();
    assert_eq!((response.kind, response.objects[0].object), (ListedKind::Partitions, PARTITION));
}

/// Goal: CREATE of several objects returns attributes of each. Method: three objects and a list.
#[tokio::test]
async fn several_objects_are_created() {
    let device = TestOsd::with_object().await;
    let requested = ObjectAddress::new(PARTITION, 0);
    let command = OsdCommand::Create { requested, count: 3 };
    for version in [OsdVersion::Osd1, OsdVersion::Osd2] {
        let set: [(AttributeName, &[u8]); 1] = [(NAME, b"n")];
        let outcome = device.with_lists(version, command, &set, &[NAME]).await;
        assert_eq!(outcome.status, Status::GOOD, "{:?}", outcome.sense);
        let list = &outcome.data_in[RETRIEVED.offset as usize..];
        let found = lunar_scsi::osd::decode_multi_object_list(version, list).unwrap();
        assert_eq!(found.objects.len(), 3);
        for object in &found.objects {
            assert_eq!(object.values[0].value, b"n");
        }
    }
}

/// Goal: commands that remove objects, format and flush do so. Method: one after the other.
#[tokio::test]
async fn objects_are_removed() {
    let device = TestOsd::with_object().await;
    for scope in [FlushScope::Object, FlushScope::Attributes, FlushScope::Range(RANGE)] {
        device.good(OsdCommand::Flush { object: OBJECT, scope }, b"").await;
    }
    let scope = ContainerFlushScope::Everything;
    device.good(OsdCommand::FlushPartition { partition: PARTITION, scope }, b"").await;
    device.good(OsdCommand::FlushOsd { scope }, b"").await;
    // Attributes are read before the object is removed.
    let get = [pages::USER_LOGICAL_LENGTH];
    let remove = OsdCommand::Remove { object: OBJECT };
    let outcome = device.with_lists(OsdVersion::Osd1, remove, &[], &get).await;
    assert_eq!(outcome.status, Status::GOOD);
    let found = super::retrieved(OsdVersion::Osd1, &outcome);
    assert_eq!(found, [(get[0], 3_u64.to_be_bytes().to_vec())]);
    let scope = RemoveScope::EmptyOnly;
    device.good(OsdCommand::RemovePartition { partition: PARTITION, scope }, b"").await;
    device.good(OsdCommand::CreatePartition { requested: 0 }, b"").await;
    device.good(OsdCommand::FormatOsd { capacity_bytes: 0 }, b"").await;
    let root = device.get(ObjectAddress::ROOT, &[pages::ROOT_PARTITION_COUNT]).await;
    assert_eq!(root[0].1, 0_u64.to_be_bytes());
}

/// Goal: CREATE AND WRITE, CLEAR, PUNCH and READ MAP change and show the bytes. Method: one after
/// the other, with the data and the map of an object.
#[tokio::test]
async fn bytes_are_cleared_and_removed() {
    let device = TestOsd::with_object().await;
    let range = ObjectRange { start: 8192, length: 4 };
    device.good(OsdCommand::CreateAndWrite { requested: OTHER, range }, b"wxyz").await;
    let read_map = |map_type| OsdCommand::ReadMap {
        object: OTHER,
        allocation_bytes: 1024,
        start: 0,
        map_type,
    };
    let map = device.good(read_map(MapType::ALL), b"").await;
    let entries = MapResponse::decode(&map).unwrap().entries;
    let hole = ObjectRange { start: 0, length: 8192 };
    let entry = |map_type, range| MapEntry { map_type, range };
    assert_eq!(entries, [entry(MapType::HOLE, hole), entry(MapType::WRITTEN, range)]);
    let map = device.good(read_map(MapType::WRITTEN), b"").await;
    assert_eq!(MapResponse::decode(&map).unwrap().entries, [entry(MapType::WRITTEN, range)]);
    device.good(OsdCommand::Punch { object: OTHER, range: hole }, b"").await;
    let first = ObjectRange { start: 1, length: 2 };
    device.good(OsdCommand::Clear { object: OTHER, range: first }, b"").await;
    let range = ObjectRange { start: 0, length: 4 };
    let read = device.good(OsdCommand::Read { object: OTHER, range }, b"").await;
    assert_eq!(read, b"w\0\0z");
}

/// Goal: objects become members of collections, and are listed. Method: a collection with a member,
/// and its removal with and without FCR.
#[tokio::test]
async fn collections_have_members() {
    let device = TestOsd::with_object().await;
    device.good(OsdCommand::CreateCollection { requested: OTHER }, b"").await;
    let member = AttributeName::new(pages::USER_COLLECTIONS.page, 1);
    let id = OTHER.object.to_be_bytes();
    let set: [(AttributeName, &[u8]); 1] = [(member, &id)];
    let command = OsdCommand::SetAttributes { object: OBJECT };
    let outcome = device.with_lists(OsdVersion::Osd2, command, &set, &[member]).await;
    assert_eq!(super::retrieved(OsdVersion::Osd2, &outcome), [(member, id.to_vec())]);
    let page = OsdCommand::GetAttributes { object: OBJECT };
    assert_eq!(device.page(OsdVersion::Osd1, page, member.page).await, id);
    let cases = [
        (OTHER, ListedKind::UserObjects, OBJECT.object),
        (ObjectAddress::new(PARTITION, 0), ListedKind::Collections, OTHER.object),
    ];
    for (collection, kind, id) in cases {
        let command = OsdCommand::ListCollection { collection, list: list(0, 64) };
        let data = device.good(command, b"").await;
        let response = ListResponse::decode(OsdVersion::Osd2, &data).unwrap();
        assert_eq!((response.kind, response.objects.len()), (kind, 1));
        assert_eq!(response.objects[0].object, id);
    }
    let scope = ContainerFlushScope::Contents;
    device.good(OsdCommand::FlushCollection { collection: OTHER, scope }, b"").await;
    let remove = |force| OsdCommand::RemoveCollection { collection: OTHER, force };
    let outcome = device.run(&OsdCdb::new(OsdVersion::Osd2, remove(false)), b"").await;
    assert_eq!(outcome.sense.map(|sense| sense.code), Some(0x2c0a));
    device.good(remove(true), b"").await;
    assert_eq!(device.get(OBJECT, &[member]).await, [(member, Vec::new())]);
}

/// Commands that are refused: with the code of the sense and the byte that the pointer shows.
fn refusals() -> Vec<(OsdCommand, u16, Option<u16>)> {
    let (object, partition) = (NOWHERE, OTHER_PARTITION);
    let scope = ContainerFlushScope::Everything;
    let beyond = FlushScope::Range(ObjectRange { start: 4, length: 1 });
    let too_far = ObjectRange { start: 1 << 63, length: 3 };
    let empty_only = RemoveScope::EmptyOnly;
    let mut all = vec![
        (OsdCommand::CreatePartition { requested: PARTITION }, 0x2400, Some(16)),
        (OsdCommand::Create { requested: OBJECT, count: 1 }, 0x2400, Some(24)),
        (OsdCommand::Create { requested: object, count: 1 }, 0x2400, Some(16)),
        (OsdCommand::Create { requested: ObjectAddress::ROOT, count: 1 }, 0x2400, Some(16)),
        (OsdCommand::Write { object: OBJECT, range: too_far }, 0x2400, Some(40)),
        (OsdCommand::Flush { object: OBJECT, scope: beyond }, 0x2400, Some(40)),
        (OsdCommand::FlushPartition { partition, scope }, 0x2400, Some(16)),
        (OsdCommand::List { partition, list: list(0, 64) }, 0x2400, Some(16)),
        (OsdCommand::RemovePartition { partition, scope: empty_only }, 0x2400, Some(16)),
        (OsdCommand::RemovePartition { partition: PARTITION, scope: empty_only }, 0x2c0a, None),
        (OsdCommand::FormatOsd { capacity_bytes: u64::MAX }, 0x2400, Some(32)),
        (OsdCommand::Clear { object: OBJECT, range: too_far }, 0x2400, Some(40)),
        (OsdCommand::Punch { object: OBJECT, range: too_far }, 0x2400, Some(40)),
        (read_map(OBJECT, 4), 0x2400, Some(40)),
        (read_map(NOWHERE, 0), 0x2400, Some(16)),
        (OsdCommand::CreateAndWrite { requested: OTHER, range: too_far }, 0x2400, Some(40)),
        (OsdCommand::CreateCollection { requested: OBJECT }, 0x2400, Some(24)),
        (OsdCommand::RemoveCollection { collection: OBJECT, force: true }, 0x2400, Some(24)),
        (OsdCommand::FlushCollection { collection: OTHER, scope }, 0x2400, Some(24)),
        (OsdCommand::ListCollection { collection: OBJECT, list: list(0, 64) }, 0x2400, Some(24)),
        // Not supported.
        (OsdCommand::ObjectStructureCheck { partition: PARTITION }, 0x2400, Some(8)),
        (OsdCommand::DetachClone { partition: PARTITION }, 0x2400, Some(8)),
        (
            OsdCommand::SetKey { key: KeyToSet::Root, identifier: [0; 7], seed: [0; 20] },
            0x2400,
            Some(8),
        ),
    ];
    for (object, field) in [(OTHER, 24), (NOWHERE, 16), (ObjectAddress::new(PARTITION, 0), 24)] {
        let scope = FlushScope::Object;
        all.push((OsdCommand::Read { object, range: RANGE }, 0x2400, Some(field)));
        all.push((OsdCommand::Write { object, range: RANGE }, 0x2400, Some(field)));
        all.push((OsdCommand::Append { object, length: 3 }, 0x2400, Some(field)));
        all.push((OsdCommand::Remove { object }, 0x2400, Some(field)));
        all.push((OsdCommand::Flush { object, scope }, 0x2400, Some(field)));
        if object.object != 0 {
            all.push((OsdCommand::GetAttributes { object }, 0x2400, Some(field)));
            all.push((OsdCommand::SetAttributes { object }, 0x2400, Some(field)));
        }
    }
    all
}

fn pointer(sense: &Sense) -> Option<u16> {
    sense.field.map(|FieldPointer { in_cdb, byte, .. }| {
        assert!(in_cdb);
        byte
    })
}

/// Goal: each refusal has its sense, the object, and a pointer to the field; nothing changes.
/// Method: the table, and the list of objects afterwards.
#[tokio::test]
async fn refusals_show_the_field() {
    let device = TestOsd::with_object().await;
    for (command, code, field) in refusals() {
        let cdb = OsdCdb::new(OsdVersion::Osd2, command);
        let outcome = device.run(&cdb, b"xyz").await;
        assert_eq!(outcome.status, Status::CHECK_CONDITION, "{command:?}");
        assert!(outcome.data_in.is_empty());
        let sense = outcome.sense.unwrap();
        assert_eq!((sense.key, sense.code), (SenseKey::ILLEGAL_REQUEST, code), "{command:?}");
        assert_eq!(pointer(&sense), field, "{command:?}");
        let identification = sense.object_identification().unwrap();
        assert!(identification.not_initiated.has(CommandFunctions::GET_ATTRIBUTES));
        assert!(!identification.completed.has(CommandFunctions::COMMAND));
    }
    let read = device.good(OsdCommand::Read { object: OBJECT, range: RANGE }, b"").await;
    assert_eq!(read, b"abc");
    let count = device.get(ObjectAddress::new(PARTITION, 0), &[pages::PARTITION_OBJECT_COUNT]);
    assert_eq!(count.await[0].1, 1_u64.to_be_bytes());
}

/// Goal: options that the device does not have are refused, in each version. Method: CDBs with one
/// such option each.
#[tokio::test]
async fn options_are_checked() {
    let device = TestOsd::with_object().await;
    let write = OsdCommand::Write { object: OBJECT, range: RANGE };
    let mut isolated = OsdCdb::new(OsdVersion::Osd2, write);
    isolated.options.isolation = IsolationMethod::STRICT;
    let mut continued = OsdCdb::new(OsdVersion::Osd2, write);
    continued.continuation_bytes = 48;
    let mut protected = OsdCdb::new(OsdVersion::Osd2, write);
    protected.capability.security_method = SecurityMethod::CAPKEY;
    let mut listed = OsdCdb::new(OsdVersion::Osd2, write);
    let request = ListRequest { with_attributes: true, ..list(0, 64) };
    listed.command = OsdCommand::List { partition: PARTITION, list: request };
    let cases = [(isolated, 10), (continued, 48), (protected, 82), (listed, 11)];
    for (cdb, field) in cases {
        let outcome = device.run(&cdb, &[0; 64]).await;
        assert_eq!(outcome.sense.as_ref().and_then(pointer), Some(field), "{cdb:?}");
    }
    for (version, field) in [(OsdVersion::Osd1, 36), (OsdVersion::Osd2, 32)] {
        let short = device.run(&OsdCdb::new(version, write), b"xy").await;
        assert_eq!(short.sense.as_ref().and_then(pointer), Some(field));
    }
}

/// Goal: a command whose memory or work would exceed a limit is refused, and nothing changes.
/// Fault: thousands of new objects with thousands of attributes, and wildcards of all attributes,
/// took gigabytes.
#[tokio::test]
async fn commands_have_limits() {
    let device = TestOsd::with_object().await;
    let create = |count| OsdCommand::Create { requested: ObjectAddress::new(PARTITION, 0), count };
    let names: Vec<_> = (1..=100).map(|number| AttributeName::new(0x1_0003, number)).collect();
    let many: Vec<(AttributeName, &[u8])> = names.iter().map(|name| (*name, &b"x"[..])).collect();
    let long = vec![b'x'; 32 << 10];
    let one = [(NAME, &long[..])];
    for (count, set) in [(40_000, &many[..0]), (1_000, &many), (200, &one)] {
        let outcome = device.with_lists(OsdVersion::Osd2, create(count), set, &[]).await;
        let sense = outcome.sense.unwrap();
        assert_eq!((sense.code, pointer(&sense)), (0x2400, Some(32)), "{count} objects");
    }
    let command = OsdCommand::GetAttributes { object: OBJECT };
    let all = AttributeName::new(AttributeName::ALL_PAGES, AttributeName::ALL_NUMBERS);
    let outcome = device.with_lists(OsdVersion::Osd2, command, &[], &[all; 17]).await;
    assert_eq!(outcome.sense.unwrap().code, 0x2600);
    let range = ObjectRange { start: 0, length: 1 << 30 };
    let cdb = OsdCdb::new(OsdVersion::Osd2, OsdCommand::Read { object: OBJECT, range });
    let data_out = bytes::Bytes::new();
    let request = OsdRequest { cdb: &cdb, data_out, data_in_bytes_max: 1 << 30, time: TIME };
    let outcome = device.executor.execute(&request).await;
    assert_eq!(outcome.sense.as_ref().and_then(pointer), Some(32));
    let count = device.get(ObjectAddress::new(PARTITION, 0), &[pages::PARTITION_OBJECT_COUNT]);
    assert_eq!(count.await[0].1, 1_u64.to_be_bytes());
}
