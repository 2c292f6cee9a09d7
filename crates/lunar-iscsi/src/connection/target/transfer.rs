//! The transfer of one task's data: the data-out that is allowed, was received and is still to be
//! requested, and the data-in that was sent. RFC 7143 §4.2.5.2, §11.7, §11.8.
//!
//! A transfer is a value apart from the execution of its task: it knows neither the phase of the
//! task nor its result, and contains all that its PDUs need.
//!
//! Every PDU is checked strictly: data that is not exactly the next expected is never accepted. The
//! command then ends with CHECK CONDITION once the initiator has finished the sequences that it had
//! begun or that were requested (RFC 7143 §7.8, §11.4.2). DataPDUInOrder and DataSequenceInOrder
//! are Yes: a target that requires both gets both (RFC 7143 §13.18, §13.19).

use super::data_time::DataClock;
use super::pieces::DataInPieces;
use crate::framing::SegmentDigest;
use crate::pdu::{CommandFlags, DataOut, FinalFlag, RejectReason, ScsiCommand, TAG_RESERVED};
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// The reason why a task cannot end well; each has its sense data in RFC 7143 §11.4.7.2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TransferFault {
    /// Unsolicited data was sent where none, or less, was allowed.
    UnexpectedUnsolicited,
    /// A sequence was too short, too long, or at the wrong offset.
    IncorrectAmount,
    /// A data digest did not match, or a DataSN shows that a PDU is missing.
    ServiceCrc,
    /// The data-out exceeds the limit of one command.
    TooLong,
    /// The executor gave or wanted data that does not fit the task: an error of this target.
    Internal,
}

impl TransferFault {
    /// Sense key, and additional sense code and qualifier as `0xAAQQ`.
    pub const fn sense(self) -> (u8, u16) {
        const ABORTED_COMMAND: u8 = 0x0b;
        const HARDWARE_ERROR: u8 = 0x04;
        const ILLEGAL_REQUEST: u8 = 0x05;
        match self {
            Self::UnexpectedUnsolicited => (ABORTED_COMMAND, 0x0c0c),
            Self::IncorrectAmount => (ABORTED_COMMAND, 0x0c0d),
            Self::ServiceCrc => (ABORTED_COMMAND, 0x4705),
            // INVALID FIELD IN CDB
            Self::TooLong => (ILLEGAL_REQUEST, 0x2400),
            // INTERNAL TARGET FAILURE
            Self::Internal => (HARDWARE_ERROR, 0x4400),
        }
    }
}

/// Parameters of a session that limit data-out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TransferRules {
    pub(super) first_burst_bytes: u32,
    pub(super) max_burst_bytes: u32,
    pub(super) max_outstanding_r2t: u16,
    pub(super) initial_r2t: bool,
    pub(super) immediate_data: bool,
    pub(super) data_out_bytes_max: u32,
}

/// A sequence of Data-Out PDUs with a common DataSN count: unsolicited, or the answer to one R2T.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Sequence {
    /// The reserved tag for unsolicited data.
    target_transfer_tag: u32,
    /// Number of the R2T, needed for retransmission at ErrorRecoveryLevel 1.
    r2t_sn: u32,
    start_bytes: u32,
    next_offset_bytes: u32,
    end_bytes: u32,
    next_data_sn: u32,
}

/// A range of data-out to request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Piece {
    pub(super) offset_bytes: u32,
    pub(super) bytes: u32,
}

/// The action for the data segment of a Data-Out (or for immediate data).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct DataVerdict {
    /// Offset in the task's buffer; `None`: discard.
    pub(super) offset_bytes: Option<u32>,
    /// Reason of a Reject to send as well.
    pub(super) reject: Option<RejectReason>,
}

impl DataVerdict {
    const DISCARD: Self = Self { offset_bytes: None, reject: None };
}

/// A Data-Out whose header was checked and whose payload is being received.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct PendingSegment {
    target_transfer_tag: u32,
    bytes: u32,
    is_final: bool,
}

/// Maximum number of ranges that an executor may want at once: as many R2Ts as another target may
/// have open, for an executor that forwards the requests of another target.
const WANTED_RANGES_MAX: usize = 1024;

/// Ends of ranges that the executor wants.
#[derive(Debug, Default)]
struct FurtherRanges {
    ends: VecDeque<u32>,
}

