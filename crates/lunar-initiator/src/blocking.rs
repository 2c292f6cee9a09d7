//! The initiator for programs without a runtime: each call blocks until it is done.
//!
//! One thread drives all sessions that were begun with one [`Connector`]; calls may come from any
//! number of threads, and each waits for its own answer only.
//!
//! ```
//! use lunar_initiator::{SessionOptions, blocking::Connector};
//!
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/server.rs"));
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let (server, text) = serve();
//! let url = text.parse()?; // iscsi://HOST[:PORT]/TARGET/LUN
//! let options = SessionOptions::new("iqn.2026-11.org.example:host");
//! let disk = Connector::start()?.open(&url, &options)?;
//! let block = vec![7; disk.geometry().block_bytes as usize];
//! disk.write(0, block.clone())?;
//! disk.flush()?;
//! assert_eq!(disk.read(0, 1)?, block);
//! disk.close()?;
//! # server.shutdown(std::time::Duration::from_secs(5), &mut |_| {});
//! # Ok(())
//! # }
//! ```

use crate::{CommandReply, Error, ErrorKind, RemoteDisk, ReportedIdentity, SessionOptions, Url};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, Geometry};
use lunar_iscsi::connection::initiator::Cdb;
use lunar_iscsi::connection::target::TargetRecord;
use lunar_wire::Lun;
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Maximum size of one read: a wrong count is an error and does not exhaust memory.
pub const READ_BYTES_MAX: u64 = 1 << 30;

/// A thread that drives sessions. It ends when the connector and all disks opened with it are
/// dropped.
#[derive(Clone, Debug)]
pub struct Connector {
    driver: Arc<Driver>,
}

#[derive(Debug)]
struct Driver {
    handle: Handle,
    /// Ends the thread when dropped.
    _stop: oneshot::Sender<()>,
}

impl Connector {
    /// Starts the thread.
    ///
    /// # Errors
    /// `Connect` if the system cannot start a thread or a runtime.
    pub fn start() -> Result<Self, Error> {
        let refused = |error: std::io::Error| {
            Error::new(ErrorKind::Connect, format!("cannot start a thread for sessions: {error}"))
        };
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().map_err(refused)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("lunar-initiator".to_owned());
        let run = move || {
            // The sender is only dropped, never used.
            let _ = runtime.block_on(stopped);
        };
        thread.spawn(run).map_err(refused)?;
        Ok(Self { driver: Arc::new(Driver { handle, _stop: stop }) })
    }

    /// Logs in and opens the LUN of `url`.
    ///
    /// # Errors
    /// The errors of [`RemoteDisk::connect`].
    pub fn open(&self, url: &Url, options: &SessionOptions) -> Result<BlockingDisk, Error> {
        let (url, options) = (url.clone(), options.clone());
        let disk = self.run(async move { RemoteDisk::connect(&url, &options).await })??;
        Ok(BlockingDisk { disk: Arc::new(disk), connector: self.clone() })
    }

    /// Runs `work` on the thread and waits, up to `time_max`; then `work` is dropped. `subject` is
    /// named in the error.
    ///
    /// # Errors
    /// The errors of `work` · `TimedOut`.
    pub fn run_within<T: Send + 'static>(
        &self,
        time_max: Duration,
        subject: &Url,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let done = self.run(async move { tokio::time::timeout(time_max, work).await })?;
        done.unwrap_or_else(|_| {
            let what = format!("{subject} did not answer within {} s", time_max.as_secs());
            Err(Error::new(ErrorKind::TimedOut, what)
                .hint("check that its server is running and can be reached"))
        })
    }

    /// Lists the targets of the portal of `url`.
    ///
    /// # Errors
    /// The errors of [`discover`](crate::discover).
    pub fn discover(
        &self,
        url: &Url,
        options: &SessionOptions,
    ) -> Result<Vec<TargetRecord>, Error> {
        let (url, options) = (url.clone(), options.clone());
        self.run(async move { crate::discover(&url, &options).await })?
    }

    /// Runs `work` on the thread and waits. Blocks: not for tasks of an asynchronous program.
    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Error> {
        let (done, result) = mpsc::sync_channel(1);
        self.driver.handle.spawn(async move {
            // The receiver waits below.
            let _ = done.send(work.await);
        });
        result.recv().map_err(|_| {
            Error::new(ErrorKind::SessionLost, "the thread of the session has panicked")
        })
    }
}

