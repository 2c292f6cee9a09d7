//! The tasks of one connection, from the command's header to the end of the response.

use super::transfer::Transfer;
use super::{Outcome, Task};
use crate::framing::TaskId;
use crate::pdu::ScsiCommand;
use crate::sorted_map::SortedMap;
use alloc::boxed::Box;
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
    /// The session was told of it and has not said whether it accepts it.
    pub(super) unjudged: bool,
    pub(super) phase: Phase,
    pub(super) transfer: Transfer,
    /// The driver may hold a buffer for it.
    pub(super) placed: bool,
    /// The next DataSN or R2TSN: one count for both, RFC 7143 §4.2.2.4.
    pub(super) next_data_sn: u32,
    /// How it ended, while something holds its response back: rarely. Boxed, as it is large.
    pub(super) outcome: Option<Box<Outcome>>,
    /// The session was asked for a fence around its response.
    pub(super) fence_asked: bool,
    /// The executor was told of the fault of its transfer.
    pub(super) fault_told: bool,
}

/// By id and by Initiator Task Tag.
///
/// An id says where its entry stands: at its number modulo the number of slots, of which there are
/// twice as many as tasks. There it stays, for it is large, and tasks end in any order. Where an
/// older task stands, that id is passed over.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    /// As many as a power of two, or none.
    slots: Vec<Option<Entry>>,
    count: usize,
    by_tag: SortedMap<u32, TaskId>,
    last_id: u64,
    immediate: usize,
}

impl Entry {
    /// Its initiator sends the same command once more.
    pub(super) fn is_retried_by(&self, pdu: &ScsiCommand) -> bool {
        !pdu.first.is_immediate() && !self.immediate && self.cmd_sn == pdu.cmd_sn
    }
}

/// So many slots there are at first.
const SLOTS_MIN: usize = 8;

impl Tasks {
    /// An id that was never used before.
    pub(super) fn next_id(&mut self) -> TaskId {
        if 2 * self.count >= self.slots.len() {
            self.grow();
        }
        loop {
            self.last_id += 1;
            if self.slots[self.slot(TaskId(self.last_id))].is_none() {
                return TaskId(self.last_id);
            }
        }
    }

    /// Of an id; there are slots.
    fn slot(&self, id: TaskId) -> usize {
        id.0 as usize & (self.slots.len() - 1)
    }

    /// What stands apart does so as well among twice as many.
    #[cold]
    fn grow(&mut self) {
        let slots = (2 * self.slots.len()).max(SLOTS_MIN);
        let entries = core::mem::take(&mut self.slots);
        self.slots.resize_with(slots, || None);
        for entry in entries.into_iter().flatten() {
            let slot = self.slot(entry.task.id);
            self.slots[slot] = Some(entry);
        }
    }

    /// Makes an entry where it will stand.
    #[inline]
    pub(super) fn insert(&mut self, make: impl FnOnce(TaskId) -> Entry) -> TaskId {
        let id = self.next_id();
        let slot = self.slot(id);
        let entry = self.slots[slot].get_or_insert_with(|| make(id));
        self.count += 1;
        self.immediate += usize::from(entry.immediate);
        self.by_tag.insert(entry.initiator_task_tag, id);
        id
    }

    /// `false`: it was not there.
    pub(super) fn remove(&mut self, id: TaskId) -> bool {
        let Some(entry) = self.get_mut(id) else { return false };
        let (immediate, initiator_task_tag) = (entry.immediate, entry.initiator_task_tag);
        self.immediate -= usize::from(immediate);
        self.count -= 1;
        self.by_tag.remove_if(initiator_task_tag, |newest| *newest == id);
        // Dropped where it stands: to move it would cost more than all else here.
        let slot = self.slot(id);
        self.slots[slot] = None;
        true
    }

    #[inline]
    pub(super) fn get(&self, id: TaskId) -> Option<&Entry> {
        let slot = id.0 as usize & self.slots.len().wrapping_sub(1);
        self.slots.get(slot)?.as_ref().filter(|entry| entry.task.id == id)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Entry> {
        let slot = id.0 as usize & self.slots.len().wrapping_sub(1);
        self.slots.get_mut(slot)?.as_mut().filter(|entry| entry.task.id == id)
    }

    pub(super) fn with_tag(&self, initiator_task_tag: u32) -> Option<&Entry> {
        self.get(*self.by_tag.get(initiator_task_tag)?)
    }

    pub(super) fn with_tag_mut(&mut self, initiator_task_tag: u32) -> Option<&mut Entry> {
        self.get_mut(*self.by_tag.get(initiator_task_tag)?)
    }

    /// In the order in which they came.
    pub(super) fn ids(&self) -> Vec<TaskId> {
        let mut ids: Vec<_> = self.entries().map(|entry| entry.task.id).collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().flatten()
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many came for immediate delivery.
    pub(super) fn immediate(&self) -> usize {
        self.immediate
    }

    /// The earliest time at which a task stops waiting for data, and whose.
    pub(super) fn next_drain(&self) -> Option<(Time, TaskId)> {
        let drains = self.entries().filter_map(|entry| match entry.phase {
            Phase::Aborting { drain_until: Some(until), .. } => Some((until, entry.task.id)),
            _ => None,
        });
        drains.min()
    }
}
