//! Who serves a store: every contestant on the same file, at the same time, one of them asked.

use super::cells::{Contestant, DISK_BYTES, Place, Store};
use super::results::Durability;
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
                    let program = crate::server::binary()?;
                    self.lunar = Some(self.lunar(core, &program)?);
                }
                lunar_portal(self.lunar.as_ref())
            }
            Contestant::Base => {
                if self.base.is_none() {
                    let program = self.programs.base.clone().context("no other build is named")?;
                    self.base = Some(self.lunar(core, &program)?);
                }
                lunar_portal(self.base.as_ref())
            }
            Contestant::Tgt | Contestant::TgtAio => self.tgt(core, contestant),
            Contestant::Null => {
                if self.null.is_none() {
                    self.null = Some(NullServer::start(core, DISK_BYTES)?);
                }
                let null = self.null.as_ref().context("started above")?;
                Ok(Portal { url: null.url(), pid: null.pid() })
            }
            Contestant::Ring => Ok(Portal { url: String::new(), pid: 0 }),
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
        Ok(Portal { url: tgt.url(), pid: tgt.pid() })
    }

    /// What each running contestant says and does about durability, as far as it can be seen.
    pub fn durability(&self) -> Vec<Durability> {
        let row = |contestant: &str, text| Durability {
            store: self.store.name.to_owned(),
            contestant: contestant.to_owned(),
            text,
        };
        let flags = |pid| match self.path().ok().and_then(|path| open_flags(pid, path)) {
            Some(flags) => flags_text(flags),
            None => "the file's flags are not to be seen".to_owned(),
        };
        let lunar = self.lunar.iter().map(|lunar| row("lunar", flags(lunar.pid())));
        let tgt = self.tgt.iter().map(|tgt| row("tgt", flags(tgt.pid())));
        let aio = self.tgt_aio.iter().map(|tgt| row("tgt aio", flags(tgt.pid())));
        lunar.chain(tgt).chain(aio).collect()
    }
}

fn lunar_portal(server: Option<&Server>) -> Result<Portal> {
    let server = server.context("started above")?;
    Ok(Portal { url: format!("iscsi://{}/{TARGET}/0", server.address()), pid: server.pid() })
}

/// The flags with which a process has a file open: those of any of its descriptors. proc(5).
fn open_flags(pid: u32, path: &Path) -> Option<u32> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.filter_map(Result::ok);
    let same =
        descriptors.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link == path));
    let flags = same.filter_map(|entry| {
        let number = entry.file_name().into_string().ok()?;
        let info = std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
        flags_of(&info)
    });
    flags.reduce(|one, other| one | other)
}

fn flags_of(info: &str) -> Option<u32> {
    let line = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

fn flags_text(flags: u32) -> String {
    let known = rustix::fs::OFlags::from_bits_retain(flags);
    let sync = rustix::fs::OFlags::SYNC;
    let names = [
        (known.contains(sync), "O_SYNC"),
        (known.contains(rustix::fs::OFlags::DSYNC) && !known.contains(sync), "O_DSYNC"),
        (known.contains(rustix::fs::OFlags::DIRECT), "O_DIRECT"),
    ];
    let names: Vec<&str> = names.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
    match names.is_empty() {
        true => "the file is open without O_SYNC, O_DSYNC and O_DIRECT".to_owned(),
        false => format!("the file is open with {}", names.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::OFlags;

    /// Goal: what a process has open is read, with its flags: this one, and a file of its own.
    #[test]
    fn flags_are_read() {
        let scratch = Scratch::new(&std::env::temp_dir(), "flags", 1 << 20).unwrap();
        let flags = OFlags::RDWR | OFlags::SYNC;
        let mode = rustix::fs::Mode::empty();
        let _open = rustix::fs::open(scratch.path(), flags, mode).unwrap();
        let path = scratch.path().canonicalize().unwrap();
        let told = flags_text(open_flags(std::process::id(), &path).unwrap());
        assert_eq!(told, "the file is open with O_SYNC");
        assert_eq!(flags_of("pos:\t0\nflags:\t0100002\n"), Some(0o100_002));
        assert_eq!(open_flags(std::process::id(), Path::new("/nowhere")), None);
    }
}