/// The transfer of one task's data, in both directions.
#[derive(Debug, Default)]
pub(super) struct Transfer {
    /// Initiator Task Tag of all its PDUs.
    pub(super) initiator_task_tag: u32,
    rules: TransferRules,
    /// Runs while data is due.
    pub(super) clock: DataClock,
    /// ExpectedDataTransferLength.
    expected_bytes: u32,
    /// End of the range that the executor wants, once known; at most `expected_bytes`. Of several
    /// ranges the first one that is not requested completely.
    wanted_bytes: Option<u32>,
    /// The ranges behind it. Boxed, because most tasks want one range.
    further: Option<Box<FurtherRanges>>,
    /// Number of leading bytes that were received or belong to an open sequence.
    covered_bytes: u32,
    unsolicited: Option<Sequence>,
    solicited: VecDeque<Sequence>,
    fault: Option<TransferFault>,
    /// True if the executor takes the data as it arrives.
    streams: bool,
    /// True if the driver may hold a buffer for the data-out.
    pub(super) has_buffer: bool,
    /// Digest of the data that came before the executor took it, if it is one segment.
    pub(super) buffer_digest: SegmentDigest,
    /// The next DataSN or R2TSN: one count for both, RFC 7143 §4.2.2.4.
    pub(super) next_data_sn: u32,
    /// Data-in that was sent before the end of the task; `None` for most tasks.
    pub(super) pieces: Option<Box<DataInPieces>>,
}

impl Transfer {
    /// Begins the transfer of a command; the value is filled in place.
    #[inline]
    pub(super) fn begin(&mut self, rules: TransferRules, pdu: &ScsiCommand) {
        let immediate_bytes = pdu.data_segment_length.value();
        let tag = pdu.initiator_task_tag;
        if pdu.flags.has(CommandFlags::WRITE) {
            let expected_bytes = pdu.expected_data_transfer_length;
            self.begin_write(rules, tag, expected_bytes, immediate_bytes);
            self.expect_unsolicited(immediate_bytes, pdu.flags.has(CommandFlags::FINAL));
        } else {
            self.begin_write(rules, tag, 0, 0);
            if immediate_bytes > 0 {
                self.fail(TransferFault::UnexpectedUnsolicited); // no data is allowed
            }
        }
    }

    /// Begins with `immediate_bytes` of `expected_bytes` of data-out.
    #[inline]
    fn begin_write(
        &mut self,
        rules: TransferRules,
        initiator_task_tag: u32,
        expected_bytes: u32,
        immediate_bytes: u32,
    ) {
        let covered_bytes = immediate_bytes.min(rules.first_burst_bytes).min(expected_bytes);
        *self = Self {
            initiator_task_tag,
            rules,
            clock: DataClock::default(),
            expected_bytes,
            wanted_bytes: None,
            further: None,
            covered_bytes,
            unsolicited: None,
            solicited: VecDeque::new(),
            fault: None,
            streams: false,
            has_buffer: false,
            buffer_digest: SegmentDigest::None,
            next_data_sn: 0,
            pieces: None,
        };
    }

    /// Checks the immediate data of a command with the W bit, and its F bit: unless `is_final`,
    /// unsolicited Data-Out follows.
    fn expect_unsolicited(&mut self, immediate_bytes: u32, is_final: bool) {
        let first_bytes = self.rules.first_burst_bytes.min(self.expected_bytes);
        if immediate_bytes > 0 && !self.rules.immediate_data {
            self.fail(TransferFault::UnexpectedUnsolicited);
        }
        if immediate_bytes > first_bytes {
            self.fail(TransferFault::IncorrectAmount);
        }
        // If all data is present, F must be 1 (RFC 7143 §11.3.4): nothing is left to wait for.
        if !is_final && immediate_bytes < self.expected_bytes {
            if self.rules.initial_r2t {
                self.fail(TransferFault::UnexpectedUnsolicited);
            }
            let at = self.covered_bytes;
            self.unsolicited = Some(Sequence {
                target_transfer_tag: TAG_RESERVED,
                r2t_sn: 0,
                start_bytes: at,
                next_offset_bytes: at,
                end_bytes: first_bytes,
                next_data_sn: 0,
            });
        }
    }

    /// Frees memory outside of the value.
    #[inline]
    pub(super) fn free(&mut self) {
        self.further = None;
        self.pieces = None;
        if self.solicited.capacity() > 0 {
            self.solicited = VecDeque::new();
        }
    }

