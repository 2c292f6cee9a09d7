//! Task management: the tasks a function affects, its waits, and the time of its response.
//! RFC 7143 §4.2.3, §11.5, §11.6.
//!
//! Functions on several tasks are carried out one after the other. Each waits for the commands
//! before it, aborts its tasks and waits until they have ended, has the executor do the rest, waits
//! until the initiator has acknowledged all earlier responses on all connections, and then
//! responds.
//!
//! With TaskReporting=FastAbort, the end of a task does not include requested data: on the issuing
//! connection the initiator sends none after the function, and on the others it is informed by
//! Asynchronous Messages (§4.2.3.4).

use super::fences::FencedResponses;
use super::foreign_abort::ForeignAbort;
use super::machine::{KnownCommand, REQUESTS_KEPT_MAX, TargetSession, Waiting};
use super::queries::Query;
use super::{Arrival, DataDue, Output, ToConnection};
use crate::framing::TaskId;
use crate::pdu::{ManagementFunction, ManagementResponse};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use lunar_wire::{Lun, LunForm, SerialNumber};

/// A task management request to be answered.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Request {
    pub(super) cid: u16,
    pub(super) initiator_task_tag: u32,
    pub(super) function: ManagementFunction,
    pub(super) lun: Lun,
    pub(super) cmd_sn: SerialNumber,
    pub(super) immediate: bool,
}

#[derive(Debug)]
struct Current {
    id: u64,
    request: Request,
    stage: Stage,
    /// Connections that must report terminated tasks, and their units.
    to_report: BTreeSet<(u16, Lun)>,
}

#[derive(Debug)]
enum Stage {
    /// Not all commands with a lower CmdSN have arrived.
    Awaiting,
    /// These tasks are being aborted.
    Aborting(BTreeSet<TaskId>),
    /// The executor carries out the rest.
    Executing,
    /// Earlier responses are being acknowledged on these connections.
    FencedBefore(BTreeSet<u16>, ManagementResponse),
    /// The function's own response is being acknowledged.
    FencedAfter,
}

/// An ABORT TASK that waits for its task to end.
#[derive(Debug)]
struct PendingAbort {
    request: Request,
    task: TaskId,
}

#[derive(Debug, Default)]
pub(super) struct Managements {
    last_id: u64,
    current: Option<Current>,
    queue: VecDeque<Request>,
    aborts: Vec<PendingAbort>,
    pub(super) queries: Vec<Query>,
    pub(super) foreign_aborts: Vec<ForeignAbort>,
    pub(super) fenced: FencedResponses,
}

impl Managements {
    pub(super) fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Frees memory that many functions needed once and none needs now.
    pub(super) fn free_spare(&mut self) {
        if self.queue.is_empty() {
            self.queue.shrink_to(REQUESTS_KEPT_MAX);
        }
        if self.queries.is_empty() {
            self.queries.shrink_to(REQUESTS_KEPT_MAX);
        }
        self.fenced.free_spare();
    }

