//! The tasks of one connection, from the command's header to the end of the response.

use super::data_time::DataClock;
use super::transfer::Transfer;
use super::{HeaderCdb, Outcome, Task};
use crate::framing::TaskId;
use crate::pdu::{ScsiCommand, TaskAttribute};
use crate::sorted_map::SortedMap;
use alloc::boxed::Box;
use alloc::vec::Vec;
use lunar_wire::{Lun, SerialNumber, Time};

/// State of a task.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    /// The command has not arrived completely, or waits for delivery by the session.
    Waiting,
    /// The executor plans the task, or waits for its data-out.
    Started,
    /// The executor runs the task, or may run it: nothing has to be requested from the initiator.
    Running,
    /// The transfer failed; the executor was informed and has not answered.
    Failing,
    /// The executor has ended the task (or never received it); data of the initiator is still due.
    Finished,
    /// The task is being aborted: no response.
    Aborting {
        /// True until the executor sends Done.
        executing: bool,
        /// Time until which requested sequences of data are awaited.
        drain_until: Option<Time>,
    },
}

/// A task, or a vacant slot for one.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) task: Task,
    pub(super) cmd_sn: SerialNumber,
    pub(super) immediate: bool,
    /// True while the session has neither accepted nor refused the task.
    pub(super) undecided: bool,
    pub(super) phase: Phase,
    pub(super) transfer: Transfer,
    /// The result, in the rare case that its response is held back. Boxed because it is large.
    pub(super) outcome: Option<Box<Outcome>>,
    /// True once a fence around the response was requested from the session.
    pub(super) fence_requested: bool,
    /// True once the fault of the transfer was reported to the executor.
    pub(super) fault_reported: bool,
}

/// Tasks by id and by Initiator Task Tag.
///
/// The slot of an entry is its id modulo the number of slots; there are at least twice as many
/// slots as tasks. An entry is large and tasks end in any order, so it never moves, and is begun
/// and ended in its slot. An id whose slot an older task occupies is skipped.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    /// Slots; their number is a power of two, or zero.
    slots: Vec<Entry>,
    count: usize,
    by_tag: SortedMap<u32, TaskId>,
    last_id: u64,
    immediate: usize,
}

/// Id of no task, in vacant slots.
const VACANT: TaskId = TaskId(0);

impl Entry {
    fn vacant() -> Self {
        let task = Task {
            id: VACANT,
            lun: Lun::ZERO,
            cdb: HeaderCdb::default(),
            attribute: TaskAttribute::SIMPLE,
            priority: 0,
            read: false,
            write: false,
            expected_bytes: 0,
            expected_read_bytes: None,
            has_all_data: false,
        };
        Self {
            task,
            cmd_sn: SerialNumber(0),
            immediate: false,
            undecided: false,
            phase: Phase::Waiting,
            transfer: Transfer::default(),
            outcome: None,
            fence_requested: false,
            fault_reported: false,
        }
    }

    /// Makes the entry that of a new task.
    #[inline]
    fn begin(&mut self, task: Task, pdu: &ScsiCommand) {
        let Self {
            task: its_task,
            cmd_sn,
            immediate,
            undecided,
            phase,
            transfer: _, // begun by the caller
            outcome,
            fence_requested,
            fault_reported,
        } = self;
        *its_task = task;
        (*cmd_sn, *immediate) = (pdu.cmd_sn, pdu.first.is_immediate());
        (*undecided, *fence_requested, *fault_reported) = (false, false, false);
        (*phase, *outcome) = (Phase::Waiting, None);
    }

    /// Makes the slot vacant, and frees what lies outside of it.
    fn vacate(&mut self) {
        self.task.id = VACANT;
        self.task.cdb = HeaderCdb::default();
        self.outcome = None;
        self.transfer.free();
    }

    fn is_vacant(&self) -> bool {
        self.task.id == VACANT
    }

    /// Memory of the values that few tasks have.
    fn boxed_bytes(&self) -> usize {
        let outcome = self.outcome.as_deref().map_or(0, |outcome| {
            size_of::<Outcome>() + outcome.data_in.len() + outcome.sense.len() + OUTCOME_BYTES
        });
        outcome + self.transfer.boxed_bytes()
    }

