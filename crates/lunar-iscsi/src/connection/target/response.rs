//! The end of a task on the wire: Data-In, residuals, status, sense. RFC 7143 §11.4, §11.7.

use super::Outcome;
use super::numbering::Numbering;
use super::pieces::{DataInPieces, SentDataIn};
use super::task::Entry;
use super::transfer::Transfer;
use crate::framing::Pdu;
use crate::pdu::{
    DataIn, DataInFlags, FirstByte, HEADER_BYTES, Opcode, ResponseFlags, ScsiResponse,
    ServiceResponse, TAG_RESERVED,
};
use alloc::vec::Vec;
use bytes::Bytes;
use core::num::NonZeroU32;
use lunar_wire::{Lun, SerialNumber, U24};

/// Maximum sense data: more would not fit its own length field (252 bytes, SPC).
const SENSE_BYTES_MAX: usize = 252;

const GOOD: u8 = 0x00;
const CONDITION_MET: u8 = 0x04;
const INTERMEDIATE: u8 = 0x10;
const INTERMEDIATE_CONDITION_MET: u8 = 0x14;
const TASK_SET_FULL: u8 = 0x28;

/// Limits and rules for sending Data-In and status.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendRules {
    pub(super) segment_bytes_max: u32,
    pub(super) burst_bytes_max: u32,
    /// True if status qualifiers may be sent.
    pub(super) qualifies: bool,
}

impl SendRules {
    /// Maximum data in one PDU.
    fn piece_bytes_max(self) -> usize {
        self.segment_bytes_max.min(self.burst_bytes_max) as usize
    }
}

/// Difference between the transferred and the expected length.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Residual {
    None,
    Overflow(u32),
    Underflow(u32),
}

impl Residual {
    /// Calculates the residual. RFC 7143 §11.4.5.2.
    fn of(expected_bytes: u32, presented_bytes: usize) -> Self {
        let presented_bytes = u32::try_from(presented_bytes).unwrap_or(u32::MAX);
        match presented_bytes.checked_sub(expected_bytes) {
            Some(0) => Self::None,
            Some(more) => Self::Overflow(more),
            None => Self::Underflow(expected_bytes - presented_bytes),
        }
    }

    const fn bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Overflow(bytes) | Self::Underflow(bytes) => bytes,
        }
    }
}

/// Sends all PDUs that end `entry`: Data-In, then the status, which the last Data-In carries if
/// allowed.
#[inline]
pub(super) fn respond(
    entry: &mut Entry,
    mut outcome: Outcome,
    rules: SendRules,
    numbering: &mut Numbering,
    mut send: impl FnMut(Pdu),
) {
    let sent = entry.transfer.pieces.as_deref().map_or(SentDataIn::default(), DataInPieces::sent);
    let residuals = residuals(entry, &outcome, sent);
    let data = core::mem::take(&mut outcome.data_in);
    let digest = outcome.data_in_digest.map(NonZeroU32::get);
    let room_bytes = entry.task.expected_data_in_bytes().saturating_sub(sent.offset_bytes);
    let (data, digest) = cut_to((data, digest), room_bytes as usize);
    let with_status = !data.is_empty() && !sent.early && may_collapse(entry, &outcome);
    let transfer = &mut entry.transfer;
    if with_status && data.len() <= rules.piece_bytes_max() {
        // Most reads: one PDU carries data and status.
        let bhs =
            conclude(data_in(transfer, sent.offset_bytes, true), &outcome, residuals.0, numbering);
        return send(Pdu { digest, ..Pdu::with_data(bhs, data) });
    }
    let conclusion = with_status.then_some((&outcome, residuals.0));
    let mut pdus = sent.pdus;
    if !data.is_empty() {
        let (offset_bytes, data) = (sent.offset_bytes, (data, digest));
        let more = send_data(transfer, offset_bytes, data, conclusion, rules, numbering, &mut send);
        pdus = pdus.wrapping_add(more);
    }
    if !with_status {
        let status_qualifier = if rules.qualifies { outcome.status_qualifier } else { 0 };
        let pdu = response(entry, &outcome, residuals, pdus);
        let mut bhs = ScsiResponse { status_qualifier, ..pdu }.encode();
        numbering.stamp_status(&mut bhs);
        send(Pdu::with_data(bhs, sense_segment(&outcome.sense)));
    }
}

