//! The choice between the relay and the device for the data of a command.

use super::DiskUnit;
use crate::relay::ConnectionRelay;
use crate::unit::ArrivedCommand;
use lunar_block::{BlockRange, RelayPart};
use lunar_scsi::plan::{LbaRange, Plan};
use std::rc::Rc;
use std::sync::Arc;

/// A plan whose data a relay moves.
#[derive(Debug)]
pub(crate) struct RelayedPlan {
    pub(crate) relay: Rc<dyn ConnectionRelay>,
    /// The blocks at the storages, in the order of the transfer.
    pub(crate) parts: Vec<RelayPart>,
}

impl DiskUnit {
    /// Returns how the data of a plan is relayed; `None`: the device moves it. All conditions are
    /// here, except those of the storages, which the [`RelayMap`](lunar_block::RelayMap) and the
    /// relay know.
    pub(super) fn relayed_plan(
        &self,
        plan: &Plan,
        command: &ArrivedCommand<'_>,
    ) -> Option<RelayedPlan> {
        let relay = command.relay?;
        let (out_bytes, in_bytes) =
            (command.expected_data_out_bytes, command.expected_data_in_bytes);
        // Bidirectional commands, and those with another length announced than in the CDB, are
        // left to the device.
        let (range, is_write, announced_bytes, other_bytes) = match *plan {
            Plan::Read { range, .. } => (range, false, in_bytes, out_bytes),
            Plan::Write { range, .. } => (range, true, out_bytes, in_bytes),
            _ => return None,
        };
        let bytes = range.count.checked_mul(self.block_bytes.into())?;
        if range.count == 0 || bytes != u64::from(announced_bytes) || other_bytes != 0 {
            return None;
        }
        let device = self.device();
        if device.atomic().is_some() {
            return None; // a READ would need a lock
        }
        let mut parts = Vec::with_capacity(1);
        let blocks = BlockRange::new(range.lba, range.count);
        let is_mapped = device.relay_map()?.add_parts(blocks, is_write, &mut parts);
        (is_mapped && relay.is_ready(&parts, is_write))
            .then(|| RelayedPlan { relay: Rc::clone(relay), parts })
    }

    /// True if the blocks of a READ are where they were when it was checked. They may have been
    /// moved while it waited for another command, which then has changed them elsewhere.
    pub(crate) fn is_still_mapped(&self, range: LbaRange, checked: &[RelayPart]) -> bool {
        if checked.iter().all(|part| part.held.is_none()) {
            return true; // they never move
        }
        let mut parts = Vec::with_capacity(checked.len());
        let blocks = BlockRange::new(range.lba, range.count);
        let device = self.device();
        let is_mapped =
            device.relay_map().is_some_and(|map| map.add_parts(blocks, false, &mut parts));
        let is_same = |(one, other): (&RelayPart, &RelayPart)| {
            one.range == other.range && Arc::ptr_eq(&one.storage, &other.storage)
        };
        is_mapped && parts.len() == checked.len() && parts.iter().zip(checked).all(is_same)
    }
}
