//! Processes of a scene: storages, and a switch of each kind between them and the hosts.

use super::cells::{SceneKind, StorageKind, SwitchPath};
use super::site::{NETWORK, Site, port};
use crate::peers::byte_relay::RelayServer;
use crate::peers::fuse_export::FuseExport;
use crate::peers::lunar::Lunar;
use crate::peers::null_target::{self, NullServer};
use crate::peers::tgt::{Tgt, TgtBacking};
use crate::system::cores::{CLIENT_CORE, on_a_thread};
use crate::system::files::ScratchFile;
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use lunar_load::ListeningProcess;
use std::any::Any;
use std::path::Path;
use std::time::Duration;

const STORAGE: &str = "iqn.2026-11.org.lunarsan.bench:storage";
const VIRTUAL: &str = "iqn.2026-11.org.lunarsan.bench:virtual";

/// A LUN of a target.
#[derive(Clone, Debug)]
struct PortalLun {
    port: String,
    target: String,
    lun: u32,
}

impl PortalLun {
    fn url(&self, ip: &str) -> String {
        format!("iscsi://{ip}:{}/{}/{}", self.port, self.target, self.lun)
    }
}

/// A target that the blocks are on, which ends when dropped.
type StorageServer = Box<dyn Any>;

/// All processes of a scene. They end with this value, switches before storages.
pub struct Scene {
    pub kind: &'static SceneKind,
    pub site: Site,
    foreign: Tgt,
    exports: Vec<FuseExport>,
    relays: Vec<RelayServer>,
    slow: Lunar,
    fast: Lunar,
    /// The LUN of each host.
    luns: Vec<PortalLun>,
    _storages: Vec<StorageServer>,
    _scratch: Scratch,
}

impl Scene {
    /// Starts all processes.
    ///
    /// # Errors
    /// One of them does not start, or the system refuses namespaces.
    pub fn start(kind: &'static SceneKind, program: &Path, disk_bytes: u64) -> Result<Self> {
        let site = if kind.is_linked { Site::links()? } else { Site::Loopback };
        let program = program.to_str().context("a path in UTF-8")?;
        let scratch = Scratch::new("switch-bench")?;
        let start = |number| start_storage(kind, number, &site, program, disk_bytes);
        let started = (0..kind.hosts).map(start).collect::<Result<Vec<_>>>()?;
        let (storages, luns): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        let by = site.switch_words();
        let by: Vec<&str> = by.iter().map(String::as_str).collect();
        let for_switch = site.storage_for_switch();
        let relay = |lun: &PortalLun| {
            RelayServer::start(&by, site.switch_for_host(), &format!("{for_switch}:{}", lun.port))
        };
        let relays = luns.iter().map(relay).collect::<Result<_>>()?;
        let switch = |path| {
            let text = configuration(&site, path, &scratch, &luns, disk_bytes);
            let file = scratch.path(&format!("{path}.toml"));
            std::fs::write(&file, text)?;
            Lunar::start_by(&by, program, &["switch", "--config", &file, "--path", path])
        };
        let (slow, fast) = (switch("slow")?, switch("fast")?);
        let export = |(number, lun): (usize, &PortalLun)| {
            let (portal, file) =
                (format!("{for_switch}:{}", lun.port), scratch.path(&format!("lun-{number}")));
            FuseExport::start(&by, (&portal, &lun.target, lun.lun), &file)
        };
        let exports = luns.iter().enumerate().map(export).collect::<Result<Vec<_>>>()?;
        let files: Vec<&str> = exports.iter().map(FuseExport::path).collect();
        // Without the page cache, every request goes to the storage, as in the other paths.
        let backing = TgtBacking { is_sync: false, is_direct: true };
        let foreign = Tgt::start_by(&by, site.switch_for_host(), &files, backing.options())?;
        let (_storages, _scratch) = (storages, scratch);
        Ok(Self { kind, site, foreign, exports, relays, slow, fast, luns, _storages, _scratch })
    }

    /// Returns the URL of each host's LUN by a path.
    ///
    /// # Errors
    /// A server has printed no port.
    pub fn urls(&self, path: SwitchPath) -> Result<Vec<String>> {
        let front = self.site.switch_for_host();
        let switch = |switch: &Lunar| {
            let port = port(switch.address())?.to_owned();
            let url =
                |lun| PortalLun { port: port.clone(), target: VIRTUAL.to_owned(), lun }.url(front);
            anyhow::Ok((0..self.kind.hosts as u32).map(url).collect())
        };
        match path {
            SwitchPath::Direct => {
                Ok(self.luns.iter().map(|lun| lun.url(self.site.storage_for_host())).collect())
            }
            SwitchPath::Bytes => {
                let pairs = self.luns.iter().zip(&self.relays);
                let url = |(lun, relay): (&PortalLun, &RelayServer)| {
                    let port = port(relay.address())?.to_owned();
                    Ok(PortalLun { port, ..lun.clone() }.url(front))
                };
                pairs.map(url).collect()
            }
            SwitchPath::Slow => switch(&self.slow),
            SwitchPath::Fast => switch(&self.fast),
            SwitchPath::Foreign => {
                let port = port(self.foreign.address())?.to_owned();
                let target = Tgt::TARGET.to_owned();
                let lun = |lun| PortalLun { port: port.clone(), target: target.clone(), lun };
                Ok((1..=self.kind.hosts as u32).map(|number| lun(number).url(front)).collect())
            }
        }
    }

