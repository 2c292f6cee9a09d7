//! The sequence numbers of one connection: StatSN, ExpStatSN, the session's command window
//! (ExpCmdSN and MaxCmdSN), and Target Transfer Tags. RFC 7143 §4.2.2.

use crate::pdu::HEADER_BYTES;
use crate::text::exchange::TargetExchange;
use lunar_wire::{Field, SerialNumber};

/// Offsets of StatSN, ExpCmdSN and MaxCmdSN, which are the same in every PDU of RFC 7143 §11 that a
/// target sends.
const AT_STAT_SN: usize = 24;
const AT_EXP_CMD_SN: usize = 28;
const AT_MAX_CMD_SN: usize = 32;

/// The sequence numbers of one connection.
#[derive(Debug)]
pub(super) struct Numbering {
    /// StatSN of the next response.
    stat_sn: SerialNumber,
    /// Last StatSN that the initiator has acknowledged.
    acknowledged: SerialNumber,
    exp_cmd_sn: SerialNumber,
    max_cmd_sn: SerialNumber,
    /// The largest MaxCmdSN sent on this connection.
    sent_max_cmd_sn: SerialNumber,
    last_transfer_tag: u32,
}

impl Numbering {
    pub(super) fn new(
        next_stat_sn: SerialNumber,
        exp_cmd_sn: SerialNumber,
        max_cmd_sn: SerialNumber,
    ) -> Self {
        Self {
            stat_sn: next_stat_sn,
            acknowledged: next_stat_sn.minus(1),
            exp_cmd_sn,
            max_cmd_sn,
            sent_max_cmd_sn: max_cmd_sn,
            last_transfer_tag: 0,
        }
    }

    /// Writes the next StatSN into a response and consumes it.
    pub(super) fn stamp_status(&mut self, bhs: &mut [u8; HEADER_BYTES]) {
        self.stat_sn.take().put(&mut bhs[AT_STAT_SN..AT_EXP_CMD_SN]);
    }

    /// Writes the next StatSN into a PDU that does not consume it: an R2T, or a NOP-In ping.
    pub(super) fn stamp_next_status(&self, bhs: &mut [u8; HEADER_BYTES]) {
        self.stat_sn.put(&mut bhs[AT_STAT_SN..AT_EXP_CMD_SN]);
    }

    /// Writes ExpCmdSN and MaxCmdSN into a PDU, as late as possible: the end of a task opens the
    /// window.
    pub(super) fn stamp_window(&mut self, bhs: &mut [u8; HEADER_BYTES]) {
        self.exp_cmd_sn.put(&mut bhs[AT_EXP_CMD_SN..AT_MAX_CMD_SN]);
        self.max_cmd_sn.put(&mut bhs[AT_MAX_CMD_SN..AT_MAX_CMD_SN + 4]);
        self.sent_max_cmd_sn = self.max_cmd_sn;
    }

    /// Updates the window of the session. A message older than the current window changes nothing.
    pub(super) fn set_window(&mut self, exp_cmd_sn: SerialNumber, max_cmd_sn: SerialNumber) {
        if exp_cmd_sn.after(self.exp_cmd_sn) {
            self.exp_cmd_sn = exp_cmd_sn;
        }
        if max_cmd_sn.after(self.max_cmd_sn) {
            self.max_cmd_sn = max_cmd_sn;
        }
    }

    /// True when the last MaxCmdSN sent on this connection shows a closed window although it has
    /// reopened: RFC 7143 §11.4.11 requires a NOP-In.
    pub(super) fn must_send_window(&self) -> bool {
        let used_up = !self.exp_cmd_sn.before(self.sent_max_cmd_sn.next());
        used_up && self.exp_cmd_sn.before(self.max_cmd_sn.next())
    }

