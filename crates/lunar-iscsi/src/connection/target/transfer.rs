//! The data-out of one task: what may come, what has come, what is still to be asked for.
//! RFC 7143 §4.2.5.2, §11.7, §11.8.
//!
//! Judged PDU by PDU and strictly: data that is not exactly the next expected is never taken.
//! The command then ends with CHECK CONDITION once the initiator has finished the sequences it
//! had begun or been asked for (RFC 7143 §7.8, §11.4.2). DataPDUInOrder and DataSequenceInOrder
//! are Yes: a target that wants them gets them (RFC 7143 §13.18, §13.19).

use super::data_time::DataClock;
use crate::pdu::{DataOut, FinalFlag, RejectReason, TAG_RESERVED};
use alloc::collections::VecDeque;

/// Why a task cannot end well; each has its sense data in RFC 7143 §11.4.7.2.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Unsolicited data where none, or not so much, was allowed.
    UnexpectedUnsolicited,
    /// A sequence was too short, too long, or not where it had to be.
    IncorrectAmount,
    /// A data digest did not match, or a DataSN shows that a PDU is missing.
    ServiceCrc,
    /// More data-out than one command may have here.
    TooLong,
}

impl Fault {
    /// Sense key, and additional sense code and qualifier as `0xAAQQ`.
    pub const fn sense(self) -> (u8, u16) {
        const ABORTED_COMMAND: u8 = 0x0b;
        const ILLEGAL_REQUEST: u8 = 0x05;
        match self {
            Self::UnexpectedUnsolicited => (ABORTED_COMMAND, 0x0c0c),
            Self::IncorrectAmount => (ABORTED_COMMAND, 0x0c0d),
            Self::ServiceCrc => (ABORTED_COMMAND, 0x4705),
            // INVALID FIELD IN CDB
            Self::TooLong => (ILLEGAL_REQUEST, 0x2400),
        }
    }
}

/// The numbers of a session that bound data-out.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransferRules {
    pub(super) first_burst_bytes: u32,
    pub(super) max_burst_bytes: u32,
    pub(super) max_outstanding_r2t: u16,
    pub(super) initial_r2t: bool,
    pub(super) immediate_data: bool,
    pub(super) data_out_bytes_max: u32,
}

/// A run of Data-Out PDUs that share a DataSN count: unsolicited, or the answer to one R2T.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Sequence {
    /// Reserved for unsolicited data.
    target_transfer_tag: u32,
    /// What ErrorRecoveryLevel 1 asks for again.
    r2t_sn: u32,
    start_bytes: u32,
    next_offset_bytes: u32,
    end_bytes: u32,
    next_data_sn: u32,
}

/// A piece to ask for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Piece {
    pub(super) offset_bytes: u32,
    pub(super) bytes: u32,
}

/// What is to be done with the data segment of a Data-Out (or the immediate data).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Judged {
    /// Into the task's buffer at this offset; `None`: discard.
    pub(super) offset_bytes: Option<u32>,
    /// Answer with a Reject as well.
    pub(super) reject: Option<RejectReason>,
}

impl Judged {
    const DISCARD: Self = Self { offset_bytes: None, reject: None };
}

/// A Data-Out whose header was judged and whose payload is under way.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Underway {
    target_transfer_tag: u32,
    bytes: u32,
    is_final: bool,
}

#[derive(Debug)]
pub(super) struct Transfer {
    rules: TransferRules,
    /// Runs while data is due.
    pub(super) clock: DataClock,
    /// ExpectedDataTransferLength.
    expected_bytes: u32,
    /// What the executor needs, once it has said so; at most `expected_bytes`.
    wanted_bytes: Option<u32>,
    /// Everything before was received, or an open sequence covers it.
    covered_bytes: u32,
    unsolicited: Option<Sequence>,
    solicited: VecDeque<Sequence>,
    fault: Option<Fault>,
}

