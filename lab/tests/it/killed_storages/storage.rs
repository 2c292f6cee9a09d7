//! A server on a disk that can lose its power.

use anyhow::{Context, Result};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::powercut::PowerCutDisk;
use lunar_lab::system::ports::free_port;
use rustix::process::Signal;
use std::time::Duration;

const DISK: &str = "disk.img";

/// Maximum time until a server has ended.
pub const END_MAX: Duration = Duration::from_secs(30);

/// A server with a write-back disk.
pub struct Storage {
    server: Option<Lunar>,
    disk: PowerCutDisk,
    size_bytes: usize,
    address: String,
    target: String,
}

impl Storage {
    /// Starts a server of a new disk.
    pub fn new(name: &str, size_bytes: usize) -> Result<Self> {
        let (disk, port) = (PowerCutDisk::mount(name)?, free_port()?);
        let address = format!("127.0.0.1:{port}");
        let target = format!("iqn.2026-11.org.lunarsan.test:{name}");
        let mut storage = Self { server: None, disk, size_bytes, address, target };
        storage.start()?;
        Ok(storage)
    }

    /// Starts the server, unless it runs.
    pub fn start(&mut self) -> Result<()> {
        if self.server.is_none() {
            let (path, size) = (self.file(), self.size_bytes.to_string());
            let what = [path.as_str(), "--size", &size, "--name", &self.target];
            let options = ["--cache", "write-back"];
            self.server = Some(Lunar::serve_on(&self.address, &[&what[..], &options].concat())?);
        }
        Ok(())
    }

    /// Returns the address on which the server listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the path of the file of the disk.
    pub fn file(&self) -> String {
        self.disk.path(DISK)
    }

    /// Returns the URL of the LUN.
    pub fn url(&self) -> String {
        self.url_at(&self.address)
    }

    /// Returns the URL of the LUN behind a relay that listens on this address.
    pub fn url_at(&self, address: &str) -> String {
        format!("iscsi://{address}/{}/0", self.target)
    }

    /// Stops the server.
    pub fn stop(&mut self) -> Result<()> {
        self.server.take().context("a running server")?.stop(END_MAX)?;
        Ok(())
    }

    /// Kills the server; its disk keeps what was written.
    pub fn kill(&mut self) -> Result<()> {
        let mut server = self.server.take().context("a running server")?;
        server.server().signal(Signal::KILL)?;
        server.server().wait(END_MAX)?;
        Ok(())
    }

    /// Kills the server; of the data that was not flushed its disk keeps the part that this seed
    /// selects.
    pub fn lose_power(&mut self, seed: u64) -> Result<()> {
        self.disk.freeze();
        self.kill()?;
        self.disk.cut(seed);
        Ok(())
    }
}
