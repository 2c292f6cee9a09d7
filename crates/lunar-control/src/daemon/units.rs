//! Open units, and the opener of further ones.

use super::blocking::block_on;
use super::remote_opening::UnavailableStorage;
use crate::config::model::{Configuration, UnitConfig};
use crate::device_url::{
    DeviceOptions, DeviceUrl, Opener, REMOTE_OPEN_TIME_MAX, RemoteDevice, RemoteOpening,
};
use crate::{Failure, OpenPool, identity};
use lunar_block::{
    BlockDevice, BufferPool, CreatedFile, FairDevice, FileIdentity, MemoryBudget, StateDirectory,
    file_identity,
};
use lunar_initiator::ReportedIdentity;
use lunar_target::{DiskUnit, DiskUnitOptions, Shrink, Unit};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A unit and the configuration it was opened with.
#[derive(Clone, Debug)]
pub(super) struct OpenUnit {
    /// The configuration; a size in it is the current size.
    pub(super) config: UnitConfig,
    /// The file of the unit; `None`: memory.
    pub(super) file: Option<FileIdentity>,
    pub(super) unit: Arc<DiskUnit>,
    /// The pool behind the unit, which is closed after the unit.
    pub(super) pool: Option<OpenPool>,
}

impl OpenUnit {
    pub(super) fn has_unit(&self, unit: &Arc<dyn Unit>) -> bool {
        ptr::addr_eq(Arc::as_ptr(&self.unit), Arc::as_ptr(unit))
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.unit.options().device.geometry().size_bytes()
    }

    /// Prepares a virtual disk for the extents of `wanted`, with which it is resized then.
    pub(super) fn prepare_growth(
        &self,
        wanted: &UnitConfig,
        opener: &dyn Opener,
    ) -> Result<(), Failure> {
        let wanted = wanted.options.virtual_disk.as_ref();
        match wanted.filter(|disk| self.config.options.virtual_disk.as_ref() != Some(disk)) {
            Some(disk) => opener.prepare_growth(&self.unit.options().device, Some(disk)),
            None => Ok(()),
        }
    }

    /// Makes a virtual disk forget the extents that it was prepared for.
    pub(super) fn forget_growth(&self, opener: &dyn Opener) {
        let device = &self.unit.options().device;
        if self.config.options.virtual_disk.is_some()
            && let Err(failure) = opener.prepare_growth(device, None)
        {
            tracing::warn!("{}: {failure}", self.config.device);
        }
    }

    pub(super) fn resize(&mut self, bytes: u64, shrink: Shrink) -> Result<(), Failure> {
        let resized = block_on(self.unit.resize(bytes, shrink));
        let actual = self.size_bytes();
        set_size(&mut self.config, actual);
        Ok(resized??)
    }
}

/// Opens units with the settings of a configuration.
#[derive(Debug)]
pub(super) struct UnitOpener {
    opener: Arc<dyn Opener>,
    state: Option<PathBuf>,
    transfer_bytes: u32,
    io_uring: bool,
    buffers: BufferPool,
}

/// Handling of a file that is smaller than its configured size.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SmallerFile {
    /// The disk has the size of the file.
    #[default]
    Keeps,
    /// The file is enlarged.
    Grows,
    /// The disk is not opened.
    Fails,
}

impl SmallerFile {
    /// The handling at a start with or without `--grow`.
    pub fn at_start(grow: bool) -> Self {
        if grow { Self::Grows } else { Self::Keeps }
    }
}

/// Handling of disks that differ from their configuration when they are opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct StartOptions {
    /// Handling of LUNs whose storages cannot be reached.
    pub storage: UnavailableStorage,
    /// Handling of files that are smaller than their configured size.
    pub smaller: SmallerFile,
}

impl StartOptions {
    /// The handling in a change. Only an applied configuration says which size a disk is to have.
    pub(super) fn of_change(storage: UnavailableStorage, is_applied: bool) -> Self {
        let smaller = if is_applied { SmallerFile::Grows } else { SmallerFile::Fails };
        Self { storage, smaller }
    }
}