    /// Returns the capacity of each list of functions that wait or run.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [usize; 5] {
        let Self { queue, aborts, queries, foreign_aborts, fenced, .. } = self;
        let others = [aborts.capacity(), foreign_aborts.capacity(), fenced.capacity()];
        [queue.capacity(), queries.capacity(), others[0], others[1], others[2]]
    }

    /// True if no function is queued or running.
    pub(super) fn are_none(&self) -> bool {
        self.current.is_none()
            && self.queue.is_empty()
            && self.aborts.is_empty()
            && self.queries.is_empty()
            && self.foreign_aborts.is_empty()
            && self.fenced.are_none()
    }

    /// True while later commands must wait.
    pub(super) fn is_barrier(&self) -> bool {
        if self.foreign_aborts.iter().any(ForeignAbort::is_barrier) {
            return true;
        }
        let stage = self.current.as_ref().map(|current| &current.stage);
        matches!(stage, Some(Stage::Aborting(_) | Stage::Executing | Stage::FencedBefore(..)))
    }

    /// True while an immediate command for this unit must wait.
    pub(super) fn holds_immediate(&self, lun: Lun) -> bool {
        self.foreign_aborts.iter().any(|other| other.holds_immediate(lun))
    }

    /// Handles the end of a task; `true` if a fence ended with it.
    pub(super) fn task_ended(&mut self, task: TaskId) -> bool {
        if let Some(Current { stage: Stage::Aborting(tasks), .. }) = &mut self.current {
            tasks.remove(&task);
        }
        for other in &mut self.foreign_aborts {
            other.task_ended(task);
        }
        self.fenced.task_ended(task)
    }

    /// Handles the end of a connection, which expects no response and acknowledges nothing more;
    /// `true` if a fence ended with it.
    pub(super) fn connection_closed(&mut self, cid: u16) -> bool {
        let mut fence_ended = false;
        if let Some(current) = &mut self.current {
            match &mut current.stage {
                Stage::FencedBefore(waiting, _) => {
                    waiting.remove(&cid);
                }
                Stage::FencedAfter if current.request.cid == cid => {
                    self.current = None;
                    fence_ended = true;
                }
                _ => {}
            }
        }
        fence_ended |= self.fenced.connection_closed(cid);
        self.queries.retain(|query| query.lasts_without(cid));
        fence_ended
    }

    /// Discards functions of this connection that have not begun; returns how many of them occupied
    /// the window. They would wait forever if the commands before them never arrive, and so would
    /// those of every later connection.
    pub(super) fn discard(&mut self, cid: u16) -> usize {
        let waits = |current: &mut Current| {
            current.request.cid == cid && matches!(current.stage, Stage::Awaiting)
        };
        let current = self.current.take_if(waits).map(|current| current.request);
        let queued = core::mem::take(&mut self.queue);
        let (gone, stay): (Vec<_>, Vec<_>) =
            queued.into_iter().partition(|request| request.cid == cid);
        self.queue = stay.into();
        current.iter().chain(&gone).filter(|request| !request.immediate).count()
    }

    /// True if the response of a function holds other responses back.
    pub(super) fn management_is_fenced(&self) -> bool {
        let stage = self.current.as_ref().map(|current| &current.stage);
        matches!(stage, Some(Stage::FencedBefore(..) | Stage::FencedAfter))
    }

    /// True if responses are held back.
    fn is_fenced(&self) -> bool {
        self.management_is_fenced() || self.fenced.is_active()
    }

    /// True if a function with this tag is queued or running.
    pub(super) fn has_tag(&self, cid: u16, initiator_task_tag: u32) -> bool {
        let current = self.current.iter().map(|current| &current.request);
        let aborts = self.aborts.iter().map(|abort| &abort.request);
        let queries = self.queries.iter().map(Query::request);
        current
            .chain(&self.queue)
            .chain(aborts)
            .chain(queries)
            .any(|request| request.cid == cid && request.initiator_task_tag == initiator_task_tag)
    }
}

