//! Limits of commands and bytes per second.

use crate::Error;

/// The smallest limit of commands per second: 128 commands, a full window, then take 13 seconds. An
/// initiator aborts a command after some time (Linux: 30 seconds) and begins to reset.
pub const IOPS_MIN: u64 = 10;

/// The smallest limit of bandwidth, 10 Mbit/s: 32 commands of 1 MiB, as many as Linux has in flight
/// at one disk, then take 27 seconds.
pub const BYTES_PER_SECOND_MIN: u64 = 10_000_000 / 8;

/// A limit of work per second; the default limits nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Hash)]
pub struct Limit {
    iops: Option<u64>,
    bytes_per_second: Option<u64>,
}

impl Limit {
    /// No limit.
    pub const NONE: Self = Self { iops: None, bytes_per_second: None };

    /// Creates a limit of commands that read or write, and of bytes that they move, per second.
    ///
    /// # Errors
    /// One is below [`IOPS_MIN`] or [`BYTES_PER_SECOND_MIN`].
    pub fn new(iops: Option<u64>, bytes_per_second: Option<u64>) -> Result<Self, Error> {
        let refuse = |what: String| Err(Error::Options(what));
        if let Some(iops) = iops.filter(|iops| *iops < IOPS_MIN) {
            return refuse(format!(
                "a limit of {iops} commands per second is below the minimum of {IOPS_MIN}: \
                 commands would time out at the initiator"
            ));
        }
        if let Some(rate) = bytes_per_second.filter(|rate| *rate < BYTES_PER_SECOND_MIN) {
            return refuse(format!(
                "a limit of {} bit/s is below the minimum of {} Mbit/s: commands would time out \
                 at the initiator",
                rate.saturating_mul(8),
                BYTES_PER_SECOND_MIN * 8 / 1_000_000
            ));
        }
        Ok(Self { iops, bytes_per_second })
    }

    /// Commands that read or write, per second.
    pub fn iops(&self) -> Option<u64> {
        self.iops
    }

    /// Bytes per second.
    pub fn bytes_per_second(&self) -> Option<u64> {
        self.bytes_per_second
    }

    /// True when this limits nothing.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }
}

/// A limit for one initiator, for all its sessions together.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InitiatorLimit {
    /// Name of the initiator; `None`: each initiator that no other entry names.
    pub initiator: Option<String>,
    /// The limit.
    pub limit: Limit,
}

/// The limit for `initiator`: an entry that names it takes precedence over one for all.
pub(super) fn limit_for(limits: &[InitiatorLimit], initiator: &str) -> Limit {
    let is_named = |entry: &&InitiatorLimit| {
        entry.initiator.as_ref().is_some_and(|name| name.eq_ignore_ascii_case(initiator))
    };
    let named = limits.iter().find(is_named);
    let entry = named.or_else(|| limits.iter().find(|entry| entry.initiator.is_none()));
    entry.map_or(Limit::NONE, |entry| entry.limit)
}

/// Cost of a command or of a part of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cost {
    /// Number of commands.
    pub commands: u64,
    /// Bytes that are moved.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_would_cause_timeouts_are_refused() {
        assert!(Limit::new(Some(IOPS_MIN), Some(BYTES_PER_SECOND_MIN)).is_ok());
        assert!(Limit::new(None, None).unwrap().is_none());
        let error = Limit::new(Some(9), None).unwrap_err().to_string();
        assert!(error.contains("9 commands per second is below the minimum of 10"), "{error}");
        let error = Limit::new(None, Some(125_000)).unwrap_err().to_string();
        assert!(error.contains("1000000 bit/s is below the minimum of 10 Mbit/s"), "{error}");
    }

    #[test]
    fn a_limit_with_a_name_precedes_one_for_all() {
        let entry = |initiator: Option<&str>, iops| InitiatorLimit {
            initiator: initiator.map(str::to_owned),
            limit: Limit::new(Some(iops), None).unwrap(),
        };
        let limits = [entry(None, 100), entry(Some("iqn.a"), 200)];
        assert_eq!(limit_for(&limits, "IQN.A").iops(), Some(200));
        assert_eq!(limit_for(&limits, "iqn.b").iops(), Some(100));
        assert_eq!(limit_for(&limits[1..], "iqn.b"), Limit::NONE);
    }
}