/// The identity of a unit, and the one that it reports in its place.
struct Identities {
    uuid: Uuid,
    reported: Option<Arc<ReportedIdentity>>,
}

impl From<Uuid> for Identities {
    fn from(uuid: Uuid) -> Self {
        Self { uuid, reported: None }
    }
}

/// The device of a unit that may be unreachable.
#[derive(Clone, Debug)]
pub(super) enum OpenedStorage {
    /// A remote LUN, or a virtual disk.
    Remote(RemoteDevice),
    /// A pool with remote LUNs.
    Pool(OpenPool),
}

/// Files and directories created by opening a unit.
#[derive(Debug, Default)]
pub(super) struct Created {
    file: Option<CreatedFile>,
    directory: Option<StateDirectory>,
}

impl Created {
    /// Removes these files and directories, to which no data has been written.
    pub(super) fn undo(self) {
        let removed =
            [self.file.map(CreatedFile::remove), self.directory.map(StateDirectory::discard)];
        for error in removed.into_iter().flatten().filter_map(Result::err) {
            tracing::warn!("cannot remove a file that a failed change had created: {error}");
        }
    }
}

impl UnitOpener {
    pub(super) fn new(configuration: &Configuration, opener: Arc<dyn Opener>) -> Self {
        Self {
            opener,
            state: configuration.state.clone(),
            transfer_bytes: configuration.limits.server.transfer_bytes,
            io_uring: configuration.io_uring,
            buffers: BufferPool::with_budget(&MemoryBudget::new(
                configuration.limits.memory_bytes_max,
            )),
        }
    }

