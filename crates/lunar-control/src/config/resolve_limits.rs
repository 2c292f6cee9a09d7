//! Reads limits: `[limits]`, `limit` of a LUN and of a target, `initiator_limit` of a LUN.

use super::file::{Problems, TableReader, mismatch};
use super::model::LunConfig;
use super::named_limits::{NAMED_LIMITS, NamedLimits, Unit};
use super::resolve::Resolver;
use crate::units::parse_rate;
use lunar_target::{BYTES_PER_SECOND_MIN, DiskUnit, IOPS_MIN, InitiatorLimit, Limit};
use toml::de::DeValue;

/// Upper bound of a limit, above the rate of any disk.
pub const IOPS_MAX: u64 = 1_000_000_000;

/// Reads a limit of bandwidth, like `200Mbit`; returns bytes per second.
///
/// # Errors
/// Returns a text that says which values are valid.
pub fn parse_bandwidth(text: &str) -> Result<u64, String> {
    let rate = parse_rate(text)?;
    if rate < BYTES_PER_SECOND_MIN {
        let megabits_min = BYTES_PER_SECOND_MIN * 8 / 1_000_000;
        return Err(format!(
            "the minimum is {megabits_min}Mbit: with a lower limit, commands would time out at the \
             initiator"
        ));
    }
    Ok(rate)
}

impl NamedLimits {
    /// Reads `[limits]`.
    pub(super) fn read(table: &mut TableReader<'_, '_>, problems: &mut Problems<'_>) -> Self {
        let mut limits = Self::default();
        for limit in NAMED_LIMITS {
            let value = match limit.unit {
                Unit::Count => table.integer(limit.key, limit.range.clone(), problems),
                Unit::Bytes => table.size(limit.key, limit.range.clone(), problems),
            };
            let Some(value) = value else { continue };
            (limit.set)(&mut limits, value.value);
            if let Some((what, hint)) = limits.conflict(limit.key) {
                problems.add(&value.span, what, Some(hint));
            }
        }
        table.finish(&[], problems);
        limits
    }
}

impl LunConfig {
    /// Sets the configured limits of the unit, effective at once; sessions are not interrupted.
    pub fn set_limits(&self, unit: &DiskUnit) {
        unit.set_limit(self.limit);
        unit.set_initiator_limits(self.initiator_limits.clone());
    }

    /// Whether the limits are the same, as two LUNs of one disk require.
    pub fn same_limits(&self, other: &Self) -> bool {
        self.limit == other.limit && self.initiator_limits == other.initiator_limits
    }
}

impl Resolver<'_> {
    /// Reads `limit` of a LUN, which is for all initiators together.
    pub fn limit(&mut self, table: &mut TableReader<'_, '_>) -> Limit {
        let Some(mut limit) = table.table("limit", &mut self.problems) else {
            return Limit::NONE;
        };
        let read = self.limit_keys(&mut limit);
        limit.finish(&[], &mut self.problems);
        read
    }

    /// Reads a list of limits: each for one initiator, or for each that no other entry names.
    pub fn initiator_limits(
        &mut self,
        table: &mut TableReader<'_, '_>,
        key: &'static str,
    ) -> Vec<InitiatorLimit> {
        table.refuse_empty(key, &mut self.problems);
        let mut limits: Vec<InitiatorLimit> = Vec::new();
        for item in table.items(key) {
            let DeValue::Table(entry) = item.get_ref() else {
                let wanted = "a list like [{ initiator = \"iqn…\", iops = 1000 }]";
                mismatch(key, wanted, item.get_ref(), &item.span(), &mut self.problems);
                continue;
            };
            let mut entry = TableReader::new(entry, item.span(), "a limit");
            let initiator = entry.string("initiator", &mut self.problems);
            let initiator = initiator.map(|name| self.initiator(name).value);
            let limit = self.limit_keys(&mut entry);
            entry.finish(&[], &mut self.problems);
            if limits.iter().any(|other| other.initiator == initiator) {
                let whom = initiator.as_deref().unwrap_or("each initiator");
                let what = format!("there is already a limit for {whom}");
                self.problems.add(&entry.span, what, None);
            }
            limits.push(InitiatorLimit { initiator, limit });
        }
        limits
    }

    fn limit_keys(&mut self, table: &mut TableReader<'_, '_>) -> Limit {
        let iops = table.integer("iops", IOPS_MIN..=IOPS_MAX, &mut self.problems);
        let bandwidth = table
            .string("bandwidth", &mut self.problems)
            .and_then(|text| self.ok_or_report("bandwidth", &text, parse_bandwidth(&text.value)));
        if !table.has("iops") && !table.has("bandwidth") {
            let hint = "add iops = 1000, bandwidth = \"200Mbit\", or both".to_owned();
            self.problems.add(&table.span, "the limit sets neither iops nor bandwidth", Some(hint));
        }
        // Both values are above the minimum, so that `Limit::new` cannot fail.
        Limit::new(iops.map(|iops| iops.value), bandwidth).unwrap_or_default()
    }
}
