//! A session in full feature phase: numbering, tags, and the PDUs of an initiator. RFC 7143 §11.

use super::cdb::CdbBytes;
use super::connection::TcpConnection;
use super::login::LoginResult;
use crate::random::Random;
use anyhow::{Context, Result, bail};
use lunar_testkit::raw::{RawOutcome, RawPdu, opcode};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The immediate bit of a request's first byte.
pub const IMMEDIATE: u8 = 0x40;
/// The reserved tag.
pub const RESERVED_TAG: u32 = u32::MAX;

/// Flags of a SCSI Command, RFC 7143 §11.3.1. The lowest three bits are the task attribute.
pub mod flags {
    /// No Data-Out without R2T follows.
    pub const FINAL: u8 = 0x80;
    /// Data goes to the initiator.
    pub const READ: u8 = 0x40;
    /// Data goes to the target.
    pub const WRITE: u8 = 0x20;
    /// Attribute: SIMPLE.
    pub const SIMPLE: u8 = 1;
    /// Attribute: ORDERED.
    pub const ORDERED: u8 = 2;
    /// Attribute: HEAD OF QUEUE.
    pub const HEAD_OF_QUEUE: u8 = 3;
}

/// Maximum number of consecutive unit attentions before a command counts as failed.
const ATTENTIONS_MAX: usize = 16;

/// One connection of a session that has logged in.
pub struct RawSession {
    /// The connection.
    pub connection: TcpConnection,
    /// Result of the login.
    pub negotiated: LoginResult,
    /// The LUN that commands go to.
    pub lun: u8,
    /// CmdSN of the next numbered request.
    pub cmd_sn: u32,
    /// Random numbers of this session.
    pub random: Random,
    exp_stat_sn: u32,
    max_cmd_sn: u32,
    next_tag: u32,
    sent_pdus: u64,
    r2ts: VecDeque<RawPdu>,
    pings_unanswered: u32,
}

impl RawSession {
    /// Creates a session over a connection whose login had this result.
    pub fn new(connection: TcpConnection, negotiated: LoginResult, lun: u8, seed: u64) -> Self {
        Self {
            connection,
            lun,
            cmd_sn: negotiated.exp_cmd_sn,
            exp_stat_sn: negotiated.exp_stat_sn,
            max_cmd_sn: negotiated.max_cmd_sn,
            negotiated,
            random: Random::new(seed),
            next_tag: 1,
            sent_pdus: 0,
            r2ts: VecDeque::new(),
            pings_unanswered: 0,
        }
    }

    /// Returns a tag not used before in this session.
    pub fn new_tag(&mut self) -> u32 {
        self.next_tag = if self.next_tag == RESERVED_TAG - 1 { 1 } else { self.next_tag + 1 };
        self.next_tag
    }

    /// True when the target accepts another numbered request: RFC 7143 §4.2.2.1.
    pub fn window_is_open(&self) -> bool {
        // Serial arithmetic: MaxCmdSN is at most half the circle ahead.
        self.max_cmd_sn.wrapping_sub(self.cmd_sn) < 1 << 31
    }

    /// Copies the command window from another connection of the session, and pings there again.
    pub fn follow_window(&mut self, observer: &mut Self) {
        while observer.receive().is_some() {
            observer.pings_unanswered = 0;
        }
        self.max_cmd_sn = observer.max_cmd_sn;
        if observer.pings_unanswered == 0 {
            observer.pings_unanswered += 1;
            observer.cmd_sn = self.cmd_sn;
            let ping = observer.ping(true);
            observer.queue(&ping);
        }
        observer.connection.send();
    }

    /// Builds a request with LUN, a new tag and the next CmdSN.
    pub fn request(&mut self, opcode: u8, flags: u8) -> RawPdu {
        let pdu = self.immediate_request(opcode, flags).put(0, &[opcode]);
        self.cmd_sn = self.cmd_sn.wrapping_add(1);
        pdu
    }

