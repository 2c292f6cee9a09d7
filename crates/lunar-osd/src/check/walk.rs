//! The rows of a store, each once, with what they say of each other.

use super::blobs::BlobWalk;
use super::members::MemberWalk;
use super::{CheckProblem, CheckReport, CheckedSum};
use crate::block_io::BlockIo;
use crate::format::{
    AccessedRow, ObjectRow, PartitionRow, RemovedRows, RootRow, RowKey, SharedRow,
};
use crate::index::IndexRows;
use crate::objects::{COLLECTION, MappedExtent, USER_OBJECT};
use crate::store::SharedStore;
use crate::{ObjectId, StoreError};
use std::collections::{HashMap, HashSet};

/// A partition, and the sums of its objects.
struct CheckedPartition {
    id: u64,
    /// True if the partition is not being removed with all others.
    is_current: bool,
    row: PartitionRow,
    objects: u64,
    used: u64,
}

/// An extent map, and the objects that use it.
#[derive(Default)]
struct CheckedMap {
    users: u64,
    /// Length of the shortest object.
    length: u64,
    /// Bytes of all blocks of its extents.
    used: u64,
    /// End of the last extent.
    end: u64,
}

/// Counts while the rows are visited, in the order of their keys.
pub(super) struct RowWalk {
    pub(super) report: CheckReport,
    root: Option<RootRow>,
    removed: HashSet<(u64, u64)>,
    /// By serial number.
    partitions: HashMap<u64, CheckedPartition>,
    maps: HashMap<u64, CheckedMap>,
    /// Users of sets of attributes.
    attributes: HashMap<u64, u64>,
    /// Objects whose used bytes are to be compared with their maps.
    used: Vec<(ObjectId, u64, u64)>,
    /// Serial numbers of all objects, partitions and the root.
    serials: HashSet<u64>,
    members: MemberWalk,
    blobs: BlobWalk,
}

/// Verifies all rows and blobs.
pub(super) fn check_rows(shared: &SharedStore, io: &BlockIo) -> Result<CheckReport, StoreError> {
    let rows = shared.index()?.rows()?;
    let mut walk = RowWalk {
        report: CheckReport::default(),
        root: None,
        removed: removed_rows(&rows)?,
        partitions: HashMap::new(),
        maps: HashMap::new(),
        attributes: HashMap::new(),
        used: Vec::new(),
        serials: HashSet::new(),
        members: MemberWalk::default(),
        blobs: BlobWalk::new(io, shared.layout())?,
    };
    walk.report.removals = walk.removed.len() as u64;
    rows.for_each(|key, value| walk.visit(key, value))?;
    walk.finish(shared);
    Ok(walk.report)
}

fn removed_rows(rows: &IndexRows) -> Result<HashSet<(u64, u64)>, StoreError> {
    let mut found = HashSet::new();
    let mut from = RowKey::Removed(RemovedRows::Attributes, 0).encode();
    let to = RowKey::Removed(RemovedRows::Partitions, u64::MAX).encode();
    while let Some((key, _)) = rows.find(&from, &to, false)? {
        if let Some(RowKey::Removed(kind, serial)) = RowKey::decode(&key) {
            found.insert((kind as u64, serial));
        }
        from = [&key[..], &[0]].concat();
    }
    Ok(found)
}

impl RowWalk {
    fn is_removed(&self, kind: RemovedRows, serial: u64) -> bool {
        self.removed.contains(&(kind as u64, serial))
    }

    fn orphan(&mut self, key: RowKey) {
        self.report.add(CheckProblem::OrphanRow(format!("{key:?}")));
    }

    fn visit(&mut self, key: &[u8], value: &[u8]) {
        let is_valid = match RowKey::decode(key) {
            Some(key) => self.visit_row(key, value).is_some(),
            None => false,
        };
        if !is_valid {
            let name = RowKey::decode(key).map_or(format!("{key:02x?}"), |key| format!("{key:?}"));
            self.report.add(CheckProblem::InvalidRow(name));
        }
    }

    /// Visits a row. Returns `None` if it cannot be parsed.
    fn visit_row(&mut self, key: RowKey, value: &[u8]) -> Option<()> {
        match key {
            RowKey::LogPosition | RowKey::BitmapPage(_) => {}
            RowKey::Root => self.root = Some(RootRow::decode(value)?),
            RowKey::Partition(root, id) => self.visit_partition(key, root, id, value)?,
            RowKey::Object(partition, id) => {
                self.visit_object(key, partition, id, ObjectRow::decode(value)?);
            }
            RowKey::Attribute(serial, _) => {
                let is_root = self.root_serial() == serial;
                let is_used = is_root || self.attributes.contains_key(&serial);
                if !is_used && !self.is_removed(RemovedRows::Attributes, serial) {
                    self.orphan(key);
                }
                self.report.attributes += 1;
            }
            RowKey::Extent(map, _) => self.visit_extent(key, map, value)?,
            RowKey::Blob(start) => self.blobs.visit(&mut self.report, start, value)?,
            RowKey::Removed(..) => value.is_empty().then_some(())?,
            RowKey::SharedAttributes(serial) => {
                let users = self.attributes.get(&serial).copied().unwrap_or(0);
                self.compare_users(serial, users, SharedRow::decode(value)?.users);
                self.attributes.insert(serial, 0);
            }
            RowKey::SharedData(serial) => {
                let map = self.maps.entry(serial).or_default();
                let users = std::mem::take(&mut map.users);
                self.compare_users(serial, users, SharedRow::decode(value)?.users);
            }
            RowKey::Membership(serial, _) => self.members.visit_reference(serial, value)?,
            RowKey::Member(collection, id) => {
                self.members.visit_member(&mut self.report, collection, id, value)?;
            }
            RowKey::Accessed(serial) => {
                AccessedRow::decode(value)?;
                if serial != self.root_serial() && !self.serials.contains(&serial) {
                    self.orphan(key);
                }
            }
        }
        Some(())
    }

