//! Changes of the members of served pools. The configuration lists every device that is a member
//! at all times: a new one before it becomes a member, a removed one until afterwards.

use super::{ConfigOrigin, ConfigSource, Daemon, OpenUnit};
use crate::config::model::{Configuration, PoolConfig, PoolMemberConfig};
use crate::device_url::{DeviceUrl, REMOTE_OPEN_TIME_MAX};
use crate::{Failure, ServedPool};
use lunar_block::BlockDevice;
use lunar_pool::format::PoolKind;
use lunar_pool::{PoolError, ScrubOptions};
use std::fmt;
use std::sync::Arc;

/// A change of the members of a mirror.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MemberChange {
    /// Makes a device a member.
    Add {
        /// The device, as the configuration names it.
        device: String,
    },
    /// Gives the slot of a member to another device.
    Replace {
        /// The slot.
        slot: u16,
        /// The device, as the configuration names it.
        device: String,
    },
    /// Removes a member for good.
    Remove {
        /// The slot.
        slot: u16,
    },
}

impl Daemon {
    /// Changes the members of a pool while it is in use. A new device is copied to from then on.
    ///
    /// # Errors
    /// Fails if there is no such pool or member, the configuration file does not list the device,
    /// the device cannot be opened, or the pool refuses it.
    pub fn change_members(
        &self,
        name: &str,
        change: &MemberChange,
        by: &dyn fmt::Display,
    ) -> Result<ServedPool, Failure> {
        let mut entries = self.begin_change()?;
        let pool = self.pool(name)?;
        let running = find_config(&self.running(), name)?;
        let refused = |error: PoolError| failed_pool(name, &error);
        let (config, device, slot, what) = match change {
            MemberChange::Add { device } => {
                let (listed, device, opened) = self.open_listed(&running, &pool, device, None)?;
                let added = pool.run(|pool| async move { pool.add(opened).await });
                (listed, Some(device), added.map_err(refused)?, "added")
            }
            MemberChange::Replace { slot, device } => {
                let slot = *slot;
                let (listed, device, opened) =
                    self.open_listed(&running, &pool, device, Some(slot))?;
                let replaced = pool.run(|pool| async move { pool.replace(slot, opened).await });
                replaced.map_err(refused)?;
                (listed, Some(device), slot, "replaced")
            }
            MemberChange::Remove { slot } => {
                let slot = *slot;
                let config = without(&running, device_at(&pool, slot).as_deref());
                let removed = pool.run(|pool| async move { pool.remove(slot).await });
                removed.map_err(refused)?;
                (config, None, slot, "removed")
            }
        };
        let shown = device.as_ref().map(ToString::to_string);
        tracing::info!(target: "audit", %by, pool = name, slot, device = shown, "{what}");
        pool.absent().retain(|absent| {
            let mut listed = config.members.iter().chain(&config.spares);
            let is_listed = listed.any(|device| device == absent);
            is_listed && Some(&absent.device) != device.as_ref()
        });
        self.adopt(&mut entries, &Arc::new(config), device.is_none());
        Ok(pool)
    }

    /// Starts a scrub of a pool while it is in use.
    ///
    /// # Errors
    /// Fails if there is no such pool, it is no mirror, or a scrub runs already.
    pub fn start_scrub(
        &self,
        name: &str,
        options: ScrubOptions,
        by: &dyn fmt::Display,
    ) -> Result<ServedPool, Failure> {
        let pool = self.pool(name)?;
        let kind = pool.pool().kind();
        if kind != PoolKind::MIRROR {
            let kind = kind.as_str();
            return Err(Failure::conflict(format!(
                "the pool {name} cannot be scrubbed: a {kind} has its data once, so there is \
                 nothing to compare"
            ))
            .hint("scrub a mirror; `lunar pool status` shows the kinds"));
        }
        if self.is_stopping() {
            return Err(Failure::stopping());
        }
        pool.start_scrub(options)?;
        tracing::info!(target: "audit", %by, pool = name, "scrub started");
        Ok(pool)
    }

    /// Stops the scrub of a pool.
    ///
    /// # Errors
    /// Fails if there is no such pool, or no scrub runs.
    pub fn stop_scrub(&self, name: &str, by: &dyn fmt::Display) -> Result<ServedPool, Failure> {
        let pool = self.pool(name)?;
        if !pool.stop_scrub() {
            return Err(Failure::conflict(format!("no scrub of the pool {name} is running"))
                .hint("see `lunar pool status` for the last one"));
        }
        tracing::info!(target: "audit", %by, pool = name, "scrub stopped");
        Ok(pool)
    }

    /// The devices that the running configuration lists for a pool: members and spare devices.
    pub fn listed_devices(&self, name: &str) -> Vec<DeviceUrl> {
        let config = find_config(&self.running(), name);
        let devices = config.map(|config| {
            let all = config.members.iter().chain(&config.spares);
            all.map(|member| member.device.clone()).collect()
        });
        devices.unwrap_or_default()
    }

    pub(super) fn pool(&self, name: &str) -> Result<ServedPool, Failure> {
        let is_named = |pool: &ServedPool| pool.name() == name;
        self.pools().all().into_iter().find(is_named).ok_or_else(|| {
            Failure::not_found(format!("the server serves no pool {name}"))
                .hint("see `lunar pool status` for the pools that it serves")
        })
    }

