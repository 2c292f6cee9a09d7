//! Opens the device of a device URL; the only module that decides which type serves which URL.

use crate::commands::default_initiator_name;
use crate::output::Failure;
use crate::pool_devices;
use crate::storages::OpenStorages;
use lunar_block::{BlockDevice, FairDevice, FileDevice, FileOptions, FileSystems, MemoryDevice};
use lunar_control::OpenPool;
use lunar_control::config::model::{ChapConfig, PoolConfig, PoolMemberConfig};
use lunar_control::config::virtual_lun::{ExtentConfig, StorageConfig, VirtualDiskConfig};
use lunar_control::device_url::{
    DeviceOptions, DeviceUrl, IdentitySource, Opener, REMOTE_OPEN_TIME_MAX, RemoteDevice,
    RemoteOpening,
};
use lunar_initiator::blocking::Connector;
use lunar_initiator::{RemoteDisk, ReportedIdentity, SessionOptions, Url};
use lunar_pool::Pool;
use lunar_switch::{Migration, MigrationOptions};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};

/// Opens the devices that a server serves. The files of one opener coordinate their writes to a
/// common file system; the sessions of its remote LUNs share one thread, which runs as long as the
/// opener.
#[derive(Debug)]
pub struct ServedDevices {
    file_systems: FileSystems,
    /// Started with the first remote LUN.
    connector: Mutex<Option<Connector>>,
    /// Runs the tasks of mirrors; started with the first pool.
    pools: Mutex<Option<Runtime>>,
    /// Names of the pools that are to be taken over from other hosts, once.
    take_over: Mutex<BTreeSet<String>>,
    storages: OpenStorages,
}

impl Default for ServedDevices {
    fn default() -> Self {
        let file_systems = FileSystems::new(lunar_control::process_memory_bytes());
        let (connector, pools) = (Mutex::default(), Mutex::default());
        let (take_over, storages) = (Mutex::default(), OpenStorages::default());
        Self { file_systems, connector, pools, take_over, storages }
    }
}

impl ServedDevices {
    /// Opens devices. At their first opening, the pools `names` are taken over from the hosts that
    /// have them open.
    pub fn taking_over(names: &[String]) -> Self {
        Self { take_over: Mutex::new(names.iter().cloned().collect()), ..Self::default() }
    }

    /// True if a pool is to be taken over from another host.
    pub fn takes_over(&self, pool: &str) -> bool {
        self.take_over.lock().unwrap_or_else(PoisonError::into_inner).contains(pool)
    }

    /// Records that a pool was opened: if another host takes the pool over later, this host does
    /// not take it back.
    pub fn record_opened(&self, pool: &str) {
        self.take_over.lock().unwrap_or_else(PoisonError::into_inner).remove(pool);
    }

    fn connector(&self) -> Result<Connector, Failure> {
        let mut connector = self.connector.lock().unwrap_or_else(PoisonError::into_inner);
        match &*connector {
            Some(connector) => Ok(connector.clone()),
            None => Ok(connector.insert(Connector::start()?).clone()),
        }
    }
}

impl ServedDevices {
    fn pool_runtime(&self) -> Result<Handle, Failure> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        match &*pools {
            Some(runtime) => Ok(runtime.handle().clone()),
            None => Ok(pools.insert(pool_devices::start_runtime()?).handle().clone()),
        }
    }
}

impl Opener for ServedDevices {
    fn open(
        &self,
        url: &DeviceUrl,
        options: &DeviceOptions,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        match url {
            DeviceUrl::Iscsi(url) => {
                let opening =
                    RemoteOpening { identity: IdentitySource::Own, time_max: REMOTE_OPEN_TIME_MAX };
                Ok(self.open_remote(url, options, opening)?.device)
            }
            _ => open_local(url, options, &self.file_systems),
        }
    }

    fn open_remote(
        &self,
        url: &Url,
        options: &DeviceOptions,
        opening: RemoteOpening,
    ) -> Result<RemoteDevice, Failure> {
        let (disk, identity) = self.log_in(url, session_options(options), opening)?;
        // Several hosts use the disk's session.
        Ok(RemoteDevice { device: FairDevice::new(disk), identity })
    }

    fn open_pool(
        &self,
        config: &PoolConfig,
        member_time_max: Duration,
    ) -> Result<OpenPool, Failure> {
        pool_devices::open(config, self, &self.pool_runtime()?, member_time_max)
    }