    /// True if the executor has started the task, and nothing has to come from the initiator.
    pub(super) fn has_all_it_needs(&self) -> bool {
        match self.phase {
            Phase::Running => true,
            Phase::Started => self.task.expected_data_out_bytes() == 0,
            _ => false,
        }
    }

    /// True if `pdu` is a retry of this task's command.
    pub(super) fn is_retried_by(&self, pdu: &ScsiCommand) -> bool {
        !pdu.first.is_immediate() && !self.immediate && self.cmd_sn == pdu.cmd_sn
    }
}

/// Initial number of slots.
const SLOTS_MIN: usize = 8;

/// Number of slots kept while there are no tasks.
const SLOTS_KEPT_MAX: usize = 16;

/// Memory of the allocations of an outcome beyond their lengths.
const OUTCOME_BYTES: usize = 128;

/// Maximum memory of a task in the session, in bytes: its entry, and its position in the window.
const IN_SESSION_BYTES: usize = 256;

impl Tasks {
    /// Creates the tasks of the connection with this serial number in its session.
    pub(super) fn new(connection_serial: u16) -> Self {
        Self { last_id: TaskId::before_first(connection_serial).0, ..Self::default() }
    }

    /// Returns an id that was never used before.
    pub(super) fn next_id(&mut self) -> TaskId {
        if 2 * self.count >= self.slots.len() {
            self.grow();
        }
        loop {
            self.last_id += 1;
            if self.slots[self.slot(TaskId(self.last_id))].is_vacant() {
                return TaskId(self.last_id);
            }
        }
    }

    /// Index of the slot of an id; requires that there are slots.
    fn slot(&self, id: TaskId) -> usize {
        id.0 as usize & (self.slots.len() - 1)
    }

    /// Doubles the slots; entries with different slots stay apart.
    #[cold]
    fn grow(&mut self) {
        let slots = (2 * self.slots.len()).max(SLOTS_MIN);
        let entries = core::mem::take(&mut self.slots);
        self.slots.resize_with(slots, Entry::vacant);
        for entry in entries.into_iter().filter(|entry| !entry.is_vacant()) {
            let slot = self.slot(entry.task.id);
            self.slots[slot] = entry;
        }
    }

    /// Begins a task of this command; returns the slot with its id. The caller begins its transfer.
    #[inline]
    pub(super) fn begin(
        &mut self,
        pdu: &ScsiCommand,
        task: impl FnOnce(TaskId) -> Task,
    ) -> &mut Entry {
        let id = self.next_id();
        let slot = self.slot(id);
        self.count += 1;
        self.immediate += usize::from(pdu.first.is_immediate());
        self.by_tag.insert(pdu.initiator_task_tag, id);
        let entry = &mut self.slots[slot];
        entry.begin(task(id), pdu);
        entry
    }

    /// Removes a task; `false` if there is none with this id.
    pub(super) fn remove(&mut self, id: TaskId) -> bool {
        let Some(entry) = self.get_mut(id) else { return false };
        let (immediate, tag) = (entry.immediate, entry.transfer.initiator_task_tag);
        self.immediate -= usize::from(immediate);
        self.count -= 1;
        self.by_tag.remove_if(tag, |newest| *newest == id);
        let slot = self.slot(id);
        self.slots[slot].vacate();
        true
    }

    #[inline]
    pub(super) fn get(&self, id: TaskId) -> Option<&Entry> {
        let slot = id.0 as usize & self.slots.len().wrapping_sub(1);
        self.slots.get(slot).filter(|entry| entry.task.id == id)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: TaskId) -> Option<&mut Entry> {
        let slot = id.0 as usize & self.slots.len().wrapping_sub(1);
        self.slots.get_mut(slot).filter(|entry| entry.task.id == id)
    }

    pub(super) fn with_tag(&self, initiator_task_tag: u32) -> Option<&Entry> {
        self.get(*self.by_tag.get(initiator_task_tag)?)
    }

    pub(super) fn with_tag_mut(&mut self, initiator_task_tag: u32) -> Option<&mut Entry> {
        self.get_mut(*self.by_tag.get(initiator_task_tag)?)
    }

