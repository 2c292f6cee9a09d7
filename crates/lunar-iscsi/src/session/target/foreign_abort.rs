//! Functions of other sessions that affect tasks of this one. RFC 7143 §4.2.3.3, §4.2.3.4 d),
//! §4.2.3.5.

use super::machine::{KnownCommand, TargetSession};
use super::management::is_same_unit;
use super::{DataDue, Output};
use crate::framing::TaskId;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use lunar_wire::Lun;

/// A function of another session that affects tasks of this one.
///
/// With FastAbort the function lasts as long as its slowest delivered task, however many commands
/// arrive meanwhile: none of its units is delivered a command before its end, and those that have
/// arrived then are aborted without a wait, since they have not begun.
#[derive(Debug)]
pub(super) struct ForeignAbort {
    id: u64,
    lun: Option<Lun>,
    tasks: u32,
    /// Delivered tasks that have not ended.
    waiting: BTreeSet<TaskId>,
    /// Connections that must report terminated tasks, and their units. FastAbort only.
    to_report: BTreeSet<(u16, Lun)>,
    has_fast_abort: bool,
}

impl ForeignAbort {
    pub(super) fn task_ended(&mut self, task: TaskId) {
        self.waiting.remove(&task);
    }

    /// True while later commands must wait: an Asynchronous Message reports the end of all tasks of
    /// the unit, and a command that starts meanwhile would be taken for one of them.
    pub(super) fn is_barrier(&self) -> bool {
        self.has_fast_abort
    }

    /// True while an immediate command for this unit must wait, too: the function will abort it.
    pub(super) fn holds_immediate(&self, lun: Lun) -> bool {
        self.is_barrier() && self.affects(lun)
    }

    fn affects(&self, lun: Lun) -> bool {
        self.lun.is_none_or(|unit| is_same_unit(lun, unit))
    }
}

impl TargetSession {
    /// Begins to abort tasks for another session's function. RFC 7143 §4.2.3.3: only started tasks
    /// are affected, and their data is not awaited. With FastAbort all commands that have arrived
    /// are affected: the Asynchronous Message, which carries an ExpCmdSN, says that "all active
    /// tasks" of the unit are terminated (§11.9.1).
    pub(super) fn abort_for_other(&mut self, id: u64, lun: Option<Lun>) {
        let has_fast_abort = self.has_fast_abort();
        let (tasks, waiting, to_report) = (0, BTreeSet::new(), BTreeSet::new());
        let mut other = ForeignAbort { id, lun, tasks, waiting, to_report, has_fast_abort };
        other.waiting = self.abort_hit(&mut other, |known| known.delivered);
        self.managements.foreign_aborts.push(other);
    }

    /// Aborts the tasks of the function's units that `is_hit` selects, and returns them.
    fn abort_hit(
        &mut self,
        other: &mut ForeignAbort,
        is_hit: impl Fn(&KnownCommand) -> bool,
    ) -> BTreeSet<TaskId> {
        let hit = self.tasks.iter().filter(|(_, known)| other.affects(known.lun) && is_hit(known));
        let hit: Vec<_> = hit.map(|(task, known)| (task, known.cid, known.lun)).collect();
        for (task, cid, lun) in &hit {
            other.tasks = other.tasks.saturating_add(1);
            let mut data = DataDue::Discarded;
            if other.has_fast_abort {
                data = DataDue::Retired;
                other.to_report.extend(cid.map(|cid| (cid, *lun)));
            }
            self.abort(*task, data);
        }
        hit.into_iter().map(|(task, ..)| task).collect()
    }

    pub(super) fn step_foreign_aborts(&mut self) {
        for mut other in core::mem::take(&mut self.managements.foreign_aborts) {
            if !other.waiting.is_empty() {
                self.managements.foreign_aborts.push(other);
                continue;
            }
            if other.has_fast_abort {
                // The message also covers commands that have arrived but were not delivered. Their
                // connections handle the aborts before the message.
                self.abort_hit(&mut other, |known| known.is_exposed(true));
                // ExpCmdSN tells the initiator which commands it covers: a connection that has not
                // spoken since its command came in order has an older number.
                for (cid, _) in &other.to_report {
                    self.send_window_to(*cid);
                }
            }
            self.report_terminated(other.to_report);
            self.output(Output::OthersAborted { id: other.id, tasks: other.tasks });
        }
    }
}
