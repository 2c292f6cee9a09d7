//! SCSI commands with their data: from the header through the executor to the response.
//! RFC 7143 §11.3, §11.4, §11.7, §11.8.

use super::full_feature::{FullFeature, Receiving, Refusal};
use super::limits::seconds;
use super::pieces::{end_pieces, fill_open_pdu};
use super::response::{self, SendRules};
use super::task::{Entry, Phase};
use super::transfer::{PendingSegment, Piece, TransferRules};
use super::{HeaderCdb, Outcome, Output, Outputs, Task};
use crate::framing::ahs::CommandSegments;
use crate::framing::{DataDestination, Header, Pdu, SegmentDigest, TaskId};
use crate::pdu::{
    CommandFlags, DataOut, FinalFlag, FirstByte, Opcode, ReadyToTransfer, RejectReason, ScsiCommand,
};
use crate::session::target::{DataDue, ToConnection, ToSession};
use crate::text::TaskReporting;
use alloc::boxed::Box;
use lunar_wire::{SerialNumber, Time, U24};

impl FullFeature {
    /// Checks a command's header and creates the task; it starts when the session delivers it.
    pub(super) fn check_command(&mut self, header: &Header) -> Result<Receiving, Refusal> {
        let pdu = ScsiCommand::decode(&header.bhs);
        if !pdu.flags.has(CommandFlags::WRITE) && !pdu.flags.has(CommandFlags::FINAL) {
            return Err(Refusal::Format("a command with neither W nor F"));
        }
        let Ok(segments) = CommandSegments::decode(&header.ahs) else {
            return Err(Refusal::Format("invalid additional header segments"));
        };
        match self.tasks.with_tag(pdu.initiator_task_tag) {
            // A retry of a command in progress. RFC 7143 §7.2.1.
            Some(entry) if entry.is_retried_by(&pdu) => return Err(Refusal::Ignore),
            Some(_) => return Err(Refusal::Reject(RejectReason::TASK_IN_PROGRESS)),
            None => self.check_tag_of_no_task(pdu.initiator_task_tag)?,
        }
        self.check_cmd_sn(header, None)?;
        let bytes = pdu.data_segment_length.value();
        let (rules, is_level_2) = (self.transfer_rules(), self.is_level_2());
        let entry = self.tasks.begin(&pdu, |id| task(id, &pdu, &segments, is_level_2));
        let (id, transfer) = (entry.task.id, &mut entry.transfer);
        transfer.begin(rules, &pdu);
        if bytes > 0 || !transfer.is_settled() {
            self.data_time.start(&mut transfer.clock, self.now);
        }
        let offset = transfer.immediate_offset(bytes).filter(|_| bytes > 0);
        transfer.has_buffer = offset.is_some();
        let buffer_bytes = transfer.buffer_bytes();
        let destination = match offset {
            Some(offset_bytes) => DataDestination::Task { task: id, offset_bytes, buffer_bytes },
            None => DataDestination::Discard,
        };
        Ok(Receiving::Command(id, destination))
    }

    fn transfer_rules(&self) -> TransferRules {
        TransferRules {
            first_burst_bytes: self.session.first_burst_bytes,
            max_burst_bytes: self.session.max_burst_bytes,
            max_outstanding_r2t: self.session.max_outstanding_r2t,
            initial_r2t: self.session.initial_r2t,
            immediate_data: self.session.immediate_data,
            data_out_bytes_max: self.limits.data_out_bytes_max,
        }
    }

