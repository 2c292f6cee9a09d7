//! The commands that are passed on in a session with a storage target: the Dynamic Session Mapping
//! Table of the paper.

use lunar_iscsi::framing::TaskId;
use lunar_wire::Time;
use std::collections::BTreeMap;

/// Direction of the data of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TransferDirection {
    /// READ: from the storage.
    In,
    /// WRITE: to the storage.
    Out,
}

/// A command that was passed on: one part of a command of the host.
///
/// The entry of the paper contains the session and the Initiator Task Tag of both sides, and a bit
/// that tells whether the request has several parts. Here the table belongs to one session with a
/// storage, the key of the entry is its task in the protocol machine, and the host's command is the
/// one that holds this key. A request with several parts passes them on one after the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MappingEntry {
    /// Direction of its data.
    pub direction: TransferDirection,
    /// Length of its data.
    pub bytes: u32,
    /// Data that was received and checked, or queued to be sent.
    pub moved_bytes: u32,
    /// Data of a WRITE that the storage has asked for or that came with the command.
    pub wanted_bytes: u32,
    /// Time since which the relay waits for the storage: for data, a request for data, or the
    /// response; `None` while the storage waits for data.
    pub waiting_since: Option<Time>,
    /// Time at which the command was aborted; `None` while its holder waits for the command.
    pub aborted_at: Option<Time>,
}

impl MappingEntry {
    /// Called when the command has progressed.
    pub fn progressed(&mut self, now: Time) {
        let waits_for_data =
            self.direction == TransferDirection::Out && self.moved_bytes < self.wanted_bytes;
        self.waiting_since = (!waits_for_data).then_some(now);
    }
}

/// The commands of one session that the storage has not answered.
#[derive(Debug, Default)]
pub struct MappingTable {
    entries: BTreeMap<TaskId, MappingEntry>,
    /// Number of commands that are aborted.
    aborted: usize,
}

impl MappingTable {
    /// Adds a command.
    pub fn insert(
        &mut self,
        id: TaskId,
        direction: TransferDirection,
        bytes: u32,
        prefix_bytes: u32,
        now: Time,
    ) {
        let entry = MappingEntry {
            direction,
            bytes,
            moved_bytes: prefix_bytes,
            wanted_bytes: prefix_bytes,
            waiting_since: Some(now),
            aborted_at: None,
        };
        self.entries.insert(id, entry);
    }

    /// Removes a command that has ended.
    pub fn remove(&mut self, id: TaskId) -> Option<MappingEntry> {
        let entry = self.entries.remove(&id)?;
        self.aborted -= usize::from(entry.aborted_at.is_some());
        Some(entry)
    }

    /// True if the command has not ended.
    pub fn contains(&self, id: TaskId) -> bool {
        self.entries.contains_key(&id)
    }

    /// Returns a command whose holder waits for it.
    pub fn active(&mut self, id: TaskId) -> Option<&mut MappingEntry> {
        self.entries.get_mut(&id).filter(|entry| entry.aborted_at.is_none())
    }

    /// Marks a command as aborted. Returns `false` if it is already, or has ended.
    pub fn abort(&mut self, id: TaskId, now: Time) -> bool {
        let is_new = self.active(id).map(|entry| entry.aborted_at = Some(now)).is_some();
        self.aborted += usize::from(is_new);
        is_new
    }

    /// Time of the earliest abort that is not answered.
    pub fn first_abort(&self) -> Option<Time> {
        if self.aborted == 0 {
            return None;
        }
        self.entries.values().filter_map(|entry| entry.aborted_at).min()
    }

    /// The commands that wait for the storage and are not aborted, each with its `waiting_since`.
    pub fn waiting_for_storage(&self) -> impl Iterator<Item = (TaskId, Time)> {
        let active = self.entries.iter().filter(|(_, entry)| entry.aborted_at.is_none());
        active.filter_map(|(id, entry)| Some((*id, entry.waiting_since?)))
    }

    /// Restarts the time limit of all commands that wait for the storage.
    pub fn restart(&mut self, now: Time) {
        for waiting_since in
            self.entries.values_mut().filter_map(|entry| entry.waiting_since.as_mut())
        {
            *waiting_since = now;
        }
    }

    /// Number of commands.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
