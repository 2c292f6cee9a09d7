//! Checks from outside whether the compared targets are equally durable.

use super::cells::{CELLS, Cell, Contestant, LUNAR, Setup};
use super::clients::{CommandTurn, TurnTimes, initiator};
use super::results::Durability;
use super::servers::{Servers, SetupPortal};
use crate::bench::INITIATOR;
use crate::system::files::TemporaryFolder;
use anyhow::{Context, Result};
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time that system calls are counted while writes continue.
const COUNTED: Duration = Duration::from_millis(300);
/// Time that strace takes until it has attached.
const ATTACH: Duration = Duration::from_millis(300);
/// Name of the file that strace writes the calls to.
const CALLS: &str = "calls";

/// Returns the observed durability of a contestant: the flags of its file, WCE of its caching page,
/// and, if GOOD has to mean durable, the number of syncs and of writes.
///
/// # Errors
/// The contestant does not respond.
pub fn seen(servers: &mut Servers, contestant: Contestant) -> Result<Durability> {
    let portal = servers.portal(contestant)?;
    let mut texts = vec![match open_flags(portal.pid, servers.path()?) {
        Some(flags) => flags_text(flags),
        None => "the file's flags cannot be read".to_owned(),
    }];
    texts.push(match has_write_cache(&portal)? {
        true => "it reports a write cache (WCE 1)".to_owned(),
        false => "it reports no write cache (WCE 0)".to_owned(),
    });
    if servers.store.is_write_through {
        texts.push(syncs(servers, &portal)?);
    }
    Ok(Durability {
        store: servers.store.name.to_owned(),
        contestant: Setup { contestant, ..LUNAR }.name(),
        text: texts.join("; "),
    })
}

fn has_write_cache(portal: &SetupPortal) -> Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let url: Url = portal.url.parse()?;
        let options = SessionOptions::new(INITIATOR);
        let disk = RemoteDisk::connect(&url, &options).await?;
        let has_cache = disk.has_write_cache();
        disk.unit().initiator().log_out().await?;
        Ok(has_cache)
    })
}

/// Counts syncs while 4 KiB writes continue at depth 32.
fn syncs(servers: &Servers, portal: &SetupPortal) -> Result<String> {
    let written =
        |cell: &&Cell| cell.store == servers.store && cell.pattern.writes() && cell.depth == 32;
    let Some(cell) = CELLS.iter().find(written) else {
        return Ok("no cell writes to it".to_owned());
    };
    let Some(counter) = Counter::attach(portal.pid)? else {
        return Ok("system calls were not counted: there is no strace".to_owned());
    };
    let times = TurnTimes { warm_up: Duration::ZERO, measured: COUNTED };
    let sample = initiator::turn(&CommandTurn { cell, setup: &LUNAR, seed: 1, times, portal })?;
    let writes = sample.iops * COUNTED.as_secs_f64();
    let syncs = counter.finish()?;
    Ok(format!("strace counted {syncs} calls of fdatasync or fsync for {writes:.0} writes"))
}

/// strace, attached to a process.
struct Counter {
    child: Child,
    folder: TemporaryFolder,
}

impl Counter {
    /// Attaches strace; `None`: it is not installed.
    fn attach(pid: u32) -> Result<Option<Self>> {
        let folder = TemporaryFolder::new("strace")?;
        let child = Command::new("strace")
            .args(["-f", "-qq", "-e", "trace=fdatasync,fsync", "-o"])
            .arg(folder.path(CALLS))
            .args(["-p", &pid.to_string()])
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else { return Ok(None) };
        std::thread::sleep(ATTACH);
        Ok(Some(Self { child, folder }))
    }

    fn finish(mut self) -> Result<usize> {
        // strace detaches from the process, which continues.
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("a process has a number")?;
        kill_process(pid, Signal::TERM)?;
        self.child.wait()?;
        let text = std::fs::read_to_string(self.folder.path(CALLS)).unwrap_or_default();
        Ok(calls(&text))
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the number of calls that began.
fn calls(text: &str) -> usize {
    let begun = |line: &&str| {
        let call = line.split_whitespace().nth(1).unwrap_or_default();
        call.starts_with("fdatasync(") || call.starts_with("fsync(")
    };
    text.lines().filter(begun).count()
}

/// Returns the flags with which a process has a file open: those of all its descriptors. proc(5).
fn open_flags(pid: u32, path: &Path) -> Option<OFlags> {
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

fn flags_of(info: &str) -> Option<OFlags> {
    let line = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    u32::from_str_radix(line.trim(), 8).ok().map(OFlags::from_bits_retain)
}

fn flags_text(flags: OFlags) -> String {
    let is_sync = flags.contains(OFlags::SYNC);
    let names = [
        (is_sync, "O_SYNC"),
        (flags.contains(OFlags::DSYNC) && !is_sync, "O_DSYNC"),
        (flags.contains(OFlags::DIRECT), "O_DIRECT"),
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
    use crate::system::files::ScratchFile;

    /// Goal: the flags of open files are read: of this process, and of a file of its own.
    #[test]
    fn flags_are_read() {
        let scratch = ScratchFile::new(&std::env::temp_dir(), "flags", 1 << 20).unwrap();
        let mode = rustix::fs::Mode::empty();
        let path = scratch.path().canonicalize().unwrap();
        let _open = rustix::fs::open(&path, OFlags::RDWR | OFlags::SYNC, mode).unwrap();
        let text = flags_text(open_flags(std::process::id(), &path).unwrap());
        assert_eq!(text, "the file is open with O_SYNC");
        assert_eq!(flags_of("pos:\t0\nflags:\t0100002\n").unwrap().bits(), 0o100_002);
        assert_eq!(open_flags(std::process::id(), Path::new("/nowhere")), None);
    }

    /// Goal: calls are counted once, when they begin; other lines are not counted.
    #[test]
    fn calls_are_counted() {
        let text = "12 fdatasync(5) = 0\n13 fsync(5 <unfinished ...>\n12 fdatasync(5) = 0\n\
                    13 <... fsync resumed>) = 0\n12 +++ exited with 0 +++\n";
        assert_eq!(calls(text), 3);
    }
}
