//! A switch over two storages, with a linear virtual LUN, whose second extent is moved, and a
//! mirror.

use super::load::TestedDisk;
use super::storage::{END_MAX, Storage};
use crate::power_cut::mirrored;
use anyhow::{Context, Result, bail, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::random::Random;
use lunar_lab::system::ports::free_port;
use lunar_lab::system::process::{run, run_checked};
use lunar_lab::system::scratch::Scratch;
use lunar_lab::wire::cutter::Cutter;
use lunar_pool::format::{DATA_OFFSET_BYTES, LABEL_BYTES};
use rustix::process::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A LUN of two extents, as hosts use it. The second one begins at block 500.
pub const LINEAR: TestedDisk = TestedDisk {
    target: "iqn.2026-11.org.lunarsan.test:linear",
    blocks: 2048,
    hot: 2000,
    first_initiator: 1,
    is_relayed: true,
};
const FIRST_EXTENT_BYTES: usize = 500 * 512;
/// Length of the second extent, of which only the beginning is written to: its move takes two
/// seconds.
const SECOND_EXTENT_BYTES: usize = 16 * MIB;
const MOVE_RATE: &str = "64Mbit";

/// A mirror of both storages, as hosts use it.
pub const MIRROR: TestedDisk = TestedDisk {
    target: "iqn.2026-11.org.lunarsan.test:mirror",
    blocks: 1024,
    hot: 200,
    first_initiator: 11,
    is_relayed: true,
};
const MIRROR_EXTENT_BYTES: usize = MIRROR.bytes() + DATA_OFFSET_BYTES as usize + LABEL_BYTES;

/// Positions on each storage: of the extent of the mirror, of the first extent of the linear LUN,
/// and of its second one, which moves between two positions.
const MIRROR_START: usize = 0;
const FIRST_START: usize = 8 * MIB;
const SECOND_STARTS: [usize; 2] = [16 * MIB, 32 * MIB];
const STORAGE_BYTES: usize = 48 * MIB;
const _: () = assert!(MIRROR_EXTENT_BYTES <= FIRST_START);

const TOOL_MAX: Duration = Duration::from_secs(30);
const MOVE_MAX: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// The switch and its storages. The upper layers come first, since they are dropped first.
pub struct SwitchRig {
    switch: Option<Lunar>,
    pub cutters: [Cutter; 2],
    pub storages: [Storage; 2],
    /// Position of the second extent: number of the storage, and its start there.
    second: (usize, usize),
    address: String,
    scratch: Scratch,
}

impl SwitchRig {
    /// Starts the storages and the switch, and creates the mirror.
    pub fn new() -> Result<Self> {
        let storages =
            [Storage::new("storage-a", STORAGE_BYTES)?, Storage::new("storage-b", STORAGE_BYTES)?];
        let [a, b] = storages.each_ref().map(Storage::address);
        let cutters = [Cutter::to(a)?, Cutter::to(b)?];
        let (scratch, address) = (Scratch::new("switch")?, format!("127.0.0.1:{}", free_port()?));
        let second = (1, SECOND_STARTS[0]);
        let rig = Self { switch: None, cutters, storages, second, address, scratch };
        let configuration = rig.write_configuration()?;
        let create = ["switch", "create-mirror", MIRROR.target, "0", "--config", &configuration];
        run_checked(&binary()?, &create, TOOL_MAX)?;
        Ok(rig)
    }

    fn api(&self) -> String {
        format!("unix:{}", self.scratch.path("api.sock"))
    }

    /// Returns the address on which hosts reach the switch.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the number of commands that the running switch has relayed.
    pub fn relayed_commands(&self) -> Result<u64> {
        self.switch.as_ref().context("a running switch")?.relayed_commands()
    }

    /// Returns the log of the switch.
    pub fn log(&mut self) -> String {
        self.switch.as_mut().map(|switch| switch.server().log()).unwrap_or_default()
    }

    fn write_configuration(&self) -> Result<String> {
        let storage = |at: usize| {
            let url = self.storages[at].url_at(&self.cutters[at].address().to_string());
            format!("[[storage]]\nname = \"{}\"\nurl = \"{url}\"\n", NAMES[at])
        };
        let text = format!(
            "state = \"{}\"\n[listen]\nportals = [\"{}\"]\n[api]\nlisten = \"{}\"\n\
             [metrics]\nlisten = \"127.0.0.1:0\"\n{}{}\
             [[target]]\nname = \"{}\"\n[[target.lun]]\nid = 0\ncache = \"write-back\"\n\
             extents = [{}, {}]\n\
             [[target]]\nname = \"{}\"\n[[target.lun]]\nid = 0\ncache = \"write-back\"\n\
             mirror = [{}, {}]\n",
            self.scratch.path("state"),
            self.address,
            self.api(),
            storage(0),
            storage(1),
            LINEAR.target,
            extent((0, FIRST_START), FIRST_EXTENT_BYTES),
            extent(self.second, SECOND_EXTENT_BYTES),
            MIRROR.target,
            extent((0, MIRROR_START), MIRROR_EXTENT_BYTES),
            extent((1, MIRROR_START), MIRROR_EXTENT_BYTES),
        );
        self.scratch.secret("switch.toml", &text)
    }

    /// Starts the switch, unless it runs.
    pub fn start(&mut self, path: &str) -> Result<()> {
        if self.switch.is_none() {
            let configuration = self.scratch.path("switch.toml");
            let what = ["switch", "--config", &configuration, "--path", path];
            self.switch = Some(Lunar::start(&what)?);
        }
        Ok(())
    }

    /// Kills the switch.
    pub fn kill(&mut self) -> Result<()> {
        let mut switch = self.switch.take().context("a running switch")?;
        switch.server().signal(Signal::KILL)?;
        switch.server().wait(END_MAX)?;
        Ok(())
    }

    /// Begins to move the second extent to other blocks of the same or the other storage.
    pub fn move_second_extent(&mut self, random: &mut Random) -> Result<()> {
        let positions = [0, 1].map(|storage| SECOND_STARTS.map(|start| (storage, start)));
        let others: Vec<_> =
            positions.into_iter().flatten().filter(|other| *other != self.second).collect();
        let to = others[random.below(others.len() as u64) as usize];
        let (text, api) = (format!("{}:{}", NAMES[to.0], to.1), self.api());
        let what = ["switch", "migrate", LINEAR.target, "0", "--extent", "1", "--to", &text];
        run_checked(
            &binary()?,
            &[&what[..], &["--rate", MOVE_RATE, "--api", &api]].concat(),
            TOOL_MAX,
        )?;
        self.second = to;
        Ok(())
    }

    /// Waits until the extent is moved, and writes its position into the configuration.
    pub fn until_moved(&self) -> Result<()> {
        let (api, until) = (self.api(), Instant::now() + MOVE_MAX);
        let what = ["switch", "migrate", LINEAR.target, "0", "--json", "--api", &api];
        loop {
            let report = run(&binary()?, &what, TOOL_MAX)?;
            let Ok(document) = serde_json::from_str::<Value>(&report.stdout) else {
                // A move that ended before a kill of the switch is only in its records.
                ensure!(report.stderr.contains("is being moved"), "{}", report.stderr);
                break;
            };
            match document["state"].as_str() {
                Some("moved") => break,
                Some("cancelled") | None => bail!("the move ended: {document:#}"),
                Some(_) => {}
            }
            ensure!(Instant::now() < until, "the move does not end: {document:#}");
            std::thread::sleep(POLL);
        }
        let configuration = self.write_configuration()?;
        run_checked(&binary()?, &["apply", &configuration], TOOL_MAX)?;
        Ok(())
    }

    /// Waits until both copies of the mirror are current.
    pub fn until_healthy(&self) -> Result<()> {
        mirrored::until_healthy(&self.api()).map(drop)
    }

    /// Stops all servers.
    pub fn stop(&mut self) -> Result<()> {
        self.switch.take().context("a running switch")?.stop(END_MAX)?;
        self.storages.iter_mut().try_for_each(Storage::stop)
    }

    /// Checks, after a stop, that both copies of the mirror have the same data.
    pub fn check_equal(&self) -> Result<()> {
        ensure!(self.switch.is_none(), "the switch runs");
        let [a, b] = self.storages.each_ref().map(Storage::file).map(std::fs::read);
        let start = MIRROR_START + DATA_OFFSET_BYTES as usize;
        let data = start..start + MIRROR.bytes();
        ensure!(a?[data.clone()] == b?[data], "the copies of the mirror differ");
        Ok(())
    }
}

const NAMES: [&str; 2] = ["a", "b"];

/// Returns an extent of the configuration.
fn extent((storage, start): (usize, usize), length: usize) -> String {
    format!("{{ storage = \"{}\", start = {start}, length = {length} }}", NAMES[storage])
}
