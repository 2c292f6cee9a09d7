//! A model of the store in memory, and comparison with it.

use bytes::Bytes;
use lunar_osd::{AttributeId, FIRST_ID, ObjectCommand, ObjectId, ObjectStore, StoreError};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// An object of the model.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelObject {
    pub bytes: Vec<u8>,
    pub attributes: BTreeMap<AttributeId, Bytes>,
}

/// The contents of a store; a partition is an object with id 0.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelStore(pub BTreeMap<ObjectId, ModelObject>);

impl ModelStore {
    /// Applies a command if it is possible.
    pub fn apply(&mut self, command: &ObjectCommand) -> bool {
        match command {
            ObjectCommand::CreatePartition(id) => {
                let id = ObjectId::of_partition(id.unwrap());
                !self.0.contains_key(&id) && self.0.insert(id, ModelObject::default()).is_none()
            }
            ObjectCommand::RemovePartition(id) => {
                let count = self.0.keys().filter(|key| key.partition == *id).count();
                count == 1 && self.0.remove(&ObjectId::of_partition(*id)).is_some()
            }
            ObjectCommand::Create { partition, id } => {
                let id = ObjectId::new(*partition, id.unwrap());
                let has_partition = self.0.contains_key(&ObjectId::of_partition(*partition));
                let is_free = has_partition && !self.0.contains_key(&id);
                is_free && self.0.insert(id, ModelObject::default()).is_none()
            }
            ObjectCommand::Remove(id) => self.0.remove(id).is_some(),
            ObjectCommand::SetAttribute { owner, id, value } => {
                let Some(object) = self.0.get_mut(owner) else { return false };
                match value {
                    Some(value) => drop(object.attributes.insert(*id, value.clone())),
                    None => drop(object.attributes.remove(id)),
                }
                true
            }
            ObjectCommand::Write { object, offset, data } => {
                self.change(object, |bytes| write(bytes, *offset as usize, data))
            }
            ObjectCommand::Append { object, data } => {
                self.change(object, |bytes| write(bytes, bytes.len(), data))
            }
            ObjectCommand::Clear { object, offset, len } => {
                let zeroes = vec![0; *len as usize];
                self.change(object, |bytes| write(bytes, *offset as usize, &zeroes))
            }
            ObjectCommand::Punch { object, offset, len } => self.change(object, |bytes| {
                let (start, end) = (*offset as usize, (*offset + *len) as usize);
                let is_possible = start <= bytes.len();
                if is_possible {
                    bytes.drain(start..end.min(bytes.len()));
                }
                is_possible
            }),
            ObjectCommand::SetLength { object, length } => self.change(object, |bytes| {
                bytes.resize(*length as usize, 0);
                true
            }),
        }
    }

    fn change(&mut self, id: &ObjectId, change: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        self.0.get_mut(id).is_some_and(|object| change(&mut object.bytes))
    }
}

fn write(bytes: &mut Vec<u8>, offset: usize, data: &[u8]) -> bool {
    if !data.is_empty() {
        bytes.resize(bytes.len().max(offset + data.len()), 0);
        bytes[offset..offset + data.len()].copy_from_slice(data);
    }
    true
}

/// A partition that is not compared, and takes space.
pub const FILLER: u64 = 0x9999_0000;

/// Reads all of a store, apart from the filler.
pub async fn contents(store: &ObjectStore) -> Result<ModelStore, StoreError> {
    let mut all = ModelStore::default();
    for partition in store.list_partitions(0, usize::MAX).await? {
        if partition == FILLER {
            continue;
        }
        let objects = store.list(partition, 0, usize::MAX).await?;
        for id in std::iter::once(0).chain(objects) {
            let id = ObjectId::new(partition, id);
            let mut object = ModelObject::default();
            if id.object != 0 {
                object.bytes = store.read(id, 0, u64::MAX).await?.to_vec();
                assert_eq!(store.length(id).await?, object.bytes.len() as u64);
            }
            for page in 1..3 {
                let first = AttributeId::new(page, 0);
                object.attributes.extend(store.attributes(id, first, usize::MAX).await?);
            }
            all.0.insert(id, object);
        }
    }
    Ok(all)
}

/// Data that shows where it came from.
pub fn data(seed: u8, len: usize) -> Bytes {
    (0..len).map(|at| seed.wrapping_mul(31).wrapping_add((at / 3) as u8) | 1).collect()
}

/// Commands for a few objects; most are possible.
pub fn commands() -> impl Strategy<Value = ObjectCommand> {
    let id = || (FIRST_ID..FIRST_ID + 2, FIRST_ID..FIRST_ID + 3);
    let object = move || id().prop_map(|(partition, object)| ObjectId::new(partition, object));
    let offset = || prop_oneof![0..9000_u64, (0..20_u64).prop_map(|n| n * 4096), 0..200_000_u64];
    let len = || prop_oneof![0..300_usize, (0..4_usize).prop_map(|n| n * 4096), 0..20_000_usize];
    let large = || prop_oneof![9 => len(), 1 => 64_000..150_000_usize];
    let bytes = move || (any::<u8>(), large()).prop_map(|(seed, len)| data(seed, len));
    let attribute = || (1..3_u32, 0..3_u32).prop_map(|(p, n)| AttributeId::new(p, n));
    let value = || proptest::option::of((any::<u8>(), 0..40_usize).prop_map(|(s, n)| data(s, n)));
    prop_oneof![
        1 => (FIRST_ID..FIRST_ID + 2).prop_map(|id| ObjectCommand::CreatePartition(Some(id))),
        1 => (FIRST_ID..FIRST_ID + 2).prop_map(ObjectCommand::RemovePartition),
        3 => id().prop_map(|(partition, id)| ObjectCommand::Create { partition, id: Some(id) }),
        2 => object().prop_map(ObjectCommand::Remove),
        8 => (object(), offset(), bytes())
            .prop_map(|(object, offset, data)| ObjectCommand::Write { object, offset, data }),
        4 => (object(), bytes()).prop_map(|(object, data)| ObjectCommand::Append { object, data }),
        2 => (object(), offset(), len()).prop_map(|(object, offset, len)| {
            ObjectCommand::Clear { object, offset, len: len as u64 }
        }),
        3 => (object(), offset(), len()).prop_map(|(object, offset, len)| {
            ObjectCommand::Punch { object, offset, len: len as u64 }
        }),
        2 => (object(), offset())
            .prop_map(|(object, length)| ObjectCommand::SetLength { object, length }),
        2 => (object(), attribute(), value())
            .prop_map(|(owner, id, value)| ObjectCommand::SetAttribute { owner, id, value }),
    ]
}

/// Commands that make a partition with three objects.
pub fn first_commands() -> Vec<ObjectCommand> {
    let create = |id| ObjectCommand::Create { partition: FIRST_ID, id: Some(id) };
    let mut commands = vec![ObjectCommand::CreatePartition(Some(FIRST_ID))];
    commands.extend((FIRST_ID..FIRST_ID + 3).map(create));
    commands
}
