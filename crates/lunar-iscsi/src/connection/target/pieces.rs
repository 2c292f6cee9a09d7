//! Data-in that is sent before its task ends. RFC 7143 §11.7.
//!
//! Each piece ends a sequence (F bit), so DataPDUInOrder holds within every sequence, and
//! DataSequenceInOrder alone decides whether pieces have to be in order (RFC 7143 §13.18, §13.19).
//!
//! Pieces are no responses: a response fence (RFC 7143 §4.2.2.3.3) orders SCSI Responses, Task
//! Management Responses and Data-In with a status. A piece carries none and consumes no StatSN, so
//! it is sent while the response of its own task or of others is held back.

use super::full_feature::FullFeature;
use super::response::{self, cut_to};
use super::task::Phase;
use super::transfer::TransferFault;
use super::{Outcome, Output, Outputs};
use crate::connection::coverage::Coverage;
use crate::framing::TaskId;
use bytes::Bytes;

/// Data-in of one task that was sent before its end.
#[derive(Debug, Default)]
pub(super) struct DataInPieces {
    /// The bytes sent.
    sent: Coverage,
    /// End of the piece that reaches furthest, including what was not expected and not sent.
    end_bytes: u64,
    /// Number of Data-In PDUs.
    pdus: u32,
}

/// Summary of the data-in that was sent before the end of a task.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    /// Position of the rest.
    pub(super) offset_bytes: u32,
    /// Number of bytes given by the executor, including those that were not sent.
    pub(super) given_bytes: usize,
    /// Number of Data-In PDUs.
    pub(super) pdus: u32,
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
        if in_order && offset != self.end_bytes {
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

    /// True if a task with these pieces may end so: data with gaps ends with an error.
    pub(super) fn may_end(&self, outcome: &Outcome) -> bool {
        !self.sent.has_gap() || outcome.data_in.is_empty() && !response::is_fine(outcome.status)
    }

    /// Returns the summary for the end of the task.
    pub(super) fn sent(&self) -> Sent {
        let sent_end = self.sent.contiguous();
        // Beyond the expected length, pieces count up to the one that reaches furthest.
        let given = match self.sent.has_gap() {
            true => self.sent.total().into(),
            false => self.end_bytes,
        };
        Sent {
            offset_bytes: sent_end,
            given_bytes: usize::try_from(given).unwrap_or(usize::MAX),
            pdus: self.pdus,
        }
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
        out: &mut Outputs,
    ) {
        let (rules, in_order) = (self.send_rules(), self.session.data_sequence_in_order);
        let Some(entry) = self.tasks.get_mut(task) else { return };
        if !matches!(entry.phase, Phase::Started | Phase::Running) || data.is_empty() {
            return;
        }
        let expected_bytes = entry.task.expected_data_in_bytes();
        let pieces = entry.pieces.get_or_insert_default();
        let Ok(sent_bytes) = pieces.add(offset_bytes, data.len(), expected_bytes, in_order) else {
            entry.transfer.fail(TransferFault::Internal);
            return self.fail_task(task, out);
        };
        if sent_bytes == 0 {
            return;
        }
        let data = cut_to(data, sent_bytes as usize);
        let numbering = &mut self.numbering;
        let send = |pdu| out.push_back(Output::Send(pdu));
        let pdus = response::send_data(entry, offset_bytes, data, None, rules, numbering, send);
        if let Some(pieces) = &mut entry.pieces {
            pieces.pdus = pieces.pdus.wrapping_add(pdus);
        }
    }
}
