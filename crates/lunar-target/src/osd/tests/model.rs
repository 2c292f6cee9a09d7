//! Commands on a few objects, compared with a simple model.

use super::{PARTITION, TestOsd};
use lunar_scsi::osd::{
    AttributeName, ListRequest, ListResponse, ObjectAddress, ObjectRange, OsdCdb, OsdCommand,
    OsdVersion,
};
use lunar_scsi::sense::Status;
use proptest::prelude::*;
use std::collections::BTreeMap;

const NAME: AttributeName = AttributeName::new(0x1_0000, 7);

#[derive(Clone, Debug)]
enum OsdStep {
    Create(u64),
    Remove(u64),
    Write(u64, u64, Vec<u8>),
    Append(u64, Vec<u8>),
    Read(u64, u64, u64),
    SetAttribute(u64, Vec<u8>),
    List,
}

/// The state of an object: its bytes, and an attribute.
#[derive(Clone, Debug, Default)]
struct OsdModelObject {
    data: Vec<u8>,
    attribute: Vec<u8>,
}

fn step() -> impl Strategy<Value = OsdStep> {
    let id = || 0x1_0000_u64..0x1_0003;
    let data = || prop::collection::vec(any::<u8>(), 0..6000);
    prop_oneof![
        2 => id().prop_map(OsdStep::Create),
        1 => id().prop_map(OsdStep::Remove),
        3 => (id(), 0..20_000_u64, data()).prop_map(|(id, at, data)| OsdStep::Write(id, at, data)),
        2 => (id(), data()).prop_map(|(id, data)| OsdStep::Append(id, data)),
        3 => (id(), 0..20_000_u64, 0..9000_u64)
            .prop_map(|(id, at, len)| OsdStep::Read(id, at, len)),
        1 => (id(), prop::collection::vec(any::<u8>(), 0..40))
            .prop_map(|(id, value)| OsdStep::SetAttribute(id, value)),
        1 => Just(OsdStep::List),
    ]
}

async fn apply(device: &TestOsd, model: &mut BTreeMap<u64, OsdModelObject>, step: OsdStep) {
    let address = |id| ObjectAddress::new(PARTITION, id);
    let run = async |command, data: &[u8]| {
        device.run(&OsdCdb::new(OsdVersion::Osd1, command), data).await
    };
    match step {
        OsdStep::Create(id) => {
            let command = OsdCommand::Create { requested: address(id), count: 1 };
            let is_new = !model.contains_key(&id);
            assert_eq!(run(command, b"").await.status == Status::GOOD, is_new);
            model.entry(id).or_default();
        }
        OsdStep::Remove(id) => {
            let outcome = run(OsdCommand::Remove { object: address(id) }, b"").await;
            assert_eq!(outcome.status == Status::GOOD, model.remove(&id).is_some());
        }
        OsdStep::Write(id, start, data) => {
            let range = ObjectRange { start, length: data.len() as u64 };
            let outcome = run(OsdCommand::Write { object: address(id), range }, &data).await;
            assert_eq!(outcome.status == Status::GOOD, model.contains_key(&id));
            if let Some(object) = model.get_mut(&id).filter(|_| !data.is_empty()) {
                let end = start as usize + data.len();
                object.data.resize(object.data.len().max(end), 0);
                object.data[start as usize..end].copy_from_slice(&data);
            }
        }
        OsdStep::Append(id, data) => {
            let length = data.len() as u64;
            let outcome = run(OsdCommand::Append { object: address(id), length }, &data).await;
            assert_eq!(outcome.status == Status::GOOD, model.contains_key(&id));
            if let Some(object) = model.get_mut(&id) {
                object.data.extend_from_slice(&data);
            }
        }
        OsdStep::Read(id, start, length) => {
            let range = ObjectRange { start, length };
            let outcome = run(OsdCommand::Read { object: address(id), range }, b"").await;
            let Some(object) = model.get(&id) else {
                assert_eq!(outcome.status, Status::CHECK_CONDITION);
                return;
            };
            let mut expected: Vec<u8> =
                object.data.iter().skip(start as usize).take(length as usize).copied().collect();
            let read = expected.len() as u64;
            assert_eq!(outcome.status == Status::GOOD, read == length);
            let sense = outcome.sense.and_then(|sense| sense.command_specific_information());
            assert_eq!(sense, Some(read).filter(|read| *read < length));
            expected.resize(length as usize, 0);
            assert!(outcome.data_in == expected);
        }
        OsdStep::SetAttribute(id, value) => {
            let command = OsdCommand::SetAttributes { object: address(id) };
            let set: [(AttributeName, &[u8]); 1] = [(NAME, &value)];
            let outcome = device.with_lists(OsdVersion::Osd1, command, &set, &[NAME]).await;
            assert_eq!(outcome.status == Status::GOOD, model.contains_key(&id));
            if let Some(object) = model.get_mut(&id) {
                object.attribute = value;
            }
        }
        OsdStep::List => check_list(device, model).await,
    }
}

async fn check_list(device: &TestOsd, model: &BTreeMap<u64, OsdModelObject>) {
    let list = ListRequest { allocation_bytes: 1024, ..ListRequest::default() };
    let data = device.good(OsdCommand::List { partition: PARTITION, list }, b"").await;
    let response = ListResponse::decode(OsdVersion::Osd2, &data).unwrap();
    let found: Vec<u64> = response.objects.iter().map(|object| object.object).collect();
    assert_eq!(found, model.keys().copied().collect::<Vec<u64>>());
    for (id, object) in model {
        let found = device.get(ObjectAddress::new(PARTITION, *id), &[NAME]).await;
        assert_eq!(found, [(NAME, object.attribute.clone())]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    /// Goal: objects have the bytes and attributes that commands gave them. Method: random commands
    /// on three ids, on the device and on the model.
    #[test]
    fn commands_behave_as_the_model(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let device = TestOsd::new().await;
            device.good(OsdCommand::CreatePartition { requested: PARTITION }, b"").await;
            let mut model = BTreeMap::new();
            for step in steps {
                apply(&device, &mut model, step).await;
            }
            check_list(&device, &model).await;
        });
    }
}