    fn open_virtual(
        &self,
        name: &str,
        config: &VirtualDiskConfig,
        time_max: Duration,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        let name = DeviceUrl::Virtual(name.to_owned()).to_string();
        Ok(self.storages.open_disk(name, config, self, time_max)?)
    }

    fn prepare_growth(
        &self,
        device: &Arc<dyn BlockDevice>,
        config: Option<&VirtualDiskConfig>,
    ) -> Result<(), Failure> {
        self.storages.prepare_growth(device, config, self, REMOTE_OPEN_TIME_MAX)
    }

    fn open_migration(
        &self,
        device: &Arc<dyn BlockDevice>,
        extent_index: usize,
        to: &ExtentConfig,
        options: MigrationOptions,
        time_max: Duration,
    ) -> Result<Migration, Failure> {
        self.storages.open_migration(device, (extent_index, to), options, self, time_max)
    }

    /// Opens a member of a pool. The owners of commands take turns at the pool, not at its members:
    /// a command that waited at one member would make it late.
    fn open_member(
        &self,
        member: &PoolMemberConfig,
        time_max: Duration,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        match &member.device {
            DeviceUrl::Iscsi(url) => {
                let opening = RemoteOpening { identity: IdentitySource::Own, time_max };
                Ok(self.log_in(url, session_options(&member.options), opening)?.0)
            }
            DeviceUrl::Extent(extent) => self.storages.open_extent(extent, self, time_max),
            url => self.open(url, &member.options),
        }
    }
}

impl ServedDevices {
    /// Opens a storage of virtual LUNs, without fair sharing between hosts.
    ///
    /// # Errors
    /// Errors of the login.
    pub fn open_storage(
        &self,
        config: &Arc<StorageConfig>,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        self.storages.open_storage(config, self, REMOTE_OPEN_TIME_MAX)
    }

    /// Logs in to the target of a LUN; returns the disk, and its identity if it is wanted.
    ///
    /// # Errors
    /// Errors of the login.
    pub fn log_in(
        &self,
        url: &Url,
        session: SessionOptions,
        opening: RemoteOpening,
    ) -> Result<(Arc<RemoteDisk>, Option<ReportedIdentity>), Failure> {
        let lun = url.clone();
        let open = async move {
            let disk = Arc::new(RemoteDisk::connect(&lun, &session).await?);
            disk.offer_compare_and_write().await;
            let identity = match opening.identity {
                IdentitySource::Own => None,
                IdentitySource::Device => Some(disk.reported_identity().await?),
            };
            disk.stay_connected();
            Ok((disk, identity))
        };
        Ok(self.connector()?.run_within(opening.time_max, url, open)?)
    }
}

fn session_options(options: &DeviceOptions) -> SessionOptions {
    let mut session = SessionOptions::new(default_initiator_name());
    session.chap = options.chap.as_ref().map(ChapConfig::credentials);
    session
}

/// An open device.
#[derive(Debug)]
pub enum OpenedDevice {
    /// A local device.
    Local(Arc<dyn BlockDevice>),
    /// A disk behind a session, which has to be closed.
    Remote(Arc<RemoteDisk>),
    /// A pool, which has to be closed.
    Pool(OpenedPool),
}

/// A pool that is open without a server.
#[derive(Debug)]
pub struct OpenedPool {
    /// Dropped before the handle: a closed pool waits until its members are released.
    device: Arc<Pool>,
    handle: PoolHandle,
}

/// A pool and the threads of its members. `None` once it is being closed.
#[derive(Debug)]
struct PoolHandle(Option<(OpenPool, ServedDevices)>);

impl OpenedPool {
    /// Opens a pool and its members.
    async fn open(config: PoolConfig) -> Result<Self, Failure> {
        on_thread(move || {
            let devices = ServedDevices::default();
            let open = devices.open_pool(&config, REMOTE_OPEN_TIME_MAX)?;
            let device = open.pool().cloned().ok_or_else(Failure::stopping)?;
            Ok(Self { device, handle: PoolHandle(Some((open, devices))) })
        })
        .await
    }

    async fn close(self) -> Result<(), Failure> {
        let Self { device, mut handle } = self;
        drop(device);
        let open = handle.0.take();
        on_thread(move || open.map_or(Ok(()), |(pool, _devices)| pool.close())).await
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        // The end of a command that has failed. A pool is closed on a thread that may block.
        if let Some(open) = self.0.take() {
            std::thread::scope(|scope| _ = scope.spawn(|| drop(open)).join());
        }
    }
}

