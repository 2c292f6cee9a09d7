//! Who serves a store: every contestant on the same file, at the same time, one of them asked.

use super::cells::{Contestant, DISK_BYTES, Place, Store};
use crate::cores::TARGET_CORE;
use crate::files::Scratch;
use crate::null_target::NullServer;
use crate::server::Server;
use crate::tgt::{Backing, Tgt};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:target";

/// Programs and places.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `lunar`.
    pub lunar: PathBuf,
    /// Where files on a disk are made.
    pub directory: PathBuf,
    /// Another build to compare with.
    pub base: Option<PathBuf>,
}

/// A store, and those who serve it. Each begins when it is first wanted; all end with it.
pub struct Serving {
    pub store: Store,
    /// Not pinned.
    pub is_shared: bool,
    programs: Programs,
    // Servers are dropped before the file.
    lunar: Option<Server>,
    base: Option<Server>,
    tgt: Option<Tgt>,
    tgt_aio: Option<Tgt>,
    null: Option<NullServer>,
    file: Option<Scratch>,
}

/// Where a lane asks, and whose processor time is the target's.
#[derive(Clone, Debug)]
pub struct Portal {
    pub url: String,
    pub pid: u32,
    /// The build of Lunar that serves, if one does.
    pub program: Option<PathBuf>,
}

impl Serving {
    /// Makes the file, written from end to end.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn new(store: Store, is_shared: bool, programs: &Programs) -> Result<Self> {
        let directory = match store.place {
            Place::Tmpfs => Some(Path::new("/dev/shm")),
            Place::Disk => Some(programs.directory.as_path()),
            Place::Memory => None,
        };
        let file = directory.map(|directory| Scratch::new(directory, store.name, DISK_BYTES));
        Ok(Self {
            store,
            is_shared,
            programs: programs.clone(),
            lunar: None,
            base: None,
            tgt: None,
            tgt_aio: None,
            null: None,
            file: file.transpose()?,
        })
    }

    /// The file; there is none behind `mem:`.
    ///
    /// # Errors
    /// There is none.
    pub fn path(&self) -> Result<&Path> {
        Ok(self.file.as_ref().context("a disk in memory has no file")?.path())
    }

    /// Starts a contestant unless it runs.
    ///
    /// # Errors
    /// It does not start, or does not serve as the store says.
    pub fn portal(&mut self, contestant: Contestant) -> Result<Portal> {
        let core = (!self.is_shared).then_some(TARGET_CORE);
        match contestant {
            Contestant::Lunar => {
                if self.lunar.is_none() {
                    self.lunar = Some(self.lunar(core, &self.programs.lunar)?);
                }
                lunar_portal(self.lunar.as_ref(), &self.programs.lunar)
            }
            Contestant::Base => {
                let program = self.programs.base.clone().context("no other build is named")?;
                if self.base.is_none() {
                    self.base = Some(self.lunar(core, &program)?);
                }
                lunar_portal(self.base.as_ref(), &program)
            }
            Contestant::Tgt | Contestant::TgtAio => self.tgt(core, contestant),
            Contestant::Null => {
                if self.null.is_none() {
                    self.null = Some(NullServer::start(core, DISK_BYTES)?);
                }
                let null = self.null.as_ref().context("started above")?;
                Ok(Portal { url: null.url(), pid: null.pid(), program: None })
            }
            Contestant::Ring => Ok(Portal { url: String::new(), pid: 0, program: None }),
        }
    }

    fn lunar(&self, core: Option<u16>, program: &Path) -> Result<Server> {
        let device = match &self.file {
            Some(file) => file.path().display().to_string(),
            None => format!("mem:{DISK_BYTES}"),
        };
        let cache = if self.store.is_write_through { "write-through" } else { "write-back" };
        let io = if self.store.is_direct { "direct" } else { "buffered" };
        let mut arguments = vec![device.as_str(), "--name", TARGET, "--cache", cache];
        if self.file.is_some() {
            arguments.extend(["--io", io]);
        }
        Server::start_program(core, program, &arguments)
    }

    fn tgt(&mut self, core: Option<u16>, contestant: Contestant) -> Result<Portal> {
        let is_aio = contestant == Contestant::TgtAio;
        let store = self.store;
        ensure!(!is_aio || (store.is_direct && !store.is_write_through), "aio is always direct");
        if is_aio && self.tgt_aio.is_none() {
            self.tgt_aio = Some(Tgt::start_with(core, self.path()?, Backing::aio())?);
        }
        if !is_aio && self.tgt.is_none() {
            let backing = Backing { is_sync: store.is_write_through, is_direct: store.is_direct };
            self.tgt = Some(Tgt::start_with(core, self.path()?, backing.options())?);
        }
        let running = if is_aio { &self.tgt_aio } else { &self.tgt };
        let tgt = running.as_ref().context("started above")?;
        Ok(Portal { url: tgt.url(), pid: tgt.pid(), program: None })
    }
}

fn lunar_portal(server: Option<&Server>, program: &Path) -> Result<Portal> {
    let server = server.context("started above")?;
    let url = format!("iscsi://{}/{TARGET}/0", server.address());
    Ok(Portal { url, pid: server.pid(), program: Some(program.to_owned()) })
}
