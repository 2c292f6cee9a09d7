//! The open storages of virtual LUNs, each with one session, and the disks on their extents.

use crate::commands::default_initiator_name;
use crate::device_url::ServedDevices;
use crate::output::Failure;
use lunar_block::{BlockDevice, FairDevice};
use lunar_control::config::model::ChapConfig;
use lunar_control::config::virtual_lun::{ExtentConfig, StorageConfig, VirtualDiskConfig};
use lunar_control::device_url::{IdentitySource, RemoteOpening};
use lunar_initiator::{RemoteDisk, SessionOptions};
use lunar_switch::{DeviceExtent, ExtentOrder, Migration, MigrationOptions, VirtualDisk, extent};
use std::num::NonZeroU64;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// The storages and virtual disks that are open; closed when nobody uses them.
#[derive(Debug, Default)]
pub struct OpenStorages {
    storages: Mutex<Vec<Arc<StorageSlot>>>,
    disks: Mutex<Vec<Weak<VirtualDisk>>>,
}

/// A storage that is open, or is being opened.
#[derive(Debug)]
struct StorageSlot {
    config: Arc<StorageConfig>,
    /// Locked during a login: others wait for the session.
    open: Mutex<OpenStorage>,
}

#[derive(Debug, Default)]
struct OpenStorage {
    disk: Weak<RemoteDisk>,
    /// The disk, divided fairly between the hosts of all virtual disks.
    shared: Weak<FairDevice>,
}

impl OpenStorages {
    /// Opens a virtual disk. Each storage is divided fairly between the owners of commands, and one
    /// that cannot be reached does not delay commands to others.
    ///
    /// # Errors
    /// A storage cannot be opened, or does not have an extent.
    pub fn open_disk(
        &self,
        name: String,
        config: &VirtualDiskConfig,
        devices: &ServedDevices,
        time_max: Duration,
    ) -> Result<Arc<VirtualDisk>, Failure> {
        let named = |failure: Failure| {
            let what = format!("{name}: {}", failure.what);
            Failure { what, ..failure }
        };
        let extents = self.extents(config, devices, time_max).map_err(named)?;
        let disk = Arc::new(VirtualDisk::new(&name, &extents, order(&name, config, &extents)?)?);
        let mut disks = lock(&self.disks);
        disks.retain(|disk| disk.strong_count() > 0);
        disks.push(Arc::downgrade(&disk));
        Ok(disk)
    }

    /// Prepares an open virtual disk for a larger size, or revokes that with `None`.
    ///
    /// # Errors
    /// Same as of [`open_disk`](Self::open_disk); fails for another device.
    pub fn prepare_growth(
        &self,
        device: &Arc<dyn BlockDevice>,
        config: Option<&VirtualDiskConfig>,
        devices: &ServedDevices,
        time_max: Duration,
    ) -> Result<(), Failure> {
        let disk = self.disk(device)?;
        let extents = config.map(|config| self.extents(config, devices, time_max));
        disk.prepare_growth(extents.transpose()?);
        Ok(())
    }

    /// Prepares the move of an extent of an open virtual disk.
    ///
    /// # Errors
    /// The storage cannot be opened, or the blocks do not fit; fails for another device.
    pub fn open_migration(
        &self,
        device: &Arc<dyn BlockDevice>,
        (extent_index, to): (usize, &ExtentConfig),
        options: MigrationOptions,
        devices: &ServedDevices,
        time_max: Duration,
    ) -> Result<Migration, Failure> {
        let disk = self.disk(device)?;
        let storage = self.slot(&to.storage).open(devices, time_max)?.1;
        let extent = extent_of(to, &(storage as Arc<dyn BlockDevice>))?;
        Ok(disk.prepare_migration(extent_index, extent, options)?)
    }

    fn disk(&self, device: &Arc<dyn BlockDevice>) -> Result<Arc<VirtualDisk>, Failure> {
        let disks: Vec<_> = lock(&self.disks).iter().filter_map(Weak::upgrade).collect();
        let is_it = |disk: &Arc<VirtualDisk>| ptr::addr_eq(Arc::as_ptr(disk), Arc::as_ptr(device));
        let found = disks.into_iter().find(is_it);
        found.ok_or_else(|| Failure::new(format!("{} is no virtual disk", device.name())))
    }