    /// Maximum memory of the open R2Ts of a transfer: their queue grows by doubling.
    pub(super) fn r2ts_memory_bytes(max_outstanding_r2t: u16) -> usize {
        const QUEUE_MIN: usize = 4;
        let r2ts = usize::from(max_outstanding_r2t.max(1)).next_power_of_two();
        r2ts.max(QUEUE_MIN) * size_of::<Sequence>()
    }

    /// Memory of the list of ranges that the executor wants, and of the data-in in pieces.
    pub(super) fn boxed_bytes(&self) -> usize {
        let ranges = self.further.as_deref().map_or(0, |further| {
            size_of::<FurtherRanges>() + further.ends.capacity() * size_of::<u32>()
        });
        ranges + self.pieces.as_deref().map_or(0, DataInPieces::memory_bytes)
    }

    /// Takes the next DataSN or R2TSN.
    #[inline]
    pub(super) fn take_data_sn(&mut self) -> u32 {
        let data_sn = self.next_data_sn;
        self.next_data_sn = data_sn.wrapping_add(1);
        data_sn
    }

    /// Offset of the immediate data in the buffer; `None`: discard it.
    pub(super) fn immediate_offset(&self, bytes: u32) -> Option<u32> {
        (self.fault.is_none() && bytes <= self.rules.data_out_bytes_max).then_some(0)
    }

    /// Required length of the task's buffer.
    pub(super) fn buffer_bytes(&self) -> u32 {
        self.expected_bytes.min(self.rules.data_out_bytes_max)
    }

