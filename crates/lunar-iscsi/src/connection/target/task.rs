//! The tasks of one connection, from the command's header to the end of the response.

use super::data_time::DataClock;
use super::transfer::Transfer;
use super::{Outcome, Task};
use crate::framing::TaskId;
use crate::pdu::ScsiCommand;
use crate::sorted_map::SortedMap;
use alloc::boxed::Box;
use alloc::vec::Vec;
use lunar_wire::{SerialNumber, Time};

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

/// So many slots are kept while there are no tasks.
const SLOTS_KEPT_MAX: usize = 16;

/// What the session knows of a task, in bytes, at most: its entry, and its place in the window.
const IN_SESSION_BYTES: usize = 256;

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

    /// Memory of the tasks, whether there are some or were; each may have so many open R2Ts.
    pub(super) fn memory_bytes(&self, max_outstanding_r2t: u16) -> usize {
        self.slots.capacity() * size_of::<Option<Entry>>()
            + self.by_tag.memory_bytes()
            + self.count * (IN_SESSION_BYTES + Transfer::r2ts_memory_bytes(max_outstanding_r2t))
    }

    /// Frees what many tasks needed once and none needs now.
    pub(super) fn free_spare(&mut self) {
        if self.count == 0 && self.slots.len() > SLOTS_KEPT_MAX {
            self.slots = Vec::new();
        }
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

    /// Of those that wait for data, but for aborted ones, which have a time of their own.
    pub(super) fn data_clocks(&self) -> impl Iterator<Item = &DataClock> {
        let waits = |entry: &&Entry| !matches!(entry.phase, Phase::Aborting { .. });
        self.entries().filter(waits).map(|entry| &entry.transfer.clock)
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

#[cfg(test)]
mod tests {
    use super::super::Cdb;
    use super::super::transfer::TransferRules;
    use super::*;
    use crate::pdu::TaskAttribute;
    use alloc::collections::BTreeMap;
    use lunar_wire::Lun;
    use proptest::prelude::*;

    fn entry(id: TaskId, initiator_task_tag: u32) -> Entry {
        let rules = TransferRules {
            first_burst_bytes: 0,
            max_burst_bytes: 0,
            max_outstanding_r2t: 1,
            initial_r2t: true,
            immediate_data: false,
            data_out_bytes_max: 0,
        };
        Entry {
            task: Task {
                id,
                lun: Lun::ZERO,
                cdb: Cdb::new([0; 16], &[]),
                attribute: TaskAttribute::SIMPLE,
                priority: 0,
                read: false,
                write: false,
                expected_bytes: 0,
                expected_read_bytes: None,
            },
            initiator_task_tag,
            cmd_sn: SerialNumber(0),
            immediate: initiator_task_tag.is_multiple_of(3),
            unjudged: false,
            phase: Phase::Waiting,
            transfer: Transfer::none(rules, 0),
            placed: false,
            next_data_sn: 0,
            outcome: None,
            fence_asked: false,
            fault_told: false,
        }
    }

    proptest! {
        /// Goal: a task is found by its id and its tag as long as it is there, and no id comes
        /// twice, also where some tasks stay while thousands come and go.
        /// Method: against a `BTreeMap`; one of a few places in it ends with each step.
        #[test]
        fn as_a_map(steps in prop::collection::vec((0usize..12, any::<bool>()), 0..2000)) {
            let (mut tasks, mut model) = (Tasks::default(), BTreeMap::new());
            let mut last = 0;
            for (number, (place, ends)) in (0u32..).zip(steps) {
                let id = tasks.insert(|id| entry(id, number));
                prop_assert!(id.0 > last);
                last = id.0;
                model.insert(id, number);
                if ends && let Some((&id, &tag)) = model.iter().nth(place) {
                    prop_assert_eq!(tasks.with_tag(tag).map(|entry| entry.task.id), Some(id));
                    prop_assert!(tasks.remove(id) && !tasks.remove(id));
                    prop_assert!(tasks.get_mut(id).is_none() && tasks.with_tag(tag).is_none());
                    model.remove(&id);
                }
                prop_assert_eq!(tasks.len(), model.len());
            }
            prop_assert!(tasks.ids().iter().eq(model.keys()));
            let immediate = model.values().filter(|tag| tag.is_multiple_of(3)).count();
            prop_assert_eq!(tasks.immediate(), immediate);
            for (id, tag) in model {
                prop_assert_eq!(tasks.get(id).map(|entry| entry.initiator_task_tag), Some(tag));
            }
        }
    }

    /// Goal: what is there bounds the room, not what ever came: a task that stays makes its
    /// successors pass it.
    #[test]
    fn a_task_that_stays_takes_one_slot() {
        let mut tasks = Tasks::default();
        let stays = tasks.insert(|id| entry(id, 0));
        for number in 1..10_000 {
            let id = tasks.insert(|id| entry(id, number));
            assert!(tasks.remove(id));
        }
        assert_eq!(tasks.get(stays).map(|entry| entry.initiator_task_tag), Some(0));
        assert_eq!(tasks.slots.len(), SLOTS_MIN);
    }
}
