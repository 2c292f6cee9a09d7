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
/// storage, the tag is that of the entry's task in the protocol machine, and the host's side is the
/// holder of the number. A request with several parts passes them on one after the other.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MappingEntry {
    /// Direction of its data.
    pub direction: TransferDirection,
    /// Length of its data.
    pub bytes: u32,
    /// Data that has moved: received and checked, or given to be sent.
    pub moved_bytes: u32,
    /// Data of a WRITE that the storage has asked for or that came with the command.
    pub wanted_bytes: u32,
    /// Time of its abort; `None`: its holder waits for it.
    pub aborted_at: Option<Time>,
}

/// The commands of one session that the storage has not answered.
#[derive(Debug, Default)]
pub struct MappingTable {
    entries: BTreeMap<TaskId, MappingEntry>,
}

impl MappingTable {
    /// Adds a command.
    pub fn insert(
        &mut self,
        id: TaskId,
        direction: TransferDirection,
        bytes: u32,
        prefix_bytes: u32,
    ) {
        let entry = MappingEntry {
            direction,
            bytes,
            moved_bytes: prefix_bytes,
            wanted_bytes: prefix_bytes,
            aborted_at: None,
        };
        self.entries.insert(id, entry);
    }

    /// Removes a command that has ended.
    pub fn remove(&mut self, id: TaskId) -> Option<MappingEntry> {
        self.entries.remove(&id)
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
        self.active(id).map(|entry| entry.aborted_at = Some(now)).is_some()
    }

    /// Time of the earliest abort that is not answered.
    pub fn first_abort(&self) -> Option<Time> {
        self.entries.values().filter_map(|entry| entry.aborted_at).min()
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