    /// Ids of all tasks, in the order of arrival.
    pub(super) fn ids(&self) -> Vec<TaskId> {
        let mut ids: Vec<_> = self.entries().map(|entry| entry.task.id).collect();
        ids.sort_unstable();
        ids
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.slots.iter().filter(|entry| !entry.is_vacant())
    }

    /// Memory of current and former tasks; each may have `max_outstanding_r2t` open R2Ts. The
    /// answers of tasks whose response is held back, and data in pieces, count as well.
    pub(super) fn memory_bytes(&self, max_outstanding_r2t: u16) -> usize {
        self.entries().map(Entry::boxed_bytes).sum::<usize>()
            + self.slots.capacity() * size_of::<Entry>()
            + self.by_tag.memory_bytes()
            + self.count * (IN_SESSION_BYTES + Transfer::r2ts_memory_bytes(max_outstanding_r2t))
    }

    /// Frees slots that are not needed any more.
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

    /// Number of tasks with immediate delivery.
    pub(super) fn immediate(&self) -> usize {
        self.immediate
    }

    /// Clocks of the tasks that wait for data, except aborted ones, which have their own time
    /// limit.
    pub(super) fn data_clocks(&self) -> impl Iterator<Item = &DataClock> {
        let waits = |entry: &&Entry| !matches!(entry.phase, Phase::Aborting { .. });
        self.entries().filter(waits).map(|entry| &entry.transfer.clock)
    }

    /// The earliest time at which an aborted task stops waiting for data, and its id.
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
    use super::super::transfer::TransferRules;
    use super::*;
    use crate::pdu::{CommandFlags, FirstByte, Opcode};
    use alloc::collections::BTreeMap;
    use lunar_wire::U24;
    use proptest::prelude::*;

    /// Begins a task without data; every third one is immediate.
    fn begin(tasks: &mut Tasks, initiator_task_tag: u32) -> TaskId {
        let opcode = match initiator_task_tag.is_multiple_of(3) {
            true => FirstByte::immediate(Opcode::SCSI_COMMAND),
            false => FirstByte::plain(Opcode::SCSI_COMMAND),
        };
        let pdu = ScsiCommand {
            first: opcode,
            flags: CommandFlags::FINAL,
            priority: 0,
            total_ahs_words: 0,
            data_segment_length: U24::default(),
            lun: Lun::ZERO,
            initiator_task_tag,
            expected_data_transfer_length: 0,
            cmd_sn: SerialNumber(0),
            exp_stat_sn: SerialNumber(0),
            cdb: [0; 16],
        };
        let entry = tasks.begin(&pdu, |id| Task { id, ..Entry::vacant().task });
        entry.transfer.begin(TransferRules::default(), &pdu);
        entry.task.id
    }

    fn tag_of(tasks: &Tasks, id: TaskId) -> Option<u32> {
        tasks.get(id).map(|entry| entry.transfer.initiator_task_tag)
    }

    proptest! {
        /// Goal: a task is found by its id and its tag as long as it exists, and no id is reused,
        /// also if some tasks stay while thousands come and go.
        /// Method: compared with a `BTreeMap`; in each step one of the oldest tasks may end.
        #[test]
        fn as_a_map(steps in prop::collection::vec((0usize..12, any::<bool>()), 0..2000)) {
            let (mut tasks, mut model) = (Tasks::default(), BTreeMap::new());
            let mut last = 0;
            for (number, (position, ends)) in (0u32..).zip(steps) {
                let id = begin(&mut tasks, number);
                prop_assert!(id.0 > last);
                last = id.0;
                model.insert(id, number);
                if ends && let Some((&id, &tag)) = model.iter().nth(position) {
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
                prop_assert_eq!(tag_of(&tasks, id), Some(tag));
            }
        }
    }

    /// Goal: the number of current tasks bounds the memory, not the number of past ones: the slot
    /// of a task that stays is skipped.
    #[test]
    fn a_task_that_stays_takes_one_slot() {
        let mut tasks = Tasks::default();
        let stays = begin(&mut tasks, 0);
        for number in 1..10_000 {
            let id = begin(&mut tasks, number);
            assert!(tasks.remove(id));
        }
        assert_eq!(tag_of(&tasks, stays), Some(0));
        assert_eq!(tasks.slots.len(), SLOTS_MIN);
    }
}
