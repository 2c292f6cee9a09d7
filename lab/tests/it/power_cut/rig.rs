//! A server on a disk that loses its power.

use anyhow::{Context, Result, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::powercut::PowerCutDisk;
use lunar_lab::system::process::run_checked;
use lunar_lab::system::scratch::Scratch;
use lunar_lab::wire::extended_copy::naa_designation;
use lunar_testkit::raw::RawClient;
use rustix::process::Signal;
use std::time::Duration;

pub const TARGET: &str = "iqn.2026-11.org.lunarsan.test:power";
const END_MAX: Duration = Duration::from_secs(20);

/// Prefix of every message about the loss of acknowledged data, which `xtask mutate-syncs` searches
/// for.
pub const LOST: &str = "NOT KEPT";

/// Returns the seeds: a few, or one for each 20 of `LUNAR_SEEDS`.
pub fn seeds(few: u64) -> std::ops::Range<u64> {
    lunar_lab::random::seeds(few, 20)
}

/// Options of a served disk.
#[derive(Clone, Copy, Debug)]
pub struct Mode {
    pub cache: &'static str,
    pub io: &'static str,
    pub block_bytes: usize,
}

pub const MODES: [Mode; 4] = [
    Mode { cache: "write-through", io: "buffered", block_bytes: 512 },
    Mode { cache: "write-through", io: "direct", block_bytes: 4096 },
    Mode { cache: "write-back", io: "buffered", block_bytes: 4096 },
    Mode { cache: "write-back", io: "direct", block_bytes: 512 },
];

impl Mode {
    pub fn writes_through(self) -> bool {
        self.cache == "write-through"
    }

    /// Starts `lunar serve` of `disk.img` with this many blocks.
    pub fn serve(self, disk: &PowerCutDisk, blocks: usize) -> Result<Lunar> {
        let size = (blocks * self.block_bytes).to_string();
        let block = self.block_bytes.to_string();
        let path = disk.path("disk.img");
        let options = ["--cache", self.cache, "--io", self.io, "--block-size", &block];
        let disk_options = [path.as_str(), "--size", &size, "--name", TARGET];
        Lunar::serve(&[&disk_options[..], &options].concat())
    }
}

/// A disk, and beside it a configuration and the socket of the API.
pub struct Machine {
    pub disk: PowerCutDisk,
    scratch: Scratch,
}

impl Machine {
    pub fn new(name: &str) -> Result<Self> {
        Ok(Self { disk: PowerCutDisk::mount(name)?, scratch: Scratch::new(name)? })
    }

    /// Writes a configuration of one target with these lines for its LUNs; returns its path.
    pub fn configuration(&self, luns: &str) -> Result<String> {
        let api = self.api();
        let text = format!(
            "[listen]\nportals = [\"127.0.0.1:0\"]\n[api]\nlisten = \"{api}\"\n\
             [[target]]\nname = \"{TARGET}\"\n{luns}"
        );
        self.scratch.secret("lunar.toml", &text)
    }

    /// Runs `lunar ARGUMENTS` on the server's API, which must report success.
    pub fn run_lunar(&self, arguments: &[&str]) -> Result<String> {
        let api = self.api();
        run_checked(&binary()?, &[arguments, &["--api", &api]].concat(), END_MAX)
    }

    fn api(&self) -> String {
        format!("unix:{}", self.scratch.path("api.sock"))
    }
}

/// Sends SIGKILL and waits for the end. The disk must not hold calls of the server any more.
pub fn kill(mut lunar: Lunar) -> Result<()> {
    lunar.server().signal(Signal::KILL)?;
    lunar.server().wait(END_MAX)?;
    Ok(())
}

/// Opens a session of initiator `number` without pending unit attentions.
pub fn log_in(lunar: &Lunar, number: u32) -> Result<RawClient> {
    let mut raw = RawClient::log_in_as(lunar.address(), TARGET, number)?;
    raw.execute(&[0; 6], 0)?;
    Ok(raw)
}

/// Returns the identity of a disk for initiators: unit serial number and NAA designator.
pub fn identity(raw: &mut RawClient) -> Result<Vec<u8>> {
    let serial = raw.run(&[0x12, 1, 0x80, 1, 0, 0], 256)?;
    ensure!(serial.status == 0 && serial.data.len() > 4, "no serial number: {serial:02x?}");
    Ok([serial.data, naa_designation(raw)?].concat())
}

/// Reads all blocks from 0 on.
pub fn read_all(raw: &mut RawClient, blocks: u64, block_bytes: usize) -> Result<Vec<u8>> {
    let step = (64 << 10) / block_bytes as u64;
    let mut all = Vec::new();
    for lba in (0..blocks).step_by(step as usize) {
        let count = step.min(blocks - lba);
        let mut cdb = [0; 16];
        cdb[0] = 0x88;
        cdb[2..10].copy_from_slice(&lba.to_be_bytes());
        cdb[10..14].copy_from_slice(&u32::try_from(count)?.to_be_bytes());
        let (status, data) = raw.execute(&cdb, u32::try_from(count as usize * block_bytes)?)?;
        ensure!(status == 0, "READ (16) at {lba}: status {status:#x}");
        all.extend(data);
    }
    Ok(all)
}

/// Cuts the power now, kills the server, and for each of a few seeds starts the next one on what is
/// left of the disk and checks it.
pub fn after_each_cut(
    disk: &PowerCutDisk,
    lunar: Lunar,
    few_seeds: u64,
    start: impl Fn() -> Result<Lunar>,
    check: impl Fn(&Lunar, u64) -> Result<()>,
) -> Result<()> {
    let moment = disk.volume();
    disk.freeze();
    kill(lunar)?;
    for seed in seeds(few_seeds) {
        disk.cut_from(moment.clone(), seed);
        let lunar = after_the_cut(start(), seed)?;
        check(&lunar, seed)?;
        kill(lunar)?;
    }
    Ok(())
}

/// Marks an error as a loss: the server must be able to do this after a cut.
pub fn after_the_cut<T>(what: Result<T>, seed: u64) -> Result<T> {
    what.with_context(|| format!("{LOST}: after a power cut with seed {seed}"))
}