    /// Target Transfer Tags of R2Ts whose data has not completely arrived.
    pub(super) fn open_tags(&self) -> impl Iterator<Item = u32> + '_ {
        self.solicited.iter().map(|sequence| sequence.target_transfer_tag)
    }

    /// The first fault.
    pub(super) fn fault(&self) -> Option<TransferFault> {
        self.fault
    }

    /// Records a fault: from now on data is discarded and nothing more is requested.
    pub(super) fn fail(&mut self, fault: TransferFault) {
        self.fault.get_or_insert(fault);
    }

    /// Records that the executor wants a range of data-out; more than expected never arrives.
    pub(super) fn want(&mut self, offset_bytes: u32, bytes: u32) {
        let last_end = self.last_wanted_end();
        if offset_bytes < last_end || offset_bytes > last_end.max(self.covered_bytes) {
            return self.fail(TransferFault::Internal);
        }
        let end = offset_bytes.saturating_add(bytes).min(self.expected_bytes);
        if end > self.rules.data_out_bytes_max && !self.streams {
            self.fail(TransferFault::TooLong);
        }
        if self.wanted_bytes.is_none() {
            self.wanted_bytes = Some(end);
        } else if end > last_end {
            self.want_further(end);
        }
    }

    #[cold]
    fn want_further(&mut self, end: u32) {
        let ends = &mut self.further.get_or_insert_default().ends;
        match ends.len() < WANTED_RANGES_MAX {
            true => ends.push_back(end),
            false => self.fail(TransferFault::Internal),
        }
    }

    /// End of the last range that the executor wants; 0 if there is none.
    fn last_wanted_end(&self) -> u32 {
        let last = self.further.as_ref().and_then(|further| further.ends.back());
        last.copied().or(self.wanted_bytes).unwrap_or(0)
    }

    /// True if every sequence that was begun or requested has had its last PDU.
    pub(super) fn is_settled(&self) -> bool {
        self.unsolicited.is_none() && self.solicited.is_empty()
    }

    /// True if settled without a fault.
    pub(super) fn is_over(&self) -> bool {
        self.is_settled() && self.fault.is_none()
    }

    /// Hands data to the executor as it arrives; returns the number of bytes in the buffer so far.
    ///
    /// # Errors
    /// The executor has wanted data before, or data that has come was not kept.
    pub(super) fn stream(&mut self) -> Result<u32, TransferFault> {
        if self.streams || self.wanted_bytes.is_some() {
            return Err(TransferFault::Internal);
        }
        let unsolicited = self.unsolicited.as_ref().map(|sequence| sequence.next_offset_bytes);
        let bytes = unsolicited.unwrap_or(self.covered_bytes);
        if bytes > self.rules.data_out_bytes_max {
            return Err(TransferFault::TooLong);
        }
        self.streams = true;
        Ok(bytes)
    }

    /// True if the executor takes the data as it arrives.
    pub(super) fn is_streaming(&self) -> bool {
        self.streams
    }

    /// True if all requested data is in the buffer, and no more is due.
    pub(super) fn is_complete(&self) -> bool {
        self.is_over()
            && !self.streams
            && self.wanted_bytes.is_some()
            && self.last_wanted_end() <= self.covered_bytes
    }

    /// True if there is data-out, and all that was announced is in the buffer.
    pub(super) fn has_all_data(&self) -> bool {
        let buffered_bytes = self.covered_bytes.min(self.rules.data_out_bytes_max);
        self.is_over() && self.expected_bytes > 0 && self.expected_bytes <= buffered_bytes
    }

    /// The next piece to request, if allowed now: unsolicited data has ended, and fewer than
    /// MaxOutstandingR2T are open.
    pub(super) fn next_piece(&mut self) -> Option<Piece> {
        let mut wanted_bytes = self.wanted_bytes?;
        while wanted_bytes <= self.covered_bytes
            && let Some(end) = self.further.as_mut().and_then(|further| further.ends.pop_front())
        {
            wanted_bytes = end;
            self.wanted_bytes = Some(end);
        }
        let waits = self.unsolicited.is_some() || self.fault.is_some();
        let open = self.solicited.len() >= usize::from(self.rules.max_outstanding_r2t.max(1));
        let missing = wanted_bytes.saturating_sub(self.covered_bytes);
        if waits || open || missing == 0 {
            return None;
        }
        let bytes = missing.min(self.rules.max_burst_bytes.max(1));
        Some(Piece { offset_bytes: self.covered_bytes, bytes })
    }

    /// Records that `piece` was requested with this tag.
    pub(super) fn asked(&mut self, piece: Piece, target_transfer_tag: u32, r2t_sn: u32) {
        let end_bytes = piece.offset_bytes + piece.bytes;
        self.covered_bytes = end_bytes;
        self.solicited.push_back(Sequence {
            target_transfer_tag,
            r2t_sn,
            start_bytes: piece.offset_bytes,
            next_offset_bytes: piece.offset_bytes,
            end_bytes,
            next_data_sn: 0,
        });
    }

    /// Checks the header of a Data-Out for this task; `lun_ok` is true if its LUN is that of the
    /// command.
    pub(super) fn check(&mut self, pdu: &DataOut, lun_ok: bool) -> (DataVerdict, PendingSegment) {
        let bytes = pdu.data_segment_length.value();
        let segment = PendingSegment {
            target_transfer_tag: pdu.target_transfer_tag,
            bytes,
            is_final: pdu.flags.has(FinalFlag::FINAL),
        };
        let already_failed = self.fault.is_some();
        let (verdict, fault) = self.check_in_sequence(pdu, lun_ok);
        if let Some(fault) = fault {
            self.fail(fault);
        }
        if already_failed {
            // Only the first fault is reported; the rest of the sequence is just awaited.
            return (DataVerdict::DISCARD, segment);
        }
        (verdict, segment)
    }

    fn check_in_sequence(
        &self,
        pdu: &DataOut,
        lun_ok: bool,
    ) -> (DataVerdict, Option<TransferFault>) {
        let reject =
            |reason, fault| (DataVerdict { offset_bytes: None, reject: Some(reason) }, Some(fault));
        let bytes = pdu.data_segment_length.value();
        let unsolicited = pdu.target_transfer_tag == TAG_RESERVED;
        let Some(sequence) = self.sequence(pdu.target_transfer_tag) else {
            return match (unsolicited, bytes) {
                // An empty end of unsolicited data that was already complete does no harm.
                (true, 0) => (DataVerdict::DISCARD, None),
                (true, _) => {
                    reject(RejectReason::PROTOCOL_ERROR, TransferFault::UnexpectedUnsolicited)
                }
                (false, _) => {
                    reject(RejectReason::INVALID_PDU_FIELD, TransferFault::IncorrectAmount)
                }
            };
        };
        if !unsolicited && !lun_ok {
            // RFC 7143 §11.7.4: the LUN belongs to the tag.
            return reject(RejectReason::INVALID_PDU_FIELD, TransferFault::IncorrectAmount);
        }
        if pdu.data_sn != sequence.next_data_sn {
            // RFC 7143 §7.9: treated as a PDU lost to a digest error.
            return (DataVerdict::DISCARD, Some(TransferFault::ServiceCrc));
        }
        let room_bytes = sequence.end_bytes - sequence.next_offset_bytes;
        if pdu.buffer_offset_bytes != sequence.next_offset_bytes && bytes > 0 {
            return reject(RejectReason::INVALID_PDU_FIELD, TransferFault::IncorrectAmount);
        }
        if bytes > room_bytes {
            let fault = match unsolicited {
                true => TransferFault::UnexpectedUnsolicited,
                false => TransferFault::IncorrectAmount,
            };
            return reject(RejectReason::PROTOCOL_ERROR, fault);
        }
        let end_bytes = u64::from(sequence.next_offset_bytes) + u64::from(bytes);
        let fits = self.streams || end_bytes <= u64::from(self.rules.data_out_bytes_max);
        let offset_bytes = fits.then_some(sequence.next_offset_bytes);
        (DataVerdict { offset_bytes, reject: None }, (!fits).then_some(TransferFault::TooLong))
    }

    /// Handles the complete payload of a checked Data-Out; returns its range if it is accepted.
    pub(super) fn arrived(
        &mut self,
        segment: PendingSegment,
        digest: SegmentDigest,
    ) -> Option<Piece> {
        if !digest.is_ok() {
            self.fail(TransferFault::ServiceCrc);
        }
        let faulty = self.fault.is_some();
        let sequence = self.sequence_mut(segment.target_transfer_tag)?;
        let mut arrived = None;
        if !faulty {
            let Sequence { next_offset_bytes: offset_bytes, .. } = *sequence;
            arrived = Some(Piece { offset_bytes, bytes: segment.bytes });
            // In bounds, because the header was checked.
            sequence.next_offset_bytes += segment.bytes;
            sequence.next_data_sn = sequence.next_data_sn.wrapping_add(1);
        }
        if let Some(Piece { offset_bytes, .. }) = arrived {
            self.buffer_digest = if offset_bytes == 0 { digest } else { SegmentDigest::None };
        }
        if segment.is_final {
            self.close(segment.target_transfer_tag);
        }
        arrived.filter(|piece| piece.bytes > 0)
    }

    /// Closes a sequence at its F bit; it must be complete.
    fn close(&mut self, target_transfer_tag: u32) {
        if target_transfer_tag == TAG_RESERVED {
            let Some(sequence) = self.unsolicited.take() else { return };
            self.covered_bytes = sequence.next_offset_bytes;
            // RFC 7143 §11.4.7.2: with more data to come, unsolicited data is FirstBurstLength.
            if self.expected_bytes > self.rules.first_burst_bytes
                && sequence.next_offset_bytes != sequence.end_bytes
            {
                self.fail(TransferFault::IncorrectAmount);
            }
            return;
        }
        let at = self.solicited.iter().position(|s| s.target_transfer_tag == target_transfer_tag);
        if let Some(sequence) = at.and_then(|at| self.solicited.remove(at))
            && sequence.next_offset_bytes != sequence.end_bytes
        {
            self.fail(TransferFault::IncorrectAmount);
        }
    }

    fn sequence(&self, tag: u32) -> Option<&Sequence> {
        self.unsolicited.iter().chain(&self.solicited).find(|s| s.target_transfer_tag == tag)
    }

    fn sequence_mut(&mut self, tag: u32) -> Option<&mut Sequence> {
        let mut all = self.unsolicited.iter_mut().chain(&mut self.solicited);
        all.find(|s| s.target_transfer_tag == tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: data that was requested is in the buffer once its last PDU has arrived, not before.
    #[test]
    fn requested_data_is_in_the_buffer_when_it_has_arrived() {
        let rules = TransferRules {
            first_burst_bytes: 512,
            max_burst_bytes: 512,
            max_outstanding_r2t: 1,
            initial_r2t: true,
            immediate_data: false,
            data_out_bytes_max: 512,
        };
        let mut transfer = Transfer::default();
        transfer.begin_write(rules, 5, 512, 0);
        transfer.expect_unsolicited(0, true);
        transfer.want(0, 512);
        let piece = transfer.next_piece().unwrap();
        transfer.asked(piece, 7, 0);
        assert!(!transfer.has_all_data());
        let segment = PendingSegment { target_transfer_tag: 7, bytes: 512, is_final: true };
        transfer.arrived(segment, SegmentDigest::None);
        assert!(transfer.has_all_data());
    }
}