    /// Checks the header of a Data-Out. Data for an unknown task is discarded without a response:
    /// it was sent before the initiator learned of the end of the task, or belongs to a command
    /// that was ignored.
    pub(super) fn check_data_out(
        &mut self,
        header: &Header,
        out: &mut Outputs,
    ) -> Result<Receiving, Refusal> {
        let pdu = DataOut::decode(&header.bhs);
        if self.terminated_tags.take_data(pdu.target_transfer_tag, pdu.flags.has(FinalFlag::FINAL))
        {
            return Err(Refusal::Ignore);
        }
        let Some(entry) = self.tasks.with_tag_mut(pdu.initiator_task_tag) else {
            return Err(Refusal::Ignore);
        };
        let lun_ok = pdu.lun == entry.task.lun;
        let (verdict, segment) = entry.transfer.check(&pdu, lun_ok);
        let wanted = matches!(entry.phase, Phase::Waiting | Phase::Started);
        let task = entry.task.id;
        let wanted = wanted && pdu.data_segment_length.value() > 0;
        let destination = match verdict.offset_bytes.filter(|_| wanted) {
            Some(offset_bytes) if entry.transfer.is_streaming() => {
                DataDestination::Stream { task, offset_bytes }
            }
            Some(offset_bytes) => {
                entry.transfer.has_buffer = true;
                let buffer_bytes = entry.transfer.buffer_bytes();
                DataDestination::Task { task, offset_bytes, buffer_bytes }
            }
            None => DataDestination::Discard,
        };
        if let Some(reason) = verdict.reject {
            self.reject(header, reason, out);
        }
        Ok(Receiving::DataOut { task, segment, destination })
    }

    pub(super) fn data_arrived(
        &mut self,
        task: TaskId,
        segment: PendingSegment,
        digest: SegmentDigest,
        out: &mut Outputs,
    ) {
        if let Some(entry) = self.tasks.get_mut(task) {
            let arrived = entry.transfer.arrived(segment, digest);
            if entry.transfer.is_streaming()
                && entry.phase == Phase::Started
                && let Some(Piece { offset_bytes, bytes }) = arrived
            {
                out.push_back(Output::DataOut { task, offset_bytes, bytes, digest });
            }
            if entry.transfer.is_settled() {
                self.data_time.stop(&mut entry.transfer.clock, self.now);
            }
            self.advance(task, out);
        }
    }

    /// Starts a task when the session delivers its command; returns it for the executor.
    #[inline]
    pub(super) fn start_task(&mut self, task: TaskId, out: &mut Outputs) -> Option<&Task> {
        let too_many = self.tasks.len() > self.limits.tasks_max.max(1);
        let entry = self.tasks.get_mut(task)?;
        if entry.phase != Phase::Waiting {
            return None;
        }
        self.undecided -= usize::from(core::mem::take(&mut entry.undecided));
        if too_many || entry.transfer.fault().is_some() {
            self.end_unstarted(task, too_many, out);
            return None;
        }
        entry.task.has_all_data = entry.transfer.has_all_data();
        entry.phase = if entry.task.has_all_data { Phase::Running } else { Phase::Started };
        self.tasks.get(task).map(|entry| &entry.task)
    }

    /// Ends a task that the executor never receives: there are `too_many`, or its transfer failed.
    #[cold]
    fn end_unstarted(&mut self, task: TaskId, too_many: bool, out: &mut Outputs) {
        if let Some(entry) = self.tasks.get_mut(task) {
            entry.outcome = too_many.then(|| Box::new(response::task_set_full()));
            entry.phase = Phase::Finished;
        }
        self.free_buffer(task, out);
        self.advance(task, out);
    }

    pub(super) fn on_wants(
        &mut self,
        task: TaskId,
        offset_bytes: u32,
        bytes: u32,
        out: &mut Outputs,
    ) {
        let Some(entry) = self.tasks.get_mut(task) else { return };
        match entry.phase {
            Phase::Started => {
                entry.transfer.want(offset_bytes, bytes);
                self.advance(task, out);
            }
            Phase::Running if !entry.transfer.is_streaming() => out.push_back(Output::Run(task)),
            _ => {}
        }
    }

