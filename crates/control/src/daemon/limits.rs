//! Limits of LUNs and initiators, set while they are used.

use super::{Aim, Applied, Daemon, LunAt, find, which};
use crate::Failure;
use crate::config::model::Configuration;
use crate::config::resolve_limits::{IOPS_MAX, parse_bandwidth};
use crate::device_url::DeviceUrl;
use serde::{Deserialize, Serialize};
use std::fmt;
use target::{IOPS_MIN, InitiatorLimit, Limit};
use utoipa::ToSchema;

/// How much may be done a second; neither of the two: as much as there is.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitSettings {
    /// Commands that read or write.
    #[schema(minimum = 10, maximum = 1000000000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// What they move: `200Mbit`, from `10Mbit`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<String>,
}

impl LimitSettings {
    fn limit(&self) -> Result<Limit, Failure> {
        if let Some(iops) = self.iops.filter(|iops| !(IOPS_MIN..=IOPS_MAX).contains(iops)) {
            return Err(Failure::usage(format!("a limit of {iops} commands a second"))
                .hint(format!("it may be {IOPS_MIN} to {IOPS_MAX}")));
        }
        let rate = self.bandwidth.as_deref().map(|text| {
            parse_bandwidth(text)
                .map_err(|why| Failure::usage(format!("a bandwidth of {text}")).hint(why))
        });
        Ok(Limit::new(self.iops, rate.transpose()?)?)
    }
}

impl Daemon {
    /// Limits what all initiators together do to a LUN, until the next configuration is applied.
    ///
    /// # Errors
    /// No such LUN, a limit that is too low.
    pub fn limit(
        &self,
        at: &LunAt<'_>,
        settings: &LimitSettings,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        let limit = settings.limit()?;
        self.change(&Aim::default(), by, |mut wanted| {
            let luns = &mut find(&mut wanted, at.target)?.luns;
            let index = which(luns, at)?;
            luns[index].limit = limit;
            let device = luns[index].unit.device.clone();
            limit_as(&mut wanted, &device, limit);
            Ok(wanted)
        })
    }

    /// Limits what an initiator does at a target, at all LUNs together; `None`: each that no other
    /// entry names.
    ///
    /// # Errors
    /// No such target, no name of an initiator, a limit that is too low.
    pub fn limit_initiator(
        &self,
        target: &str,
        initiator: Option<&str>,
        settings: &LimitSettings,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        let limit = settings.limit()?;
        let initiator = initiator.map(str::to_ascii_lowercase);
        if let Some(name) = &initiator {
            crate::config::rules::check_name(name)
                .map_err(|why| Failure::usage(format!("the initiator {name}")).hint(why))?;
        }
        self.change(&Aim::default(), by, |mut wanted| {
            let limits = &mut find(&mut wanted, target)?.initiator_limits;
            limits.retain(|entry| entry.initiator != initiator);
            if !limit.is_none() {
                limits.push(InitiatorLimit { initiator, limit });
            }
            Ok(wanted)
        })
    }
}

/// All LUNs over one file are one disk.
fn limit_as(wanted: &mut Configuration, device: &DeviceUrl, limit: Limit) {
    let luns = wanted.targets.iter_mut().flat_map(|target| &mut target.luns);
    for lun in luns.filter(|lun| device.path().is_some() && lun.unit.device == *device) {
        lun.limit = limit;
    }
}