    /// Buffers for units, with the memory budget of the process.
    pub(super) fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Opens a unit; `others` are the open units, none of which uses the same file.
    pub(super) fn open<'e>(
        &self,
        config: &UnitConfig,
        smaller: SmallerFile,
        others: impl Iterator<Item = &'e OpenUnit>,
    ) -> Result<(OpenUnit, Created), Failure> {
        let storage = match config.may_be_unavailable() {
            true => Some(open_storage(&*self.opener, config, REMOTE_OPEN_TIME_MAX)?),
            false => None,
        };
        self.open_over(config, smaller, storage, others)
    }

    /// Opens a unit; if its storage may be unreachable, that is open already.
    pub(super) fn open_over<'e>(
        &self,
        config: &UnitConfig,
        smaller: SmallerFile,
        storage: Option<OpenedStorage>,
        others: impl Iterator<Item = &'e OpenUnit>,
    ) -> Result<(OpenUnit, Created), Failure> {
        let mut created = Created::default();
        let others: Vec<_> = others.map(|other| other.unit.options()).collect();
        let opened = match storage {
            Some(OpenedStorage::Pool(pool)) => {
                self.open_pool_unit(config, pool, &others, &mut created)
            }
            Some(OpenedStorage::Remote(remote)) => {
                self.open_remote_unit(config, remote, &others, &mut created)
            }
            None => self.open_local_unit(config, smaller, &others, &mut created),
        };
        match opened {
            Ok(entry) => Ok((entry, created)),
            Err(failure) => {
                created.undo();
                Err(failure)
            }
        }
    }

    /// The opener of devices.
    pub(super) fn opener(&self) -> &Arc<dyn Opener> {
        &self.opener
    }

    fn open_local_unit(
        &self,
        config: &UnitConfig,
        smaller: SmallerFile,
        others: &[&DiskUnitOptions],
        created: &mut Created,
    ) -> Result<OpenUnit, Failure> {
        let path = match &config.device {
            DeviceUrl::File(path) => path,
            DeviceUrl::Memory { .. } => {
                let device = self.opener.open(&config.device, &config.options)?;
                let uuid = config.uuid.unwrap_or_else(Uuid::new_v4);
                return self.open_unit(config, device, uuid.into(), None, others);
            }
            DeviceUrl::Iscsi(url) => {
                return Err(Failure::new(format!("{url} is not a local device")));
            }
            DeviceUrl::Virtual(_) | DeviceUrl::Extent(_) => {
                return Err(Failure::new(format!("{} is not a local device", config.device)));
            }
            DeviceUrl::Pool(name) => {
                let Some(pool) = &config.options.pool else {
                    return Err(Failure::new(format!("there is no pool {name}")));
                };
                let opened = self.opener.open_pool(pool, REMOTE_OPEN_TIME_MAX)?;
                return self.open_pool_unit(config, opened, others, created);
            }
        };
        let directory = identity::directory(path, self.state.as_deref(), config.uuid)?;
        let new_directory = path_if_missing(&directory)?;
        refuse_old_identity(config, path, &directory)?;
        let mut options = DeviceOptions { io_uring: self.io_uring, ..config.options.clone() };
        // A file that is empty or has exactly this size may be a new one left by a crash: an empty
        // file is extended, and the size is made durable. Any other file is opened as it is.
        let wanted = options.size_bytes.unwrap_or_default();
        if path.metadata().is_ok_and(|file| !file.is_file() || ![0, wanted].contains(&file.len())) {
            options.size_bytes = None;
        }
        // The lock comes first: its holder owns the state as well.
        let device = self.opener.open(&config.device, &options)?;
        created.file = device.take_created();
        extend_to_size(config, &device, smaller)?;
        let kept = identity::create_directory(&directory)?;
        let block_size = identity::check_block_size(&kept, config.options.block_bytes);
        let uuid = match config.uuid {
            Some(uuid) => Ok(uuid),
            None => identity::load_or_create(&kept),
        };
        created.directory = new_directory.map(|_| kept);
        block_size?;
        self.open_unit(config, device, uuid?.into(), Some(directory), others)
    }

    /// Opens the unit of a LUN of another target, or of a disk on such LUNs. Its state is kept only
    /// in a common state directory.
    fn open_remote_unit(
        &self,
        config: &UnitConfig,
        remote: RemoteDevice,
        others: &[&DiskUnitOptions],
        created: &mut Created,
    ) -> Result<OpenUnit, Failure> {
        let derived = match &config.device {
            DeviceUrl::Iscsi(url) => url.unit.as_ref().map(identity::of_remote_lun),
            DeviceUrl::Virtual(name) => Some(identity::of_virtual_lun(name)),
            _ => None,
        };
        let uuid = config.uuid.or(derived).unwrap_or_else(Uuid::new_v4);
        let (device, identity) = (remote.device, remote.identity.map(Arc::new));
        if let Some(identity) = &identity {
            refuse_shared_identity(config, identity, others)?;
        }
        let directory = self.create_state(uuid, created)?;
        let identities = Identities { uuid, reported: identity };
        self.open_unit(config, device, identities, directory, others)
    }

    /// Opens the unit of a pool. Its state is kept only in a common state directory.
    fn open_pool_unit(
        &self,
        config: &UnitConfig,
        opened: OpenPool,
        others: &[&DiskUnitOptions],
        created: &mut Created,
    ) -> Result<OpenUnit, Failure> {
        let Some(device) = opened.pool().cloned() else { return Err(Failure::stopping()) };
        let uuid = config.uuid.unwrap_or_else(|| Uuid::from_bytes(device.id().0));
        let directory = self.create_state(uuid, created)?;
        // Hosts take turns, and have a limited number of commands at the members.
        let shared = FairDevice::new(device);
        let unit = self.open_unit(config, shared, uuid.into(), directory, others)?;
        Ok(OpenUnit { pool: Some(opened), ..unit })
    }

    /// Creates the directory for the state of a unit whose device is not a file, if there is a
    /// common state directory.
    fn create_state(&self, uuid: Uuid, created: &mut Created) -> Result<Option<PathBuf>, Failure> {
        let Some(state) = &self.state else { return Ok(None) };
        let path = state.join(uuid.to_string());
        let new = path_if_missing(&path)?;
        let kept = identity::create_directory(&path)?;
        created.directory = new.map(|_| kept);
        Ok(Some(path))
    }

    fn open_unit(
        &self,
        config: &UnitConfig,
        device: Arc<dyn BlockDevice>,
        identities: Identities,
        state: Option<PathBuf>,
        others: &[&DiskUnitOptions],
    ) -> Result<OpenUnit, Failure> {
        let Identities { uuid, reported } = identities;
        if let Some(other) = others.iter().find(|other| other.uuid == uuid) {
            let (device, name) = (&config.device, other.device.name());
            let what = format!("{device} has the identity of another disk, {name}");
            if config.device.portal().is_some() {
                return Err(Failure::new(what).hint("serve a LUN of another target only once"));
            }
            return Err(Failure::new(what).hint(match state.is_some() && state == other.state {
                true => "the served file with that name was replaced: stop serving it first",
                // The state was copied with the disk: initiators would take both disks for one.
                false => {
                    "remove the `uuid` file in the state directory of the copy, so that it gets \
                     its own identity"
                }
            }));
        }
        let size_bytes = device.geometry().size_bytes();
        let unit = DiskUnit::open(DiskUnitOptions {
            uuid,
            reported_identity: reported,
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
            buffers: self.buffers.clone(),
        })?;
        let file = config.device.path().map(file_identity).transpose()?;
        let mut config = config.clone();
        set_size(&mut config, size_bytes);
        Ok(OpenUnit { config, file, unit, pool: None })
    }
}