    /// Hands the data-out of a task to its executor as it arrives.
    pub(super) fn on_stream(&mut self, task: TaskId, out: &mut Outputs) {
        let Some(entry) = self.tasks.get_mut(task) else { return };
        if !matches!(entry.phase, Phase::Started | Phase::Running) {
            return;
        }
        match entry.transfer.stream() {
            Ok(0) => {}
            Ok(bytes) => {
                let digest = entry.transfer.buffer_digest;
                out.push_back(Output::DataOut { task, offset_bytes: 0, bytes, digest });
            }
            Err(fault) => {
                entry.transfer.fail(fault);
                self.fail_task(task, out);
            }
        }
    }

    /// Ends a task. `ask` gives a message to the session at once, if it has a single answer.
    pub(super) fn on_done(
        &mut self,
        task: TaskId,
        mut outcome: Outcome,
        out: &mut Outputs,
        ask: impl FnOnce(&ToSession) -> Option<ToConnection>,
    ) {
        let Some(entry) = self.tasks.get_mut(task) else { return };
        match entry.phase {
            Phase::Started | Phase::Running => {
                entry.phase = Phase::Finished;
                if entry.transfer.pieces.is_some() {
                    end_pieces(&mut entry.transfer, &mut outcome, out);
                }
                if !outcome.fenced && entry.transfer.is_over() && self.held.is_none() {
                    // The common case: skips the checks for anything that delays a response.
                    return self.send_response(task, outcome, out, ask);
                }
                entry.outcome = Some(Box::new(outcome));
            }
            Phase::Aborting { drain_until, .. } => {
                entry.phase = Phase::Aborting { executing: false, drain_until };
            }
            // `Waiting`: the buffer was freed, nothing was executed. Otherwise the task ended by
            // itself before the executor received the fault.
            Phase::Waiting | Phase::Failing | Phase::Finished => return,
        }
        self.advance(task, out);
    }

    pub(super) fn on_failed(&mut self, task: TaskId, outcome: Outcome, out: &mut Outputs) {
        if let Some(entry) = self.tasks.get_mut(task)
            && entry.phase == Phase::Failing
        {
            entry.outcome = Some(Box::new(outcome));
            entry.phase = Phase::Finished;
            return self.advance(task, out);
        }
        // The task was aborted meanwhile.
        self.on_done(task, outcome, out, |_| None);
    }

    /// Requests the sense data of a fault from the executor, because their format depends on the
    /// unit.
    pub(super) fn fail_task(&mut self, task: TaskId, out: &mut Outputs) {
        let Some(entry) = self.tasks.get_mut(task) else { return };
        let Some(fault) = entry.transfer.fault() else { return };
        entry.phase = Phase::Failing;
        entry.fault_reported = true;
        fill_open_pdu(&mut entry.transfer, out);
        out.push_back(Output::Fail { task, lun: entry.task.lun, fault });
    }

    /// Advances a task as far as possible now.
    fn advance(&mut self, task: TaskId, out: &mut Outputs) {
        let Some(entry) = self.tasks.get_mut(task) else { return };
        match entry.phase {
            Phase::Started if entry.transfer.fault().is_some() => self.fail_task(task, out),
            Phase::Started if entry.transfer.is_complete() => {
                entry.phase = Phase::Running;
                out.push_back(Output::Run(task));
            }
            Phase::Started => self.request_data(task, out),
            Phase::Finished if entry.transfer.is_settled() => {
                if entry.transfer.fault().is_some() && !entry.fault_reported {
                    return self.fail_task(task, out);
                }
                self.end_task(task, out);
            }
            Phase::Aborting { executing: false, drain_until }
                if drain_until.is_none() || entry.transfer.is_settled() =>
            {
                self.remove_task(task, out);
            }
            _ => {}
        }
    }