    fn root_serial(&self) -> u64 {
        self.root.map_or(crate::objects::FIRST_SERIAL, |root| root.serial)
    }

    fn visit_partition(&mut self, key: RowKey, root: u64, id: u64, value: &[u8]) -> Option<()> {
        let row = PartitionRow::decode(value)?;
        crate::PartitionKind::from_code(row.kind)?;
        let is_current = root == self.root_serial();
        if !is_current && !self.is_removed(RemovedRows::Partitions, root) {
            self.orphan(key);
        }
        self.report.partitions += u64::from(is_current);
        self.serials.insert(row.serial);
        *self.attributes.entry(row.attributes).or_default() += 1;
        let partition = CheckedPartition { id, is_current, row, objects: 0, used: 0 };
        self.partitions.insert(row.serial, partition);
        Some(())
    }

    fn visit_object(&mut self, key: RowKey, partition: u64, id: u64, row: ObjectRow) {
        self.serials.insert(row.serial);
        *self.attributes.entry(row.attributes).or_default() += 1;
        let owner = match self.partitions.get_mut(&partition) {
            Some(owner) => {
                owner.objects += 1;
                owner.used = owner.used.saturating_add(row.used);
                if owner.is_current { owner.id } else { 0 }
            }
            None => {
                if !self.is_removed(RemovedRows::Objects, partition) {
                    self.orphan(key);
                }
                0
            }
        };
        match row.kind {
            USER_OBJECT => {
                self.report.objects += u64::from(owner != 0);
                let map = self.maps.entry(row.data).or_default();
                map.length = if map.users == 0 { row.length } else { map.length.min(row.length) };
                map.users += 1;
                self.used.push((ObjectId::new(owner, id), row.data, row.used));
            }
            COLLECTION => self.report.collections += u64::from(owner != 0),
            _ => self.report.add(CheckProblem::InvalidRow(format!("{key:?}"))),
        }
        self.members.add_object(partition, id, &row);
    }

    fn visit_extent(&mut self, key: RowKey, serial: u64, value: &[u8]) -> Option<()> {
        let extent = MappedExtent::parse(key, value).ok()?;
        self.report.extents += 1;
        self.blobs.reference(&extent.row);
        if self.is_removed(RemovedRows::Data, serial) {
            return Some(());
        }
        let Some(map) = self.maps.get_mut(&serial) else {
            self.orphan(key);
            return Some(());
        };
        let end = extent.offset + u64::from(extent.row.len);
        if extent.offset < map.end || end > map.length {
            self.report.add(CheckProblem::WrongExtent { map: serial, offset: extent.offset });
        }
        map.end = end;
        map.used = map.used.saturating_add(extent.row.used_bytes());
        Some(())
    }

    fn compare_users(&mut self, serial: u64, counted: u64, stored: u64) {
        if counted != stored {
            self.report.add(CheckProblem::WrongUsers { serial, counted, stored });
        }
    }

    fn compare_sum(&mut self, owner: ObjectId, what: CheckedSum, counted: u64, stored: u64) {
        if counted != stored {
            self.report.add(CheckProblem::WrongSum { owner, what, counted, stored });
        }
    }

    /// Compares the sums when all rows have been visited.
    fn finish(&mut self, shared: &SharedStore) {
        for (id, map, stored) in std::mem::take(&mut self.used) {
            let counted = self.maps.get(&map).map_or(0, |map| map.used);
            self.compare_sum(id, CheckedSum::UsedBytes, counted, stored);
        }
        for partition in std::mem::take(&mut self.partitions).into_values() {
            let CheckedPartition { id, row, objects, used, .. } = partition;
            let owner = ObjectId::of_partition(id);
            self.compare_sum(owner, CheckedSum::ObjectCount, objects, row.objects);
            self.compare_sum(owner, CheckedSum::UsedBytes, used, row.used);
        }
        let (counted, stored) =
            (self.report.partitions, self.root.map_or(0, |root| root.partitions));
        self.compare_sum(ObjectId::ROOT, CheckedSum::PartitionCount, counted, stored);
        // Rows without a stored number of users have one user.
        let attributes = std::mem::take(&mut self.attributes).into_iter();
        let maps = std::mem::take(&mut self.maps).into_iter();
        for (serial, users) in attributes.chain(maps.map(|(serial, map)| (serial, map.users))) {
            if users > 1 {
                self.compare_users(serial, users, 1);
            }
        }
        self.members.finish(&mut self.report);
        self.blobs.finish(&mut self.report, shared);
    }
}