    /// Returns the processor time of all processes of a switch so far.
    ///
    /// # Errors
    /// A process has ended.
    pub fn switch_time(&self, path: SwitchPath) -> Result<Duration> {
        let pids: Vec<u32> = match path {
            SwitchPath::Direct => Vec::new(),
            SwitchPath::Bytes => self.relays.iter().map(RelayServer::pid).collect(),
            SwitchPath::Slow => vec![self.slow.pid()],
            SwitchPath::Fast => vec![self.fast.pid()],
            SwitchPath::Foreign => {
                let exports = self.exports.iter().map(FuseExport::pid);
                exports.chain([self.foreign.pid()]).collect()
            }
        };
        let times = pids.into_iter().map(|pid| {
            let time = ListeningProcess { pid }.processor_time();
            time.with_context(|| format!("process {pid} ({}) has ended", path.name()))
        });
        times.sum()
    }

    /// Returns the number of commands that a switch has relayed to the end so far.
    ///
    /// # Errors
    /// The switch does not answer.
    pub fn relayed(&self, path: SwitchPath) -> Result<u64> {
        let switch = match path {
            SwitchPath::Slow => &self.slow,
            SwitchPath::Fast => &self.fast,
            SwitchPath::Direct | SwitchPath::Bytes | SwitchPath::Foreign => return Ok(0),
        };
        let site = &self.site;
        on_a_thread(|| {
            site.enter_switch()?;
            switch.relayed_commands()
        })
    }
}

fn start_storage(
    kind: &SceneKind,
    number: usize,
    site: &Site,
    program: &str,
    disk_bytes: u64,
) -> Result<(StorageServer, PortalLun)> {
    let by = site.storage_words();
    let by: Vec<&str> = by.iter().map(String::as_str).collect();
    let found = |address: &str, target: &str, lun| {
        let (port, target) = (port(address)?.to_owned(), target.to_owned());
        anyhow::Ok(PortalLun { port, target, lun })
    };
    match kind.storage {
        StorageKind::Null => {
            ensure!(!kind.is_linked, "a null target listens on loopback only");
            let null = NullServer::start(Some(CLIENT_CORE), disk_bytes)?;
            // The null target accepts every name; two storages of a switch need different ones.
            let target = format!("{}-{number}", null_target::TARGET);
            let lun = found(null.address(), &target, 0)?;
            Ok((Box::new(null), lun))
        }
        StorageKind::Lunar => {
            let (device, listen) =
                (format!("mem:{disk_bytes}"), format!("{}:0", site.storage_listens()));
            let arguments = ["serve", &device, "--name", STORAGE, "--listen", &listen];
            let network: &[&str] = if kind.is_linked { &["--network", NETWORK] } else { &[] };
            let lunar = Lunar::start_by(&by, program, &[&arguments[..], network].concat())?;
            let lun = found(lunar.address(), STORAGE, 0)?;
            Ok((Box::new(lunar), lun))
        }
        StorageKind::Tgt => {
            let file = ScratchFile::new(Path::new("/dev/shm"), "switch-storage", disk_bytes)?;
            let path = file.path().to_str().context("a path in UTF-8")?;
            let tgt = Tgt::start_by(&by, site.storage_listens(), &[path], &[])?;
            let lun = found(tgt.address(), Tgt::TARGET, 1)?;
            Ok((Box::new((tgt, file)), lun))
        }
    }
}

/// Returns the configuration of a switch: a virtual LUN on each storage.
fn configuration(
    site: &Site,
    path: &str,
    scratch: &Scratch,
    luns: &[PortalLun],
    disk_bytes: u64,
) -> String {
    let (listen, api) = (site.switch_for_host(), scratch.path(&format!("{path}.sock")));
    let mut text = format!(
        "state = \"state-{path}\"\n[listen]\nportals = [\"{listen}:0\"]\n[api]\nlisten = \
         \"unix:{api}\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n"
    );
    for (number, lun) in luns.iter().enumerate() {
        let url = lun.url(site.storage_for_switch());
        text += &format!("[[storage]]\nname = \"storage-{number}\"\nurl = \"{url}\"\n");
    }
    text += &format!("[[target]]\nname = \"{VIRTUAL}\"\n");
    if matches!(site, Site::Links { .. }) {
        text += &format!("networks = [\"{NETWORK}\"]\n");
    }
    for number in 0..luns.len() {
        text += &format!(
            "[[target.lun]]\nid = {number}\nextents = [{{ storage = \"storage-{number}\", \
             start = 0, length = {disk_bytes} }}]\n"
        );
    }
    text
}