    /// Sends R2Ts up to the number that may be open.
    fn request_data(&mut self, task: TaskId, out: &mut Outputs) {
        if self.is_closing() {
            return;
        }
        let Some(entry) = self.tasks.get_mut(task) else { return };
        while let Some(piece) = entry.transfer.next_piece() {
            let tag = self.numbering.transfer_tag();
            let r2t_sn = entry.transfer.take_data_sn();
            entry.transfer.asked(piece, tag, r2t_sn);
            self.data_time.start(&mut entry.transfer.clock, self.now);
            let mut bhs = ready_to_transfer(entry, piece, tag, r2t_sn).encode();
            self.numbering.stamp_next_status(&mut bhs);
            let pdu = Pdu::new(bhs);
            if let Some(store) = &mut self.resend {
                store.keep(Some(task), &pdu);
            }
            out.push_back(Output::Send(pdu));
        }
    }

    /// Sends the response of a finished task, unless a fence holds it back.
    pub(super) fn end_task(&mut self, task: TaskId, out: &mut Outputs) {
        let fences = self.session.task_reporting != TaskReporting::Rfc3720;
        if let Some(entry) = self.tasks.get_mut(task)
            && entry.outcome.as_ref().is_some_and(|outcome| outcome.fenced && fences)
        {
            if !core::mem::replace(&mut entry.fence_requested, true) {
                out.push_back(Output::ToSession(ToSession::FenceResponse(task)));
            }
            return;
        }
        if let Some(held) = &mut self.held {
            if !held.contains(&task) {
                held.push(task);
            }
            return;
        }
        self.respond(task, out);
    }

    /// Sends the response of a task that no fence holds back any more.
    pub(super) fn respond(&mut self, task: TaskId, out: &mut Outputs) {
        let is_closing = self.is_closing();
        let Some(entry) = self.tasks.get_mut(task) else { return };
        if entry.phase != Phase::Finished || is_closing {
            return; // aborted meanwhile, or it never can be sent
        }
        let outcome = entry.outcome.take().map_or_else(Outcome::default, |outcome| *outcome);
        self.send_response(task, outcome, out, |_| None);
    }

    #[inline]
    fn send_response(
        &mut self,
        task: TaskId,
        outcome: Outcome,
        out: &mut Outputs,
        ask: impl FnOnce(&ToSession) -> Option<ToConnection>,
    ) {
        // The session first, so that the response carries the window that the end of the task
        // opened.
        let ended = ToSession::TaskEnded(task);
        match if out.is_empty() { ask(&ended) } else { None } {
            Some(ToConnection::Window { exp_cmd_sn, max_cmd_sn }) => {
                self.numbering.set_window(exp_cmd_sn, max_cmd_sn);
            }
            Some(answer) => self.on_session(self.now, answer, out),
            None => out.push_back(Output::ToSession(ended)),
        }
        let rules = self.send_rules();
        let Some(entry) = self.tasks.get_mut(task) else { return };
        let resend = &mut self.resend;
        response::respond(entry, outcome, rules, &mut self.numbering, |pdu| {
            if let Some(store) = resend {
                store.keep(Some(task), &pdu);
            }
            out.push_back(Output::Send(pdu));
        });
        self.tasks.remove(task);
    }

    pub(super) fn send_rules(&self) -> SendRules {
        SendRules {
            segment_bytes_max: self.parameters.send_data_segment_bytes_max,
            burst_bytes_max: self.session.max_burst_bytes,
            qualifies: self.session.protocol_level >= 2,
        }
    }

    /// Aborts a task on behalf of the session.
    pub(super) fn abort_for_session(
        &mut self,
        now: Time,
        task: TaskId,
        data: DataDue,
        out: &mut Outputs,
    ) {
        if data == DataDue::Retired
            && let Some(entry) = self.tasks.get_mut(task)
        {
            for tag in entry.transfer.open_tags() {
                self.terminated_tags.add(entry.task.lun, tag);
            }
        }
        let awaited = data == DataDue::Awaited;
        let until = awaited.then(|| now.after(seconds(self.limits.quiesce_seconds)));
        self.abort_task(task, until, out);
    }

