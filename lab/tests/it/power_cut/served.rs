//! A served disk with the layers below it, down to the file system that loses its power.

use crate::power_cut::mirrored::{self, MEMBERS};
use crate::power_cut::rig::{Mode, TARGET, after_the_cut, kill};
use anyhow::{Context, Result};
use lunar_lab::peers::lunar::Lunar;
use lunar_lab::powercut::volume::Volume;
use lunar_lab::powercut::{Ext4, LoopDevice, PowerCutDisk, make_ext4, write_back};
use lunar_lab::random::Random;
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
    /// A mirror of two files of the FUSE file system, which lose their power together.
    Mirror,
    /// A mirror of files of two such file systems, which lose their power one after the other.
    MirrorOfDisks,
    /// A mirror of files of the FUSE file system, of which one is replaced by another file in each
    /// round.
    ReplacedMirror,
}

impl Backing {
    /// Returns the sector length: ext4 has to write its superblock of 1024 bytes whole.
    fn sector_bytes(self) -> u64 {
        if self == Self::Ext4 { 4096 } else { 512 }
    }

    pub fn is_mirror(self) -> bool {
        matches!(self, Self::Mirror | Self::MirrorOfDisks | Self::ReplacedMirror)
    }
}

/// A disk that `lunar serve` serves. The upper layers come first, since they are dropped first.
pub struct ServedDisk {
    ext4: Option<Ext4>,
    device: Option<LoopDevice>,
    pub power: PowerCutDisk,
    /// The disk of the second member of a mirror, if it has one of its own.
    second: Option<PowerCutDisk>,
    /// Number of files that replace members of a mirror.
    replacements: usize,
    backing: Backing,
    mode: Mode,
    blocks: usize,
    /// Holds the configuration of a served device.
    scratch: Scratch,
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
        let scratch = Scratch::new("power-scratch")?;
        let second = match backing {
            Backing::MirrorOfDisks => Some(PowerCutDisk::mount("power-second")?),
            _ => None,
        };
        let (ext4, device, replacements) = (None, None, 0);
        let mut disk =
            Self { ext4, device, power, second, replacements, backing, mode, blocks, scratch };
        if backing.is_mirror() {
            mirrored::create(&disk.members(), mode, blocks)?;
            disk.add_replacement()?;
        }
        if backing.is_mirror() || backing == Backing::Fuse {
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

    /// Returns the paths of the members of a mirror.
    pub fn members(&self) -> [String; 2] {
        let second = self.second.as_ref().unwrap_or(&self.power);
        [self.power.path(MEMBERS[0]), second.path(MEMBERS[1])]
    }

    /// Makes the file that replaces a member in the next round.
    fn add_replacement(&mut self) -> Result<()> {
        if self.backing != Backing::ReplacedMirror {
            return Ok(());
        }
        self.replacements += 1;
        mirrored::make_file(&self.replacement(), self.mode, self.blocks)?;
        Ok(File::open(self.power.folder())?.sync_all()?)
    }

    /// Returns the path of the file that replaces a member in this round.
    pub fn replacement(&self) -> String {
        self.power.path(&format!("replacement-{}.img", self.replacements))
    }

    /// Returns the paths of all files that are, were or become members of a mirror.
    fn listed_members(&self) -> Vec<String> {
        let replacements = 1..=self.replacements;
        let path = |number| self.power.path(&format!("replacement-{number}.img"));
        self.members().into_iter().chain(replacements.map(path)).collect()
    }

    /// Returns the address of the API of a server that has a configuration.
    pub fn api(&self) -> String {
        format!("unix:{}", self.scratch.path("api.sock"))
    }

    fn powers(&self) -> impl Iterator<Item = &PowerCutDisk> {
        [&self.power].into_iter().chain(&self.second)
    }

    /// Turns the power off after this many more changes, as of [`PowerCutDisk::freeze_after`]. If
    /// there are two disks, one of them has power for some changes more.
    pub fn lose_power_after(&self, changes: u64, random: &mut Random) {
        let survives = random.below(2) as usize;
        for (at, power) in self.powers().enumerate() {
            let more = if self.second.is_some() && at == survives { random.below(300) } else { 0 };
            power.freeze_after(changes + more);
        }
    }

    /// True when no disk has power.
    pub fn is_off(&self) -> bool {
        self.powers().all(PowerCutDisk::is_frozen)
    }

    /// Makes syncs succeed without an effect.
    pub fn ignore_syncs(&self) {
        self.powers().for_each(PowerCutDisk::ignore_syncs);
    }

    /// Starts a server of the disk.
    pub fn serve(&self) -> Result<Lunar> {
        if self.backing == Backing::Device || self.backing.is_mirror() {
            return Lunar::start(&["target", "--config", &self.configuration()?]);
        }
        let block = self.mode.block_bytes.to_string();
        let size = (self.blocks * self.mode.block_bytes).to_string();
        let path = self.path();
        let what = [path.as_str(), "--name", TARGET, "--size", &size, "--block-size", &block];
        let how = ["--cache", self.mode.cache, "--io", self.mode.io];
        Lunar::serve(&[&what[..], &how].concat())
    }

    /// Writes a configuration that serves the device or the mirror. A UUID identifies the unit's
    /// state, since the number of the loop device may differ after a cut.
    fn configuration(&self) -> Result<String> {
        let Mode { cache, io, block_bytes } = self.mode;
        // With two disks, the state must not depend on the first one.
        let state = match self.second {
            Some(_) => self.scratch.path("state"),
            None => self.power.path("state"),
        };
        let api = self.api();
        let blocks = format!("block_size = {block_bytes}\nio = \"{io}\"\n");
        let (pool, device, options) = match self.backing.is_mirror() {
            true => (mirrored::table(&self.listed_members(), &blocks), "pool:p".to_owned(), ""),
            false => (String::new(), self.path(), blocks.as_str()),
        };
        let text = format!(
            "state = \"{state}\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n\
             [api]\nlisten = \"{api}\"\n{pool}[[target]]\nname = \"{TARGET}\"\n\
             [[target.lun]]\nid = 0\nuuid = \"{UUID}\"\ndevice = \"{device}\"\n\
             {options}cache = \"{cache}\"\n"
        );
        self.scratch.secret("lunar.toml", &text)
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
    pub fn lose_power(&mut self, lunar: Lunar) -> Result<Vec<Volume>> {
        self.powers().for_each(PowerCutDisk::freeze);
        kill(lunar)?;
        self.take_down()?;
        Ok(self.powers().map(PowerCutDisk::volume).collect())
    }

    /// Unmounts and detaches. Dirty pages are lost, since the disk is frozen.
    fn take_down(&mut self) -> Result<()> {
        self.ext4.take().map_or(Ok(()), Ext4::unmount)?;
        self.device.take().map_or(Ok(()), LoopDevice::detach)
    }

    /// Brings the disk back as a power cut at `moment` leaves it with this seed, and serves it.
    pub fn restart(&mut self, moment: Vec<Volume>, seed: u64) -> Result<Lunar> {
        self.power_on(moment, seed);
        self.add_replacement()?;
        if matches!(self.backing, Backing::Device | Backing::Ext4) {
            self.attach()?;
        }
        if self.backing == Backing::Ext4 {
            after_the_cut(self.mount(), seed).context("mounting ext4")?;
        }
        after_the_cut(self.serve(), seed)
    }

    /// Turns the power on again, as after a cut with this seed.
    pub fn power_on(&self, moment: Vec<Volume>, seed: u64) {
        // Each disk keeps another part of what was not synced, except in the extreme cases.
        for ((at, power), moment) in (0..).zip(self.powers()).zip(moment) {
            power.cut_from(moment, if seed < 2 { seed } else { seed ^ at });
        }
    }
}
