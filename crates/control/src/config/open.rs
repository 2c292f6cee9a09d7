//! From a [`Configuration`] to what a server takes: devices are opened, identities are found.

use super::model::{Configuration, UnitConfig};
use crate::Failure;
use crate::device_url::Opener;
use crate::identity;
use block::{BlockDevice, FileIdentity, file_identity};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use target::{LogicalUnit, LogicalUnitOptions, LunOptions, ServerOptions, TargetOptions};
use uuid::Uuid;

/// Opens every device once, however many LUNs show it.
///
/// # Errors
/// A device that cannot be opened (or is in use), a state that cannot be kept.
pub fn open(configuration: Configuration, opener: &dyn Opener) -> Result<ServerOptions, Failure> {
    let mut units = Units {
        opener,
        state: configuration.state,
        transfer_bytes: configuration.limits.transfer_bytes,
        files: Vec::new(),
        uuids: HashSet::new(),
    };
    let mut targets = Vec::new();
    for target in configuration.targets {
        let mut luns = Vec::new();
        for lun in target.luns {
            let unit = units.unit(&lun.unit)?;
            lun.put_limits(&unit);
            luns.push(LunOptions { id: lun.id, unit, access: lun.access });
        }
        targets.push(TargetOptions {
            name: target.name,
            alias: target.alias,
            portal_group: target.portal_group,
            access: target.access,
            chap: target.chap,
            offer: target.offer,
            redirect: target.redirect,
            initiator_limits: target.initiator_limits,
            luns,
        });
    }
    Ok(ServerOptions {
        portals: configuration.portals,
        targets,
        discovery_chap: configuration.discovery_chap,
        cores: configuration.cores,
        limits: configuration.limits,
    })
}

struct Units<'o> {
    opener: &'o dyn Opener,
    state: Option<PathBuf>,
    transfer_bytes: u32,
    files: Vec<(FileIdentity, UnitConfig, Arc<LogicalUnit>)>,
    uuids: HashSet<Uuid>,
}

impl Units<'_> {
    fn unit(&mut self, config: &UnitConfig) -> Result<Arc<LogicalUnit>, Failure> {
        let Some(path) = config.device.path() else {
            let device = self.opener.open(&config.device, &config.options)?;
            return self.make(config, device, config.uuid.unwrap_or_else(Uuid::new_v4), None);
        };
        // It may not exist yet.
        if let Ok(id) = file_identity(path)
            && let Some((_, other, unit)) = self.files.iter().find(|(known, ..)| *known == id)
        {
            return same_settings(config, other).map(|()| Arc::clone(unit));
        }
        let directory = identity::directory(path, self.state.as_deref(), config.uuid)?;
        // The lock comes first: whoever holds it owns the state as well.
        let device = self.opener.open(&config.device, &config.options)?;
        let uuid = match config.uuid {
            Some(uuid) => identity::create_directory(&directory).map(|()| uuid)?,
            None => identity::load_or_create(&directory)?,
        };
        let unit = self.make(config, device, uuid, Some(directory))?;
        self.files.push((file_identity(path)?, config.clone(), Arc::clone(&unit)));
        Ok(unit)
    }

    fn make(
        &mut self,
        config: &UnitConfig,
        device: Arc<dyn BlockDevice>,
        uuid: Uuid,
        state: Option<PathBuf>,
    ) -> Result<Arc<LogicalUnit>, Failure> {
        if !self.uuids.insert(uuid) {
            // A copied disk whose state was copied with it: initiators would take both for one.
            return Err(Failure::new(format!(
                "{} has the identity of another disk",
                config.device
            ))
            .hint("remove the `uuid` file of the copy's state, so that it gets its own"));
        }
        Ok(LogicalUnit::open(LogicalUnitOptions {
            uuid,
            device,
            cache: config.cache,
            thin: config.options.thin,
            thin_threshold_percent: config.thin_threshold_percent,
            out_of_space: config.out_of_space,
            maintenance_bytes_per_second: config.maintenance_bytes_per_second,
            read_only: config.options.read_only,
            removable: config.removable,
            transfer_bytes: self.transfer_bytes,
            state,
        })?)
    }
}

/// Two LUNs over one file are one disk; only the name of the file may differ.
fn same_settings(config: &UnitConfig, other: &UnitConfig) -> Result<(), Failure> {
    let renamed = UnitConfig { device: other.device.clone(), ..config.clone() };
    if renamed == *other {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} and {} are one disk with different settings",
        config.device, other.device
    ))
    .hint("give both LUNs the same settings"))
}
