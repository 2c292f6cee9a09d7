//! Opens the device of a device URL; the only place that decides which type serves which URL.

use crate::output::Failure;
use lunar_block::{BlockDevice, FileDevice, FileOptions, FileSystems, MemoryDevice};
use lunar_control::device_url::{DeviceUrl, LocalOptions, Opener};
use lunar_initiator::{RemoteDisk, SessionOptions};
use std::path::Path;
use std::sync::Arc;

/// Opens local devices. The devices of one opener coordinate their writes to a common file system.
#[derive(Clone, Debug)]
pub struct LocalOpener {
    file_systems: FileSystems,
}

impl Default for LocalOpener {
    fn default() -> Self {
        Self { file_systems: FileSystems::new(lunar_control::process_memory_bytes()) }
    }
}

impl Opener for LocalOpener {
    fn open(
        &self,
        url: &DeviceUrl,
        options: &LocalOptions,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        match url {
            DeviceUrl::File(path) => open_file(path, options, &self.file_systems),
            DeviceUrl::Memory { size_bytes } => {
                let (block, physical) = (options.block_bytes, options.physical_block_bytes);
                Ok(Arc::new(MemoryDevice::new(*size_bytes, block, physical)?))
            }
            DeviceUrl::Iscsi(url) => Err(Failure::new(format!("{url} is not a local device"))
                .hint(
                    "this version cannot serve a LUN of another target: use a path, file:PATH or \
                     mem:SIZE",
                )),
        }
    }
}

/// An open device.
#[derive(Debug)]
pub enum OpenedDevice {
    /// A local device.
    Local(Arc<dyn BlockDevice>),
    /// A disk behind a session, which has to be closed.
    Remote(Arc<RemoteDisk>),
}

impl OpenedDevice {
    /// The device.
    pub fn device(&self) -> &dyn BlockDevice {
        match self {
            Self::Local(device) => device.as_ref(),
            Self::Remote(disk) => disk.as_ref(),
        }
    }

    /// The device, for use in other tasks.
    pub fn shared(&self) -> Arc<dyn BlockDevice> {
        match self {
            Self::Local(device) => Arc::clone(device),
            Self::Remote(disk) => Arc::<RemoteDisk>::clone(disk),
        }
    }

    /// Closes the device; ends the session if there is one.
    ///
    /// # Errors
    /// Fails if the target does not answer the logout.
    pub async fn close(self) -> Result<(), Failure> {
        if let Self::Remote(disk) = self {
            disk.log_out().await?;
        }
        Ok(())
    }
}

/// Opens the device of a URL; for a LUN of a target, logs in to the target.
///
/// # Errors
/// Returns errors of the device or the target.
pub async fn open(
    url: &DeviceUrl,
    local: &LocalOptions,
    session: &SessionOptions,
) -> Result<OpenedDevice, Failure> {
    match url {
        DeviceUrl::Iscsi(url) => {
            let disk = RemoteDisk::connect(url, session).await?;
            Ok(OpenedDevice::Remote(Arc::new(disk)))
        }
        _ => LocalOpener::default().open(url, local).map(OpenedDevice::Local),
    }
}

fn open_file(
    path: &Path,
    options: &LocalOptions,
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