    /// Aborts a task without a response. Waits until `drain_until` for data it requested.
    pub(super) fn abort_task(
        &mut self,
        task: TaskId,
        drain_until: Option<Time>,
        out: &mut Outputs,
    ) {
        let Some(entry) = self.tasks.get_mut(task) else { return };
        let executing = match entry.phase {
            Phase::Started | Phase::Running => {
                fill_open_pdu(&mut entry.transfer, out);
                out.push_back(Output::Abort(task));
                true
            }
            Phase::Failing => true,
            Phase::Waiting | Phase::Finished => false,
            Phase::Aborting { executing, drain_until: earlier } => {
                // A second abort that cannot wait overrides an earlier one that could.
                let drain_until = earlier.and(drain_until);
                entry.phase = Phase::Aborting { executing, drain_until };
                return self.advance(task, out);
            }
        };
        let was_waiting = entry.phase == Phase::Waiting;
        self.draining |= drain_until.is_some();
        entry.phase = Phase::Aborting { executing, drain_until };
        if was_waiting {
            // The task will never be delivered.
            self.undecided -= usize::from(core::mem::take(&mut entry.undecided));
            self.free_buffer(task, out);
        }
        self.advance(task, out);
    }

    /// Ends the wait for the data of an aborted task.
    pub(super) fn stop_draining(&mut self, task: TaskId, out: &mut Outputs) {
        if let Some(entry) = self.tasks.get_mut(task)
            && let Phase::Aborting { executing, .. } = entry.phase
        {
            entry.phase = Phase::Aborting { executing, drain_until: None };
            self.advance(task, out);
        }
    }

    /// Removes a command that does not count: ignored by the session, or damaged.
    pub(super) fn forget_task(&mut self, task: TaskId, out: &mut Outputs) {
        self.free_buffer(task, out);
        self.tasks.remove(task);
    }

    fn remove_task(&mut self, task: TaskId, out: &mut Outputs) {
        if self.tasks.remove(task) {
            if let Some(store) = &mut self.resend {
                store.forget(task);
            }
            if let Some(held) = &mut self.held {
                held.retain(|held| *held != task);
            }
            out.push_back(Output::ToSession(ToSession::TaskEnded(task)));
            self.check_closed(out);
        }
    }

    /// Frees the buffer that the driver may hold for a task that the executor never received.
    fn free_buffer(&mut self, task: TaskId, out: &mut Outputs) {
        if let Some(entry) = self.tasks.get_mut(task)
            && core::mem::take(&mut entry.transfer.has_buffer)
        {
            out.push_back(Output::Abort(task));
        }
    }
}

/// The command of a new task.
#[inline(always)]
fn task(id: TaskId, pdu: &ScsiCommand, segments: &CommandSegments<'_>, is_level_2: bool) -> Task {
    Task {
        id,
        lun: pdu.lun,
        cdb: HeaderCdb::new(pdu.cdb, segments.extended_cdb.unwrap_or_default()),
        attribute: pdu.flags.attribute(),
        priority: if is_level_2 { pdu.priority >> 4 } else { 0 },
        read: pdu.flags.has(CommandFlags::READ),
        write: pdu.flags.has(CommandFlags::WRITE),
        expected_bytes: pdu.expected_data_transfer_length,
        expected_read_bytes: segments.expected_read_bytes,
        has_all_data: false,
    }
}

fn ready_to_transfer(entry: &Entry, piece: Piece, tag: u32, r2t_sn: u32) -> ReadyToTransfer {
    ReadyToTransfer {
        first: FirstByte::plain(Opcode::READY_TO_TRANSFER),
        flags: FinalFlag::FINAL,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        lun: entry.task.lun,
        initiator_task_tag: entry.transfer.initiator_task_tag,
        target_transfer_tag: tag,
        stat_sn: SerialNumber(0),
        exp_cmd_sn: SerialNumber(0),
        max_cmd_sn: SerialNumber(0),
        r2t_sn,
        buffer_offset_bytes: piece.offset_bytes,
        desired_length_bytes: piece.bytes,
    }
}
