//! The storages, and the switches in front of them.

use super::layout::{
    PAIR_LUN_BYTES, PATHS, SINGLE_LUN_BYTES, VIRTUAL_BYTES, configuration, extent_length, extents,
    joined,
};
use crate::peers::istgt::{Istgt, IstgtOptions};
use crate::peers::lio_guest::{Authentication, DISK_BYTES, Guest};
use crate::peers::lunar::{Lunar, binary};
use crate::peers::tgt::Tgt;
use crate::system::process::run_for_bytes;
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::fs::File;
use std::time::Duration;

const READ_MAX: Duration = Duration::from_secs(60);
const SERVED: &str = "iqn.2026-11.org.lunarsan.test:storage";
/// Name of the target of each switch.
pub const VIRTUAL: &str = "iqn.2026-11.org.lunarsan.test:virtual";
const _: () = assert!(DISK_BYTES == PAIR_LUN_BYTES, "both LUNs of LIO have this length");

/// A target that the blocks of virtual LUNs are on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum StoragePeer {
    /// `lunar serve`, two LUNs in files.
    Lunar,
    /// tgt, two LUNs in files.
    Tgt,
    /// istgt, one LUN in a file.
    Istgt,
    /// The kernel's target in a guest, LUNs iblock and fileio.
    Lio,
}

impl fmt::Display for StoragePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lunar => "Lunar",
            Self::Tgt => "tgt",
            Self::Istgt => "istgt",
            Self::Lio => "LIO",
        })
    }
}

enum StorageProcess {
    Lunar { _server: Lunar },
    Tgt { _server: Tgt },
    Istgt { _server: Istgt },
    Lio { guest: Box<Guest> },
}

/// A storage, with a switch for each path in front of it. Switches end before the storage.
pub struct SwitchedStorage {
    pub peer: StoragePeer,
    /// The switch of each path.
    pub switches: Vec<Lunar>,
    urls: Vec<String>,
    process: StorageProcess,
    _scratch: Scratch,
}

impl SwitchedStorage {
    /// Starts the storage and its switches. `folder` holds the files that `lab/kernel/fetch` has
    /// made.
    ///
    /// # Errors
    /// A server does not start.
    pub fn start(peer: StoragePeer, folder: Option<&str>) -> Result<Self> {
        let scratch = Scratch::new(&format!("switch-peers-{peer}"))?;
        let (process, urls) = start_storage(peer, folder, &scratch)?;
        let mut switches = Vec::new();
        for (number, path) in PATHS.iter().enumerate() {
            let file = scratch.path(&format!("{path}.toml"));
            std::fs::write(&file, configuration(VIRTUAL, &urls, number, bandwidth(peer)))?;
            let switch = Lunar::start(&["switch", "--config", &file, "--path", path]);
            switches.push(switch.with_context(|| format!("the {path} switch before {peer}"))?);
        }
        Ok(Self { peer, switches, urls, process, _scratch: scratch })
    }

    /// Reads the blocks of the virtual LUN of a path from the storage, without the switch.
    ///
    /// # Errors
    /// The storage cannot be read.
    pub fn read_without_switch(&self, path: usize) -> Result<Vec<u8>> {
        let length = extent_length();
        let read = |location: super::layout::ExtentLocation| {
            let start = location.start.to_string();
            let words = ["read", &self.urls[location.lun], "--offset", &start, "--length", &length];
            let (end, data, printed, _) = run_for_bytes(&binary()?, &words, Vec::new(), READ_MAX)?;
            ensure!(end.code() == Some(0), "reading {}: {end:?} {printed}", self.peer);
            Ok(data)
        };
        let [first, second] = extents(self.urls.len(), path).map(read);
        let data = joined(&[first?, second?]);
        ensure!(data.len() == VIRTUAL_BYTES, "{} returned {} bytes", self.peer, data.len());
        Ok(data)
    }

    /// Checks that no switch has logged a warning, and that LIO's kernel has reported no fault.
    ///
    /// # Errors
    /// The message holds the lines.
    pub fn check_logs(&mut self) -> Result<()> {
        for (switch, path) in self.switches.iter_mut().zip(PATHS) {
            let log = switch.server().log();
            let is_warning = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
            let lines: Vec<_> = log.lines().filter(is_warning).collect();
            ensure!(lines.is_empty(), "the {path} switch logs: {}", lines.join("\n"));
        }
        if let StorageProcess::Lio { guest } = &self.process {
            let reports = guest.reports();
            ensure!(reports.is_empty(), "LIO's kernel reports: {reports:?}");
        }
        Ok(())
    }

    /// Returns the version of the kernel of LIO; others are known by their packages.
    pub fn version(&self) -> Option<String> {
        match &self.process {
            StorageProcess::Lio { guest } => Some(guest.version()),
            _ => None,
        }
    }

    /// Stops the switches, then LIO's guest; others end when dropped.
    ///
    /// # Errors
    /// A server does not stop cleanly.
    pub fn stop(self) -> Result<()> {
        for switch in self.switches {
            switch.stop(READ_MAX)?;
        }
        match self.process {
            StorageProcess::Lio { mut guest } => guest.stop(),
            _ => Ok(()),
        }
    }
}

/// Returns the limit of virtual LUNs, with which each host needs longer for its data than the
/// switch for its logins: the fast path relays no command of a connection before. istgt takes a
/// second.
fn bandwidth(peer: StoragePeer) -> &'static str {
    if peer == StoragePeer::Istgt { "16Mbit" } else { "128Mbit" }
}

/// Starts a storage; returns the URLs of its LUNs.
fn start_storage(
    peer: StoragePeer,
    folder: Option<&str>,
    scratch: &Scratch,
) -> Result<(StorageProcess, Vec<String>)> {
    let file = |name: &str, bytes: usize| -> Result<String> {
        let path = scratch.path(name);
        File::create(&path)?.set_len(bytes as u64)?;
        Ok(path)
    };
    let pair = || Ok::<_, anyhow::Error>([file("a", PAIR_LUN_BYTES)?, file("b", PAIR_LUN_BYTES)?]);
    Ok(match peer {
        StoragePeer::Lunar => {
            let [a, b] = pair()?;
            let server = Lunar::serve(&[&a, &b, "--name", SERVED, "--api", "none"])?;
            let urls = [0, 1].map(|lun| server.url(SERVED, lun)).into();
            (StorageProcess::Lunar { _server: server }, urls)
        }
        StoragePeer::Tgt => {
            let [a, b] = pair()?;
            let server = Tgt::start_by(&[], "127.0.0.1", &[&a, &b], &[])?;
            let portal = format!("iscsi://{}/{}", server.address(), Tgt::TARGET);
            let urls = [1, 2].map(|lun| format!("{portal}/{lun}")).into();
            (StorageProcess::Tgt { _server: server }, urls)
        }
        StoragePeer::Istgt => {
            let disk = file("disk", SINGLE_LUN_BYTES)?;
            let server = Istgt::start(scratch, &disk, &IstgtOptions::default())?;
            let urls = vec![server.url()];
            (StorageProcess::Istgt { _server: server }, urls)
        }
        StoragePeer::Lio => {
            let folder = folder.context("LIO needs the folder that lab/kernel/fetch makes")?;
            let guest = Box::new(Guest::start(folder, scratch)?);
            let portal = format!("iscsi://{}/{}", guest.address(), Authentication::Open.target());
            let urls = [0, 1].map(|lun| format!("{portal}/{lun}")).into();
            (StorageProcess::Lio { guest }, urls)
        }
    })
}