/// Sends data in as many PDUs as it needs and returns their number; the last has a status if there
/// is a `conclusion`. The last PDU ends a sequence. The digest is that of all data: it is sent with
/// a single PDU.
#[inline(never)]
pub(super) fn send_data(
    transfer: &mut Transfer,
    offset_bytes: u32,
    (mut data, digest): (Bytes, Option<u32>),
    conclusion: Option<(&Outcome, Residual)>,
    rules: SendRules,
    numbering: &mut Numbering,
    mut send: impl FnMut(Pdu),
) -> u32 {
    let mut bounds = Bounds::new(rules, offset_bytes);
    while !data.is_empty() {
        let (offset_bytes, bytes) = bounds.next(data.len());
        let piece = data.split_to(bytes);
        let last = data.is_empty();
        let data_in = data_in(transfer, offset_bytes, last || bounds.burst_is_over());
        let bhs = match conclusion {
            Some((outcome, residual)) if last => conclude(data_in, outcome, residual, numbering),
            _ => data_in.encode(),
        };
        let digest = digest.filter(|_| last && bounds.pdus == 1);
        send(Pdu { digest, ..Pdu::with_data(bhs, piece) });
    }
    bounds.pdus
}

/// Puts the status into the last Data-In.
#[inline]
fn conclude(
    mut pdu: DataIn,
    outcome: &Outcome,
    residual: Residual,
    numbering: &mut Numbering,
) -> [u8; HEADER_BYTES] {
    pdu.flags = pdu.flags.with(DataInFlags::STATUS).with(match residual {
        Residual::None => DataInFlags::NONE,
        Residual::Overflow(_) => DataInFlags::OVERFLOW,
        Residual::Underflow(_) => DataInFlags::UNDERFLOW,
    });
    pdu.status = outcome.status;
    pdu.residual_bytes = residual.bytes();
    let mut bhs = pdu.encode();
    numbering.stamp_status(&mut bhs);
    bhs
}

/// The result of a task for which there is no room; in a tenth of a second many tasks can end.
pub(super) fn task_set_full() -> Outcome {
    Outcome { status: TASK_SET_FULL, status_qualifier: 1, ..Outcome::default() }
}

/// Returns the first `bytes` of `data`, with the digest if that is all of it. Less than half of it
/// is copied: a slice would keep the whole buffer while it waits to be sent, but count only as its
/// own length.
pub(super) fn cut_to((data, digest): (Bytes, Option<u32>), bytes: usize) -> (Bytes, Option<u32>) {
    match data.len() {
        len if len <= bytes => (data, digest),
        len if len / 2 <= bytes => (data.slice(..bytes), None),
        _ => (Bytes::copy_from_slice(&data[..bytes]), None),
    }
}

/// Calculates the residual, and that of the read part of a bidirectional command.
fn residuals(entry: &Entry, outcome: &Outcome, sent: SentDataIn) -> (Residual, Residual) {
    let task = &entry.task;
    let given_bytes = sent.given_bytes.saturating_add(outcome.data_in.len());
    let read_bytes = given_bytes.max(outcome.data_in_bytes as usize);
    let written_bytes = outcome.data_out_bytes as usize;
    match (task.read, task.write) {
        (true, true) => (
            Residual::of(task.expected_bytes, written_bytes),
            Residual::of(task.expected_data_in_bytes(), read_bytes),
        ),
        (true, false) => (Residual::of(task.expected_bytes, read_bytes), Residual::None),
        (false, true) => (Residual::of(task.expected_bytes, written_bytes), Residual::None),
        // Neither direction was announced: everything the command would have moved is an overflow.
        (false, false) => {
            (Residual::of(task.expected_bytes, read_bytes.max(written_bytes)), Residual::None)
        }
    }
}

/// True if a status reports no error.
pub(super) fn reports_no_error(status: u8) -> bool {
    matches!(status, GOOD | CONDITION_MET | INTERMEDIATE | INTERMEDIATE_CONDITION_MET)
}

/// True if Data-In may carry the status. RFC 7143 §11.7.3: no error status, no sense, not
/// bidirectional.
fn may_collapse(entry: &Entry, outcome: &Outcome) -> bool {
    reports_no_error(outcome.status) && outcome.sense.is_empty() && !entry.task.write
}