/// Compares the size of a file with its configured size. A larger file keeps its size: it was
/// resized while it was served, and the data beyond may be needed.
fn extend_to_size(
    config: &UnitConfig,
    device: &Arc<dyn BlockDevice>,
    smaller: SmallerFile,
) -> Result<(), Failure> {
    let Some(wanted) = config.options.size_bytes else { return Ok(()) };
    let actual = device.geometry().size_bytes();
    let resize = device.resize().filter(|_| !config.options.read_only);
    match (actual.cmp(&wanted), smaller, resize) {
        (Ordering::Equal, ..) => return Ok(()),
        (Ordering::Less, SmallerFile::Grows, Some(resize)) => {
            block_on(resize.resize(wanted))??;
            tracing::warn!("{} was enlarged from {actual} to {wanted} bytes", config.device);
            return Ok(());
        }
        (Ordering::Less, SmallerFile::Keeps | SmallerFile::Grows, _) => tracing::warn!(
            "{} is served with its current size of {actual} bytes, although the configured `size` \
             is {wanted}: `lunar apply`, `lunar ctl resize`, or a start with --grow enlarges it",
            config.device
        ),
        (Ordering::Less, SmallerFile::Fails, _) => {
            return Err(Failure::conflict(format!(
                "{} exists with {actual} bytes, but the size option requests {wanted}",
                config.device
            ))
            .hint("omit the size, and enlarge the disk with `lunar ctl resize`"));
        }
        (Ordering::Greater, ..) => tracing::warn!(
            "{} is served with its current size of {actual} bytes, although the configured `size` \
             is {wanted}: write the current size into the configuration",
            config.device
        ),
    }
    Ok(())
}

/// Opens the device of a remote LUN, a pool of remote LUNs, or a virtual disk.
pub(super) fn open_storage(
    opener: &dyn Opener,
    config: &UnitConfig,
    time_max: Duration,
) -> Result<OpenedStorage, Failure> {
    if let (DeviceUrl::Virtual(name), Some(disk)) = (&config.device, &config.options.virtual_disk) {
        let device = opener.open_virtual(name, disk, time_max)?;
        return Ok(OpenedStorage::Remote(RemoteDevice { device, identity: None }));
    }
    match (&config.device, &config.options.pool) {
        (DeviceUrl::Iscsi(url), _) => {
            let opening = RemoteOpening { identity: config.identity, time_max };
            opener.open_remote(url, &config.options, opening).map(OpenedStorage::Remote)
        }
        (_, Some(pool)) => opener.open_pool(pool, time_max).map(OpenedStorage::Pool),
        _ => Err(Failure::new(format!("{} is not a remote LUN", config.device))),
    }
}

