//! A model of the store in memory, and comparison with it.

use bytes::Bytes;
use lunar_osd::{
    AttributeId, FIRST_ID, ObjectCommand, ObjectId, ObjectStore, PartitionCopyTarget,
    PartitionKind, StoreError,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// An object of the model.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelObject {
    pub is_collection: bool,
    pub is_snapshot: bool,
    pub bytes: Vec<u8>,
    pub attributes: BTreeMap<AttributeId, Bytes>,
    /// Collections by the numbers of references.
    pub memberships: BTreeMap<u32, u64>,
}

/// The contents of a store; a partition is an object with id 0.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ModelStore(pub BTreeMap<ObjectId, ModelObject>);

impl ModelStore {
    /// Applies a command if it is possible.
    pub fn apply(&mut self, command: &ObjectCommand) -> bool {
        match command {
            ObjectCommand::RemoveAll => {
                self.0.retain(|id, _| *id == ObjectId::ROOT);
                self.0.remove(&ObjectId::ROOT);
                true
            }
            ObjectCommand::CreatePartition(id) => {
                let id = ObjectId::of_partition(id.unwrap());
                !self.0.contains_key(&id) && self.0.insert(id, ModelObject::default()).is_none()
            }
            ObjectCommand::RemovePartition { id, with_contents } => {
                let count = self.0.keys().filter(|key| key.partition == *id).count();
                let is_possible = count == 1 || (count > 1 && *with_contents);
                if is_possible {
                    self.0.retain(|key, _| key.partition != *id);
                }
                is_possible
            }
            ObjectCommand::Create { partition, id } => {
                self.create(*partition, id.unwrap(), ModelObject::default())
            }
            ObjectCommand::CreateCollection { partition, id } => {
                let object = ModelObject { is_collection: true, ..ModelObject::default() };
                self.create(*partition, id.unwrap(), object)
            }
            ObjectCommand::Copy { source, partition, id, .. } => {
                let Some(copy) = self.user(source) else { return false };
                let copy = ModelObject { memberships: BTreeMap::new(), ..copy.clone() };
                self.create(*partition, id.unwrap(), copy)
            }
            ObjectCommand::Remove(id) => {
                self.changeable(id).is_some_and(|object| !object.is_collection)
                    && self.0.remove(id).is_some()
            }
            ObjectCommand::RemoveCollection { id, with_members } => {
                self.remove_collection(id, *with_members)
            }
            ObjectCommand::SetMembership { object, number, collection } => {
                self.set_membership(object, *number, *collection)
            }
            ObjectCommand::SetAttribute { owner, id, value } => {
                let Some(object) = self.changeable(owner) else { return false };
                match value {
                    Some(value) => drop(object.attributes.insert(*id, value.clone())),
                    None => drop(object.attributes.remove(id)),
                }
                true
            }
            other => self.change_bytes(other),
        }
    }

    fn change_bytes(&mut self, command: &ObjectCommand) -> bool {
        match command {
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
            _ => unreachable!("a command without a model"),
        }
    }

    fn create(&mut self, partition: u64, id: u64, object: ModelObject) -> bool {
        let id = ObjectId::new(partition, id);
        let is_possible = self.changeable(&ObjectId::of_partition(partition)).is_some();
        is_possible && !self.0.contains_key(&id) && self.0.insert(id, object).is_none()
    }

    fn remove_collection(&mut self, id: &ObjectId, with_members: bool) -> bool {
        if !self.changeable(id).is_some_and(|object| object.is_collection) {
            return false;
        }
        let refers = |key: &ObjectId, object: &ModelObject| {
            key.partition == id.partition
                && object.memberships.values().any(|cid| *cid == id.object)
        };
        if !with_members && self.0.iter().any(|(key, object)| refers(key, object)) {
            return false;
        }
        self.0.remove(id);
        for (_, object) in self.0.iter_mut().filter(|(key, _)| key.partition == id.partition) {
            object.memberships.retain(|_, collection| *collection != id.object);
        }
        true
    }

    fn set_membership(&mut self, id: &ObjectId, number: u32, collection: Option<u64>) -> bool {
        let is_collection = |collection| {
            let collection = self.0.get(&ObjectId::new(id.partition, collection));
            collection.is_some_and(|object| object.is_collection)
        };
        if !collection.is_none_or(is_collection) {
            return false;
        }
        let Some(object) = self.changeable(id).filter(|object| !object.is_collection) else {
            return false;
        };
        match collection {
            Some(collection) => drop(object.memberships.insert(number, collection)),
            None => drop(object.memberships.remove(&number)),
        }
        true
    }

