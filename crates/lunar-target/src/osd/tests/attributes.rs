//! Attributes: values, pages, and refusals.

use super::{OBJECT, PARTITION, TIME, TestOsd, with_lists};
use lunar_scsi::osd::{
    AttributeName, AttributeParameters, InlineAttribute, ObjectAddress, ObjectRange, OsdCdb,
    OsdCommand, OsdVersion, PageToGet, TimestampsControl, pages,
};
use lunar_scsi::sense::{FieldPointer, SenseKey, Status};

const OWNER: ObjectAddress = ObjectAddress::new(PARTITION, 0);
const NAME: AttributeName = AttributeName::new(0x1_0003, 1);

fn number(value: u64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

fn six_bytes(time: u64) -> Vec<u8> {
    time.to_be_bytes()[2..].to_vec()
}

/// Goal: attributes of the standard have the values of the store. Method: attributes of each kind
/// of object.
#[tokio::test]
async fn values_are_those_of_the_store() {
    let device = TestOsd::with_object().await;
    let cases = [
        (ObjectAddress::ROOT, pages::ROOT_SERIAL_NUMBER, b"7".to_vec()),
        (ObjectAddress::ROOT, pages::ROOT_PARTITION_COUNT, number(1)),
        (ObjectAddress::ROOT, pages::ROOT_CLOCK, six_bytes(TIME)),
        (ObjectAddress::ROOT, pages::ROOT_CONTINUATION_BYTES_MAX, vec![0; 4]),
        (ObjectAddress::ROOT, pages::ROOT_SUPPORTED_METHODS, vec![0, 1]),
        (OWNER, pages::PARTITION_ID, number(PARTITION)),
        (OWNER, pages::PARTITION_OBJECT_COUNT, number(1)),
        (OWNER, pages::PARTITION_CAPACITY_QUOTA, number(u64::MAX)),
        (OWNER, pages::PARTITION_COLLECTIONS_PER_USER_OBJECT, vec![0xff; 4]),
        (OBJECT, pages::USER_OBJECT_ID, number(OBJECT.object)),
        (OBJECT, pages::USER_LOGICAL_LENGTH, number(3)),
        (OBJECT, pages::USER_CREATED, six_bytes(TIME)),
        (OBJECT, pages::USER_POLICY_ACCESS_TAG, vec![0; 4]),
        (OBJECT, pages::USER_ACTUAL_DATA_SPACE, Vec::new()),
        (OBJECT, AttributeName::new(pages::CURRENT_COMMAND, 2), vec![0x80]),
        (OBJECT, NAME, Vec::new()),
    ];
    for (object, name, value) in cases {
        assert_eq!(device.get(object, &[name]).await, [(name, value)]);
    }
    let identification = device.get(OBJECT, &[AttributeName::new(1, 0)]).await;
    assert!(identification[0].1.starts_with(b"INCITS  T10 User Object Information\0"));
    let entry = device.get(OBJECT, &[AttributeName::new(0, 1)]).await;
    assert_eq!(entry[0].1, identification[0].1);
}

/// Goal: a name can stand for all numbers of a page, and all pages. Method: pages of the standard
/// and of an application.
#[tokio::test]
async fn names_stand_for_several_attributes() {
    let device = TestOsd::with_object().await;
    let other = AttributeName::new(0x1_0004, 2);
    let set: [(AttributeName, &[u8]); 2] = [(NAME, b"one"), (other, b"two")];
    let command = OsdCommand::SetAttributes { object: OBJECT };
    let outcome = device.with_lists(OsdVersion::Osd2, command, &set, &[]).await;
    assert_eq!(outcome.status, Status::GOOD, "{:?}", outcome.sense);
    let all = u32::MAX;
    let page = device.get(OBJECT, &[AttributeName::new(NAME.page, all)]).await;
    assert_eq!(page, [(NAME, b"one".to_vec())]);
    let times = device.get(OBJECT, &[AttributeName::new(pages::TIMESTAMPS, all)]).await;
    assert_eq!(times.iter().map(|(name, _)| name.number).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    let second = device.get(OBJECT, &[AttributeName::new(all, 2)]).await;
    assert!(second.contains(&(other, b"two".to_vec())));
    assert!(second.iter().all(|(name, _)| name.number == 2));
    let every = device.get(OBJECT, &[AttributeName::new(all, all)]).await;
    for name in [NAME, other, pages::USER_LOGICAL_LENGTH, pages::USER_LENGTH_MAX] {
        assert_eq!(every.iter().filter(|(found, _)| *found == name).count(), 1, "{name:?}");
    }
}

/// Goal: pages in page format have the layouts of the standard. Method: lengths of all pages, and
/// the fields of some.
#[tokio::test]
async fn pages_have_their_layout() {
    let device = TestOsd::with_object().await;
    let cases = [
        (ObjectAddress::ROOT, pages::ROOT + pages::QUOTAS, 36),
        (ObjectAddress::ROOT, pages::ROOT + pages::TIMESTAMPS, 13),
        (ObjectAddress::ROOT, pages::ROOT + pages::SECURITY, 66),
        (ObjectAddress::ROOT, pages::ROOT + pages::ERROR_RECOVERY, 28),
        (OWNER, pages::PARTITION + pages::QUOTAS, 28),
        (OWNER, pages::PARTITION + pages::TIMESTAMPS, 31),
        (OWNER, pages::PARTITION + pages::SECURITY, 150),
        (OWNER, pages::PARTITION + pages::ERROR_RECOVERY, 28),
        (OBJECT, pages::QUOTAS, 8),
        (OBJECT, pages::TIMESTAMPS, 30),
        (OBJECT, pages::SECURITY, 4),
        (OBJECT, pages::ERROR_RECOVERY, 14),
        (OBJECT, pages::CURRENT_COMMAND, 68),
        // Without page format.
        (OBJECT, pages::INFORMATION, 0),
        (OBJECT, NAME.page, 0),
    ];
    for (object, page, bytes) in cases {
        let command = OsdCommand::GetAttributes { object };
        let body = device.page(OsdVersion::Osd2, command, page).await;
        assert_eq!(body.len(), bytes, "{page:x}");
    }
    let command = OsdCommand::GetAttributes { object: OBJECT };
    let current = device.page(OsdVersion::Osd1, command, pages::CURRENT_COMMAND).await;
    let current = pages::Osd1CurrentCommandPage::decode(current.first_chunk().unwrap());
    assert_eq!((current.partition, current.object), (OBJECT.partition, OBJECT.object));
    let command = OsdCommand::GetAttributes { object: OWNER };
    let quotas = device.page(OsdVersion::Osd1, command, pages::PARTITION + pages::QUOTAS).await;
    let quotas = pages::PartitionQuotasPage::decode(quotas.first_chunk().unwrap());
    assert_eq!(quotas.collections_per_user_object, u32::MAX);
    let command = OsdCommand::Create { requested: ObjectAddress::new(PARTITION, 0), count: 2 };
    let current = device.page(OsdVersion::Osd2, command, pages::CURRENT_COMMAND).await;
    let current = pages::CurrentCommandPage::decode(current.first_chunk().unwrap());
    assert_eq!((current.partition, current.object_type.0), (PARTITION, 0x80));
}

/// Goal: attributes with an effect on the store have it, and quotas refuse more. Method: quotas and
/// lengths, then a command that exceeds each.
#[tokio::test]
async fn quotas_and_lengths_take_effect() {
    let device = TestOsd::with_object().await;
    let set = async |object, name, value: &[u8]| {
        let command = OsdCommand::SetAttributes { object };
        let outcome = device.with_lists(OsdVersion::Osd2, command, &[(name, value)], &[]).await;
        assert_eq!(outcome.status, Status::GOOD, "{:?}", outcome.sense);
    };
    set(OBJECT, pages::USER_LOGICAL_LENGTH, &number(2)).await;
    let range = ObjectRange { start: 0, length: 2 };
    assert_eq!(device.good(OsdCommand::Read { object: OBJECT, range }, b"").await, b"ab");
    set(OBJECT, pages::USER_LENGTH_MAX, &number(4)).await;
    set(OWNER, pages::PARTITION_OBJECT_COUNT_QUOTA, &number(1)).await;
    set(ObjectAddress::ROOT, pages::ROOT_PARTITION_COUNT_QUOTA, &number(1)).await;
    let requested = ObjectAddress::new(PARTITION, 0);
    let cases = [
        (OsdCommand::Append { object: OBJECT, length: 3 }, pages::USER_LENGTH_MAX),
        (OsdCommand::Create { requested, count: 1 }, pages::PARTITION_OBJECT_COUNT_QUOTA),
        (OsdCommand::CreatePartition { requested: 0 }, pages::ROOT_PARTITION_COUNT_QUOTA),
    ];
    for (command, quota) in cases {
        let outcome = device.run(&OsdCdb::new(OsdVersion::Osd2, command), b"xyz").await;
        let sense = outcome.sense.unwrap();
        assert_eq!((sense.key, sense.code), (SenseKey::DATA_PROTECT, 0x5507), "{command:?}");
        assert_eq!(sense.attributes(), [quota]);
    }
}

/// Goal: a list with one invalid attribute is refused at its entry, and changes nothing. Method:
/// each kind of fault as the second entry.
#[tokio::test]
async fn invalid_attributes_are_refused() {
    let device = TestOsd::with_object().await;
    let value = number(1);
    let cases: [(AttributeName, &[u8]); 7] = [
        (pages::USER_OBJECT_ID, &value),
        (pages::PARTITION_CAPACITY_QUOTA, &value),
        (pages::USER_LENGTH_MAX, b"short"),
        (AttributeName::new(0x1_0003, 0), b"no zero"),
        (AttributeName::new(0x80, 1), b"reserved"),
        (AttributeName::new(0xf000, 1), b"of the manufacturer"),
        (pages::USER_LOGICAL_LENGTH, &[0xff; 8]),
    ];
    for version in [OsdVersion::Osd1, OsdVersion::Osd2] {
        for (name, value) in cases {
            let command = OsdCommand::SetAttributes { object: OBJECT };
            let (cdb, data) = with_lists(version, command, &[(NAME, b"1"), (name, value)], &[]);
            let sense = device.run(&cdb, &data).await.sense.unwrap();
            assert_eq!((sense.key, sense.code), (SenseKey::ILLEGAL_REQUEST, 0x2600), "{name:?}");
            assert_eq!(sense.attributes(), [name]);
            // The header, and an entry of one byte.
            let byte = if version.is_osd2() { 8 + 24 } else { 4 + 11 };
            assert_eq!(sense.field, Some(FieldPointer { in_cdb: false, byte, bit: None }));
        }
        // A page of partitions cannot be read from an object.
        let names = [NAME, pages::PARTITION_ID];
        let command = OsdCommand::GetAttributes { object: OBJECT };
        let sense = device.with_lists(version, command, &[], &names).await.sense.unwrap();
        let byte = if version.is_osd2() { 16 } else { 12 };
        assert_eq!(sense.field, Some(FieldPointer { in_cdb: false, byte, bit: None }));
    }
    let outside = {
        let command = OsdCommand::SetAttributes { object: OBJECT };
        let (cdb, data) = with_lists(OsdVersion::Osd2, command, &[(NAME, b"1")], &[]);
        device.run(&cdb, &data[..8]).await.sense.unwrap()
    };
    assert_eq!(outside.code, 0x1a00);
    assert_eq!(device.get(OBJECT, &[NAME]).await, [(NAME, Vec::new())]);
}

/// Goal: attributes in the CDB and in page format are checked there. Method: pointers of each.
#[tokio::test]
async fn attributes_in_the_cdb_are_checked() {
    let device = TestOsd::with_object().await;
    let run = async |attributes| {
        let command = OsdCommand::SetAttributes { object: OBJECT };
        let mut cdb = OsdCdb::new(OsdVersion::Osd2, command);
        cdb.attributes = attributes;
        let sense = device.run(&cdb, b"").await.sense;
        sense.and_then(|sense| sense.field).map(|field| field.byte)
    };
    let one = |name, value: &[u8]| {
        AttributeParameters::SetOne(Some(InlineAttribute { name, value: value.to_vec() }))
    };
    assert_eq!(run(one(NAME, b"in the CDB")).await, None);
    assert_eq!(device.get(OBJECT, &[NAME]).await[0].1, b"in the CDB");
    assert_eq!(run(one(pages::USER_OBJECT_ID, &number(1))).await, Some(52));
    assert_eq!(run(one(pages::USER_LENGTH_MAX, b"1")).await, Some(60));
    let get = PageToGet { page: pages::PARTITION + 2, retrieved: super::RETRIEVED };
    let page = AttributeParameters::Page { get: Some(get), set: None };
    assert_eq!(run(page).await, Some(52));
}

/// Goal: a failure to set attributes of a new object removes the object. Method: CREATE with a
/// length above the quota for new objects.
#[tokio::test]
async fn a_create_is_whole_or_absent() {
    let device = TestOsd::with_object().await;
    let quota = (pages::PARTITION_DEFAULT_OBJECT_LENGTH_MAX, &number(5)[..]);
    let command = OsdCommand::SetAttributes { object: OWNER };
    let outcome = device.with_lists(OsdVersion::Osd2, command, &[quota], &[]).await;
    assert_eq!(outcome.status, Status::GOOD);
    for (object, count) in [(0, 2), (0x1_0077, 1)] {
        let command =
            OsdCommand::Create { requested: ObjectAddress::new(PARTITION, object), count };
        let length = (pages::USER_LOGICAL_LENGTH, &number(6)[..]);
        let outcome = device.with_lists(OsdVersion::Osd2, command, &[length], &[]).await;
        assert_eq!(outcome.sense.map(|sense| sense.code), Some(0x5507));
    }
    let count = device.get(OWNER, &[pages::PARTITION_OBJECT_COUNT]).await;
    assert_eq!(count[0].1, number(1));
}

/// Goal: timestamps stay as they are if the CDB or the partition bypasses them. Method: writes with
/// each, at another time.
#[tokio::test]
async fn timestamps_are_bypassed() {
    let device = TestOsd::with_object().await;
    let write = async |cdb: &OsdCdb, time| {
        let data_out = bytes::Bytes::from_static(b"x");
        let request = super::OsdRequest { cdb, data_out, data_in_bytes_max: 0, time };
        assert_eq!(device.executor.execute(&request).await.status, Status::GOOD);
        device.get(OBJECT, &[pages::USER_DATA_MODIFIED]).await[0].1.clone()
    };
    let range = ObjectRange { start: 0, length: 1 };
    let mut cdb = OsdCdb::new(OsdVersion::Osd2, OsdCommand::Write { object: OBJECT, range });
    assert_eq!(write(&cdb, TIME + 1).await, six_bytes(TIME + 1));
    cdb.options.timestamps = TimestampsControl::BYPASS;
    assert_eq!(write(&cdb, TIME + 2).await, six_bytes(TIME + 1));
    cdb.options.timestamps = TimestampsControl::UPDATE;
    let set: [(AttributeName, &[u8]); 1] = [(pages::PARTITION_TIMESTAMP_BYPASS, &[0x7f])];
    let command = OsdCommand::SetAttributes { object: OWNER };
    device.with_lists(OsdVersion::Osd2, command, &set, &[]).await;
    assert_eq!(write(&cdb, TIME + 3).await, six_bytes(TIME + 1));
}
