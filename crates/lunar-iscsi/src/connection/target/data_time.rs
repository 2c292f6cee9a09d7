//! Time limits for data-out that an initiator has to send. Decision 088.
//!
//! The clock of a task runs while its data is due: from the header of a command with immediate
//! data, from a command followed by unsolicited data, or from an R2T, in each case until the last
//! PDU has arrived completely. While no data is due, the clock is stopped.
//!
//! A task is late when the connection has moved nothing for [`ConnectionLimits::data_out_seconds`],
//! or when its clock has run for longer than those seconds plus the time that the data moved by the
//! connection meanwhile takes at [`DATA_OUT_BYTES_PER_SECOND_MIN`]. An initiator serves its R2Ts
//! one after the other and reads the data sent to it, so all other data of the connection is
//! progress as well. Only whole data segments count, and at most [`DATA_OUT_COUNTED_BYTES_MAX`]
//! bytes of them.
//!
//! A response may not be sent before the last PDU of the sequence that is due (RFC 7143 §11.4.2),
//! so the connection is closed, and its tasks are aborted with it.
//!
//! [`ConnectionLimits::data_out_seconds`]: super::ConnectionLimits::data_out_seconds

use core::num::NonZeroU64;
use lunar_wire::Time;

/// Minimum long-term data rate of a connection whose initiator has data to send, in bytes per
/// second.
pub const DATA_OUT_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// Maximum number of bytes moved by a connection that count as progress of one task: about as much
/// as a connection may have in flight at once.
pub const DATA_OUT_COUNTED_BYTES_MAX: u64 = 64 << 20;

/// Reason given when a connection is closed for late data.
pub(super) const DATA_OUT_LATE: &str =
    "the initiator did not send the data of a command in time (data_out_seconds)";

/// The clock of one task, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DataClock {
    /// Start of the current run; `None` while the clock is stopped.
    since: Option<NonZeroU64>,
    /// Bytes that the connection had moved at that time.
    mark_bytes: u64,
    /// Duration of earlier runs.
    ran: u64,
    /// Bytes that the connection moved during earlier runs.
    counted_bytes: u64,
}

/// The time limits of a connection and the data it moves.
#[derive(Debug)]
pub(super) struct DataTime {
    /// Time limit in nanoseconds.
    limit: u64,
    /// Bytes of data segments received completely, and of a large send queue that the peer has
    /// accepted.
    moved_bytes: u64,
    /// Time of the last progress.
    moved_at: Time,
    /// No clock runs out before this time.
    earliest: Time,
}

/// The deadline when no clock runs.
pub(super) const NEVER: Time = Time::from_nanos(u64::MAX);

impl DataTime {
    pub(super) fn new(now: Time, seconds: u32) -> Self {
        let limit = u64::from(seconds) * NANOS;
        Self { limit, moved_bytes: 0, moved_at: now, earliest: NEVER }
    }

    /// Counts `bytes` of a whole PDU received, or of data that the peer accepted.
    #[inline]
    pub(super) fn moved(&mut self, now: Time, bytes: u64) {
        self.moved_bytes += bytes;
        self.moved_at = now;
    }

    /// Starts the clock of a task whose data becomes due, if it does not run.
    #[inline]
    pub(super) fn start(&mut self, clock: &mut DataClock, now: Time) {
        if clock.since.is_some() {
            return;
        }
        clock.since = NonZeroU64::new(now.as_nanos().max(1));
        clock.mark_bytes = self.moved_bytes;
        // A clock that has never run has the whole limit.
        let ends = match clock.ran {
            0 => Time::from_nanos(now.as_nanos().saturating_add(self.limit)),
            _ => self.end_of(clock),
        };
        self.earliest = self.earliest.min(ends);
    }

    /// Stops the clock of a task of which no data is due any more.
    #[inline]
    pub(super) fn stop(&self, clock: &mut DataClock, now: Time) {
        if let Some(since) = clock.since.take() {
            clock.ran += now.as_nanos().saturating_sub(since.get());
            clock.counted_bytes = self.counted(clock);
        }
    }

    /// Time at which a clock runs out if no more data is moved.
    fn end_of(&self, clock: &DataClock) -> Time {
        let Some(since) = clock.since else { return NEVER };
        let silent = since.get().max(self.moved_at.as_nanos()).saturating_add(self.limit);
        let allowed = self.limit + nanos_for(self.counted(clock));
        let slow = since.get().saturating_add(allowed.saturating_sub(clock.ran));
        Time::from_nanos(silent.min(slow))
    }

    fn counted(&self, clock: &DataClock) -> u64 {
        let moved = self.moved_bytes.saturating_sub(clock.mark_bytes);
        clock.counted_bytes.saturating_add(moved).min(DATA_OUT_COUNTED_BYTES_MAX)
    }

    /// Time of the next check of the clocks; the end of time if none runs.
    pub(super) fn earliest(&self) -> Time {
        self.earliest
    }

    /// Checks the clocks; returns whether one has run out.
    pub(super) fn is_late<'a>(
        &mut self,
        now: Time,
        clocks: impl Iterator<Item = &'a DataClock>,
    ) -> bool {
        self.earliest = clocks.map(|clock| self.end_of(clock)).min().unwrap_or(NEVER);
        self.earliest <= now
    }
}

const NANOS: u64 = 1_000_000_000;

/// Time allowed for `bytes`; at most `DATA_OUT_COUNTED_BYTES_MAX`, so that the product fits.
fn nanos_for(bytes: u64) -> u64 {
    bytes * NANOS / DATA_OUT_BYTES_PER_SECOND_MIN
}
const _: () = assert!(DATA_OUT_COUNTED_BYTES_MAX.checked_mul(NANOS).is_some());

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_nanos((seconds + 1) * NANOS)
    }

    /// Goal: a stopped clock does not advance, however much time passes; its earlier runs count.
    #[test]
    fn a_stopped_clock_takes_no_time() {
        let mut time = DataTime::new(at(0), 30);
        let mut clock = DataClock::default();
        assert!(!time.is_late(at(1000), [clock].iter()));
        time.start(&mut clock, at(1000));
        time.stop(&mut clock, at(1020));
        assert!(!time.is_late(at(5000), [clock].iter()) && time.earliest() == NEVER);
        time.start(&mut clock, at(5000));
        assert_eq!(time.earliest(), at(5010), "10 of 30 seconds are left");
        time.moved(at(5009), DATA_OUT_BYTES_PER_SECOND_MIN * 5);
        assert!(!time.is_late(at(5010), [clock].iter()));
        assert_eq!(time.earliest(), at(5015));
        assert!(time.is_late(at(5015), [clock].iter()));
    }

    /// Goal: data moved fast does not make up for a silence, and at most the maximum counts.
    #[test]
    fn a_silent_or_slow_initiator_is_late() {
        let mut time = DataTime::new(at(0), 30);
        let mut clock = DataClock::default();
        time.start(&mut clock, at(0));
        time.moved(at(1), DATA_OUT_COUNTED_BYTES_MAX);
        assert!(!time.is_late(at(30), [clock].iter()));
        assert_eq!(time.earliest(), at(31));
        let total = 30 + DATA_OUT_COUNTED_BYTES_MAX / DATA_OUT_BYTES_PER_SECOND_MIN;
        for second in 1..total {
            time.moved(at(second), DATA_OUT_BYTES_PER_SECOND_MIN * 100);
            assert!(!time.is_late(at(second), [clock].iter()), "after {second} s");
        }
        assert!(time.is_late(at(total), [clock].iter()), "the data of this task never arrived");
    }
}