    /// Copies a partition if that is possible; `target` is not chosen by the store.
    pub fn copy_partition(&mut self, source: u64, target: PartitionCopyTarget) -> bool {
        let exists = |id| self.0.contains_key(&ObjectId::of_partition(id));
        let (id, is_snapshot, is_possible) = match target {
            PartitionCopyTarget::Snapshot(id) => (id.unwrap(), true, !exists(id.unwrap())),
            PartitionCopyTarget::Clone(id) => (id.unwrap(), false, !exists(id.unwrap())),
            PartitionCopyTarget::Existing(id) => {
                let is_snapshot = exists(id) && self.0[&ObjectId::of_partition(id)].is_snapshot;
                (id, is_snapshot, exists(id) && id != source)
            }
        };
        if !is_possible || !exists(source) {
            return false;
        }
        self.0.retain(|key, _| key.partition != id);
        let objects = self.0.range(ObjectId::of_partition(source)..);
        let objects: Vec<_> = objects
            .take_while(|(key, _)| key.partition == source)
            .map(|(key, object)| (ObjectId::new(id, key.object), object.clone()))
            .collect();
        self.0.extend(objects);
        self.0.get_mut(&ObjectId::of_partition(id)).unwrap().is_snapshot = is_snapshot;
        true
    }

    /// Returns an object or a partition that may be changed.
    fn changeable(&mut self, id: &ObjectId) -> Option<&mut ModelObject> {
        let partition = self.0.get(&ObjectId::of_partition(id.partition))?;
        if partition.is_snapshot { None } else { self.0.get_mut(id) }
    }

    fn user(&self, id: &ObjectId) -> Option<&ModelObject> {
        self.0.get(id).filter(|object| !object.is_collection && id.object != 0)
    }

    fn change(&mut self, id: &ObjectId, change: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        let object = self.changeable(id).filter(|object| !object.is_collection);
        object.is_some_and(|object| change(&mut object.bytes))
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
        let collections = store.list_collections(partition, 0, usize::MAX).await?;
        let objects = store.list(partition, 0, usize::MAX).await?;
        let mut members = BTreeMap::<u64, Vec<u64>>::new();
        for id in objects.into_iter().chain(std::iter::once(0)).chain(collections.clone()) {
            let id = ObjectId::new(partition, id);
            let mut object = ModelObject {
                is_collection: collections.contains(&id.object),
                ..Default::default()
            };
            let kind = store.information(id).await?.partition_kind;
            object.is_snapshot = kind == PartitionKind::Snapshot;
            if object.is_collection {
                let found = store.list_members(id, 0, usize::MAX).await?;
                assert_eq!(found, members.remove(&id.object).unwrap_or_default());
            } else if id.object != 0 {
                object.bytes = store.read(id, 0, u64::MAX).await?.to_vec();
                assert_eq!(store.length(id).await?, object.bytes.len() as u64);
                object.memberships = store.memberships(id).await?.into_iter().collect();
                for collection in object.memberships.values().collect::<BTreeSet<_>>() {
                    members.entry(*collection).or_default().push(id.object);
                }
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
        1 => ((FIRST_ID..FIRST_ID + 2), any::<bool>())
            .prop_map(|(id, with_contents)| ObjectCommand::RemovePartition { id, with_contents }),
        1 => prop_oneof![9 => collections(), 1 => Just(ObjectCommand::RemoveAll)],
        5 => collections(),
        3 => (object(), id()).prop_map(|(source, (partition, id))| {
            ObjectCommand::Copy { source, partition, id: Some(id), with_attributes: true }
        }),
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

/// Commands for collections, and memberships of a few objects.
fn collections() -> impl Strategy<Value = ObjectCommand> {
    let id = || (FIRST_ID..FIRST_ID + 2, FIRST_ID + 2..FIRST_ID + 5);
    let name = || (FIRST_ID..FIRST_ID + 2, FIRST_ID..FIRST_ID + 4);
    let membership =
        (name(), 1..4_u32, proptest::option::weighted(0.8, FIRST_ID + 2..FIRST_ID + 5));
    prop_oneof![
        2 => id().prop_map(|(partition, id)| {
            ObjectCommand::CreateCollection { partition, id: Some(id) }
        }),
        1 => (id(), any::<bool>()).prop_map(|((partition, id), with_members)| {
            ObjectCommand::RemoveCollection { id: ObjectId::new(partition, id), with_members }
        }),
        4 => membership.prop_map(|((partition, id), number, collection)| {
            let object = ObjectId::new(partition, id);
            ObjectCommand::SetMembership { object, number, collection }
        }),
    ]
}

/// Copies of one of a few partitions.
pub fn partition_copies() -> impl Strategy<Value = (u64, PartitionCopyTarget)> {
    let target = prop_oneof![
        Just(PartitionCopyTarget::Snapshot(Some(FIRST_ID + 2))),
        (FIRST_ID..FIRST_ID + 2).prop_map(|id| PartitionCopyTarget::Clone(Some(id))),
        (FIRST_ID..FIRST_ID + 3).prop_map(PartitionCopyTarget::Existing),
    ];
    (FIRST_ID..FIRST_ID + 3, target)
}

/// Commands that make a partition with three objects.
pub fn first_commands() -> Vec<ObjectCommand> {
    let create = |id| ObjectCommand::Create { partition: FIRST_ID, id: Some(id) };
    let mut commands = vec![ObjectCommand::CreatePartition(Some(FIRST_ID))];
    commands.extend((FIRST_ID..FIRST_ID + 3).map(create));
    commands
}
