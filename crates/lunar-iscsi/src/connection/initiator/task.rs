//! A SCSI command that was sent and has no status yet.

use super::{Command, RequestFailure};
use crate::framing::TaskId;
use crate::framing::ahs::CDB_BYTES_MAX;
use bytes::Bytes;
use lunar_wire::{Lun, SerialNumber};

/// State of one command between its request and its response.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) lun: Lun,
    pub(super) cmd_sn: SerialNumber,
    pub(super) immediate: bool,
    pub(super) data_out: Bytes,
    /// Ranges of data-out requested by R2Ts, plus the unsolicited data at the start.
    pub(super) requested: Coverage,
    /// Number of R2Ts whose data is not completely sent.
    pub(super) r2ts_open: u32,
    /// Id of the task management function that may end this task: with FastAbort no more data is
    /// sent until the function is answered. RFC 7143 §4.2.3.4 a).
    pub(super) paused_by: Option<TaskId>,
    pub(super) data_in_bytes_max: u32,
    pub(super) received: Coverage,
    /// The next DataSN or R2TSN: one sequence for both. RFC 7143 §4.2.2.4.
    pub(super) input_sn: u32,
}

impl Task {
    /// Creates a task that was just sent; `unsolicited_bytes` of its data-out are sent or due
    /// without an R2T.
    pub(super) fn new(command: Command, cmd_sn: SerialNumber, unsolicited_bytes: u32) -> Self {
        Self {
            id: command.id,
            lun: command.lun,
            cmd_sn,
            immediate: command.immediate,
            data_out: command.data_out,
            requested: Coverage::from_start(unsolicited_bytes),
            r2ts_open: 0,
            paused_by: None,
            data_in_bytes_max: command.data_in_bytes_max,
            received: Coverage::default(),
            input_sn: 0,
        }
    }

    /// Length of the data-out; checked to fit when the command was accepted.
    pub(super) fn data_out_bytes(&self) -> u32 {
        self.data_out.len() as u32
    }

    /// True if the command moves data in both directions.
    pub(super) fn is_bidirectional(&self) -> bool {
        !self.data_out.is_empty() && self.data_in_bytes_max > 0
    }

    /// True if a function on several tasks, sent with CmdSN `before`, covers this task.
    ///
    /// An immediate command carries the CmdSN of the next command, so an immediate command sent
    /// just before the function has the same CmdSN as the function.
    pub(super) fn is_older(&self, before: SerialNumber) -> bool {
        self.cmd_sn.before(before) || self.immediate && self.cmd_sn == before
    }
}

/// One sequence of Data-Out: unsolicited, or requested by one R2T.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) initiator_task_tag: u32,
    /// The reserved tag for unsolicited data.
    pub(super) target_transfer_tag: u32,
    /// LUN of the R2T; zero for unsolicited data.
    pub(super) lun: Lun,
    pub(super) at_bytes: u32,
    pub(super) end_bytes: u32,
    pub(super) data_sn: u32,
}

/// Completed bytes of a transfer: sorted ranges that neither touch nor overlap.
///
/// In the common case of data in order this is one range from 0, which needs no allocation.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    /// End of the range that begins at 0.
    contiguous: u32,
    /// Ranges behind the first gap.
    ranges: alloc::vec::Vec<(u32, u32)>,
}

/// The reason why a range is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum RangeError {
    /// The range reaches beyond the end of the transfer.
    BeyondEnd,
    /// The range is not the next one although order was negotiated.
    OutOfOrder,
    /// A part of the range was covered before.
    Overlaps,
    /// Too many gaps.
    TooScattered,
}

impl RangeError {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::BeyondEnd => "exceeds the expected data length",
            Self::OutOfOrder => "is out of order",
            Self::Overlaps => "repeats a part of the data",
            Self::TooScattered => "leaves too many gaps in the data",
        }
    }
}

impl Coverage {
    /// Maximum number of gaps in a transfer at one time.
    const RANGES_MAX: usize = 1024;

    /// Number of covered bytes from the start without a gap.
    pub(super) fn contiguous(&self) -> u32 {
        self.contiguous
    }