    /// Opens an extent as a device of its own, which is not divided fairly between owners of
    /// commands.
    ///
    /// # Errors
    /// The storage cannot be opened, or does not have the extent.
    pub fn open_extent(
        &self,
        config: &ExtentConfig,
        devices: &ServedDevices,
        time_max: Duration,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        let slot = self.slot(&config.storage);
        let disk = slot.open(devices, time_max)?.0;
        let name = format!("extent:{config}");
        let extent = extent_of(config, &(disk as Arc<dyn BlockDevice>))?;
        Ok(Arc::new(VirtualDisk::new(&name, &[extent], ExtentOrder::Linear)?))
    }

    /// Opens a storage, without fair sharing between hosts.
    ///
    /// # Errors
    /// The storage cannot be opened.
    pub fn open_storage(
        &self,
        config: &Arc<StorageConfig>,
        devices: &ServedDevices,
        time_max: Duration,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        Ok(self.slot(config).open(devices, time_max)?.0)
    }

    fn extents(
        &self,
        config: &VirtualDiskConfig,
        devices: &ServedDevices,
        time_max: Duration,
    ) -> Result<Vec<DeviceExtent>, Failure> {
        let extent = |extent: &ExtentConfig| {
            let storage = self.slot(&extent.storage).open(devices, time_max)?.1;
            extent_of(extent, &(storage as Arc<dyn BlockDevice>))
        };
        config.extents.iter().map(extent).collect()
    }

    fn slot(&self, config: &Arc<StorageConfig>) -> Arc<StorageSlot> {
        let mut storages = lock(&self.storages);
        // A slot that somebody holds may be about to get a session.
        storages.retain(|slot| Arc::strong_count(slot) > 1 || slot.is_open());
        if let Some(slot) = storages.iter().find(|slot| slot.config == *config) {
            return Arc::clone(slot);
        }
        let slot = StorageSlot { config: Arc::clone(config), open: Mutex::default() };
        storages.push(Arc::new(slot));
        Arc::clone(&storages[storages.len() - 1])
    }
}

impl StorageSlot {
    fn is_open(&self) -> bool {
        lock(&self.open).disk.strong_count() > 0
    }

    /// Returns the disk of the storage: without and with fair sharing between hosts.
    fn open(
        &self,
        devices: &ServedDevices,
        time_max: Duration,
    ) -> Result<(Arc<RemoteDisk>, Arc<FairDevice>), Failure> {
        let mut open = lock(&self.open);
        let disk = match open.disk.upgrade() {
            Some(disk) => disk,
            None => {
                let opening = RemoteOpening { identity: IdentitySource::Own, time_max };
                let config = &self.config;
                let named = |failure: Failure| Failure {
                    what: format!("the storage {}: {}", config.name, failure.what),
                    ..failure
                };
                devices.log_in(&config.url, session(config), opening).map_err(named)?.0
            }
        };
        let shared = open
            .shared
            .upgrade()
            .unwrap_or_else(|| FairDevice::new(Arc::<RemoteDisk>::clone(&disk)));
        *open = OpenStorage { disk: Arc::downgrade(&disk), shared: Arc::downgrade(&shared) };
        Ok((disk, shared))
    }
}

fn session(config: &StorageConfig) -> SessionOptions {
    SessionOptions {
        chap: config.chap.as_ref().map(ChapConfig::credentials),
        portals: config.portals.clone(),
        recovery_seconds: config.on_loss.wait_seconds(),
        ..SessionOptions::new(default_initiator_name())
    }
}

fn order(
    name: &str,
    config: &VirtualDiskConfig,
    extents: &[DeviceExtent],
) -> Result<ExtentOrder, Failure> {
    let (Some(unit), Some(first)) = (config.stripe_unit_bytes, extents.first()) else {
        return Ok(ExtentOrder::Linear);
    };
    let block_bytes = u64::from(first.device.geometry().block_bytes);
    let whole = unit.get().is_multiple_of(block_bytes).then_some(unit.get() / block_bytes);
    match whole.and_then(NonZeroU64::new) {
        Some(unit_blocks) => Ok(ExtentOrder::Striped(unit_blocks)),
        None => {
            let what = format!("{name}: the stripe unit of {unit} bytes is no multiple of a block");
            Err(Failure::new(what).hint(format!("the storages have blocks of {block_bytes}")))
        }
    }
}

fn extent_of(
    config: &ExtentConfig,
    device: &Arc<dyn BlockDevice>,
) -> Result<DeviceExtent, Failure> {
    let failure = |error| {
        Failure::new(format!("{config}: {error}"))
            .hint("correct the extents; `lunar check FILE --connect` shows their lines")
    };
    extent(device, config.start_bytes, config.length_bytes).map_err(failure)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
