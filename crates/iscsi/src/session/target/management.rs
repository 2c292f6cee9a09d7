//! Task management: which tasks it hits, what it waits for, when it is answered.
//! RFC 7143 §4.2.3, §11.5, §11.6.
//!
//! Functions that hit several tasks are carried out one after the other. Each waits for the
//! commands before it, aborts its tasks and waits until they are quiet, has the executor do the
//! rest, waits until the initiator has all earlier responses on all connections, then answers.

use super::machine::{Key, Known, TargetSession, Waiting};
use super::{Arrival, Output, ToConnection};
use crate::pdu::{ManagementFunction, ManagementResponse};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use wire::{Lun, LunForm, SerialNumber};

/// A task management request that is to be answered.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Request {
    cid: u16,
    initiator_task_tag: u32,
    function: ManagementFunction,
    lun: Lun,
    cmd_sn: SerialNumber,
    immediate: bool,
}

#[derive(Debug)]
struct Current {
    id: u64,
    request: Request,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// Commands with a lower CmdSN have not all come.
    Awaiting,
    /// These tasks are being aborted.
    Quieting(BTreeSet<Key>),
    /// The executor does the rest.
    Executing,
    /// Earlier responses are being acknowledged on these connections.
    FencedBefore(BTreeSet<u16>, ManagementResponse),
    /// The answer itself is being acknowledged.
    FencedAfter,
}

/// ABORT TASK, waiting for its task to be quiet.
#[derive(Debug)]
struct PendingAbort {
    request: Request,
    key: Key,
}

/// Another session's function hits tasks of this one.
#[derive(Debug)]
struct ForOther {
    id: u64,
    tasks: u32,
    waiting: BTreeSet<Key>,
}

#[derive(Debug, Default)]
pub(super) struct Managements {
    last_id: u64,
    current: Option<Current>,
    queue: VecDeque<Request>,
    aborts: Vec<PendingAbort>,
    for_others: Vec<ForOther>,
}

impl Managements {
    /// Later commands must wait.
    pub(super) fn is_barrier(&self) -> bool {
        let stage = self.current.as_ref().map(|current| &current.stage);
        matches!(stage, Some(Stage::Quieting(_) | Stage::Executing | Stage::FencedBefore(..)))
    }

    pub(super) fn task_ended(&mut self, key: Key) {
        if let Some(Current { stage: Stage::Quieting(tasks), .. }) = &mut self.current {
            tasks.remove(&key);
        }
        for other in &mut self.for_others {
            other.waiting.remove(&key);
        }
    }

    /// Nobody waits for its answers, and it acknowledges nothing more.
    pub(super) fn connection_closed(&mut self, cid: u16) {
        if let Some(current) = &mut self.current {
            match &mut current.stage {
                Stage::FencedBefore(waiting, _) => {
                    waiting.remove(&cid);
                }
                Stage::FencedAfter if current.request.cid == cid => self.current = None,
                _ => {}
            }
        }
    }

    /// A function of this tag is being carried out.
    fn has_tag(&self, cid: u16, initiator_task_tag: u32) -> bool {
        let current = self.current.iter().map(|current| &current.request);
        let aborts = self.aborts.iter().map(|abort| &abort.request);
        current
            .chain(&self.queue)
            .chain(aborts)
            .any(|request| request.cid == cid && request.initiator_task_tag == initiator_task_tag)
    }
}

impl TargetSession {
    /// It is this request's turn.
    pub(super) fn manage(&mut self, waiting: Waiting) {
        let Arrival::Management {
            initiator_task_tag,
            function,
            lun,
            referenced_task_tag,
            ref_cmd_sn,
        } = waiting.request
        else {
            return;
        };
        let request = Request {
            cid: waiting.cid,
            initiator_task_tag,
            function,
            lun,
            cmd_sn: waiting.cmd_sn,
            immediate: waiting.immediate,
        };
        match function {
            ManagementFunction::ABORT_TASK => {
                self.abort_task(request, referenced_task_tag, ref_cmd_sn);
            }
            ManagementFunction::TASK_REASSIGN => {
                // Recovery of connections was not agreed to. RFC 7143 §7.2.2.
                self.answer(&request, ManagementResponse::REASSIGNMENT_NOT_SUPPORTED);
            }
            ManagementFunction::ABORT_TASK_SET
            | ManagementFunction::CLEAR_ACA
            | ManagementFunction::CLEAR_TASK_SET
            | ManagementFunction::LOGICAL_UNIT_RESET
            | ManagementFunction::TARGET_WARM_RESET
            | ManagementFunction::TARGET_COLD_RESET => {
                if is_target_reset(function) {
                    // RFC 7143 §4.2.3.3 b): what has not come counts as received.
                    self.window.plug_before(request.cmd_sn);
                    self.advance_window();
                }
                self.managements.queue.push_back(request);
            }
            _ => self.answer(&request, ManagementResponse::FUNCTION_NOT_SUPPORTED),
        }
    }

