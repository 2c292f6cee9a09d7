//! Data-in that is sent before its task ends. RFC 7143 §11.7.
//!
//! Each piece ends a sequence (F bit), so DataPDUInOrder holds within every sequence, and
//! DataSequenceInOrder alone decides whether pieces have to be in order (RFC 7143 §13.18, §13.19).
//!
//! Pieces are no responses: a response fence (RFC 7143 §4.2.2.3.3) orders SCSI Responses, Task
//! Management Responses and Data-In with a status. A piece carries none and consumes no StatSN, so
//! it is sent while the response of its own task or of others is held back.

use super::data_time::NEVER;
use super::full_feature::FullFeature;
use super::limits::seconds;
use super::response::{self, Bounds, cut_to};
use super::task::{Entry, Phase};
use super::transfer::{Transfer, TransferFault};
use super::{Outcome, Output, Outputs};
use crate::connection::coverage::Coverage;
use crate::connection::zeroes::zeroes;
use crate::framing::{Pdu, TaskId};
use bytes::Bytes;
use lunar_wire::Time;

/// Data-in of one task that was sent before its end.
#[derive(Debug, Default)]
pub(super) struct DataInPieces {
    /// The bytes sent or announced.
    sent: Coverage,
    /// End of the piece that reaches furthest, including data that was not expected and not sent.
    end_bytes: u64,
    /// Number of Data-In PDUs.
    pdus: u32,
    /// The range whose data is not complete.
    open: Option<OpenRange>,
    /// True if data was announced before it was available.
    early: bool,
}

/// A range that was announced and whose data is not complete.
#[derive(Debug)]
struct OpenRange {
    /// Position of the next byte.
    at_bytes: u64,
    /// End of the range; data behind `sent_end_bytes` is not sent.
    end_bytes: u64,
    /// End of the part of the range that was expected.
    sent_end_bytes: u64,
    /// Number of bytes that the last PDU announced and that have not arrived.
    missing_bytes: usize,
    /// True if the whole range is one PDU.
    is_one_pdu: bool,
    bounds: Bounds,
    /// Time by which the next part has to arrive.
    until: Time,
}

/// Summary of the data-in that was sent before the end of a task.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SentDataIn {
    /// Position of the data that is not sent yet.
    pub(super) offset_bytes: u32,
    /// Number of bytes given by the executor, including those that were not sent.
    pub(super) given_bytes: usize,
    /// Number of Data-In PDUs.
    pub(super) pdus: u32,
    /// True if data was announced before it was available: the status has its own PDU.
    pub(super) early: bool,
}

/// A mistake of the executor: the piece repeats data, is out of order, or leaves too many gaps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Misplaced;

impl DataInPieces {
    /// Adds a piece of `bytes` bytes to data-in of which `expected_bytes` may be sent; returns how
    /// many bytes at its start are to be sent.
    fn add(
        &mut self,
        offset_bytes: u32,
        bytes: usize,
        expected_bytes: u32,
        in_order: bool,
    ) -> Result<u32, Misplaced> {
        let offset = u64::from(offset_bytes);
        if self.open.is_some() || in_order && offset != self.end_bytes {
            return Err(Misplaced);
        }
        let end = offset.saturating_add(bytes as u64);
        let room_bytes = expected_bytes.saturating_sub(offset_bytes);
        let sent_bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(room_bytes);
        if sent_bytes > 0 {
            let added = self.sent.add(offset_bytes, sent_bytes, expected_bytes, false);
            added.map_err(|_| Misplaced)?;
        }
        self.end_bytes = self.end_bytes.max(end);
        Ok(sent_bytes)
    }

    /// True if a task with these pieces may end with this outcome: data with gaps requires an
    /// error.
    fn may_end(&self, outcome: &Outcome) -> bool {
        if self.open.is_some() {
            return !response::reports_no_error(outcome.status);
        }
        !self.sent.has_gap()
            || outcome.data_in.is_empty() && !response::reports_no_error(outcome.status)
    }

    /// Returns the summary for the end of the task.
    pub(super) fn sent(&self) -> SentDataIn {
        // Beyond the expected length, pieces count up to the one that reaches furthest.
        let given = match self.sent.has_gap() {
            true => self.sent.total().into(),
            false => self.end_bytes,
        };
        SentDataIn {
            offset_bytes: self.sent.contiguous(),
            given_bytes: usize::try_from(given).unwrap_or(usize::MAX),
            pdus: self.pdus,
            early: self.early,
        }
    }

