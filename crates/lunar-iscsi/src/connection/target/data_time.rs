//! How long an initiator may owe data-out. Decision 088.
//!
//! The clock of a task runs while its data is due: from the header of a command with immediate
//! data, from a command that unsolicited data follows, from an R2T, each until the last PDU has
//! come whole. While nothing was asked for, no time passes.
//!
//! A task is late when for [`ConnectionLimits::data_out_seconds`] the connection has moved nothing,
//! or when its clock has run for longer than those seconds and the time that what the connection
//! has moved meanwhile takes at [`DATA_OUT_BYTES_PER_SECOND_MIN`]. An initiator serves its R2Ts one
//! after the other, and reads what it is sent: what else the connection moves is progress as well.
//! Single bytes are none, and no more counts than [`DATA_OUT_COUNTED_BYTES_MAX`].
//!
//! A response may not be sent before the last PDU of the sequence that is due (RFC 7143 §11.4.2):
//! the connection is closed, and its tasks are aborted with it.
//!
//! [`ConnectionLimits::data_out_seconds`]: super::ConnectionLimits::data_out_seconds

use core::num::NonZeroU64;
use lunar_wire::Time;

/// A connection whose initiator owes data has to be faster than this, in the long run.
pub const DATA_OUT_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// So much of what a connection moves counts as the progress of one task: about what it may have on
/// its way at once.
pub const DATA_OUT_COUNTED_BYTES_MAX: u64 = 64 << 20;

/// Why such a connection is closed.
pub(super) const DATA_OUT_LATE: &str =
    "the data of a command did not come in time (data_out_seconds)";

/// The clock of one task. Times are nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DataClock {
    /// Since when it runs; `None`: it stands.
    since: Option<NonZeroU64>,
    /// What the connection had moved then.
    mark_bytes: u64,
    /// How long it ran before.
    ran: u64,
    /// What the connection moved meanwhile.
    counted_bytes: u64,
}

/// The clocks of a connection, and what it moves.
#[derive(Debug)]
pub(super) struct DataTime {
    /// In nanoseconds.
    limit: u64,
    /// Data segments that have come whole, and what the peer has taken of a lot that it was sent.
    moved_bytes: u64,
    /// When it last did.
    moved_at: Time,
    /// No clock runs out before this.
    earliest: Time,
}

/// No clock runs.
const NEVER: Time = Time::from_nanos(u64::MAX);

impl DataTime {
    pub(super) fn new(now: Time, seconds: u32) -> Self {
        let limit = u64::from(seconds) * NANOS;
        Self { limit, moved_bytes: 0, moved_at: now, earliest: NEVER }
    }

    /// A whole PDU with so much data has come, or the peer has taken so much.
    #[inline]
    pub(super) fn moved(&mut self, now: Time, bytes: u64) {
        self.moved_bytes += bytes;
        self.moved_at = now;
    }

    /// Data of a task is due, if none was before.
    #[inline]
    pub(super) fn start(&mut self, clock: &mut DataClock, now: Time) {
        if clock.since.is_some() {
            return;
        }
        clock.since = NonZeroU64::new(now.as_nanos().max(1));
        clock.mark_bytes = self.moved_bytes;
        // One that has never run has all of the limit.
        let ends = match clock.ran {
            0 => Time::from_nanos(now.as_nanos().saturating_add(self.limit)),
            _ => self.ends(clock),
        };
        self.earliest = self.earliest.min(ends);
    }

    /// No data of it is due any more.
    #[inline]
    pub(super) fn stop(&self, clock: &mut DataClock, now: Time) {
        if let Some(since) = clock.since.take() {
            clock.ran += now.as_nanos().saturating_sub(since.get());
            clock.counted_bytes = self.counted(clock);
        }
    }

    /// When a clock runs out, if nothing more is moved.
    fn ends(&self, clock: &DataClock) -> Time {
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

    /// When to look at the clocks; the end of time if none runs.
    pub(super) fn earliest(&self) -> Time {
        self.earliest
    }

    /// Looks at the clocks; whether one has run out.
    pub(super) fn is_late<'a>(
        &mut self,
        now: Time,
        clocks: impl Iterator<Item = &'a DataClock>,
    ) -> bool {
        self.earliest = clocks.map(|clock| self.ends(clock)).min().unwrap_or(NEVER);
        self.earliest <= now
    }
}

const NANOS: u64 = 1_000_000_000;

/// How long so much may take; at most `DATA_OUT_COUNTED_BYTES_MAX`, so that it fits.
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

    /// Goal: a clock that stands costs no time, whatever passes; what it ran before counts.
    #[test]
    fn a_clock_that_stands_costs_nothing() {
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

    /// Goal: what was moved fast does not pay for a silence, and no more counts than the maximum.
    #[test]
    fn silence_ends_it_and_so_does_the_total() {
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
        assert!(time.is_late(at(total), [clock].iter()), "its own data never came");
    }
}
