//! Fast path for the two steps of every command in an otherwise idle session: the arrival with the
//! next CmdSN, and the end.
//!
//! The result is determined at once: one value for the connection that sent the message, and none
//! for any other. No queues are used and no other state is examined.
//! other. So nothing is queued and nothing else is looked at.

use super::machine::{Key, Known, State, TargetSession};
use super::{Arrival, ToConnection, ToSession};
use lunar_wire::SerialNumber;

impl TargetSession {
    /// Handles a message of connection `cid` if it has a single answer and affects no other
    /// connection. `None`: nothing was done, and the caller must use [`handle`](Self::handle).
    pub fn reply(&mut self, cid: u16, message: &ToSession) -> Option<ToConnection> {
        if !self.is_plain() {
            return None;
        }
        let link = self.connections.get_mut(cid).filter(|link| !link.leaving)?;
        let ticket = match message {
            ToSession::Arrived { ticket, immediate: false, cmd_sn, request } => {
                let (key, known) = known(cid, *cmd_sn, request)?;
                // Nothing has arrived early, so only this number can be the next.
                if !self.window.is_open() || !self.window.pass(*cmd_sn) {
                    return None;
                }
                self.tasks.insert(key, known);
                Some(*ticket)
            }
            ToSession::TaskEnded(task) => {
                self.tasks.remove_if((cid, *task), |known| known.counted)?;
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
    fn is_plain(&self) -> bool {
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
fn known(cid: u16, cmd_sn: SerialNumber, request: &Arrival) -> Option<(Key, Known)> {
    let Arrival::Command { task, initiator_task_tag, lun, attribute } = *request else {
        return None;
    };
    let known = Known {
        initiator_task_tag,
        lun,
        attribute,
        cmd_sn,
        immediate: false,
        counted: true,
        delivered: true,
        aborting: None,
    };
    Some(((cid, task), known))
}

#[cfg(test)]
mod tests {
    use super::super::{Input, Output, SessionLimits};
    use super::*;
    use crate::framing::TaskId;
    use crate::pdu::{ManagementFunction, TaskAttribute};
    use crate::text::SessionParameters;
    use alloc::format;
    use alloc::vec::Vec;
    use lunar_wire::Lun;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Join(u16),
        Arrive { cid: u16, ahead: u32, immediate: bool, reset: bool },
        End { cid: u16, nth: usize },
        Leave(u16),
        Managed,
    }

    fn step() -> impl Strategy<Value = Step> {
        let arrive = (0u32..9, 0u8..40).prop_map(|(ahead, kind)| {
            // Mostly a command with the next number.
            let ahead = if ahead > 3 { 1 } else { ahead };
            let (immediate, reset) = (kind == 0, kind == 1);
            Step::Arrive { cid: 1 + u16::from(kind == 2), ahead, immediate, reset }
        });
        prop_oneof![
            40 => arrive,
            30 => (0usize..8).prop_map(|nth| Step::End { cid: 1, nth }),
            3 => (0usize..8).prop_map(|nth| Step::End { cid: 2, nth }),
            2 => (1u16..3).prop_map(Step::Join),
            1 => (1u16..3).prop_map(Step::Leave),
            3 => Just(Step::Managed),
        ]
    }

    fn hear(session: &mut TargetSession, input: Input) -> Vec<Output> {
        session.step(input);
        core::iter::from_fn(|| session.poll()).collect()
    }

    /// Converts a step of the driver to an input of this session.
    fn input(step: &Step, session: &TargetSession, number: u32, managed: &[u64]) -> Option<Input> {
        let task = TaskId(number.into());
        Some(match *step {
            Step::Join(cid) => Input::Join(cid),
            Step::Arrive { cid, ahead, immediate, reset } => {
                let request = if reset {
                    Arrival::Management {
                        initiator_task_tag: number,
                        function: ManagementFunction::LOGICAL_UNIT_RESET,
                        lun: Lun::ZERO,
                        referenced_task_tag: 0,
                        ref_cmd_sn: SerialNumber(0),
                    }
                } else {
                    let (lun, attribute) = (Lun::ZERO, TaskAttribute::SIMPLE);
                    Arrival::Command { task, initiator_task_tag: number, lun, attribute }
                };
                let cmd_sn = session.window().0.minus(1).plus(ahead);
                let ticket = number.into();
                Input::Connection(cid, ToSession::Arrived { ticket, immediate, cmd_sn, request })
            }
            Step::End { cid, nth } => {
                let mine = session.tasks.keys().filter(|(of, _)| *of == cid);
                let (_, task) = mine.collect::<Vec<_>>().get(nth).copied()?;
                Input::Connection(cid, ToSession::TaskEnded(task))
            }
            Step::Leave(cid) => Input::Connection(cid, ToSession::ConnectionClosed),
            Step::Managed => Input::Managed {
                id: *managed.last()?,
                response: crate::pdu::ManagementResponse::FUNCTION_COMPLETE,
                information: [0; 3],
            },
        })
    }

    proptest! {
        /// Goal: the fast path has the same result as the general path, and leaves the session in
        /// the same state.
        /// Method: two sessions with the same steps, one of which never uses the fast path; early
        /// requests, management and a second connection prevent it.
        #[test]
        fn an_answer_is_the_long_way(
            first in (u32::MAX - 20)..u32::MAX, window_commands in 1u32..9,
            steps in prop::collection::vec(step(), 1..120),
        ) {
            let session = || {
                let limits = SessionLimits { window_commands };
                let parameters = SessionParameters::default();
                let mut session = TargetSession::new(1, parameters, SerialNumber(first), limits);
                hear(&mut session, Input::Join(1));
                session
            };
            let (mut short, mut long) = (session(), session());
            let mut managed = Vec::new();
            for (number, step) in (0u32..).zip(&steps) {
                let Some(input) = input(step, &long, number, &managed) else { continue };
                let answer = match &input {
                    Input::Connection(cid, message) => {
                        let answer = short.reply(*cid, message);
                        answer.map(|answer| Output::ToConnection(*cid, answer))
                    }
                    _ => None,
                };
                let said = hear(&mut long, input.clone());
                let heard = match answer {
                    Some(answer) => [answer].into(),
                    None => hear(&mut short, input),
                };
                prop_assert_eq!(&heard, &said);
                for output in said {
                    if let Output::Manage { id, .. } = output {
                        managed.push(id);
                    }
                }
                prop_assert_eq!(format!("{short:?}"), format!("{long:?}"));
            }
        }
    }

    /// Goal: the steps of every command use the fast path.
    #[test]
    fn a_command_takes_the_short_way() {
        let limits = SessionLimits { window_commands: 4 };
        let parameters = SessionParameters::default();
        let mut session = TargetSession::new(1, parameters, SerialNumber(7), limits);
        hear(&mut session, Input::Join(1));
        let (lun, attribute) = (Lun::ZERO, TaskAttribute::SIMPLE);
        let task = TaskId(5);
        let request = Arrival::Command { task, initiator_task_tag: 9, lun, attribute };
        let cmd_sn = SerialNumber(7);
        let arrived = ToSession::Arrived { ticket: 3, immediate: false, cmd_sn, request };
        let [exp_cmd_sn, max_cmd_sn] = [8, 10].map(SerialNumber);
        let delivered = ToConnection::Deliver { ticket: 3, exp_cmd_sn, max_cmd_sn };
        assert_eq!(session.reply(1, &arrived), Some(delivered));
        let max_cmd_sn = SerialNumber(11);
        let window = ToConnection::Window { exp_cmd_sn, max_cmd_sn };
        assert_eq!(session.reply(1, &ToSession::TaskEnded(TaskId(5))), Some(window));
    }
}