    /// RFC 7143 §11.6.1, the three cases of ABORT TASK.
    fn abort_task(&mut self, request: Request, tag: u32, ref_cmd_sn: SerialNumber) {
        let mut tagged = self.tasks.iter().filter(|(_, known)| known.initiator_task_tag == tag);
        let own = tagged.clone().find(|((cid, _), _)| *cid == request.cid);
        if let Some((key, known)) = own {
            let key = *key;
            if !is_same_unit(known.lun, request.lun) {
                return self.answer(&request, ManagementResponse::TASK_DOES_NOT_EXIST);
            }
            self.managements.aborts.push(PendingAbort { request, key });
            return self.abort(key, false);
        }
        // RFC 7143 §11.5.1: not of a task of another connection, not of task management.
        if tagged.next().is_some() || self.managements.has_tag(request.cid, tag) {
            return self.answer(&request, ManagementResponse::FUNCTION_REJECTED);
        }
        if ref_cmd_sn.before(request.cmd_sn) && self.window.may_come(ref_cmd_sn) {
            self.window.plug(ref_cmd_sn);
            self.advance_window();
            return self.answer(&request, ManagementResponse::FUNCTION_COMPLETE);
        }
        self.answer(&request, ManagementResponse::TASK_DOES_NOT_EXIST);
    }

    fn answer(&mut self, request: &Request, response: ManagementResponse) {
        if !request.immediate {
            self.window.end();
        }
        self.tell_window();
        let initiator_task_tag = request.initiator_task_tag;
        let done = ToConnection::ManagementDone { initiator_task_tag, response };
        self.tell(request.cid, done);
    }

    /// The executor has done its part.
    pub(super) fn managed(&mut self, id: u64, response: ManagementResponse) {
        let Some(current) = &mut self.managements.current else { return };
        if current.id != id || !matches!(current.stage, Stage::Executing) {
            return;
        }
        let waiting = match self.connections.len() {
            // On one connection the order of responses is that of the stream.
            0 | 1 => BTreeSet::new(),
            _ => self.connections.keys().copied().collect(),
        };
        current.stage = Stage::FencedBefore(BTreeSet::clone(&waiting), response);
        for cid in waiting {
            self.tell(cid, ToConnection::Fence { id });
        }
    }

    pub(super) fn fenced(&mut self, cid: u16, id: u64) {
        let Some(current) = &mut self.managements.current else { return };
        if current.id != id {
            return;
        }
        match &mut current.stage {
            Stage::FencedBefore(waiting, _) => {
                waiting.remove(&cid);
            }
            Stage::FencedAfter if current.request.cid == cid => {
                self.managements.current = None;
                self.release();
            }
            _ => {}
        }
    }

    /// Carries management as far as it goes now.
    pub(super) fn step_managements(&mut self) {
        self.step_aborts();
        while self.step_current() {}
        self.step_for_others();
    }

    fn step_aborts(&mut self) {
        for abort in core::mem::take(&mut self.managements.aborts) {
            if self.tasks.contains_key(&abort.key) {
                self.managements.aborts.push(abort);
            } else {
                self.answer(&abort.request, ManagementResponse::FUNCTION_COMPLETE);
            }
        }
    }

