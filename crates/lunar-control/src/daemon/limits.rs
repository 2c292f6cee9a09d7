//! Limits of LUNs and initiators, changed while they are in use.

use super::{Applied, ChangeOptions, Daemon, LunSelector, find, lun_index};
use crate::Failure;
use crate::config::model::{Configuration, LunConfig};
use lunar_target::{InitiatorLimit, Limit};
use std::fmt;

pub use crate::config::limit_settings::LimitSettings;

impl Daemon {
    /// Limits all initiators together at a LUN, until the next configuration is applied.
    ///
    /// # Errors
    /// Fails if there is no such LUN or the limit is too low.
    pub fn limit(
        &self,
        at: &LunSelector<'_>,
        settings: &LimitSettings,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        let limit = settings.limit()?;
        self.change(&ChangeOptions::default(), by, |mut wanted| {
            self.limit_unit(&mut wanted, at, &|lun| lun.limit = limit)?;
            Ok(wanted)
        })
    }

    /// Limits an initiator at a LUN; `None`: each initiator that no other entry names.
    ///
    /// # Errors
    /// Fails if there is no such LUN, the name is invalid, or the limit is too low.
    pub fn limit_initiator_at(
        &self,
        at: &LunSelector<'_>,
        initiator: Option<&str>,
        settings: &LimitSettings,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        let limit = settings.limit()?;
        let initiator = checked(initiator)?;
        self.change(&ChangeOptions::default(), by, |mut wanted| {
            let set = |lun: &mut LunConfig| put(&mut lun.initiator_limits, &initiator, limit);
            self.limit_unit(&mut wanted, at, &set)?;
            Ok(wanted)
        })
    }

    /// Limits an initiator at a target, at all LUNs together; `None`: each initiator that no other
    /// entry names.
    ///
    /// # Errors
    /// Fails if there is no such target, the name is invalid, or the limit is too low.
    pub fn limit_initiator(
        &self,
        target: &str,
        initiator: Option<&str>,
        settings: &LimitSettings,
        by: &dyn fmt::Display,
    ) -> Result<Applied, Failure> {
        let limit = settings.limit()?;
        let initiator = checked(initiator)?;
        self.change(&ChangeOptions::default(), by, |mut wanted| {
            put(&mut find(&mut wanted, target)?.initiator_limits, &initiator, limit);
            Ok(wanted)
        })
    }

    /// Sets limits of the unit behind a LUN, for all LUNs that are backed by the unit.
    fn limit_unit(
        &self,
        wanted: &mut Configuration,
        at: &LunSelector<'_>,
        set: &dyn Fn(&mut LunConfig),
    ) -> Result<(), Failure> {
        let luns = &find(wanted, at.target)?.luns;
        let index = lun_index(luns, at)?;
        let target = wanted.targets.iter().position(|t| t.name.eq_ignore_ascii_case(at.target));
        if let Some(target) = target {
            self.each_of_unit(wanted, (target, index), set);
        }
        Ok(())
    }
}

/// Checks a name and converts it to lower case, the form that is compared.
fn checked(initiator: Option<&str>) -> Result<Option<String>, Failure> {
    let initiator = initiator.map(str::to_ascii_lowercase);
    if let Some(name) = &initiator {
        crate::config::rules::check_name(name)
            .map_err(|why| Failure::usage(format!("the initiator {name}")).hint(why))?;
    }
    Ok(initiator)
}

/// Sets an initiator's limit, replacing the previous one.
fn put(limits: &mut Vec<InitiatorLimit>, initiator: &Option<String>, limit: Limit) {
    let index = limits.iter().position(|entry| entry.initiator == *initiator);
    match (index, limit.is_none()) {
        (Some(index), true) => {
            limits.remove(index);
        }
        (Some(index), false) => limits[index].limit = limit,
        (None, true) => {}
        (None, false) => limits.push(InitiatorLimit { initiator: initiator.clone(), limit }),
    }
}
