//! QUERY TASK, QUERY TASK SET and QUERY ASYNCHRONOUS EVENT: functions that change nothing.
//! RFC 7144 §6.3, §6.4.

use super::Output;
use super::machine::TargetSession;
use super::management::{Request, is_same_unit};
use crate::pdu::{ManagementFunction, ManagementResponse};
use lunar_wire::SerialNumber;

/// A query in progress.
#[derive(Debug)]
pub(super) struct Query {
    id: u64,
    request: Request,
    referenced_task_tag: u32,
    ref_cmd_sn: SerialNumber,
    /// True once the executor has confirmed that the unit exists; the query waits for commands with
    /// a lower CmdSN.
    awaits_commands: bool,
}

impl Query {
    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    /// True if the query must stay although this connection has ended: the executor's answer is
    /// due.
    pub(super) fn lasts_without(&self, cid: u16) -> bool {
        self.request.cid != cid || !self.awaits_commands
    }
}

impl TargetSession {
    /// Begins a query: the executor checks whether the unit exists, and returns its pending events.
    pub(super) fn query(
        &mut self,
        request: Request,
        referenced_task_tag: u32,
        ref_cmd_sn: SerialNumber,
    ) {
        let of_management = request.initiator_task_tag == referenced_task_tag
            || self.managements.has_tag(request.cid, referenced_task_tag);
        if request.function == ManagementFunction::QUERY_TASK && of_management {
            // RFC 7144 §6.3: "a QUERY TASK function MUST NOT be executed on a Task Management
            // request".
            return self.answer_with(&request, ManagementResponse::FUNCTION_REJECTED, [0; 3]);
        }
        let (id, function, lun) = (self.managements.new_id(), request.function, request.lun);
        self.output(Output::Manage { id, function, lun });
        let awaits_commands = false;
        self.managements.queries.push(Query {
            id,
            request,
            referenced_task_tag,
            ref_cmd_sn,
            awaits_commands,
        });
    }

    /// Handles the answer of the executor. `false` if it does not belong to a query.
    pub(super) fn queried(
        &mut self,
        id: u64,
        response: ManagementResponse,
        information: [u8; 3],
    ) -> bool {
        let queries = &mut self.managements.queries;
        let Some(at) = queries.iter().position(|query| query.id == id) else { return false };
        let mut query = queries.remove(at);
        let function = query.request.function;
        let is_there = response == ManagementResponse::FUNCTION_COMPLETE;
        match function {
            ManagementFunction::QUERY_TASK if is_there => {
                let response = self.query_task(&query);
                self.answer_with(&query.request, response, [0; 3]);
            }
            ManagementFunction::QUERY_TASK_SET if is_there => {
                query.awaits_commands = true;
                self.managements.queries.push(query);
            }
            _ => self.answer_with(&query.request, response, information),
        }
        true
    }

    /// Answers QUERY TASK. RFC 7144 §6.4.2: "If the specified task is in the task set, then …
    /// Function succeeded"; a task is in the set as long as it could have an effect. The number of
    /// a command that has not arrived counts as received, so that the answer stays true
    /// (RFC 7144 §6.3.3, RFC 7143 §11.6.1 b).
    fn query_task(&mut self, query: &Query) -> ManagementResponse {
        let Query { request, referenced_task_tag: tag, ref_cmd_sn, .. } = query;
        let mut tagged = self.tasks.iter().filter(|(_, known)| known.initiator_task_tag == *tag);
        let own = tagged.clone().find(|(_, known)| known.cid == Some(request.cid));
        if let Some((_, known)) = own {
            return if is_same_unit(known.lun, request.lun) {
                ManagementResponse::FUNCTION_SUCCEEDED
            } else {
                ManagementResponse::FUNCTION_COMPLETE
            };
        }
        if tagged.next().is_some() {
            // Allegiant to another, existing connection: RFC 7144 §6.3.
            return ManagementResponse::FUNCTION_REJECTED;
        }
        if ref_cmd_sn.before(request.cmd_sn) && self.window.may_arrive(*ref_cmd_sn) {
            self.window.plug(*ref_cmd_sn);
            self.advance_window();
        }
        ManagementResponse::FUNCTION_COMPLETE
    }

    /// Answers QUERY TASK SET if possible: a late command of lower CmdSN would be in the task set
    /// by now if it had kept its order.
    pub(super) fn step_queries(&mut self) {
        for query in core::mem::take(&mut self.managements.queries) {
            let lun = query.request.lun;
            let present = || self.tasks.values().any(|known| is_same_unit(known.lun, lun));
            let response = match query.awaits_commands {
                true if present() => ManagementResponse::FUNCTION_SUCCEEDED,
                true if !self.awaits_commands(&query.request) => {
                    ManagementResponse::FUNCTION_COMPLETE
                }
                _ => {
                    self.managements.queries.push(query);
                    continue;
                }
            };
            self.answer_with(&query.request, response, [0; 3]);
        }
    }
}
