//! Functions of other sessions that affect tasks of this one. RFC 7143 §4.2.3.3, §4.2.3.4 d),
//! §4.2.3.5.

use super::machine::{Key, Known, TargetSession};
use super::management::is_same_unit;
use super::{DataDue, Output};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use lunar_wire::Lun;

/// Maximum number of searches for commands that arrived while others were ended. An initiator may
/// send immediate commands at any time, which must not delay the reset of another initiator
/// forever.
const ROUNDS_MAX: u8 = 16;

/// A function of another session that affects tasks of this one.
#[derive(Debug)]
pub(super) struct ForeignAbort {
    id: u64,
    lun: Option<Lun>,
    tasks: u32,
    waiting: BTreeSet<Key>,
    /// Connections that must report terminated tasks, and their units. FastAbort only.
    to_report: BTreeSet<(u16, Lun)>,
    is_fast: bool,
    rounds: u8,
}

impl ForeignAbort {
    pub(super) fn task_ended(&mut self, key: Key) {
        self.waiting.remove(&key);
    }

    /// True while later commands must wait: an Asynchronous Message reports the end of all tasks of
    /// the unit, and a command that starts meanwhile would be taken for one of them.
    pub(super) fn is_barrier(&self) -> bool {
        self.is_fast
    }
}

impl TargetSession {
    /// Begins to abort tasks for another session's function. RFC 7143 §4.2.3.3: only started tasks
    /// are affected, and their data is not awaited. With FastAbort all commands that have arrived
    /// are affected: the Asynchronous Message, which carries an ExpCmdSN, says that "all active
    /// tasks" of the unit are terminated (§11.9.1).
    pub(super) fn abort_for_other(&mut self, id: u64, lun: Option<Lun>) {
        let is_fast = self.is_fast();
        let (tasks, waiting, to_report) = (0, BTreeSet::new(), BTreeSet::new());
        let mut other = ForeignAbort { id, lun, tasks, waiting, to_report, is_fast, rounds: 0 };
        self.abort_more(&mut other);
        self.managements.for_others.push(other);
    }

    /// Aborts matching tasks that are not yet aborted for this function.
    fn abort_more(&mut self, other: &mut ForeignAbort) {
        let hit = |known: &Known| {
            known.is_exposed(other.is_fast)
                && other.lun.is_none_or(|lun| is_same_unit(known.lun, lun))
        };
        let more =
            self.tasks.iter().filter(|(key, known)| hit(known) && !other.waiting.contains(key));
        let more: Vec<(Key, Lun)> = more.map(|(key, known)| (key, known.lun)).collect();
        for (key, lun) in more {
            other.tasks = other.tasks.saturating_add(1);
            other.waiting.insert(key);
            let mut data = DataDue::Discarded;
            if other.is_fast {
                data = DataDue::Retired;
                other.to_report.insert((key.0, lun));
            }
            self.abort(key, data);
        }
    }

    pub(super) fn step_for_others(&mut self) {
        for mut other in core::mem::take(&mut self.managements.for_others) {
            if other.waiting.is_empty() && other.is_fast && other.rounds < ROUNDS_MAX {
                other.rounds += 1;
                // The message would also cover commands that arrived meanwhile.
                self.abort_more(&mut other);
            }
            if !other.waiting.is_empty() {
                self.managements.for_others.push(other);
                continue;
            }
            self.report_terminated(other.to_report);
            self.output(Output::OthersAborted { id: other.id, tasks: other.tasks });
        }
    }
}