impl Transfer {
    /// A command with the W bit. `immediate_bytes` come with it; `is_final` is its F bit: no
    /// unsolicited Data-Out follows.
    pub(super) fn new(
        rules: TransferRules,
        expected_bytes: u32,
        immediate_bytes: u32,
        is_final: bool,
    ) -> Self {
        let first_bytes = rules.first_burst_bytes.min(expected_bytes);
        let mut transfer = Self {
            rules,
            clock: DataClock::default(),
            expected_bytes,
            wanted_bytes: None,
            covered_bytes: immediate_bytes.min(first_bytes),
            unsolicited: None,
            solicited: VecDeque::new(),
            fault: None,
        };
        if immediate_bytes > 0 && !rules.immediate_data {
            transfer.fail(Fault::UnexpectedUnsolicited);
        }
        if immediate_bytes > first_bytes {
            transfer.fail(Fault::IncorrectAmount);
        }
        // With all data there F must be 1 (RFC 7143 §11.3.4): nothing is left to wait for.
        if !is_final && immediate_bytes < expected_bytes {
            if rules.initial_r2t {
                transfer.fail(Fault::UnexpectedUnsolicited);
            }
            let at = transfer.covered_bytes;
            transfer.unsolicited = Some(Sequence {
                target_transfer_tag: TAG_RESERVED,
                r2t_sn: 0,
                start_bytes: at,
                next_offset_bytes: at,
                end_bytes: first_bytes,
                next_data_sn: 0,
            });
        }
        transfer
    }

    /// A command without the W bit: nothing may come.
    pub(super) fn none(rules: TransferRules, immediate_bytes: u32) -> Self {
        let mut transfer = Self::new(rules, 0, 0, true);
        if immediate_bytes > 0 {
            transfer.fail(Fault::UnexpectedUnsolicited);
        }
        transfer
    }

    /// Memory of the R2Ts that a transfer may have open, at most: their queue grows by doubling.
    pub(super) fn r2ts_memory_bytes(max_outstanding_r2t: u16) -> usize {
        const QUEUE_MIN: usize = 4;
        let r2ts = usize::from(max_outstanding_r2t.max(1)).next_power_of_two();
        r2ts.max(QUEUE_MIN) * size_of::<Sequence>()
    }

    /// Where the immediate data goes.
    pub(super) fn immediate_offset(&self, bytes: u32) -> Option<u32> {
        (self.fault.is_none() && bytes <= self.rules.data_out_bytes_max).then_some(0)
    }

    /// How long the task's buffer has to be.
    pub(super) fn buffer_bytes(&self) -> u32 {
        self.expected_bytes.min(self.rules.data_out_bytes_max)
    }