    /// Time by which the next part of an open range has to arrive.
    fn waits_until(&self) -> Option<Time> {
        self.open.as_ref().filter(|open| open.missing_bytes > 0).map(|open| open.until)
    }

    /// Memory of the pieces.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.sent.memory_bytes()
    }
}

impl FullFeature {
    /// Sends a piece of data-in.
    pub(super) fn on_data_in(
        &mut self,
        task: TaskId,
        offset_bytes: u32,
        data: Bytes,
        digest: Option<u32>,
        out: &mut Outputs,
    ) {
        if data.is_empty() {
            return;
        }
        let Some(sent_bytes) = self.add_piece(task, offset_bytes, data.len(), out) else { return };
        let rules = self.send_rules();
        let Some(entry) = self.tasks.get_mut(task).filter(|_| sent_bytes > 0) else { return };
        let data = cut_to((data, digest), sent_bytes as usize);
        let (numbering, resend) = (&mut self.numbering, &mut self.resend);
        let send = |pdu| {
            if let Some(store) = resend {
                store.keep(Some(task), &pdu);
            }
            out.push_back(Output::Send(pdu));
        };
        let transfer = &mut entry.transfer;
        let pdus = response::send_data(transfer, offset_bytes, data, None, rules, numbering, send);
        if let Some(pieces) = &mut transfer.pieces {
            pieces.pdus = pieces.pdus.wrapping_add(pdus);
        }
    }

    /// Adds a piece to those of a task that was started; returns how many bytes at its start are to
    /// be sent. A misplaced piece ends the task.
    fn add_piece(
        &mut self,
        task: TaskId,
        offset_bytes: u32,
        bytes: usize,
        out: &mut Outputs,
    ) -> Option<u32> {
        if self.is_closing() {
            return None;
        }
        let in_order = self.session.data_sequence_in_order;
        let entry = self.tasks.get_mut(task)?;
        if !matches!(entry.phase, Phase::Started | Phase::Running) {
            return None;
        }
        let expected_bytes = entry.task.expected_data_in_bytes();
        let pieces = entry.transfer.pieces.get_or_insert_default();
        let added = pieces.add(offset_bytes, bytes, expected_bytes, in_order).ok();
        if added.is_none() {
            self.fail_pieces(task, out);
        }
        added
    }

    /// Ends a task after a mistake of its executor.
    #[cold]
    fn fail_pieces(&mut self, task: TaskId, out: &mut Outputs) {
        if let Some(entry) = self.tasks.get_mut(task) {
            entry.transfer.fail(TransferFault::Internal);
            self.fail_task(task, out);
        }
    }

    /// Announces a range of data-in whose data follows in parts.
    pub(super) fn on_data_in_begin(
        &mut self,
        task: TaskId,
        offset_bytes: u32,
        bytes: u32,
        out: &mut Outputs,
    ) {
        if bytes == 0 {
            return;
        }
        let sent_bytes = self.add_piece(task, offset_bytes, bytes as usize, out);
        let Some(sent_bytes) = sent_bytes else { return };
        if let Some(store) = &mut self.resend {
            store.mark_not_resendable(task);
        }
        let (rules, until) = (self.send_rules(), self.part_deadline());
        let Some(Entry { transfer, .. }) = self.tasks.get_mut(task) else { return };
        let Some(pieces) = &mut transfer.pieces else { return };
        let at_bytes = u64::from(offset_bytes);
        pieces.early = true;
        pieces.open = Some(OpenRange {
            at_bytes,
            end_bytes: at_bytes + u64::from(bytes),
            sent_end_bytes: at_bytes + u64::from(sent_bytes),
            missing_bytes: 0,
            is_one_pdu: false,
            bounds: Bounds::new(rules, offset_bytes),
            until,
        });
        if sent_bytes > 0 {
            announce(transfer, &mut Bytes::new(), out);
        }
    }