    /// True if `cmd_sn` precedes ExpCmdSN, so that the request cannot be new. ExpCmdSN only grows,
    /// so the result stays valid; the session checks the other end of the window.
    pub(super) fn is_past(&self, cmd_sn: SerialNumber) -> bool {
        cmd_sn.before(self.exp_cmd_sn)
    }

    /// Records that the initiator has received every response before `exp_stat_sn`. A number that
    /// was never sent is ignored.
    pub(super) fn acknowledge(&mut self, exp_stat_sn: SerialNumber) {
        let last = exp_stat_sn.minus(1);
        if last.after(self.acknowledged) && last.before(self.stat_sn) {
            self.acknowledged = last;
        }
    }

    /// StatSN of the last response that was sent.
    pub(super) fn last_sent(&self) -> SerialNumber {
        self.stat_sn.minus(1)
    }

    /// True if the initiator has acknowledged the response with this StatSN.
    pub(super) fn is_acknowledged(&self, stat_sn: SerialNumber) -> bool {
        !stat_sn.after(self.acknowledged)
    }

    /// Returns a Target Transfer Tag for an R2T or a ping: not reused within 2^31 tags, never the
    /// reserved one, never one of a text exchange.
    pub(super) fn transfer_tag(&mut self) -> u32 {
        self.last_transfer_tag = self.last_transfer_tag.wrapping_add(1) & !TargetExchange::TAG_BIT;
        self.last_transfer_tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbering(stat_sn: u32) -> Numbering {
        Numbering::new(SerialNumber(stat_sn), SerialNumber(7), SerialNumber(8))
    }

    /// Goal: acknowledgement only moves forward, across the wrap, and never past the last number
    /// sent.
    #[test]
    fn acknowledgement_is_serial() {
        let mut numbering = numbering(u32::MAX);
        let mut bhs = [0; HEADER_BYTES];
        assert!(numbering.is_acknowledged(numbering.last_sent()), "the login is acknowledged");
        numbering.stamp_status(&mut bhs);
        assert_eq!(bhs[24..28], [0xff; 4]);
        numbering.stamp_status(&mut bhs);
        assert_eq!(bhs[24..28], [0; 4]);
        assert!(!numbering.is_acknowledged(SerialNumber(u32::MAX)));
        numbering.acknowledge(SerialNumber(5));
        assert!(!numbering.is_acknowledged(SerialNumber(u32::MAX)), "5 was never sent");
        numbering.acknowledge(SerialNumber(1));
        numbering.acknowledge(SerialNumber(0));
        assert!(numbering.is_acknowledged(SerialNumber(0)), "an old number changes nothing");
    }

    /// Goal: the window never moves back, and an opening that was not reported is detected.
    #[test]
    fn window_moves_forward() {
        let mut numbering = numbering(1);
        let mut bhs = [0; HEADER_BYTES];
        numbering.set_window(SerialNumber(9), SerialNumber(8));
        numbering.stamp_window(&mut bhs);
        assert!(!numbering.must_send_window());
        numbering.set_window(SerialNumber(8), SerialNumber(7));
        numbering.stamp_window(&mut bhs);
        assert_eq!(bhs[28..36], [0, 0, 0, 9, 0, 0, 0, 8]);
        numbering.set_window(SerialNumber(9), SerialNumber(9));
        assert!(numbering.must_send_window());
        numbering.stamp_window(&mut bhs);
        assert!(!numbering.must_send_window());
        // Other connections continued, and this one received the window at a different time.
        numbering.set_window(SerialNumber(10), SerialNumber(9));
        assert!(!numbering.must_send_window(), "the window is closed");
        numbering.set_window(SerialNumber(12), SerialNumber(15));
        assert!(numbering.must_send_window(), "ExpCmdSN is far beyond the MaxCmdSN sent");
        numbering.stamp_window(&mut bhs);
        numbering.set_window(SerialNumber(13), SerialNumber(16));
        assert!(!numbering.must_send_window(), "the MaxCmdSN sent is beyond ExpCmdSN");
    }
}
