//! A daemon over files that fail on demand.
#![allow(dead_code)] // every test file uses its own part
#![allow(clippy::unwrap_used)] // a test may unwrap

use bytes::Bytes;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, Error, FaultDevice, FileDevice,
    FileOptions, Geometry, MemoryDevice, Resize, Sparse, SyncCounts,
};
use lunar_control::Failure;
use lunar_control::config::parse;
use lunar_control::daemon::{
    Applied, ApplyOptions, ConfigOrigin, ConfigSource, Daemon, OpenedConfig, StartOptions,
};
use lunar_control::device_url::{DeviceOptions, DeviceUrl, Opener};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

pub const NAME: &str = "iqn.2026-11.org.example:a";

/// Called when a disk has been resized; an error makes its sync fail.
pub type OnResize = Box<dyn Fn(&Resized<'_>) -> Result<(), Error> + Send>;

/// A disk that has been resized.
pub struct Resized<'a> {
    /// Name of the file.
    pub name: &'a str,
    pub opener: &'a TestOpener,
}

/// Opens files and memory; refuses direct I/O on demand.
#[derive(Default)]
pub struct TestOpener {
    pub no_direct: AtomicBool,
    pub on_resize: Mutex<Option<OnResize>>,
    /// The files that were opened last, by name.
    pub files: Mutex<HashMap<String, Weak<FaultDevice>>>,
}

impl TestOpener {
    /// The disk over the file that was opened last under this name.
    pub fn disk(&self, name: &str) -> Arc<FaultDevice> {
        self.files.lock().unwrap()[name].upgrade().unwrap()
    }
}

impl std::fmt::Debug for TestOpener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TestOpener").finish_non_exhaustive()
    }
}

/// A shared opener, which disks refer to.
#[derive(Clone, Debug, Default)]
pub struct Shared(pub Arc<TestOpener>);

impl Opener for Shared {
    fn open(
        &self,
        url: &DeviceUrl,
        options: &DeviceOptions,
    ) -> Result<Arc<dyn BlockDevice>, Failure> {
        if options.direct && self.0.no_direct.load(Ordering::Acquire) {
            return Err(Failure::new("no direct I/O today"));
        }
        let (block_bytes, physical) = (options.block_bytes, options.physical_block_bytes);
        match url {
            DeviceUrl::Memory { size_bytes } => {
                Ok(Arc::new(MemoryDevice::new(*size_bytes, block_bytes, physical)?))
            }
            DeviceUrl::File(path) => {
                let file = FileDevice::open(FileOptions {
                    path: path.clone(),
                    create_size_bytes: options.size_bytes,
                    block_bytes,
                    physical_block_bytes: physical,
                    direct: false,
                    io_uring: options.io_uring,
                    read_only: options.read_only,
                    thin: options.thin,
                })?;
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                let device = FaultDevice::new(file, 1);
                self.0.files.lock().unwrap().insert(name.clone(), Arc::downgrade(&device));
                Ok(Arc::new(Watched { name, device, opener: Arc::downgrade(&self.0) }))
            }
            _ => Err(Failure::usage("not here")),
        }
    }
}

/// A disk that calls [`OnResize`] when it is resized.
#[derive(Debug)]
struct Watched {
    name: String,
    device: Arc<FaultDevice>,
    opener: Weak<TestOpener>,
}

impl BlockDevice for Watched {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn take_created(&self) -> Option<lunar_block::CreatedFile> {
        self.device.take_created()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        self.device.read(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        self.device.write(range, from, durable)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.device.flush()
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        self.device.sparse()
    }

    fn resize(&self) -> Option<&dyn Resize> {
        Some(self)
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn io_tier(&self) -> String {
        self.device.io_tier()
    }

    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.device.recover()
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        self.device.sync_counts()
    }
}

impl Resize for Watched {
    fn resize(&self, size_bytes: u64) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.device.resize().unwrap().resize(size_bytes).await?;
            let Some(opener) = self.opener.upgrade() else { return Ok(()) };
            let callback = opener.on_resize.lock().unwrap();
            let resized = Resized { name: &self.name, opener: &opener };
            callback.as_ref().map_or(Ok(()), |callback| callback(&resized))
        })
    }
}

pub struct Rig {
    pub directory: PathBuf,
    pub opener: Arc<TestOpener>,
    pub daemon: Daemon,
}

impl Rig {
    pub fn new(name: &str, luns: &str) -> Self {
        Self::with_text(name, &configuration(luns))
    }

    pub fn with_text(name: &str, text: &str) -> Self {
        let process = std::process::id();
        let directory = std::env::temp_dir().join(format!("lunar-daemon-{process}-{name}"));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let opener = Shared::default();
        let file = directory.join("lunar.toml");
        std::fs::write(&file, text).unwrap();
        let read = parse(text, &file).unwrap();
        let origin = ConfigOrigin::File { path: file, api: None };
        let opened =
            OpenedConfig::open(read, origin, Arc::new(opener.clone()), StartOptions::default())
                .unwrap();
        Self { daemon: opened.serve().unwrap(), directory, opener: opener.0 }
    }

    pub fn source(&self, luns: &str) -> ConfigSource {
        ConfigSource::Text { text: configuration(luns), path: self.directory.join("other.toml") }
    }

    pub fn apply(&self, luns: &str, options: ApplyOptions) -> Result<Applied, Failure> {
        self.daemon.apply(&self.source(luns), options, &"a test")
    }

    /// Changes that an apply would make, one per line.
    pub fn differences(&self, luns: &str) -> Vec<String> {
        let dry = ApplyOptions { dry_run: true, ..ApplyOptions::default() };
        let difference = self.apply(luns, dry).unwrap().difference;
        difference.changes.into_iter().map(|change| change.line).collect()
    }

    pub fn uuids(&self) -> Vec<uuid::Uuid> {
        self.daemon.server().catalogue().units().iter().map(|unit| unit.uuid()).collect()
    }

    pub fn size(&self, lun: usize) -> u64 {
        let catalogue = self.daemon.server().catalogue();
        catalogue.targets[0].luns[lun].unit.statistics().size_bytes
    }

    pub fn write(&self, name: &str, lba: u64, byte: u8) {
        write(&self.opener.disk(name), lba, byte);
    }

    pub fn read(&self, name: &str, lba: u64) -> u8 {
        let disk = self.opener.disk(name);
        let read = disk.read(BlockRange::new(lba, 1), BufferPool::new(0).take_zeroed(512));
        block_on(read).unwrap()[0]
    }
}

/// Writes a block as an initiator does.
pub fn write(disk: &FaultDevice, lba: u64, byte: u8) {
    let bytes = Bytes::from(vec![byte; 512]);
    block_on(disk.write(BlockRange::new(lba, 1), bytes, true)).unwrap();
}

pub fn block_on<T: Send>(work: impl Future<Output = T> + Send) -> T {
    // Some callers run inside of another runtime.
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work)
        });
        thread.join().unwrap()
    })
}

impl Drop for Rig {
    fn drop(&mut self) {
        let mut silent = |_: &str| {};
        self.daemon.server().shutdown(std::time::Duration::from_secs(1), &mut silent);
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub fn configuration(luns: &str) -> String {
    let portal = "[listen]\nportals = [\"127.0.0.1:0\"]\n";
    format!("{portal}[limits]\nlogin_seconds = 20\n[[target]]\nname = \"{NAME}\"\n{luns}")
}

pub fn lun(id: u16, device: &str, more: &str) -> String {
    format!("[[target.lun]]\nid = {id}\ndevice = \"{device}\"\n{more}\n")
}

pub const SIZE: &str = "size = \"1MiB\"";