    /// Target Transfer Tags of R2Ts whose data has not all come.
    pub(super) fn open_tags(&self) -> impl Iterator<Item = u32> + '_ {
        self.solicited.iter().map(|sequence| sequence.target_transfer_tag)
    }

    /// The first thing that went wrong.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// From now on data is discarded and nothing more is asked for.
    pub(super) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// The executor needs `bytes` of data-out; more than expected will never come.
    pub(super) fn want(&mut self, bytes: u32) {
        let wanted = bytes.min(self.expected_bytes);
        if wanted > self.rules.data_out_bytes_max {
            self.fail(Fault::TooLong);
        }
        self.wanted_bytes = Some(wanted);
    }

    /// Every sequence the initiator has begun or been asked for has had its last PDU.
    pub(super) fn is_settled(&self) -> bool {
        self.unsolicited.is_none() && self.solicited.is_empty()
    }

    /// Settled, and nothing went wrong.
    pub(super) fn is_over(&self) -> bool {
        self.is_settled() && self.fault.is_none()
    }

    /// All that is wanted lies in the buffer, and nothing more is on the way.
    pub(super) fn is_complete(&self) -> bool {
        self.is_over() && self.wanted_bytes.is_some_and(|wanted| wanted <= self.covered_bytes)
    }

    /// The next piece to ask for, if the time has come: unsolicited data is over, and fewer than
    /// MaxOutstandingR2T are open.
    pub(super) fn next_piece(&self) -> Option<Piece> {
        let wanted_bytes = self.wanted_bytes?;
        let waits = self.unsolicited.is_some() || self.fault.is_some();
        let open = self.solicited.len() >= usize::from(self.rules.max_outstanding_r2t.max(1));
        let missing = wanted_bytes.saturating_sub(self.covered_bytes);
        if waits || open || missing == 0 {
            return None;
        }
        let bytes = missing.min(self.rules.max_burst_bytes.max(1));
        Some(Piece { offset_bytes: self.covered_bytes, bytes })
    }

    /// `piece` is asked for with this tag.
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

    /// Judges the header of a Data-Out for this task; `lun_ok`: its LUN is the command's.
    pub(super) fn judge(&mut self, pdu: &DataOut, lun_ok: bool) -> (Judged, Underway) {
        let bytes = pdu.data_segment_length.value();
        let underway = Underway {
            target_transfer_tag: pdu.target_transfer_tag,
            bytes,
            is_final: pdu.flags.has(FinalFlag::FINAL),
        };
        let already_failed = self.fault.is_some();
        let (judged, fault) = self.judge_in_sequence(pdu, lun_ok);
        if let Some(fault) = fault {
            self.fail(fault);
        }
        if already_failed {
            // Diagnosed once; the rest of the sequence is only waited for.
            return (Judged::DISCARD, underway);
        }
        (judged, underway)
    }

    fn judge_in_sequence(&self, pdu: &DataOut, lun_ok: bool) -> (Judged, Option<Fault>) {
        let reject =
            |reason, fault| (Judged { offset_bytes: None, reject: Some(reason) }, Some(fault));
        let bytes = pdu.data_segment_length.value();
        let unsolicited = pdu.target_transfer_tag == TAG_RESERVED;
        let Some(sequence) = self.sequence(pdu.target_transfer_tag) else {
            return match (unsolicited, bytes) {
                // An empty end of unsolicited data that was complete already does no harm.
                (true, 0) => (Judged::DISCARD, None),
                (true, _) => reject(RejectReason::PROTOCOL_ERROR, Fault::UnexpectedUnsolicited),
                (false, _) => reject(RejectReason::INVALID_PDU_FIELD, Fault::IncorrectAmount),
            };
        };
        if !unsolicited && !lun_ok {
            // RFC 7143 §11.7.4: the LUN goes with the tag.
            return reject(RejectReason::INVALID_PDU_FIELD, Fault::IncorrectAmount);
        }
        if pdu.data_sn != sequence.next_data_sn {
            // RFC 7143 §7.9: as if a PDU had been lost to its digest.
            return (Judged::DISCARD, Some(Fault::ServiceCrc));
        }
        let room_bytes = sequence.end_bytes - sequence.next_offset_bytes;
        if pdu.buffer_offset_bytes != sequence.next_offset_bytes && bytes > 0 {
            return reject(RejectReason::INVALID_PDU_FIELD, Fault::IncorrectAmount);
        }
        if bytes > room_bytes {
            let fault = match unsolicited {
                true => Fault::UnexpectedUnsolicited,
                false => Fault::IncorrectAmount,
            };
            return reject(RejectReason::PROTOCOL_ERROR, fault);
        }
        let end_bytes = u64::from(sequence.next_offset_bytes) + u64::from(bytes);
        let fits = end_bytes <= u64::from(self.rules.data_out_bytes_max);
        let offset_bytes = fits.then_some(sequence.next_offset_bytes);
        (Judged { offset_bytes, reject: None }, (!fits).then_some(Fault::TooLong))
    }

    /// The payload of a judged Data-Out is complete.
    pub(super) fn arrived(&mut self, underway: Underway, digest_ok: bool) {
        if !digest_ok {
            self.fail(Fault::ServiceCrc);
        }
        let faulty = self.fault.is_some();
        let Some(sequence) = self.sequence_mut(underway.target_transfer_tag) else { return };
        if !faulty {
            // In bounds: judged.
            sequence.next_offset_bytes += underway.bytes;
            sequence.next_data_sn = sequence.next_data_sn.wrapping_add(1);
        }
        if underway.is_final {
            self.close(underway.target_transfer_tag);
        }
    }

    /// The F bit came: the sequence is over, and must be whole.
    fn close(&mut self, target_transfer_tag: u32) {
        if target_transfer_tag == TAG_RESERVED {
            let Some(sequence) = self.unsolicited.take() else { return };
            self.covered_bytes = sequence.next_offset_bytes;
            // RFC 7143 §11.4.7.2: with more data to come, unsolicited data is FirstBurstLength.
            if self.expected_bytes > self.rules.first_burst_bytes
                && sequence.next_offset_bytes != sequence.end_bytes
            {
                self.fail(Fault::IncorrectAmount);
            }
            return;
        }
        let at = self.solicited.iter().position(|s| s.target_transfer_tag == target_transfer_tag);
        if let Some(sequence) = at.and_then(|at| self.solicited.remove(at))
            && sequence.next_offset_bytes != sequence.end_bytes
        {
            self.fail(Fault::IncorrectAmount);
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