    /// Opens a device that becomes a member and that the configuration file lists. Returns the
    /// configuration of the pool with the members of the file, too.
    fn open_listed(
        &self,
        running: &PoolConfig,
        pool: &ServedPool,
        device: &str,
        replaced: Option<u16>,
    ) -> Result<(PoolConfig, DeviceUrl, Arc<dyn BlockDevice>), Failure> {
        let (listed, member) = self.listed(running, pool, device, replaced)?;
        if let DeviceUrl::Pool(_) = member.device {
            let what = format!("{} cannot become a member while the pool is served", member.device);
            return Err(Failure::usage(what).hint("use a file or a remote LUN"));
        }
        let opened = self.unit_opener.opener().open_member(&member, REMOTE_OPEN_TIME_MAX)?;
        pool.add_device(&opened);
        Ok((listed, member.device, opened))
    }

    /// Looks a new device up in the configuration file. Returns the running configuration of the
    /// pool with the members of the file, and the new one.
    fn listed(
        &self,
        running: &PoolConfig,
        pool: &ServedPool,
        device: &str,
        replaced: Option<u16>,
    ) -> Result<(PoolConfig, PoolMemberConfig), Failure> {
        let file = self.read(&ConfigSource::OwnFile)?;
        let path = match self.origin() {
            ConfigOrigin::File { path, .. } => path.display().to_string(),
            ConfigOrigin::Arguments => String::new(),
        };
        let written = find_config(&file, &running.name)?;
        let Some(member) = written.members.iter().find(|member| member.device.is_named(device))
        else {
            let what = format!(
                "the [[pool]] {} in {path} does not list {device}: at the next start the pool \
                 would miss it",
                running.name
            );
            let line = members_line(&written.members, Some(device));
            return Err(Failure::conflict(what).hint(format!("write {line}, then try again")));
        };
        let lost = unlisted(pool, &written, replaced);
        if let Some(lost) = lost.first() {
            let what = format!(
                "the [[pool]] {} in {path} does not list its member {lost} any more",
                running.name
            );
            let hint = "list every member until it is removed or replaced, then try again";
            return Err(Failure::conflict(what).hint(hint));
        }
        let listed = PoolConfig { members: written.members.clone(), ..running.clone() };
        Ok((listed, member.clone()))
    }

    /// Makes a configuration of a pool the running one, and the applied one unless it `drifts` from
    /// that. The pool is not opened again.
    fn adopt(&self, entries: &mut [OpenUnit], pool: &Arc<PoolConfig>, drifts: bool) {
        for entry in &mut *entries {
            if let Some(served) = &mut entry.config.options.pool {
                *served = served.with(pool);
            }
        }
        let mut configurations = self.configurations();
        put(&mut configurations.running, pool);
        if !drifts {
            put(&mut configurations.applied, pool);
        }
        drop(configurations);
    }
}

/// The reason why a change of a pool was refused, and what to do.
fn failed_pool(name: &str, error: &PoolError) -> Failure {
    let failure = Failure::conflict(format!("the pool {name}: {error}"));
    match error {
        PoolError::InUse { .. } | PoolError::InUnknownUse { .. } => failure
            .hint("to discard the data of the device: lunar pool clear MEMBER-URL, then try again"),
        PoolError::NoSuchMember { .. } => {
            failure.hint(format!("see `lunar pool status {name}` for its members"))
        }
        PoolError::LastCurrent { .. } => failure
            .hint(format!("see `lunar pool status {name}` for the copy to the other members")),
        PoolError::TooSmall { .. } => failure.hint("use a larger device"),
        _ => failure,
    }
}

/// The members that a configuration does not list, except the one at `replaced`.
fn unlisted(pool: &ServedPool, written: &PoolConfig, replaced: Option<u16>) -> Vec<String> {
    let listed: Vec<_> = written.members.iter().chain(&written.spares).collect();
    let members = pool.pool().status().members;
    let others = members.into_iter().filter(|member| Some(member.slot) != replaced);
    let devices = others.map(|member| member.device).filter(|device| !device.is_empty());
    devices.filter(|device| !listed.iter().any(|one| one.device.is_device(device))).collect()
}

/// The line of a configuration with these members, and another one.
fn members_line(members: &[PoolMemberConfig], other: Option<&str>) -> String {
    let members = members.iter().map(|member| member.device.to_string());
    let all: Vec<_> =
        members.chain(other.map(str::to_owned)).map(|one| format!("{one:?}")).collect();
    format!("members = [{}]", all.join(", "))
}

/// The name of the device at a slot.
fn device_at(pool: &ServedPool, slot: u16) -> Option<String> {
    let members = pool.pool().status().members;
    let member = members.into_iter().find(|member| member.slot == slot)?;
    Some(member.device).filter(|device| !device.is_empty())
}

/// A pool without one of its devices.
fn without(pool: &PoolConfig, device: Option<&str>) -> PoolConfig {
    let mut pool = pool.clone();
    let is_removed =
        |member: &PoolMemberConfig| device.is_some_and(|one| member.device.is_device(one));
    pool.members.retain(|member| !is_removed(member));
    pool.spares.retain(|spare| !is_removed(spare));
    pool
}

fn find_config(all: &Configuration, name: &str) -> Result<Arc<PoolConfig>, Failure> {
    // The mirror of a virtual LUN is configured there.
    let luns = all.targets.iter().flat_map(|target| &target.luns);
    let of_luns = luns.filter_map(|lun| lun.unit.options.pool.as_ref());
    let pool = all.pools.iter().chain(of_luns).find(|pool| pool.name == name).cloned();
    pool.ok_or_else(|| {
        Failure::conflict(format!("the configuration has no [[pool]] {name}"))
            .hint(format!("add a [[pool]] with name = {name:?} and its members"))
    })
}

/// Replaces a pool wherever a configuration has it.
fn put(all: &mut Configuration, pool: &Arc<PoolConfig>) {
    for one in &mut all.pools {
        *one = one.with(pool);
    }
    for lun in all.targets.iter_mut().flat_map(|target| &mut target.luns) {
        if let Some(served) = &mut lun.unit.options.pool {
            *served = served.with(pool);
        }
    }
}
