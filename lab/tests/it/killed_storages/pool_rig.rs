//! A server of a mirror of the LUNs of two storages.

use super::load::TestedDisk;
use super::storage::{END_MAX, Storage};
use crate::power_cut::mirrored;
use anyhow::{Context, Result, bail, ensure};
use lunar_lab::peers::lunar::{Lunar, binary};
use lunar_lab::system::process::run_checked;
use lunar_lab::system::scratch::Scratch;
use lunar_pool::format::{DATA_OFFSET_BYTES, LABEL_BYTES};
use rustix::process::Signal;

const TARGET: &str = "iqn.2026-11.org.lunarsan.test:members";
const UUID: &str = "5f0b7c11-39b9-4f2c-9c0e-1d7b8f6a2e35";

/// The mirror as initiators use it.
pub const MIRROR: TestedDisk =
    TestedDisk { target: TARGET, blocks: 1024, hot: 200, first_initiator: 1, is_relayed: false };
const SIZE_BYTES: usize = MIRROR.bytes() + DATA_OFFSET_BYTES as usize + LABEL_BYTES;

/// The mirror with its storages. The upper layers come first, since they are dropped first.
pub struct Rig {
    front: Option<Lunar>,
    pub storages: [Storage; 2],
    scratch: Scratch,
    configuration: String,
}

impl Rig {
    /// Creates the mirror, and serves it.
    pub fn new() -> Result<Self> {
        let storages =
            [Storage::new("member-a", SIZE_BYTES)?, Storage::new("member-b", SIZE_BYTES)?];
        let scratch = Scratch::new("members")?;
        let members = storages.each_ref().map(Storage::url);
        let [one, other] = members.each_ref().map(String::as_str);
        let create = ["pool", "create", "p", "--kind", "mirror", one, other];
        run_checked(&binary()?, &create, END_MAX)?;
        let (pool, state) =
            (mirrored::table(&members, "member_wait_seconds = 1\n"), scratch.path("state"));
        let api = api_of(&scratch);
        let text = format!(
            "state = \"{state}\"\n[listen]\nportals = [\"127.0.0.1:0\"]\n\
             [api]\nlisten = \"{api}\"\n{pool}[[target]]\nname = \"{TARGET}\"\n\
             [[target.lun]]\nid = 0\nuuid = \"{UUID}\"\ndevice = \"pool:p\"\n\
             cache = \"write-back\"\n"
        );
        let configuration = scratch.secret("lunar.toml", &text)?;
        let mut rig = Self { front: None, storages, scratch, configuration };
        rig.start()?;
        Ok(rig)
    }

    fn start(&mut self) -> Result<()> {
        self.front = Some(Lunar::start(&["target", "--config", &self.configuration])?);
        Ok(())
    }

    /// Kills the server of the mirror and starts it again. It knows nothing of former failures of
    /// the members then, after each of which a member returns after a longer pause.
    pub fn restart(&mut self) -> Result<()> {
        let mut front = self.front.take().context("the server of the mirror")?;
        front.server().signal(Signal::KILL)?;
        front.server().wait(END_MAX)?;
        self.start()
    }

    /// Returns the server of the mirror.
    pub fn front(&self) -> Result<&Lunar> {
        self.front.as_ref().context("the server of the mirror")
    }

    /// Returns what the server of the mirror has logged.
    pub fn log(&mut self) -> String {
        self.front.as_mut().map(|front| front.server().log()).unwrap_or_default()
    }

    pub fn until_healthy(&self) -> Result<()> {
        mirrored::until_healthy(&api_of(&self.scratch)).map(drop)
    }

    /// Stops all servers.
    pub fn stop(&mut self) -> Result<()> {
        self.front.take().context("the server of the mirror")?.stop(END_MAX)?;
        for storage in &mut self.storages {
            storage.stop()?;
        }
        Ok(())
    }

    /// Checks that the data of both members is equal, after a stop.
    pub fn check_equal(&self) -> Result<()> {
        ensure!(self.front.is_none(), "the servers run");
        let paths = self.storages.each_ref().map(Storage::file);
        match mirrored::check_equal(&paths) {
            Ok(()) => Ok(()),
            Err(error) => bail!("after the last round: {error}"),
        }
    }
}

fn api_of(scratch: &Scratch) -> String {
    format!("unix:{}", scratch.path("api.sock"))
}