    /// Builds a request for immediate delivery with LUN and a new tag; uses no CmdSN.
    pub fn immediate_request(&mut self, opcode: u8, flags: u8) -> RawPdu {
        RawPdu::new(opcode | IMMEDIATE, flags)
            .put(8, &[0, self.lun])
            .put_u32(16, self.new_tag())
            .put_u32(24, self.cmd_sn)
            .put_u32(28, self.exp_stat_sn)
    }

    /// Builds a SCSI Command. RFC 7143 §11.3.
    pub fn command(&mut self, flags: u8, cdb: &CdbBytes, expected_bytes: u32) -> RawPdu {
        let request = self.request(opcode::SCSI_COMMAND, flags | flags::FINAL);
        request.put_u32(20, expected_bytes).put(32, cdb)
    }

    /// Builds a SCSI Command for immediate delivery.
    pub fn immediate_command(&mut self, flags: u8, cdb: &CdbBytes, expected_bytes: u32) -> RawPdu {
        let request = self.immediate_request(opcode::SCSI_COMMAND, flags | flags::FINAL);
        request.put_u32(20, expected_bytes).put(32, cdb)
    }

    /// Builds a NOP-Out that requires a response. RFC 7143 §11.18.
    pub fn ping(&mut self, immediate: bool) -> RawPdu {
        let request = match immediate {
            true => self.immediate_request(opcode::NOP_OUT, 0x80),
            false => self.request(opcode::NOP_OUT, 0x80),
        };
        request.put_u32(20, RESERVED_TAG)
    }

    /// Builds a task management request for immediate delivery. RFC 7143 §11.5.
    pub fn task_management(
        &mut self,
        function: u8,
        referenced_tag: u32,
        ref_cmd_sn: u32,
    ) -> RawPdu {
        let request = self.immediate_request(opcode::TASK_MANAGEMENT, 0x80 | function);
        request.put_u32(20, referenced_tag).put_u32(32, ref_cmd_sn)
    }

    /// Builds Data-Out for an R2T (or unsolicited, with the reserved transfer tag). RFC 7143 §11.7.
    pub fn data_out(&self, tag: u32, transfer_tag: u32, offset: u32, is_final: bool) -> RawPdu {
        RawPdu::new(opcode::DATA_OUT, if is_final { 0x80 } else { 0 })
            .put(8, &[0, self.lun])
            .put_u32(16, tag)
            .put_u32(20, transfer_tag)
            .put_u32(28, self.exp_stat_sn)
            .put_u32(40, offset)
    }

    /// Queues a PDU.
    pub fn queue(&mut self, pdu: &RawPdu) {
        self.sent_pdus += 1;
        self.connection.queue(pdu);
    }

    /// Returns the number of PDUs queued since the last call.
    pub fn take_sent_pdus(&mut self) -> u64 {
        std::mem::take(&mut self.sent_pdus)
    }

    /// Stores an R2T until [`answer_next_r2t`](Self::answer_next_r2t).
    pub fn keep_r2t(&mut self, pdu: &RawPdu) {
        if pdu.opcode() == opcode::R2T {
            self.r2ts.push_back(pdu.clone());
        }
    }

    /// Queues all Data-Out that the oldest R2T requests, as zeros; `false`: there is no R2T.
    pub fn answer_next_r2t(&mut self) -> bool {
        let Some(r2t) = self.r2ts.pop_front() else { return false };
        let bytes = vec![0; r2t.u32_at(44) as usize];
        self.answer_r2t_with(&r2t, &bytes);
        true
    }

    /// Queues the Data-Out that an R2T requests, in PDUs of the longest length that the target
    /// accepts.
    pub fn answer_r2t_with(&mut self, r2t: &RawPdu, data: &[u8]) {
        let (tag, transfer_tag, begin) = (r2t.u32_at(16), r2t.u32_at(20), r2t.u32_at(40));
        let pieces = data.chunks(self.negotiated.data_bytes_max);
        let count = pieces.len();
        for (number, piece) in pieces.enumerate() {
            let offset = begin + (number * self.negotiated.data_bytes_max) as u32;
            let data_out = self.data_out(tag, transfer_tag, offset, number + 1 == count);
            self.queue(&data_out.put_u32(36, number as u32).with_data(piece));
        }
    }