async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| Err(Failure::new(format!("the pool: internal error: {error}"))))
}

impl OpenedDevice {
    /// The device.
    pub fn device(&self) -> &dyn BlockDevice {
        match self {
            Self::Local(device) => device.as_ref(),
            Self::Remote(disk) => disk.as_ref(),
            Self::Pool(pool) => pool.device.as_ref(),
        }
    }

    /// The device, for use in other tasks.
    pub fn shared(&self) -> Arc<dyn BlockDevice> {
        match self {
            Self::Local(device) => Arc::clone(device),
            Self::Remote(disk) => Arc::<RemoteDisk>::clone(disk),
            Self::Pool(pool) => Arc::<Pool>::clone(&pool.device),
        }
    }

    /// Closes the device; ends the session if there is one.
    ///
    /// # Errors
    /// Fails if the target does not answer the logout, or a pool may have lost data.
    pub async fn close(self) -> Result<(), Failure> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Remote(disk) => Ok(disk.log_out().await?),
            Self::Pool(pool) => pool.close().await,
        }
    }
}

/// Opens the device of a URL; for a LUN of a target, logs in to the target. The configuration of a
/// pool is in the options.
///
/// # Errors
/// Returns errors of the device or the target.
pub async fn open(
    url: &DeviceUrl,
    local: &DeviceOptions,
    session: &SessionOptions,
) -> Result<OpenedDevice, Failure> {
    if let Some(config) = &local.pool {
        let config = if local.read_only { config.read_only() } else { (**config).clone() };
        return OpenedPool::open(config).await.map(OpenedDevice::Pool);
    }
    match url {
        DeviceUrl::Iscsi(url) => {
            let disk = RemoteDisk::connect(url, session).await?;
            Ok(OpenedDevice::Remote(Arc::new(disk)))
        }
        _ => {
            let file_systems = FileSystems::new(lunar_control::process_memory_bytes());
            let opened = open_local(url, local, &file_systems);
            opened.map(OpenedDevice::Local).map_err(|failure| missing_path(url, failure))
        }
    }
}

/// Adds the form of other devices to a failure about a path that does not exist: the path may be
/// an address without `iscsi://`.
fn missing_path(url: &DeviceUrl, failure: Failure) -> Failure {
    let is_missing = url.path().is_some_and(|path| !path.exists());
    match failure.hint {
        None if is_missing => {
            failure.hint("name an existing file or block device, or a LUN: iscsi://HOST/TARGET/LUN")
        }
        _ => failure,
    }
}

/// Opens a device of this machine.
fn open_local(
    url: &DeviceUrl,
    options: &DeviceOptions,
    file_systems: &FileSystems,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    match url {
        DeviceUrl::File(path) => open_file(path, options, file_systems),
        DeviceUrl::Memory { size_bytes } => {
            let (block, physical) = (options.block_bytes, options.physical_block_bytes);
            Ok(Arc::new(MemoryDevice::new(*size_bytes, block, physical)?))
        }
        DeviceUrl::Iscsi(_) | DeviceUrl::Pool(_) | DeviceUrl::Virtual(_) | DeviceUrl::Extent(_) => {
            Err(Failure::usage(format!("{url} cannot be opened here"))
                .hint("serve it, and use the URL of its LUN: iscsi://HOST/TARGET/LUN"))
        }
    }
}

fn open_file(
    path: &Path,
    options: &DeviceOptions,
    file_systems: &FileSystems,
) -> Result<Arc<dyn BlockDevice>, Failure> {
    let file = FileOptions {
        path: path.to_owned(),
        create_size_bytes: options.size_bytes,
        block_bytes: options.block_bytes,
        physical_block_bytes: options.physical_block_bytes,
        direct: options.direct,
        io_uring: options.io_uring,
        read_only: options.read_only,
        thin: options.thin,
    };
    let device = FileDevice::open_in(file, file_systems)?;
    let size = device.geometry().size_bytes();
    match options.size_bytes {
        Some(wanted) if wanted != size => Err(Failure::new(format!(
            "the file {} exists with {size} bytes, but the size option requests {wanted}",
            path.display()
        ))
        .hint("omit the size: it applies only to files that do not exist")),
        _ => Ok(device),
    }
}