    /// One step of the function in hand; `false` if it has to wait.
    fn step_current(&mut self) -> bool {
        let Some(mut current) = self.managements.current.take() else {
            let Some(request) = self.managements.queue.pop_front() else { return false };
            self.managements.last_id += 1;
            let id = self.managements.last_id;
            self.managements.current = Some(Current { id, request, stage: Stage::Awaiting });
            return true;
        };
        let went_on = match &current.stage {
            Stage::Awaiting if self.awaits_commands(&current.request) => false,
            Stage::Awaiting => {
                let affected = self.affected(&current.request);
                for key in &affected {
                    self.abort(*key, true);
                }
                current.stage = Stage::Quieting(affected);
                true
            }
            Stage::Quieting(tasks) if tasks.is_empty() => {
                let (id, request) = (current.id, &current.request);
                let (function, lun) = (request.function, request.lun);
                self.output(Output::Manage { id, function, lun });
                current.stage = Stage::Executing;
                true
            }
            Stage::FencedBefore(waiting, response) if waiting.is_empty() => {
                self.answer(&current.request, *response);
                if !self.fence_answer(&current) {
                    self.release();
                    return true;
                }
                current.stage = Stage::FencedAfter;
                true
            }
            _ => false,
        };
        self.managements.current = Some(current);
        went_on
    }

    /// RFC 7143 §4.2.2.3.3 c): with fences negotiated, the answer is acknowledged as well before
    /// anything else is sent.
    fn fence_answer(&mut self, current: &Current) -> bool {
        let cid = current.request.cid;
        let wanted = self.holds_responses() && self.has_fences();
        if wanted && self.connections.contains_key(&cid) {
            self.tell(cid, ToConnection::Fence { id: current.id });
            return true;
        }
        false
    }

    fn release(&mut self) {
        let all: Vec<_> = self.connections.keys().copied().collect();
        for cid in all {
            self.tell(cid, ToConnection::Release);
        }
    }

    /// An immediate function that overtook commands it acts on. RFC 7143 §4.2.3.3 b).
    fn awaits_commands(&self, request: &Request) -> bool {
        let (expected, max) = (self.window.expected(), self.window.max());
        // A CmdSN past the window is none that the initiator could have reached.
        request.immediate && expected.before(request.cmd_sn) && !request.cmd_sn.after(max.next())
    }

    /// RFC 7143 §4.2.3.2, this session's part. Resets may hit commands with a higher CmdSN as well
    /// (§11.5.1), but the initiator could not know which: they come after the reset.
    fn affected(&self, request: &Request) -> BTreeSet<Key> {
        let before = |known: &Known| match known.immediate {
            true => !known.cmd_sn.after(request.cmd_sn),
            false => known.cmd_sn.before(request.cmd_sn),
        };
        let hit = |known: &Known| match request.function {
            ManagementFunction::ABORT_TASK_SET
            | ManagementFunction::CLEAR_TASK_SET
            | ManagementFunction::LOGICAL_UNIT_RESET => {
                is_same_unit(known.lun, request.lun) && before(known)
            }
            function => is_target_reset(function) && before(known),
        };
        self.tasks.iter().filter(|(_, known)| hit(known)).map(|(key, _)| *key).collect()
    }

    /// Another session's function: only what has begun here is hit, and its data is not waited
    /// for. RFC 7143 §4.2.3.3.
    pub(super) fn abort_for_other(&mut self, id: u64, lun: Option<Lun>) {
        let hit =
            |known: &Known| known.delivered && lun.is_none_or(|lun| is_same_unit(known.lun, lun));
        let waiting: BTreeSet<Key> =
            self.tasks.iter().filter(|(_, known)| hit(known)).map(|(key, _)| *key).collect();
        let tasks = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        for key in &waiting {
            self.abort(*key, false);
        }
        self.managements.for_others.push(ForOther { id, tasks, waiting });
    }

    fn step_for_others(&mut self) {
        for other in core::mem::take(&mut self.managements.for_others) {
            if other.waiting.is_empty() {
                self.output(Output::OthersAborted { id: other.id, tasks: other.tasks });
            } else {
                self.managements.for_others.push(other);
            }
        }
    }
}

fn is_target_reset(function: ManagementFunction) -> bool {
    matches!(
        function,
        ManagementFunction::TARGET_WARM_RESET | ManagementFunction::TARGET_COLD_RESET
    )
}

/// Both forms of a number mean the same unit.
fn is_same_unit(a: Lun, b: Lun) -> bool {
    a == b || (a.form() == b.form() && a.form() != LunForm::Other)
}
