//! The tasks of one connection, from the command's header to the end of the response.

use super::transfer::Transfer;
use super::{Outcome, Task};
use crate::framing::TaskId;
use crate::sorted_map::SortedMap;
use alloc::vec::Vec;
use wire::{SerialNumber, Time};

/// Where a task stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    /// Its command has not arrived whole, or waits for its turn in the session.
    Waiting,
    /// The executor plans it, or waits for its data-out.
    Started,
    /// The executor runs it.
    Running,
    /// It failed on the way here; the executor was told and has not answered.
    Failing,
    /// The executor is through with it (or never heard of it); initiator's data is still to come.
    Finished,
    /// It is being aborted: no response.
    Aborting {
        /// The executor has not said Done.
        executing: bool,
        /// Sequences the initiator was asked for are waited for until then.
        drain_until: Option<Time>,
    },
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) task: Task,
    pub(super) initiator_task_tag: u32,
    pub(super) cmd_sn: SerialNumber,
    pub(super) immediate: bool,
    pub(super) phase: Phase,
    pub(super) transfer: Transfer,
    /// The driver may hold a buffer for it.
    pub(super) placed: bool,
    /// The next DataSN or R2TSN: one count for both, RFC 7143 §4.2.2.4.
    pub(super) next_data_sn: u32,
    pub(super) outcome: Option<Outcome>,
    /// The session was asked for a fence around its response.
    pub(super) fence_asked: bool,
    /// The executor was told of the fault of its transfer.
    pub(super) fault_told: bool,
}

/// By id and by Initiator Task Tag. An entry stays in its slot: it is large, and tasks end in any
/// order.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    slots: Vec<Option<Entry>>,
    free: Vec<usize>,
    by_id: SortedMap<TaskId, usize>,
    by_tag: SortedMap<u32, usize>,
    last_id: u64,
    immediate: usize,
}

impl Tasks {
    /// An id that was never used before.
    pub(super) fn next_id(&mut self) -> TaskId {
        self.last_id += 1;
        TaskId(self.last_id)
    }

    pub(super) fn insert(&mut self, entry: Entry) {
        self.immediate += usize::from(entry.immediate);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.by_tag.insert(entry.initiator_task_tag, slot);
        self.by_id.insert(entry.task.id, slot);
        self.slots[slot] = Some(entry);
    }

    /// `false`: it was not there.
    pub(super) fn remove(&mut self, id: TaskId) -> bool {
        let Some(slot) = self.by_id.remove(id) else { return false };
        // Dropped where it stands: to move it would cost more than all else here.
        if let Some(entry) = &self.slots[slot] {
            self.immediate -= usize::from(entry.immediate);
            if self.by_tag.get(entry.initiator_task_tag) == Some(&slot) {
                self.by_tag.remove(entry.initiator_task_tag);
            }
        }
        self.slots[slot] = None;
        self.free.push(slot);
        true
    }

    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Entry> {
        self.slots[*self.by_id.get(id)?].as_mut()
    }

    pub(super) fn with_tag(&self, initiator_task_tag: u32) -> Option<&Entry> {
        self.slots[*self.by_tag.get(initiator_task_tag)?].as_ref()
    }

    pub(super) fn with_tag_mut(&mut self, initiator_task_tag: u32) -> Option<&mut Entry> {
        self.slots[*self.by_tag.get(initiator_task_tag)?].as_mut()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.by_id.keys()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// How many came for immediate delivery.
    pub(super) fn immediate(&self) -> usize {
        self.immediate
    }

    /// The earliest time at which a task stops waiting for data, and whose.
    pub(super) fn next_drain(&self) -> Option<(Time, TaskId)> {
        let drains = self.slots.iter().flatten().filter_map(|entry| match entry.phase {
            Phase::Aborting { drain_until: Some(until), .. } => Some((until, entry.task.id)),
            _ => None,
        });
        drains.min()
    }
}
