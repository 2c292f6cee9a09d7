//! Limits as given in a request or in a LUN's settings, and as reported.

use super::resolve_limits::{IOPS_MAX, parse_bandwidth};
use crate::Failure;
use crate::units::rate_text;
use lunar_target::{IOPS_MIN, InitiatorLimit, Limit};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// A limit; without either field: unlimited.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// Commands that read or write, per second.
    #[schema(minimum = 10, maximum = 1000000000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Data transferred per second: `200Mbit`, at least `10Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
}

impl LimitSettings {
    /// The limit that the settings describe.
    ///
    /// # Errors
    /// Fails if a value is too low or is no rate.
    pub fn limit(&self) -> Result<Limit, Failure> {
        if let Some(iops) = self.iops.filter(|iops| !(IOPS_MIN..=IOPS_MAX).contains(iops)) {
            return Err(Failure::usage(format!("invalid limit of {iops} commands per second"))
                .hint(format!("the allowed range is {IOPS_MIN} to {IOPS_MAX}")));
        }
        let rate = self.bandwidth.as_deref().map(|text| {
            parse_bandwidth(text)
                .map_err(|why| Failure::usage(format!("invalid bandwidth {text}")).hint(why))
        });
        Ok(Limit::new(self.iops, rate.transpose()?)?)
    }
}

/// A limit for an initiator.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct InitiatorLimitSettings {
    /// The initiator's name; without one the limit applies to each initiator that no other limit
    /// names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// Commands that read or write, per second.
    #[schema(minimum = 10, maximum = 1000000000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Data transferred per second: `200Mbit`, at least `10Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
}

/// A limit in force.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct LimitInForce {
    /// Commands that read or write, per second; null: unlimited.
    pub iops: Option<u64>,
    /// Data transferred, in bits per second; null: unlimited.
    pub bandwidth_bits_per_second: Option<u64>,
}

/// A limit in force for an initiator.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, ToSchema)]
pub struct InitiatorLimitInForce {
    /// The initiator's name; null: each initiator that no other limit names.
    pub initiator: Option<String>,
    /// The limit.
    #[serde(flatten)]
    pub limit: LimitInForce,
}

impl From<Limit> for LimitInForce {
    fn from(limit: Limit) -> Self {
        let bits = limit.bytes_per_second().map(|rate| rate.saturating_mul(8));
        Self { iops: limit.iops(), bandwidth_bits_per_second: bits }
    }
}

impl From<&InitiatorLimit> for InitiatorLimitInForce {
    fn from(entry: &InitiatorLimit) -> Self {
        Self { initiator: entry.initiator.clone(), limit: entry.limit.into() }
    }
}

impl LimitInForce {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.iops.is_none() && self.bandwidth_bits_per_second.is_none()
    }
}

impl fmt::Display for LimitInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let iops = self.iops.map(|iops| format!("{iops} IOPS"));
        let rate = self.bandwidth_bits_per_second.map(|bits| rate_text(bits / 8));
        let parts: Vec<_> = iops.into_iter().chain(rate).collect();
        match parts.is_empty() {
            true => f.write_str("no limit"),
            false => f.write_str(&parts.join(" ")),
        }
    }
}

impl fmt::Display for InitiatorLimitInForce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = self.initiator.as_deref().unwrap_or("each initiator");
        write!(f, "{whose} {}", self.limit)
    }
}
