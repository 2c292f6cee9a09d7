//! Fast path for the two steps of every command in an otherwise idle session: the arrival with the
//! next CmdSN, and the end.
//!
//! The result is determined at once: one value for the connection that sent the message, and none
//! for any other. Nothing is queued.

use super::machine::{KnownCommand, State, TargetSession};
use super::{Arrival, ToConnection, ToSession};
use crate::framing::TaskId;
use lunar_wire::SerialNumber;

impl TargetSession {
    /// Handles a message of connection `cid` if it has a single answer and affects no other
    /// connection. `None`: nothing was done, and the caller must use [`handle`](Self::handle).
    pub fn try_handle(&mut self, cid: u16, message: &ToSession) -> Option<ToConnection> {
        if !self.is_uncontended() {
            return None;
        }
        let link = self.connections.get_mut(cid).filter(|link| !link.leaving)?;
        let ticket = match message {
            ToSession::Arrived { ticket, immediate: false, cmd_sn, request } => {
                let (task, known) = known(cid, *cmd_sn, request)?;
                // Nothing has arrived early, so only this number can be the next.
                if !self.window.is_open() || !self.window.pass(*cmd_sn) {
                    return None;
                }
                self.tasks.insert(task, known);
                Some(*ticket)
            }
            ToSession::TaskEnded(task) => {
                self.tasks.remove_if(*task, |known| known.counted)?;
                self.window.end();
                None
            }
            _ => return None,
        };
        let (exp_cmd_sn, max_cmd_sn) = (self.window.expected(), self.window.max());
        link.sent_window = (exp_cmd_sn, max_cmd_sn);
        Some(match ticket {
            Some(ticket) => ToConnection::Deliver { ticket, exp_cmd_sn, max_cmd_sn },
            None => ToConnection::Window { exp_cmd_sn, max_cmd_sn },
        })
    }

    /// True with one connection and no request that arrived early, waits or is managed.
    fn is_uncontended(&self) -> bool {
        self.state == State::Open
            && self.connections.len() == 1
            && !self.window.has_gap()
            && self.ready.is_empty()
            && self.managements.are_none()
            && self.logouts.is_empty()
            && self.outputs.is_empty()
    }
}

/// Returns the entry of a command that is delivered on arrival; `None` for other requests.
fn known(cid: u16, cmd_sn: SerialNumber, request: &Arrival) -> Option<(TaskId, KnownCommand)> {
    let Arrival::Command { task, initiator_task_tag, lun, attribute } = *request else {
        return None;
    };
    let known = KnownCommand {
        cid: Some(cid),
        initiator_task_tag,
        lun,
        attribute,
        cmd_sn,
        immediate: false,
        counted: true,
        delivered: true,
        aborting: None,
    };
    Some((task, known))
}

#[cfg(test)]
mod tests;
