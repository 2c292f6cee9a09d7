//! Two servers on disks that can lose their power, and a server of the mirror of their LUNs.

use crate::power_cut::mirrored;
use anyhow::{Context, Result, bail, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::powercut::PowerCutDisk;
use lunar_lab::system::ports::free_port;
use lunar_lab::system::process::must;
use lunar_lab::system::scratch::Scratch;
use lunar_pool::format::{DATA_OFFSET_BYTES, LABEL_BYTES};
use rustix::process::Signal;
use std::time::Duration;

pub const TARGET: &str = "iqn.2026-11.org.lunarsan.test:members";
const DISK: &str = "disk.img";
const UUID: &str = "5f0b7c11-39b9-4f2c-9c0e-1d7b8f6a2e35";

/// Number of blocks of the mirror that are used.
pub const BLOCKS: usize = 1024;
pub const BLOCK_BYTES: usize = 512;
const SIZE_BYTES: usize = BLOCKS * BLOCK_BYTES + DATA_OFFSET_BYTES as usize + LABEL_BYTES;

const END_MAX: Duration = Duration::from_secs(30);

/// A server with a write-back disk.
pub struct Storage {
    server: Option<Lunar>,
    disk: PowerCutDisk,
    address: String,
    target: String,
}

impl Storage {
    fn new(name: &str) -> Result<Self> {
        let (disk, port) = (PowerCutDisk::mount(name)?, free_port()?);
        let address = format!("127.0.0.1:{port}");
        let target = format!("iqn.2026-11.org.lunarsan.test:{name}");
        let mut storage = Self { server: None, disk, address, target };
        storage.start()?;
        Ok(storage)
    }

    /// Starts the server, unless it runs.
    pub fn start(&mut self) -> Result<()> {
        if self.server.is_none() {
            let (path, size) = (self.disk.path(DISK), SIZE_BYTES.to_string());
            let what = [path.as_str(), "--size", &size, "--name", &self.target];
            let options = ["--cache", "write-back"];
            self.server = Some(Lunar::serve_on(&self.address, &[&what[..], &options].concat())?);
        }
        Ok(())
    }

    fn url(&self) -> String {
        format!("iscsi://{}/{}/0", self.address, self.target)
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

/// The mirror with its storages. The upper layers come first, since they are dropped first.
pub struct Rig {
    front: Option<Lunar>,
    pub storages: [Storage; 2],
    beside: Scratch,
}

impl Rig {
    /// Creates the mirror, and serves it.
    pub fn new() -> Result<Self> {
        let storages = [Storage::new("member-a")?, Storage::new("member-b")?];
        let beside = Scratch::new("members")?;
        let members = storages.each_ref().map(Storage::url);
        let [one, other] = members.each_ref().map(String::as_str);
        let create = ["pool", "create", "p", "--kind", "mirror", one, other];
        must(&binary()?, &create, END_MAX)?;
        let (pool, state) =
            (mirrored::table(&members, "member_wait_seconds = 1\n"), beside.path("state"));
        let mut rig = Self { front: None, storages, beside };
        let text = format!(
            "state = \"{state}\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n\
             [api]\nlisten = \"{}\"\n{pool}[[target]]\nname = \"{TARGET}\"\n\
             [[target.lun]]\nid = 0\nuuid = \"{UUID}\"\ndevice = \"pool:p\"\n\
             cache = \"write-back\"\n",
            rig.api()
        );
        let configuration = rig.beside.secret("lunar.toml", &text)?;
        rig.front = Some(Lunar::start(&["target", "--config", &configuration])?);
        Ok(rig)
    }

    fn api(&self) -> String {
        format!("unix:{}", self.beside.path("api.sock"))
    }

    /// Returns the server of the mirror.
    pub fn front(&self) -> Result<&Lunar> {
        self.front.as_ref().context("the server of the mirror")
    }

    pub fn until_healthy(&self) -> Result<()> {
        mirrored::until_healthy(&self.api()).map(drop)
    }

    /// Stops all servers.
    pub fn stop(&mut self) -> Result<()> {
        self.front.take().context("the server of the mirror")?.stop(END_MAX)?;
        for storage in &mut self.storages {
            storage.server.take().context("a running server")?.stop(END_MAX)?;
        }
        Ok(())
    }

    /// Checks that the data of both members is equal, after a stop.
    pub fn check_equal(&self) -> Result<()> {
        ensure!(self.front.is_none(), "the servers run");
        let paths = self.storages.each_ref().map(|storage| storage.disk.path(DISK));
        match mirrored::check_equal(&paths) {
            Ok(()) => Ok(()),
            Err(error) => bail!("after the last round: {error}"),
        }
    }
}
