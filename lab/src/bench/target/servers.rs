//! Servers of a store: every contestant on the same file, at the same time, one of them under load.

use super::cells::{BackingStore, Contestant, DISK_BYTES, StorageMedium};
use crate::peers::lunar::Lunar;
use crate::peers::null_target::NullServer;
use crate::peers::tgt::{Tgt, TgtBacking};
use crate::system::cores::TARGET_CORE;
use crate::system::files::ScratchFile;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:target";

/// Programs and folders.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `lunar`.
    pub lunar: PathBuf,
    /// Folder of files on a disk.
    pub directory: PathBuf,
    /// Another build to compare with.
    pub base: Option<PathBuf>,
}

impl Programs {
    /// Returns the folder of a store's files.
    fn folder(&self, medium: StorageMedium) -> Option<&Path> {
        match medium {
            StorageMedium::Tmpfs => Some(Path::new("/dev/shm")),
            StorageMedium::Disk => Some(self.directory.as_path()),
            StorageMedium::Memory => None,
        }
    }
}

/// A store and its servers. Each server starts on first use; all end with this value.
pub struct Servers {
    pub store: BackingStore,
    /// True when servers are not pinned to a core.
    pub is_shared: bool,
    programs: Programs,
    // Servers are dropped before the file.
    lunar: Option<Lunar>,
    base: Option<Lunar>,
    tgt: Option<Tgt>,
    tgt_aio: Option<Tgt>,
    null: Option<NullServer>,
    file: Option<ScratchFile>,
    /// File of the other build: only one build serves a file at a time.
    base_file: Option<ScratchFile>,
}

/// Address of a setup's requests, and the process that counts as the target.
#[derive(Clone, Debug)]
pub struct SetupPortal {
    pub url: String,
    pub pid: u32,
    /// The build of Lunar that serves, if one does.
    pub program: Option<PathBuf>,
}

impl Servers {
    /// Makes the file and writes all of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(store: BackingStore, is_shared: bool, programs: &Programs) -> Result<Self> {
        let file = programs.folder(store.medium);
        let file = file.map(|directory| ScratchFile::new(directory, store.name, DISK_BYTES));
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
            base_file: None,
        })
    }

    /// Returns the path of the file; there is none behind `mem:`.
    ///
    /// # Errors
    /// The store has no file.
    pub fn path(&self) -> Result<&Path> {
        Ok(self.file.as_ref().context("a memory disk has no file")?.path())
    }

    fn path_text(&self) -> Result<&str> {
        self.path()?.to_str().context("a path in UTF-8")
    }

    /// Starts a contestant unless it runs.
    ///
    /// # Errors
    /// The contestant does not start, or does not serve as the store requires.
    pub fn portal(&mut self, contestant: Contestant) -> Result<SetupPortal> {
        let core = (!self.is_shared).then_some(TARGET_CORE);
        match contestant {
            Contestant::Lunar => {
                if self.lunar.is_none() {
                    self.lunar =
                        Some(self.lunar(core, &self.programs.lunar, self.file.as_ref())?);
                }
                lunar_portal(self.lunar.as_ref(), &self.programs.lunar)
            }
            Contestant::Base => {
                let program = self.programs.base.clone().context("no base build is given")?;
                if self.base.is_none() {
                    let folder = self.programs.folder(self.store.medium);
                    let file = folder.map(|folder| ScratchFile::new(folder, "base", DISK_BYTES));
                    self.base_file = file.transpose()?;
                    self.base = Some(self.lunar(core, &program, self.base_file.as_ref())?);
                }
                lunar_portal(self.base.as_ref(), &program)
            }
            Contestant::Tgt | Contestant::TgtAio => self.tgt(core, contestant),
            Contestant::Null => {
                if self.null.is_none() {
                    self.null = Some(NullServer::start(core, DISK_BYTES)?);
                }
                let null = self.null.as_ref().context("started above")?;
                Ok(SetupPortal { url: null.url(), pid: null.pid(), program: None })
            }
            Contestant::Ring => Ok(SetupPortal { url: String::new(), pid: 0, program: None }),
        }
    }

    fn lunar(
        &self,
        core: Option<u16>,
        program: &Path,
        file: Option<&ScratchFile>,
    ) -> Result<Lunar> {
        let device = match file {
            Some(file) => file.path().display().to_string(),
            None => format!("mem:{DISK_BYTES}"),
        };
        let cache = if self.store.is_write_through { "write-through" } else { "write-back" };
        let io = if self.store.is_direct { "direct" } else { "buffered" };
        let mut arguments = vec![device.as_str(), "--name", TARGET, "--cache", cache];
        if file.is_some() {
            arguments.extend(["--io", io]);
        }
        Lunar::serve_measured(core, program, &arguments)
    }

    fn tgt(&mut self, core: Option<u16>, contestant: Contestant) -> Result<SetupPortal> {
        let is_aio = contestant == Contestant::TgtAio;
        let store = self.store;
        ensure!(!is_aio || (store.is_direct && !store.is_write_through), "aio is always direct");
        if is_aio && self.tgt_aio.is_none() {
            self.tgt_aio = Some(Tgt::start_on(core, self.path_text()?, TgtBacking::aio())?);
        }
        if !is_aio && self.tgt.is_none() {
            let backing =
                TgtBacking { is_sync: store.is_write_through, is_direct: store.is_direct };
            self.tgt = Some(Tgt::start_on(core, self.path_text()?, backing.options())?);
        }
        let running = if is_aio { &self.tgt_aio } else { &self.tgt };
        let tgt = running.as_ref().context("started above")?;
        Ok(SetupPortal { url: tgt.url(), pid: tgt.pid(), program: None })
    }
}

fn lunar_portal(server: Option<&Lunar>, program: &Path) -> Result<SetupPortal> {
    let server = server.context("started above")?;
    let url = format!("iscsi://{}/{TARGET}/0", server.address());
    Ok(SetupPortal { url, pid: server.pid(), program: Some(program.to_owned()) })
}
