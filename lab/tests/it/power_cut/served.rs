//! A served disk with the layers below it, down to the file system that loses its power.

use crate::power_cut::rig::{Mode, TARGET, after_the_cut, kill};
use anyhow::{Context, Result};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::powercut::volume::Volume;
use lunar_lab::powercut::{Ext4, LoopDevice, PowerCutDisk, make_ext4, write_back};
use lunar_lab::system::scratch::Scratch;
use std::fs::File;
use std::ops::Range;

/// Size of the file system: enough for ext4 with a journal.
const FILE_SYSTEM_BYTES: u64 = 32 << 20;

/// The backing file of the loop device.
const LOWER: &str = "device.img";

/// The served file, unless the loop device itself is served.
const SERVED: &str = "disk.img";

const UUID: &str = "3f0d7a52-6a0e-4c57-8d8e-0a3c1f6b2d94";

/// The kind of the served disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Backing {
    /// A file of the FUSE file system, which keeps no more than POSIX promises. The server writes
    /// to it by its pool, and there is no page cache.
    Fuse,
    /// A loop device over such a file, with the kernel's page cache and io_uring.
    Device,
    /// A file on ext4 on a loop device.
    Ext4,
}

impl Backing {
    /// Returns the sector length: ext4 has to write its superblock of 1024 bytes whole.
    fn sector_bytes(self) -> u64 {
        if self == Self::Ext4 { 4096 } else { 512 }
    }
}

/// A disk that `lunar serve` serves. The upper layers come first, since they are dropped first.
pub struct ServedDisk {
    ext4: Option<Ext4>,
    device: Option<LoopDevice>,
    pub power: PowerCutDisk,
    backing: Backing,
    mode: Mode,
    blocks: usize,
    /// Holds the configuration of a served device.
    beside: Scratch,
}

/// Counts of the kinds of I/O that a server did.
#[derive(Clone, Copy, Debug, Default)]
pub struct IoCounts {
    /// Bytes that the cores wrote themselves.
    pub inline_bytes: u64,
    /// Bytes that the pool wrote.
    pub pool_bytes: u64,
    /// Requests that the rings of the cores accepted.
    pub ring_requests: u64,
}

impl IoCounts {
    /// Adds the counts of another server.
    pub fn add(&mut self, other: Self) {
        self.inline_bytes += other.inline_bytes;
        self.pool_bytes += other.pool_bytes;
        self.ring_requests += other.ring_requests;
    }
}

impl ServedDisk {
    /// Makes a disk of zeroes.
    pub fn new(backing: Backing, mode: Mode, blocks: usize) -> Result<Self> {
        let power = PowerCutDisk::mount("power-served")?;
        power.set_sector_bytes(backing.sector_bytes());
        let beside = Scratch::new("power-beside")?;
        let mut disk = Self { ext4: None, device: None, power, backing, mode, blocks, beside };
        if backing == Backing::Fuse {
            return Ok(disk);
        }
        let whole = (blocks * mode.block_bytes) as u64;
        let file = File::create(disk.power.path(LOWER))?;
        file.set_len(if backing == Backing::Ext4 { FILE_SYSTEM_BYTES } else { whole })?;
        file.sync_all()?;
        File::open(disk.power.folder())?.sync_all()?;
        let device = disk.attach()?;
        if backing == Backing::Ext4 {
            make_ext4(device)?;
            disk.mount()?;
        }
        Ok(disk)
    }

    fn attach(&mut self) -> Result<&LoopDevice> {
        let device = LoopDevice::attach(&self.power.path(LOWER), self.backing.sector_bytes())?;
        Ok(self.device.insert(device))
    }

    fn mount(&mut self) -> Result<()> {
        self.ext4 = self.device.as_ref().map(Ext4::mount).transpose()?;
        Ok(())
    }

    /// Returns the path of the served file or device.
    pub fn path(&self) -> String {
        match (&self.ext4, &self.device) {
            (Some(ext4), _) => ext4.path(SERVED),
            (None, Some(device)) => device.path().to_owned(),
            (None, None) => self.power.path(SERVED),
        }
    }

    /// Starts a server of the disk.
    pub fn serve(&self) -> Result<Lunar> {
        if self.backing == Backing::Device {
            return Lunar::start(&["target", "--config", &self.configuration()?]);
        }
        let block = self.mode.block_bytes.to_string();
        let size = (self.blocks * self.mode.block_bytes).to_string();
        let path = self.path();
        let what = [path.as_str(), "--name", TARGET, "--size", &size, "--block-size", &block];
        let how = ["--cache", self.mode.cache, "--io", self.mode.io];
        Lunar::serve(&[&what[..], &how].concat())
    }

    /// Writes a configuration that serves the device. A UUID identifies the unit's state, since the
    /// number of the loop device may differ after a cut.
    fn configuration(&self) -> Result<String> {
        let Mode { cache, io, block_bytes } = self.mode;
        let (device, state) = (self.path(), self.power.path("state"));
        let api = self.beside.path("api.sock");
        let text = format!(
            "state = \"{state}\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n\
             [api]\nlisten = \"unix:{api}\"\n[[target]]\nname = \"{TARGET}\"\n\
             [[target.lun]]\nid = 0\nuuid = \"{UUID}\"\ndevice = \"{device}\"\n\
             block_size = {block_bytes}\ncache = \"{cache}\"\nio = \"{io}\"\n"
        );
        self.beside.secret("lunar.toml", &text)
    }

    /// Writes back and drops the kernel's page cache of these blocks.
    pub fn write_back(&self, blocks: &Range<u64>) -> Result<()> {
        let len = self.mode.block_bytes as u64;
        let bytes = blocks.start * len..blocks.end * len;
        match (&self.ext4, &self.device) {
            (Some(ext4), _) => write_back(&File::open(ext4.path(SERVED))?, &bytes),
            (None, Some(device)) => device.write_back(&bytes),
            (None, None) => Ok(()),
        }
    }

    /// Returns the counts of the I/O that the server did so far.
    pub fn io_counts(&self, lunar: &mut Lunar) -> Result<IoCounts> {
        let server = lunar.server();
        Ok(IoCounts {
            inline_bytes: server.bytes_written_by("core")?,
            pool_bytes: server.bytes_written_by("lunar")?,
            ring_requests: server.ring_requests()?,
        })
    }

    /// Cuts the power and kills the server; returns the state of the disk at this moment. The
    /// kernel's page cache is lost with it.
    pub fn lose_power(&mut self, lunar: Lunar) -> Result<Volume> {
        self.power.freeze();
        kill(lunar)?;
        self.take_down()?;
        Ok(self.power.volume())
    }

    /// Unmounts and detaches. Dirty pages are lost, since the disk is frozen.
    fn take_down(&mut self) -> Result<()> {
        self.ext4.take().map_or(Ok(()), Ext4::unmount)?;
        self.device.take().map_or(Ok(()), LoopDevice::detach)
    }

    /// Brings the disk back as a power cut at `moment` leaves it with this seed, and serves it.
    pub fn restart(&mut self, moment: Volume, seed: u64) -> Result<Lunar> {
        self.power.cut_from(moment, seed);
        if self.backing != Backing::Fuse {
            self.attach()?;
        }
        if self.backing == Backing::Ext4 {
            after_the_cut(self.mount(), seed).context("mounting ext4")?;
        }
        after_the_cut(self.serve(), seed)
    }
}