    /// Returns the next PDU that has arrived; updates status numbers and the command window, and
    /// answers pings of the target.
    pub fn receive(&mut self) -> Option<RawPdu> {
        let pdu = self.connection.receive()?;
        let carries_status = match pdu.opcode() {
            opcode::DATA_IN => pdu.header[1] & 1 != 0,
            opcode::R2T => false,
            opcode::NOP_IN => pdu.u32_at(16) != RESERVED_TAG,
            _ => true,
        };
        if carries_status {
            self.exp_stat_sn = pdu.u32_at(24).wrapping_add(1);
        }
        let max_cmd_sn = pdu.u32_at(32);
        if max_cmd_sn.wrapping_sub(self.max_cmd_sn) < 1 << 31 {
            self.max_cmd_sn = max_cmd_sn;
        }
        if pdu.opcode() == opcode::NOP_IN && pdu.u32_at(20) != RESERVED_TAG {
            let pong = self.immediate_request(opcode::NOP_OUT, 0x80);
            self.queue(&pong.put_u32(16, RESERVED_TAG).put(20, &pdu.header[20..24]));
        }
        Some(pdu)
    }

    /// Runs one command to its end while no other is under way; `out` is sent as immediate data.
    /// Repeats the command after unit attentions.
    ///
    /// # Errors
    /// The connection ends, or there is no answer within `limit`.
    pub fn execute(
        &mut self,
        cdb: &CdbBytes,
        out: &[u8],
        in_bytes: u32,
        limit: Duration,
    ) -> Result<RawOutcome> {
        let until = Instant::now() + limit;
        for _ in 0..ATTENTIONS_MAX {
            let (flags, expected) = match (out.len(), in_bytes) {
                (0, 0) => (flags::SIMPLE, 0),
                (0, bytes) => (flags::SIMPLE | flags::READ, bytes),
                (bytes, _) => (flags::SIMPLE | flags::WRITE, bytes as u32),
            };
            let command = self.command(flags, cdb, expected).with_data(out);
            let tag = command.u32_at(16);
            self.queue(&command);
            let outcome = self.outcome(tag, until)?;
            if outcome.status != 2 || outcome.sense_codes().0 != 6 {
                return Ok(outcome);
            }
        }
        bail!("endless unit attentions")
    }

    /// Collects the responses to one command.
    fn outcome(&mut self, tag: u32, until: Instant) -> Result<RawOutcome> {
        let mut data = Vec::new();
        loop {
            let pdu = self.wait(until).with_context(|| format!("no answer to tag {tag:#x}"))?;
            if pdu.u32_at(16) != tag {
                continue;
            }
            match pdu.opcode() {
                opcode::DATA_IN => {
                    data.extend_from_slice(&pdu.data);
                    if pdu.header[1] & 1 != 0 {
                        return Ok(RawOutcome { status: pdu.header[3], data, sense: Vec::new() });
                    }
                }
                opcode::SCSI_RESPONSE => {
                    let sense = pdu.data.get(2..).unwrap_or_default().to_vec();
                    return Ok(RawOutcome { status: pdu.header[3], data, sense });
                }
                opcode::REJECT => bail!("the PDU was rejected with reason {:#04x}", pdu.header[2]),
                _ => {}
            }
        }
    }

    /// Waits for the next PDU; sends queued PDUs meanwhile. `None`: the connection has ended or the
    /// time is over.
    pub fn wait(&mut self, until: Instant) -> Option<RawPdu> {
        loop {
            self.connection.send();
            if let Some(pdu) = self.receive() {
                return Some(pdu);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.connection.is_closed() {
                return None;
            }
            self.connection.wait_readable(left.min(Duration::from_millis(20)));
        }
    }
}
