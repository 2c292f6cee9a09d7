//! The object that a change concerns.

use crate::config::model::{LunConfig, PoolConfig, TargetConfig};
use crate::config::virtual_lun::StorageConfig;
use std::fmt;

/// The object that a line begins with.
#[derive(Default)]
pub(super) struct ChangedObject {
    pub(super) storage: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) target: Option<String>,
    pub(super) lun: Option<u16>,
    /// Device of the LUN, if several LUNs have the number.
    pub(super) which: Option<String>,
    /// Whether the current device loses its contents when it is closed.
    pub(super) loses_contents: bool,
}

impl ChangedObject {
    pub(super) fn of(target: &TargetConfig) -> Self {
        Self { target: Some(target.name.clone()), ..Self::default() }
    }

    pub(super) fn of_storage(storage: &StorageConfig) -> Self {
        Self { storage: Some(storage.name.clone()), ..Self::default() }
    }

    pub(super) fn of_pool(pool: &PoolConfig) -> Self {
        Self { pool: Some(pool.name.clone()), ..Self::default() }
    }

    pub(super) fn lun(&self, lun: &LunConfig, all: &[LunConfig]) -> Self {
        let several = all.iter().filter(|other| other.id == lun.id).count() > 1;
        Self {
            storage: None,
            pool: None,
            target: self.target.clone(),
            lun: Some(lun.id),
            which: several.then(|| lun.unit.device.to_string()),
            loses_contents: false,
        }
    }
}

impl fmt::Display for ChangedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(storage) = &self.storage {
            write!(f, "storage {storage} ")?;
        }
        if let Some(pool) = &self.pool {
            write!(f, "pool:{pool} ")?;
        }
        let Some(target) = &self.target else { return Ok(()) };
        write!(f, "{target} ")?;
        let Some(lun) = self.lun else { return Ok(()) };
        match &self.which {
            Some(device) => write!(f, "LUN {lun} of {device} "),
            None => write!(f, "LUN {lun} "),
        }
    }
}