impl TargetSession {
    /// Carries out a request that the session delivers.
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
        let level = self.parameters.protocol_level;
        let info = function.info().filter(|info| info.level <= level);
        let Some(info) = info else {
            // RFC 7144 §6.3: not to be sent at this level.
            return self.answer(&request, ManagementResponse::FUNCTION_NOT_SUPPORTED);
        };
        if info.is_administration && !self.administers {
            // For SCSI this is FUNCTION REJECTED, like every response other than success.
            // RFC 7143 §11.6.1.
            return self.answer(&request, ManagementResponse::AUTHORIZATION_FAILED);
        }
        if self.refuses_resets && function.is_reset() {
            return self.answer(&request, ManagementResponse::FUNCTION_REJECTED);
        }
        match function {
            ManagementFunction::ABORT_TASK => {
                self.abort_task(request, referenced_task_tag, ref_cmd_sn);
            }
            ManagementFunction::TASK_REASSIGN => {
                // Connection recovery was not negotiated. RFC 7143 §7.2.2.
                self.answer(&request, ManagementResponse::REASSIGNMENT_NOT_SUPPORTED);
            }
            ManagementFunction::QUERY_TASK
            | ManagementFunction::QUERY_TASK_SET
            | ManagementFunction::QUERY_ASYNCHRONOUS_EVENT => {
                self.query(request, referenced_task_tag, ref_cmd_sn);
            }
            _ => {
                let of_all = function.is_of_all_units();
                if !of_all && !self.has_unit(lun) {
                    // Before any abort: a command for such a unit that still waits for its data is
                    // answered like every command for such a unit. RFC 7143 §11.6.1.
                    return self.answer(&request, ManagementResponse::LUN_DOES_NOT_EXIST);
                }
                if of_all {
                    // RFC 7143 §4.2.3.3 b): missing commands count as received. RFC 7144 does not
                    // say whether this holds for I_T NEXUS RESET, but the nexus is lost in any
                    // case.
                    self.window.plug_before(request.cmd_sn);
                    self.advance_window();
                }
                self.managements.queue.push_back(request);
            }
        }
    }

    /// Carries out ABORT TASK in the three cases of RFC 7143 §11.6.1.
    fn abort_task(&mut self, request: Request, tag: u32, ref_cmd_sn: SerialNumber) {
        let mut tagged = self.tasks.iter().filter(|(_, known)| known.initiator_task_tag == tag);
        let own = tagged.clone().find(|(_, known)| known.cid == Some(request.cid));
        if let Some((task, known)) = own {
            if !is_same_unit(known.lun, request.lun) {
                return self.answer(&request, ManagementResponse::TASK_DOES_NOT_EXIST);
            }
            self.managements.aborts.push(PendingAbort { request, task });
            return self.abort(task, DataDue::Discarded);
        }
        // RFC 7143 §11.5.1: not of a task of another connection, not of task management.
        if tagged.next().is_some() || self.managements.has_tag(request.cid, tag) {
            return self.answer(&request, ManagementResponse::FUNCTION_REJECTED);
        }
        if ref_cmd_sn.before(request.cmd_sn) && self.window.may_arrive(ref_cmd_sn) {
            self.window.plug(ref_cmd_sn);
            self.advance_window();
            return self.answer(&request, ManagementResponse::FUNCTION_COMPLETE);
        }
        self.answer(&request, ManagementResponse::TASK_DOES_NOT_EXIST);
    }

    fn answer(&mut self, request: &Request, response: ManagementResponse) {
        self.answer_with(request, response, [0; 3]);
    }

    pub(super) fn answer_with(
        &mut self,
        request: &Request,
        response: ManagementResponse,
        information: [u8; 3],
    ) {
        if !request.immediate {
            self.window.end();
        }
        self.send_window_to(request.cid);
        let initiator_task_tag = request.initiator_task_tag;
        let done = ToConnection::ManagementDone { initiator_task_tag, response, information };
        self.send(request.cid, done);
    }

    /// Continues a function after the executor has done its part.
    pub(super) fn managed(&mut self, id: u64, response: ManagementResponse, information: [u8; 3]) {
        if self.queried(id, response, information) {
            return;
        }
        let Some(current) = &mut self.managements.current else { return };
        if current.id != id || !matches!(current.stage, Stage::Executing) {
            return;
        }
        let to_report = core::mem::take(&mut current.to_report);
        let waiting = match self.connections.len() {
            // On one connection the stream keeps the order of responses.
            0 | 1 => BTreeSet::new(),
            _ => self.connections.keys().collect(),
        };
        current.stage = Stage::FencedBefore(BTreeSet::clone(&waiting), response);
        self.report_terminated(to_report);
        for cid in waiting {
            self.send(cid, ToConnection::Fence { id });
        }
    }

    pub(super) fn fenced(&mut self, cid: u16, id: u64) {
        if self.response_fenced(cid, id) {
            return;
        }
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

    /// Advances all functions as far as possible now.
    pub(super) fn step_managements(&mut self) {
        if self.managements.are_none() {
            return;
        }
        self.step_aborts();
        self.step_queries();
        self.step_fenced();
        while self.step_current() {}
        self.step_foreign_aborts();
        // A fenced response may have waited for the fence of a function.
        self.step_fenced();
    }

    fn step_aborts(&mut self) {
        for abort in core::mem::take(&mut self.managements.aborts) {
            if self.tasks.contains_key(abort.task) {
                self.managements.aborts.push(abort);
            } else {
                self.answer(&abort.request, ManagementResponse::FUNCTION_COMPLETE);
            }
        }
    }

    /// Takes one step of the current function; `false` if it has to wait.
    fn step_current(&mut self) -> bool {
        let Some(mut current) = self.managements.current.take() else {
            let Some(request) = self.managements.queue.pop_front() else { return false };
            let (id, stage) = (self.managements.new_id(), Stage::Awaiting);
            let to_report = BTreeSet::new();
            self.managements.current = Some(Current { id, request, stage, to_report });
            return true;
        };
        let advanced = match &current.stage {
            Stage::Awaiting if self.awaits_commands(&current.request) => false,
            Stage::Awaiting => {
                let affected = self.affected(&current.request);
                current.to_report = self.abort_affected(&affected, current.request.cid);
                current.stage = Stage::Aborting(affected);
                true
            }
            Stage::Aborting(tasks) if tasks.is_empty() => {
                let (id, request) = (current.id, &current.request);
                let (function, lun) = (request.function, request.lun);
                self.output(Output::Manage { id, function, lun });
                current.stage = Stage::Executing;
                true
            }
            // One fence at a time.
            Stage::FencedBefore(..) if self.managements.fenced.is_active() => false,
            Stage::FencedBefore(waiting, response) if waiting.is_empty() => {
                self.answer(&current.request, *response);
                if ends_session(current.request.function) {
                    self.end();
                    return false;
                }
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
        advanced
    }

    /// Begins the fence after a response. RFC 7143 §4.2.2.3.3 c): if fences are negotiated, the
    /// response must be acknowledged as well before anything else is sent.
    fn fence_answer(&mut self, current: &Current) -> bool {
        let cid = current.request.cid;
        let wanted = self.holds_responses() && self.has_fences();
        if wanted && self.connections.contains_key(cid) {
            self.send(cid, ToConnection::Fence { id: current.id });
            return true;
        }
        false
    }

    /// Aborts the tasks affected by a function of this session. With FastAbort: returns the
    /// connections that must report terminated tasks, and the units.
    fn abort_affected(&mut self, affected: &BTreeSet<TaskId>, issuer: u16) -> BTreeSet<(u16, Lun)> {
        let fast = self.has_fast_abort();
        let mut to_report = BTreeSet::new();
        for task in affected {
            let Some(known) = self.tasks.get(*task) else { continue };
            let data = match fast {
                false => DataDue::Awaited,
                true if known.cid == Some(issuer) => DataDue::Discarded,
                true => {
                    to_report.extend(known.cid.map(|cid| (cid, known.lun)));
                    DataDue::Retired
                }
            };
            self.abort(*task, data);
        }
        to_report
    }

    pub(super) fn report_terminated(&mut self, to_report: BTreeSet<(u16, Lun)>) {
        for (cid, lun) in to_report {
            self.send(cid, ToConnection::TasksTerminated { lun });
        }
    }

    /// Releases held responses, unless another fence is active.
    pub(super) fn release(&mut self) {
        if self.managements.is_fenced() {
            return;
        }
        let all: Vec<_> = self.connections.keys().collect();
        for cid in all {
            self.send(cid, ToConnection::Release);
        }
    }

    /// True for an immediate function that overtook commands it acts on. RFC 7143 §4.2.3.3 b).
    pub(super) fn awaits_commands(&self, request: &Request) -> bool {
        let (expected, max) = (self.window.expected(), self.window.max());
        // The initiator cannot have reached a CmdSN beyond the window.
        request.immediate && expected.before(request.cmd_sn) && !request.cmd_sn.after(max.next())
    }

    /// Returns the affected tasks of this session. RFC 7143 §4.2.3.2. Resets may affect commands
    /// with a higher CmdSN as well (§11.5.1), but the initiator could not know which: they are
    /// executed after the reset.
    fn affected(&self, request: &Request) -> BTreeSet<TaskId> {
        let before = |known: &KnownCommand| match known.immediate {
            true => !known.cmd_sn.after(request.cmd_sn),
            false => known.cmd_sn.before(request.cmd_sn),
        };
        let is_affected = |known: &KnownCommand| match request.function {
            ManagementFunction::ABORT_TASK_SET
            | ManagementFunction::CLEAR_TASK_SET
            | ManagementFunction::LOGICAL_UNIT_RESET => {
                is_same_unit(known.lun, request.lun) && before(known)
            }
            function => function.is_of_all_units() && before(known),
        };
        self.tasks.iter().filter(|(_, known)| is_affected(known)).map(|(task, _)| task).collect()
    }
}

/// True if nothing may follow the function's response. RFC 7143 §11.5.1, RFC 7144 §6.3.
fn ends_session(function: ManagementFunction) -> bool {
    matches!(function, ManagementFunction::TARGET_COLD_RESET | ManagementFunction::I_T_NEXUS_RESET)
}

/// True if both LUNs, in either format, mean the same unit.
pub(super) fn is_same_unit(a: Lun, b: Lun) -> bool {
    a == b || (a.form() == b.form() && a.form() != LunForm::Other)
}
