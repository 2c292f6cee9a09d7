//! The table of named limits: the keys of `[limits]`.

use super::setting::{Setting, Value};
use crate::memory_bytes_max_default;
use lunar_target::Limits;
use std::ops::RangeInclusive;

/// Limits of a server and of the process that it runs in.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NamedLimits {
    /// Limits of the server.
    pub server: Limits,
    /// Maximum memory in bytes that all peers of the process may use together.
    pub memory_bytes_max: usize,
    /// Maximum rate in bytes per second at which an extent is moved while hosts use the LUN.
    pub migration_bytes_per_second: u64,
}

/// Default of `migration_bytes_per_second`.
const MIGRATION_BYTES_PER_SECOND: u64 = 32 << 20;
/// Range of `migration_bytes_per_second`.
const MIGRATION_RATE: RangeInclusive<u64> = 64 << 10..=1 << 40;

impl Default for NamedLimits {
    fn default() -> Self {
        Self {
            server: Limits::default(),
            memory_bytes_max: memory_bytes_max_default(),
            migration_bytes_per_second: MIGRATION_BYTES_PER_SECOND,
        }
    }
}

/// One named limit.
pub(super) struct NamedLimit {
    pub(super) key: &'static str,
    pub(super) unit: Unit,
    pub(super) range: RangeInclusive<u64>,
    get: fn(&NamedLimits) -> u64,
    pub(super) set: fn(&mut NamedLimits, u64),
}

/// The unit of a limit.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Count,
    Bytes,
}

const COUNT_MAX: u64 = 1_000_000;
const SECONDS: RangeInclusive<u64> = 1..=3600;
const BUFFER_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 40;
/// Range of `memory_bytes_max`; the minimum covers the longest transfers of a few initiators.
const MEMORY_BYTES: RangeInclusive<u64> = 64 << 20..=1 << 50;
/// Range of the longest transfer that one command may request.
const TRANSFER_BYTES: RangeInclusive<u64> = TRANSFER_STEP_BYTES..=64 << 20;
/// Granularity of the longest transfer.
const TRANSFER_STEP_BYTES: u64 = 64 << 10;
/// Range of the text length: the minimum that a target must accept (RFC 7143 §6.1), and the length
/// that the longest authentication requires.
const TEXT_BYTES: RangeInclusive<u64> = 8192..=lunar_iscsi::text::TEXT_BYTES_MAX as u64;
/// Range of the delay after failed logins; a second delay would outlive the login.
const BACKOFF_SECONDS: RangeInclusive<u64> = 0..=1800;

/// A row of the table: key, unit, range, field of the server's limits.
macro_rules! limit {
    ($key:ident, $unit:ident, $range:expr) => {
        NamedLimit {
            key: stringify!($key),
            unit: Unit::$unit,
            range: $range,
            get: |limits| limits.server.$key as u64,
            // `value` is in range, so that it fits.
            set: |limits, value| limits.server.$key = value as _,
        }
    };
}

/// All named limits, in the order in which they are shown.
#[allow(clippy::cast_lossless)] // one macro for fields of several widths
pub(super) const NAMED_LIMITS: &[NamedLimit] = &[
    limit!(connections, Count, 1..=COUNT_MAX),
    limit!(logins_per_address, Count, 1..=COUNT_MAX),
    limit!(login_seconds, Count, SECONDS),
    limit!(login_failures_free, Count, 0..=COUNT_MAX),
    limit!(login_backoff_seconds_max, Count, BACKOFF_SECONDS),
    limit!(text_bytes, Bytes, TEXT_BYTES),
    limit!(window_commands, Count, 1..=65_536),
    NamedLimit {
        key: "memory_bytes_max",
        unit: Unit::Bytes,
        range: MEMORY_BYTES,
        get: |limits| limits.memory_bytes_max as u64,
        set: |limits, value| limits.memory_bytes_max = value as usize,
    },
    NamedLimit {
        key: "migration_bytes_per_second",
        unit: Unit::Bytes,
        range: MIGRATION_RATE,
        get: |limits| limits.migration_bytes_per_second,
        set: |limits, value| limits.migration_bytes_per_second = value,
    },
    limit!(memory_wait_seconds, Count, SECONDS),
    limit!(data_in_bytes, Bytes, BUFFER_BYTES),
    limit!(data_out_bytes, Bytes, BUFFER_BYTES),
    limit!(data_out_seconds, Count, SECONDS),
    limit!(transfer_bytes, Bytes, TRANSFER_BYTES),
    limit!(ping_after_seconds, Count, SECONDS),
    limit!(ping_timeout_seconds, Count, SECONDS),
];

/// The keys of all named limits.
pub fn limit_keys() -> impl Iterator<Item = &'static str> {
    NAMED_LIMITS.iter().map(|limit| limit.key)
}

impl NamedLimits {
    /// Checks a limit that was just set against those set before. Returns the error and its remedy.
    pub(super) fn conflict(&self, key: &str) -> Option<(String, String)> {
        let limits = &self.server;
        let half = limits.login_seconds / 2;
        match key {
            "login_backoff_seconds_max" if limits.login_backoff_seconds_max > half => Some((
                format!("`{key}` is {}", limits.login_backoff_seconds_max),
                format!("the maximum is half of `login_seconds`: {half}"),
            )),
            "transfer_bytes"
                if !u64::from(limits.transfer_bytes).is_multiple_of(TRANSFER_STEP_BYTES) =>
            {
                Some((
                    format!("`{key}` is not a multiple of 64KiB"),
                    "choose a multiple of 64KiB".to_owned(),
                ))
            }
            _ => None,
        }
    }

    /// The settings of `[limits]`.
    pub(super) fn settings(&self) -> Vec<Setting> {
        let usual = Self::default();
        let setting = |limit: &NamedLimit| {
            let value = match limit.unit {
                Unit::Count => Value::Number,
                Unit::Bytes => Value::Size,
            };
            Setting::with_default(limit.key, (limit.get)(self), (limit.get)(&usual), value)
        };
        NAMED_LIMITS.iter().map(setting).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each limit can be set to both ends of its range and is read back; the default is in
    /// range; and lunar.toml(5) has a paragraph for each, in the same order, and for no other.
    #[test]
    fn limits_are_kept_and_documented() {
        for limit in NAMED_LIMITS {
            let usual = (limit.get)(&NamedLimits::default());
            assert!(limit.range.contains(&usual), "{} is {usual}", limit.key);
            for value in [*limit.range.start(), *limit.range.end()] {
                let mut limits = NamedLimits::default();
                (limit.set)(&mut limits, value);
                assert_eq!((limit.get)(&limits), value, "{}", limit.key);
            }
        }
        let manual = include_str!("../../../../dist/man/lunar.toml.5");
        let chapter = manual.split(".SH LIMITS\n").nth(1).unwrap().split("\n.SH").next().unwrap();
        let headings = chapter.split(".TP\n").filter_map(|paragraph| paragraph.lines().next());
        let mut keys = headings.flat_map(|heading| heading.split("\\fB").skip(1));
        for key in limit_keys() {
            let documented = keys.next().and_then(|text| text.split("\\fR").next());
            assert_eq!(documented, Some(key));
        }
        assert_eq!(keys.next(), None);
    }
}