/// A disk behind a session, as [`RemoteDisk`]: commands of a lost session are sent again.
#[derive(Clone, Debug)]
pub struct BlockingDisk {
    disk: Arc<RemoteDisk>,
    connector: Connector,
}

impl BlockingDisk {
    /// Geometry of the disk.
    pub fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    /// The disk for asynchronous programs; its sessions run on the connector's thread.
    pub fn remote(&self) -> &Arc<RemoteDisk> {
        &self.disk
    }

    /// Calls [`RemoteDisk::offer_compare_and_write`], which asks the target.
    ///
    /// # Errors
    /// When the thread of the session has panicked.
    pub fn offer_compare_and_write(&self) -> Result<(), lunar_block::Error> {
        let disk = Arc::clone(&self.disk);
        self.run(async move { disk.offer_compare_and_write().await })
    }

    /// Reads the identity that the unit reports: [`RemoteDisk::reported_identity`].
    ///
    /// # Errors
    /// The errors of [`RemoteDisk::reported_identity`].
    pub fn reported_identity(&self) -> Result<ReportedIdentity, Error> {
        let disk = Arc::clone(&self.disk);
        self.connector.run(async move { disk.reported_identity().await })?
    }

    /// Reads `count` blocks from `lba` on.
    ///
    /// # Errors
    /// `OutOfRange`, also for more than [`READ_BYTES_MAX`] · as [`BlockDevice::read`].
    pub fn read(&self, lba: u64, count: u64) -> Result<Vec<u8>, lunar_block::Error> {
        let geometry = self.geometry();
        let range = BlockRange::new(lba, count);
        let bytes = geometry.checked_range(self.disk.name(), range)?;
        if bytes.end - bytes.start > READ_BYTES_MAX {
            let what = format!("more than {READ_BYTES_MAX} bytes in one read");
            let kind = lunar_block::ErrorKind::OutOfRange;
            return Err(lunar_block::Error::new(kind, self.disk.name(), what).at(range));
        }
        let disk = Arc::clone(&self.disk);
        let buffer = disk.unit().initiator().pool().take((bytes.end - bytes.start) as usize);
        let read = self.run(async move { disk.read(range, buffer).await })?;
        Ok(read?.to_vec())
    }

    /// Writes whole blocks from `lba` on. They are durable after a [`flush`](Self::flush).
    ///
    /// # Errors
    /// `Unaligned` for a part of a block · as [`BlockDevice::write`].
    pub fn write(&self, lba: u64, data: impl Into<Bytes>) -> Result<(), lunar_block::Error> {
        let (data, disk) = (data.into(), Arc::clone(&self.disk));
        let count = (data.len() as u64).div_ceil(self.geometry().block_bytes.into());
        let range = BlockRange::new(lba, count);
        self.run(async move { disk.write(range, data, false).await })?
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// The errors of [`BlockDevice::flush`].
    pub fn flush(&self) -> Result<(), lunar_block::Error> {
        let disk = Arc::clone(&self.disk);
        self.run(async move { disk.flush().await })?
    }

    /// Executes any SCSI command, with data in either direction or both.
    ///
    /// # Errors
    /// The errors of [`Initiator::execute`](crate::Initiator::execute).
    pub fn execute(
        &self,
        cdb: impl Into<Cdb>,
        data_out: Bytes,
        data_in_max: u32,
    ) -> Result<CommandReply, Error> {
        let (cdb, unit) = (cdb.into(), self.disk.unit().clone());
        self.connector.run(async move {
            let lun: Lun = unit.lun();
            unit.initiator().execute(lun, cdb, data_out, data_in_max).await
        })?
    }

    /// Logs out, for all clones of this disk.
    ///
    /// # Errors
    /// When the target does not answer.
    pub fn close(self) -> Result<(), Error> {
        let disk = self.disk;
        self.connector.run(async move { disk.log_out().await })?
    }

    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, lunar_block::Error> {
        self.connector.run(work).map_err(|error| {
            let what = error.what.clone();
            lunar_block::Error::new(lunar_block::ErrorKind::Disconnected, self.disk.name(), what)
                .because(error)
        })
    }
}
