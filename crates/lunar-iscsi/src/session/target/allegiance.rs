//! Tasks and the connections to which they are allegiant. RFC 7143 §4.2.5.1.
//!
//! The session owns its tasks: a connection carries their data and their responses. When a
//! connection is lost, one rule decides about its tasks, [`TargetSession::keeps_tasks_of`]. A task
//! that is kept continues without a connection, and its end is reported by [`Input::TaskEnded`].
//!
//! [`Input::TaskEnded`]: super::Input::TaskEnded

use super::machine::{Link, State, TargetSession};
use super::{DataDue, ToConnection};
use crate::framing::TaskId;
use alloc::vec::Vec;

/// The lowest ErrorRecoveryLevel at which tasks outlive their connections. RFC 7143 §7.1.5.
const KEEPS_TASKS_LEVEL: u8 = 2;

impl TargetSession {
    /// True if the tasks of a connection that is lost or closes stay in the session. Otherwise they
    /// end with it.
    ///
    /// RFC 7143 §7.6 b): the target terminates the tasks that are allegiant to a failed connection
    /// when the state of the connection times out. Below ErrorRecoveryLevel 2 no other connection
    /// may take them over (§7.2.2), so there is nothing to wait for. The same holds for a
    /// connection that is replaced: §6.3.4. After a logout and at the end of the session the tasks
    /// end at every level: §7.6 a), d).
    fn keeps_tasks_of(&self, link: &Link) -> bool {
        let is_lost = !link.leaving || link.replaced;
        self.parameters.error_recovery_level >= KEEPS_TASKS_LEVEL
            && self.state == State::Open
            && is_lost
    }

    /// Aborts the tasks that end with connection `cid`, which is closing, and parts the others from
    /// it.
    pub(super) fn connection_closing(&mut self, cid: u16) {
        let keeps = self.connections.get(cid).is_some_and(|link| self.keeps_tasks_of(link));
        for task in self.tasks_of(cid) {
            match self.tasks.get_mut(task) {
                Some(known) if keeps && known.delivered && known.aborting.is_none() => {
                    known.cid = None;
                }
                _ => self.abort(task, DataDue::Lost),
            }
        }
        self.send(cid, ToConnection::DetachTasks);
    }

    /// The tasks that are allegiant to connection `cid`.
    pub(super) fn tasks_of(&self, cid: u16) -> Vec<TaskId> {
        let its = self.tasks.iter().filter(|(_, known)| known.cid == Some(cid));
        its.map(|(task, _)| task).collect()
    }
}