    /// Number of all covered bytes.
    pub(super) fn total(&self) -> u32 {
        self.contiguous + self.ranges.iter().map(|(start, end)| end - start).sum::<u32>()
    }

    /// Creates a coverage of `bytes` bytes from the start.
    fn from_start(bytes: u32) -> Self {
        Self { contiguous: bytes, ranges: alloc::vec::Vec::new() }
    }

    /// Adds `bytes` bytes at `offset` of a transfer of `total` bytes.
    pub(super) fn add(
        &mut self,
        offset: u32,
        bytes: u32,
        total: u32,
        in_order: bool,
    ) -> Result<(), RangeError> {
        let end =
            offset.checked_add(bytes).filter(|end| *end <= total).ok_or(RangeError::BeyondEnd)?;
        if in_order && offset != self.contiguous {
            return Err(RangeError::OutOfOrder);
        }
        if bytes == 0 {
            return Ok(());
        }
        let after = self.ranges.partition_point(|(start, _)| *start < offset);
        let touches_next = match self.ranges.get(after) {
            Some((start, _)) if *start < end => return Err(RangeError::Overlaps),
            next => next.is_some_and(|(start, _)| *start == end),
        };
        let before = match after.checked_sub(1) {
            Some(before) => &mut self.ranges[before].1,
            None => &mut self.contiguous,
        };
        match (*before, touches_next) {
            (last_end, _) if last_end > offset => return Err(RangeError::Overlaps),
            (last_end, false) if last_end == offset => *before = end,
            (last_end, true) if last_end == offset => {
                let next_end = self.ranges[after].1;
                match after.checked_sub(1) {
                    Some(before) => self.ranges[before].1 = next_end,
                    None => self.contiguous = next_end,
                }
                self.ranges.remove(after);
            }
            (_, true) => self.ranges[after].0 = offset,
            (_, false) if self.ranges.len() >= Self::RANGES_MAX => {
                return Err(RangeError::TooScattered);
            }
            (_, false) => self.ranges.insert(after, (offset, end)),
        }
        Ok(())
    }
}

/// Checks that the command can be encoded.
pub(super) fn checked(command: &Command) -> Result<(), RequestFailure> {
    if command.cdb.is_empty() || command.cdb.len() > CDB_BYTES_MAX {
        return Err(RequestFailure::Refused("a CDB must have 1 to 260 bytes"));
    }
    if u32::try_from(command.data_out.len()).is_err() {
        return Err(RequestFailure::Refused(
            "the data-out is longer than its length field can represent",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    #[test]
    fn in_order_means_the_next_byte() {
        let mut done = Coverage::default();
        assert_eq!(done.add(0, 4, 10, true), Ok(()));
        assert_eq!(done.add(5, 1, 10, true), Err(RangeError::OutOfOrder));
        assert_eq!(done.add(4, 7, 10, true), Err(RangeError::BeyondEnd));
        assert_eq!(done.add(u32::MAX, 2, 10, true), Err(RangeError::BeyondEnd));
        assert_eq!(done.add(4, 0, 10, true), Ok(()), "empty pieces are allowed");
        assert_eq!(done.add(4, 6, 10, true), Ok(()));
        assert_eq!((done.contiguous(), done.total()), (10, 10));
    }

    proptest! {
        /// Goal: ranges in any order are accepted once and counted correctly.
        /// Method: random ranges, compared with a bitmap.
        #[test]
        fn agrees_with_a_bitmap(pieces: Vec<(u8, u8)>) {
            let (mut done, mut bits) = (Coverage::default(), [false; 256]);
            for (offset, bytes) in pieces {
                let range = usize::from(offset)..usize::from(offset) + usize::from(bytes);
                let want = if range.end > 256 {
                    Err(RangeError::BeyondEnd)
                } else if bits[range.clone()].contains(&true) {
                    Err(RangeError::Overlaps)
                } else {
                    bits[range].fill(true);
                    Ok(())
                };
                prop_assert_eq!(done.add(offset.into(), bytes.into(), 256, false), want);
                prop_assert_eq!(done.total() as usize, bits.iter().filter(|bit| **bit).count());
                let start = bits.iter().take_while(|bit| **bit).count();
                prop_assert_eq!(done.contiguous() as usize, start);
            }
        }
    }
}