/// Refuses an identity of another machine's unit by which hosts would take it and a unit of this
/// server for one disk: the two have no common locks and reservations.
fn refuse_shared_identity(
    config: &UnitConfig,
    identity: &ReportedIdentity,
    others: &[&DiskUnitOptions],
) -> Result<(), Failure> {
    let shared = |other: &&&DiskUnitOptions| match &other.reported_identity {
        Some(reported) => reported.overlaps(identity),
        None => identity.includes_that_of(other.uuid.as_bytes()),
    };
    match others.iter().find(shared) {
        Some(other) => Err(Failure::new(format!(
            "{} reports the same identity as {}, which is served already",
            config.device,
            other.device.name()
        ))
        .hint("serve a LUN of another target only once, and no LUN of this server")),
        None => Ok(()),
    }
}

/// Returns the path if nothing exists at it; fails if that cannot be determined.
fn path_if_missing(path: &Path) -> Result<Option<PathBuf>, Failure> {
    match path.try_exists() {
        Ok(exists) => Ok((!exists).then(|| path.to_owned())),
        Err(error) => Err(Failure::new(format!("cannot check {}: {error}", path.display()))
            .hint("give the server permission to search the parent directories")),
    }
}

/// Refuses to create a disk whose identity exists. A disk is created and made durable before its
/// identity: if there is an identity without a disk, the disk is elsewhere, and initiators must not
/// see an empty one in its place.
fn refuse_old_identity(config: &UnitConfig, path: &Path, directory: &Path) -> Result<(), Failure> {
    let has_data = path.metadata().is_ok_and(|file| !file.is_file() || file.len() > 0);
    if has_data
        || config.options.size_bytes.is_none()
        || !identity::is_kept(directory, config.uuid)?
    {
        return Ok(());
    }
    let (file, state) = (path.display(), directory.display());
    let what = if path_if_missing(path)?.is_some() { "does not exist" } else { "is empty" };
    Err(Failure::conflict(format!(
        "{file} {what}, but {state} contains the identity of an earlier disk: initiators would \
         take a new disk for that disk"
    ))
    .hint(format!(
        "mount or restore the file system of {file}; to create a new disk instead, remove {state}"
    )))
}

/// Updates the size in a configuration that states one.
pub(super) fn set_size(config: &mut UnitConfig, bytes: u64) {
    match &mut config.device {
        DeviceUrl::Memory { size_bytes } => *size_bytes = bytes,
        _ => {
            if let Some(size_bytes) = &mut config.options.size_bytes {
                *size_bytes = bytes;
            }
        }
    }
}

/// Sets the size in a configuration, even if it did not state one.
pub(super) fn force_size(config: &mut UnitConfig, bytes: u64) {
    if config.device.path().is_some() {
        config.options.size_bytes = Some(bytes);
    }
    set_size(config, bytes);
}

/// The configured size, if any.
pub(super) fn configured_size(config: &UnitConfig) -> Option<u64> {
    match config.device {
        DeviceUrl::Memory { size_bytes } => Some(size_bytes),
        _ => config.options.size_bytes,
    }
}

/// Whether `one` differs from `other` in nothing but the size and the name of the device. A virtual
/// disk may have more blocks, if those that it has stay where they are.
pub(super) fn has_same_settings(one: &UnitConfig, other: &UnitConfig) -> bool {
    let mut renamed = UnitConfig { device: other.device.clone(), ..one.clone() };
    if let (Some(new), Some(old)) = (&one.options.virtual_disk, &other.options.virtual_disk)
        && new.extends(old)
    {
        renamed.options.virtual_disk = Some(Arc::clone(old));
    }
    renamed.options.size_bytes = other.options.size_bytes;
    renamed == *other
}

/// Checks that two LUNs over one file, which are one disk, agree on everything but its name.
pub(super) fn check_same_settings(one: &UnitConfig, other: &UnitConfig) -> Result<(), Failure> {
    if has_same_settings(one, other) && configured_size(one) == configured_size(other) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} and {} are the same disk with different settings",
        one.device, other.device
    ))
    .hint("give both LUNs the same settings"))
}
