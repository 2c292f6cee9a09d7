//! References of objects to collections, and members of collections.

use super::{CheckProblem, CheckReport};
use crate::format::{MemberRow, MembershipRow, ObjectRow};
use std::collections::HashMap;

/// Counts references until the members are visited, whose keys are behind those of references.
#[derive(Default)]
pub(super) struct MemberWalk {
    /// Ids of objects, by serial number.
    objects: HashMap<u64, u64>,
    /// Number of references, by serial numbers of the collection and id of the object.
    references: HashMap<(u64, u64, u64), u64>,
}

impl MemberWalk {
    pub(super) fn add_object(&mut self, _partition: u64, id: u64, row: &ObjectRow) {
        self.objects.insert(row.serial, id);
    }

    /// Counts a reference of an object.
    pub(super) fn visit_reference(&mut self, object_serial: u64, value: &[u8]) -> Option<()> {
        let row = MembershipRow::decode(value)?;
        let id = self.objects.get(&object_serial).copied()?;
        *self.references.entry((row.serial, id, object_serial)).or_default() += 1;
        Some(())
    }

    /// Compares a member with the references of the object.
    pub(super) fn visit_member(
        &mut self,
        report: &mut CheckReport,
        collection: u64,
        object: u64,
        value: &[u8],
    ) -> Option<()> {
        let row = MemberRow::decode(value)?;
        let counted = self.references.remove(&(collection, object, row.serial)).unwrap_or(0);
        if counted != u64::from(row.count) {
            report.add(CheckProblem::WrongMembership { collection, object });
        }
        Some(())
    }

    /// Reports references without members.
    pub(super) fn finish(&mut self, report: &mut CheckReport) {
        for (collection, object, _) in std::mem::take(&mut self.references).into_keys() {
            report.add(CheckProblem::WrongMembership { collection, object });
        }
    }
}