/// Splits data into segments that the initiator accepts and sequences of MaxBurstLength.
#[derive(Debug)]
pub(super) struct Bounds {
    segment_bytes: usize,
    burst_bytes: usize,
    burst_left_bytes: usize,
    offset_bytes: usize,
    /// Number of PDUs so far.
    pdus: u32,
}

impl Bounds {
    pub(super) fn new(rules: SendRules, offset_bytes: u32) -> Self {
        let burst_bytes = rules.burst_bytes_max.max(1) as usize;
        Self {
            segment_bytes: rules.segment_bytes_max.max(1) as usize,
            burst_bytes,
            burst_left_bytes: burst_bytes,
            offset_bytes: offset_bytes as usize,
            pdus: 0,
        }
    }

    /// Returns offset and length of the next piece of the remaining data.
    pub(super) fn next(&mut self, left_bytes: usize) -> (u32, usize) {
        if self.burst_left_bytes == 0 {
            self.burst_left_bytes = self.burst_bytes;
        }
        let bytes = left_bytes.min(self.segment_bytes).min(self.burst_left_bytes);
        let offset_bytes = self.offset_bytes as u32;
        self.offset_bytes += bytes;
        self.burst_left_bytes -= bytes;
        self.pdus += 1;
        (offset_bytes, bytes)
    }

    /// Position of the next PDU.
    pub(super) fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// Number of PDUs so far.
    pub(super) fn pdus(&self) -> u32 {
        self.pdus
    }

    /// True if the last piece ended a sequence.
    pub(super) fn burst_is_over(&self) -> bool {
        self.burst_left_bytes == 0
    }
}

pub(super) fn data_in(transfer: &mut Transfer, offset_bytes: u32, is_final: bool) -> DataIn {
    DataIn {
        first: FirstByte::plain(Opcode::DATA_IN),
        flags: DataInFlags::NONE.with_if(is_final, DataInFlags::FINAL),
        status: 0,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        // Reserved without the A bit, like the tag. RFC 7143 §11.7.4.
        lun: Lun::ZERO,
        initiator_task_tag: transfer.initiator_task_tag,
        target_transfer_tag: TAG_RESERVED,
        stat_sn: SerialNumber(0),
        exp_cmd_sn: SerialNumber(0),
        max_cmd_sn: SerialNumber(0),
        data_sn: transfer.take_data_sn(),
        buffer_offset_bytes: offset_bytes,
        residual_bytes: 0,
    }
}

fn response(
    entry: &Entry,
    outcome: &Outcome,
    (residual, read_residual): (Residual, Residual),
    data_in_pdus: u32,
) -> ScsiResponse {
    let flags = ResponseFlags::FINAL
        .with(match residual {
            Residual::None => ResponseFlags::NONE,
            Residual::Overflow(_) => ResponseFlags::OVERFLOW,
            Residual::Underflow(_) => ResponseFlags::UNDERFLOW,
        })
        .with(match read_residual {
            Residual::None => ResponseFlags::NONE,
            Residual::Overflow(_) => ResponseFlags::BIDI_READ_OVERFLOW,
            Residual::Underflow(_) => ResponseFlags::BIDI_READ_UNDERFLOW,
        });
    ScsiResponse {
        first: FirstByte::plain(Opcode::SCSI_RESPONSE),
        flags,
        response: ServiceResponse::COMMAND_COMPLETED,
        status: outcome.status,
        total_ahs_words: 0,
        data_segment_length: U24::default(),
        status_qualifier: 0,
        initiator_task_tag: entry.transfer.initiator_task_tag,
        snack_tag: 0,
        stat_sn: SerialNumber(0),
        exp_cmd_sn: SerialNumber(0),
        max_cmd_sn: SerialNumber(0),
        exp_data_sn: data_in_pdus,
        bidi_read_residual_bytes: read_residual.bytes(),
        residual_bytes: residual.bytes(),
    }
}

/// Builds a data segment of SenseLength and sense data. RFC 7143 §11.4.7.
fn sense_segment(sense: &[u8]) -> Bytes {
    if sense.is_empty() {
        return Bytes::new();
    }
    let sense = &sense[..sense.len().min(SENSE_BYTES_MAX)];
    let mut segment = Vec::with_capacity(2 + sense.len());
    segment.extend_from_slice(&(sense.len() as u16).to_be_bytes());
    segment.extend_from_slice(sense);
    Bytes::from(segment)
}
