//! Functions of other sessions that hit tasks of this one. RFC 7143 §4.2.3.3, §4.2.3.4 d),
//! §4.2.3.5.

use super::machine::{Key, Known, TargetSession};
use super::management::is_same_unit;
use super::{DataDue, Output};
use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use wire::Lun;

/// How often it is looked for commands that came while others were ended. What is immediate comes
/// whenever its initiator likes: it must not keep another one's reset waiting for ever.
const ROUNDS_MAX: u8 = 16;

/// Another session's function hits tasks of this one.
#[derive(Debug)]
pub(super) struct ForOther {
    id: u64,
    lun: Option<Lun>,
    tasks: u32,
    waiting: BTreeSet<Key>,
    /// Connections that must be told, and of which units. FastAbort only.
    to_tell: BTreeSet<(u16, Lun)>,
    is_fast: bool,
    rounds: u8,
}

impl ForOther {
    pub(super) fn task_ended(&mut self, key: Key) {
        self.waiting.remove(&key);
    }

    /// An Asynchronous Message says that all tasks of the unit end, and what came meanwhile would
    /// be taken for one of them.
    pub(super) fn is_barrier(&self) -> bool {
        self.is_fast
    }
}

impl TargetSession {
    /// Another session's function: only what has begun here is hit, and its data is not waited
    /// for. RFC 7143 §4.2.3.3. With FastAbort all that has come is hit: the Asynchronous Message
    /// says that "all active tasks" of the unit are terminated (§11.9.1), and bears an ExpCmdSN.
    pub(super) fn abort_for_other(&mut self, id: u64, lun: Option<Lun>) {
        let is_fast = self.is_fast();
        let (tasks, waiting, to_tell) = (0, BTreeSet::new(), BTreeSet::new());
        let mut other = ForOther { id, lun, tasks, waiting, to_tell, is_fast, rounds: 0 };
        self.abort_more(&mut other);
        self.managements.for_others.push(other);
    }

    /// Aborts what matches and is not aborted for it already.
    fn abort_more(&mut self, other: &mut ForOther) {
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
                other.to_tell.insert((key.0, lun));
            }
            self.abort(key, data);
        }
    }

    pub(super) fn step_for_others(&mut self) {
        for mut other in core::mem::take(&mut self.managements.for_others) {
            if other.waiting.is_empty() && other.is_fast && other.rounds < ROUNDS_MAX {
                other.rounds += 1;
                // What came meanwhile: the message would mean it, too.
                self.abort_more(&mut other);
            }
            if !other.waiting.is_empty() {
                self.managements.for_others.push(other);
                continue;
            }
            self.tell_terminated(other.to_tell);
            self.output(Output::OthersAborted { id: other.id, tasks: other.tasks });
        }
    }
}
