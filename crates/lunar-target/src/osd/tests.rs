//! Tests of the executor on stores in memory.

mod attributes;
mod commands;
mod model;

use super::{NoSecurity, OsdExecutor, OsdIdentity, OsdOutcome, OsdRequest};
use lunar_block::MemoryDevice;
use lunar_osd::{FormatOptions, ObjectStore, StoreOptions};
use lunar_scsi::osd::{
    AttributeName, AttributeParameters, AttributeValue, BufferRange, ListToGet, ObjectAddress,
    OsdCdb, OsdCommand, OsdVersion, PageToGet, RetrievedAttributes, decode_retrieved_list,
    encode_get_list, encode_set_list, pages,
};
use lunar_scsi::sense::Status;
use std::sync::Arc;

/// The ids of the partition and the object that [`TestOsd::with_object`] creates.
const PARTITION: u64 = 0x1_0000;
const OBJECT: ObjectAddress = ObjectAddress::new(PARTITION, 0x1_0005);
/// Data-in for attributes.
const RETRIEVED: BufferRange = BufferRange { offset: 4096, length: 8192 };
const TIME: u64 = 0x1_2345_6789;

struct TestOsd {
    executor: OsdExecutor,
}

impl TestOsd {
    async fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(32 << 20, 512, 4096).unwrap());
        ObjectStore::format(device.clone(), FormatOptions::default()).await.unwrap();
        let store = ObjectStore::open(device, StoreOptions::default()).await.unwrap();
        let identity = OsdIdentity { serial: "7".to_owned(), ..OsdIdentity::default() };
        let executor = OsdExecutor::new(Arc::new(store), identity, Box::new(NoSecurity), false);
        Self { executor }
    }

    /// Creates a device with a partition that has one object of three bytes.
    async fn with_object() -> Self {
        let device = Self::new().await;
        device.good(OsdCommand::CreatePartition { requested: PARTITION }, b"").await;
        device.good(OsdCommand::Create { requested: OBJECT, count: 1 }, b"").await;
        device.good(OsdCommand::Append { object: OBJECT, length: 3 }, b"abc").await;
        device
    }

    async fn run(&self, cdb: &OsdCdb, data_out: &[u8]) -> OsdOutcome {
        let data_out = bytes::Bytes::copy_from_slice(data_out);
        let request = OsdRequest { cdb, data_out, data_in_bytes_max: 1 << 20, time: TIME };
        self.executor.execute(&request).await
    }

    /// Executes a command without attributes that ends with GOOD, and returns data-in.
    async fn good(&self, command: OsdCommand, data_out: &[u8]) -> Vec<u8> {
        let outcome = self.run(&OsdCdb::new(OsdVersion::Osd2, command), data_out).await;
        assert_eq!(outcome.status, Status::GOOD, "{command:?}: {:?}", outcome.sense);
        outcome.data_in
    }

    /// Executes a command with a page to get, and returns the body of the page.
    async fn page(&self, version: OsdVersion, command: OsdCommand, page: u32) -> Vec<u8> {
        let mut cdb = OsdCdb::new(version, command);
        let get = Some(PageToGet { page, retrieved: RETRIEVED });
        cdb.attributes = AttributeParameters::Page { get, set: None };
        let data = vec![b'x'; command.data_out_bytes() as usize];
        let outcome = self.run(&cdb, &data).await;
        assert_eq!(outcome.status, Status::GOOD, "{command:?}: {:?}", outcome.sense);
        let page = pages::decode_page(&outcome.data_in[RETRIEVED.offset as usize..]).unwrap();
        assert!(!page.is_truncated);
        page.body.to_vec()
    }

    /// Executes a command with lists of attributes to set and to get.
    async fn with_lists(
        &self,
        version: OsdVersion,
        command: OsdCommand,
        set: &[(AttributeName, &[u8])],
        get: &[AttributeName],
    ) -> OsdOutcome {
        let (cdb, data_out) = with_lists(version, command, set, get);
        self.run(&cdb, &data_out).await
    }

    /// Returns the attributes of an object.
    async fn get(
        &self,
        object: ObjectAddress,
        names: &[AttributeName],
    ) -> Vec<(AttributeName, Vec<u8>)> {
        let command = OsdCommand::GetAttributes { object };
        let outcome = self.with_lists(OsdVersion::Osd2, command, &[], names).await;
        assert_eq!(outcome.status, Status::GOOD, "{:?}", outcome.sense);
        retrieved(OsdVersion::Osd2, &outcome)
    }
}

/// Adds lists to a command; its own data-out are zeroes.
fn with_lists(
    version: OsdVersion,
    command: OsdCommand,
    set: &[(AttributeName, &[u8])],
    get: &[AttributeName],
) -> (OsdCdb, Vec<u8>) {
    let mut cdb = OsdCdb::new(version, command);
    let mut data_out = vec![0; command.data_out_bytes() as usize];
    let mut append = |list: Vec<u8>| {
        data_out.resize(data_out.len().next_multiple_of(256), 0);
        let offset = data_out.len() as u64;
        data_out.extend_from_slice(&list);
        BufferRange { offset, length: list.len() as u32 }
    };
    let set: Vec<_> =
        set.iter().map(|(name, value)| AttributeValue { name: *name, value }).collect();
    let set_range = (!set.is_empty()).then(|| append(encode_set_list(version, &set).unwrap()));
    let get_range = (!get.is_empty())
        .then(|| ListToGet { list: append(encode_get_list(version, get)), retrieved: RETRIEVED });
    cdb.attributes = AttributeParameters::List { get: get_range, set: set_range };
    (cdb, data_out)
}

/// Returns the attributes in data-in.
fn retrieved(version: OsdVersion, outcome: &OsdOutcome) -> Vec<(AttributeName, Vec<u8>)> {
    let list = &outcome.data_in[RETRIEVED.offset as usize..];
    let RetrievedAttributes { values, is_truncated } =
        decode_retrieved_list(version, list).unwrap();
    assert!(!is_truncated);
    values.iter().map(|value| (value.name, value.value.to_vec())).collect()
}