    /// Sends the next part of the range that is open.
    pub(super) fn on_data_in_part(
        &mut self,
        task: TaskId,
        mut data: Bytes,
        digest: Option<u32>,
        out: &mut Outputs,
    ) {
        let until = self.part_deadline();
        let Some(entry) = self.tasks.get_mut(task) else { return };
        if !matches!(entry.phase, Phase::Started | Phase::Running) {
            return;
        }
        let transfer = &mut entry.transfer;
        let open = transfer.pieces.as_mut().and_then(|pieces| pieces.open.as_mut());
        let Some(open) = open.filter(|open| data.len() as u64 <= open.end_bytes - open.at_bytes)
        else {
            return self.fail_pieces(task, out);
        };
        open.until = until;
        let sent_bytes = open.sent_end_bytes.saturating_sub(open.at_bytes).min(data.len() as u64);
        open.at_bytes += data.len() as u64;
        let is_complete = open.at_bytes == open.end_bytes;
        data.truncate(sent_bytes as usize);
        while !data.is_empty() {
            send_part(transfer, &mut data, digest, out);
        }
        if is_complete && let Some(pieces) = &mut transfer.pieces {
            pieces.open = None;
        }
    }

    /// Time by which the next part of a Data-In PDU has to arrive.
    fn part_deadline(&mut self) -> Time {
        let until = self.now.after(seconds(self.limits.data_in_part_seconds));
        self.parts_earliest = self.parts_earliest.min(until);
        until
    }

    /// Fails the tasks whose Data-In PDU has waited too long for its data.
    #[cold]
    pub(super) fn fail_late_parts(&mut self, now: Time, out: &mut Outputs) {
        let waits_until =
            |entry: &Entry| entry.transfer.pieces.as_ref().and_then(|p| p.waits_until());
        for task in self.tasks.ids() {
            let until = self.tasks.get(task).and_then(waits_until);
            if until.is_some_and(|until| until <= now) {
                self.fail_pieces(task, out);
            }
        }
        let waiting = self.tasks.entries().filter_map(waits_until);
        self.parts_earliest = waiting.min().unwrap_or(NEVER);
    }
}

/// Checks at the end of a task whether its pieces are complete. Fills an open PDU.
#[cold]
pub(super) fn end_pieces(transfer: &mut Transfer, outcome: &mut Outcome, out: &mut Outputs) {
    let Some(pieces) = &transfer.pieces else { return };
    let (may_end, is_open) = (pieces.may_end(outcome), pieces.open.is_some());
    if !may_end {
        transfer.fail(TransferFault::Internal);
    }
    if is_open {
        outcome.data_in = Bytes::new();
        fill_open_pdu(transfer, out);
    }
}

/// Sends the header of the next PDU of an open range, with the first bytes of `data`.
fn announce(transfer: &mut Transfer, data: &mut Bytes, out: &mut Outputs) {
    let Some(pieces) = &mut transfer.pieces else { return };
    let Some(open) = &mut pieces.open else { return };
    let (start, sent_end) = (open.bounds.offset_bytes() as u64, open.sent_end_bytes);
    let (offset_bytes, bytes) = open.bounds.next((sent_end - start) as usize);
    let is_last = start + bytes as u64 == sent_end;
    let is_final = is_last || open.bounds.burst_is_over();
    let prefix = data.split_to(bytes.min(data.len()));
    open.missing_bytes = bytes - prefix.len();
    open.is_one_pdu = bytes as u64 == open.end_bytes - start && open.bounds.pdus() == 1;
    pieces.pdus = pieces.pdus.wrapping_add(1);
    let bhs = response::data_in(transfer, offset_bytes, is_final).encode();
    out.push_back(Output::Send(Pdu::open(bhs, bytes as u32, prefix)));
}

/// Sends as much of `data` as belongs to one PDU of the open range.
fn send_part(transfer: &mut Transfer, data: &mut Bytes, digest: Option<u32>, out: &mut Outputs) {
    let open = transfer.pieces.as_mut().and_then(|pieces| pieces.open.as_mut());
    let Some(open) = open.filter(|open| open.missing_bytes > 0) else {
        return announce(transfer, data, out);
    };
    let part = data.split_to(open.missing_bytes.min(data.len()));
    open.missing_bytes -= part.len();
    let digest = digest.filter(|_| open.is_one_pdu && open.missing_bytes == 0);
    let initiator_task_tag = transfer.initiator_task_tag;
    out.push_back(Output::SendData { initiator_task_tag, data: part, digest });
}

/// Fills the open PDU of an ending task with zeroes. The task does not end GOOD, so its data is not
/// used.
pub(super) fn fill_open_pdu(transfer: &mut Transfer, out: &mut Outputs) {
    let open = transfer.pieces.as_mut().and_then(|pieces| pieces.open.take());
    let Some(open) = open else { return };
    let initiator_task_tag = transfer.initiator_task_tag;
    let send = |data| Output::SendData { initiator_task_tag, data, digest: None };
    out.extend(zeroes(open.missing_bytes).map(send));
}
