//! Disks that the libiscsi suite runs against, each for the tests that another kind of disk skips.
//! They differ only in public options of `lunar` and of the tool.

use super::suite::{Suite, TestOutcome, TestResult, run_suite, suites};
use crate::peers::lunar::Lunar;
use crate::peers::tgt::Tgt;
use crate::system::scratch::Scratch;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Number of profiles that run at a time. One of them sleeps most of its time, and two wait for
/// their second server.
const WORKERS: usize = 4;
const TARGET: &str = "iqn.2026-11.org.lunarsan.test:suite";
/// The target behind a served LUN.
const STORAGE: &str = "iqn.2026-11.org.lunarsan.test:suite-storage";

/// Kind of disk.
#[derive(Clone, Copy, Debug)]
pub enum Device {
    /// A file that the server creates; its size is among the options.
    File,
    /// A sparse file of this many bytes that exists before.
    Existing(u64),
    /// `mem:SIZE`.
    Memory(&'static str),
    /// The LUN of another Lunar server, which serves a file of this size.
    LunOfLunar(&'static str),
    /// The LUN of tgt, which serves a sparse file of this many bytes.
    LunOfTgt(u64),
    /// A virtual LUN of a switch: a stripe over the LUNs of two Lunar servers.
    StripeOfLunar {
        /// Size of each of these LUNs.
        size: &'static str,
        /// Value of `--path`.
        path: &'static str,
    },
}

/// Suites of the tool that a profile runs.
#[derive(Clone, Copy, Debug)]
pub enum Suites {
    /// Every suite.
    All,
    /// The suites that need this profile.
    Only(&'static [&'static str]),
}

/// One kind of disk.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Its name in CONFORMANCE.md.
    pub name: &'static str,
    /// Disk that it serves.
    pub device: Device,
    /// Options of `lunar serve`.
    pub serve: &'static [&'static str],
    /// Lines before the target's and for its LUN, if it is served by `lunar target --config`
    /// instead.
    pub config: Option<[&'static [&'static str]; 2]>,
    /// Number of portals that it listens on; the tool gets a URL for each.
    pub portals: usize,
    /// Options of the tool.
    pub tool: &'static [&'static str],
    /// Suites that it runs.
    pub suites: Suites,
}

const BASE: Profile = Profile {
    name: "",
    device: Device::File,
    serve: &[],
    config: None,
    portals: 1,
    tool: &[],
    suites: Suites::All,
};

/// Every profile. A test counts for the first one that covers it.
pub const PROFILES: &[Profile] = &[
    Profile { name: "thin-512e", serve: &["--size", "1G"], ..BASE },
    Profile { name: "thin-4096", serve: &["--size", "1G", "--block-size", "4096"], ..BASE },
    Profile {
        name: "thin-512",
        serve: &["--size", "1G", "--physical-block-size", "512"],
        suites: Suites::Only(&[
            "SCSI.CompareAndWrite",
            "SCSI.GetLBAStatus",
            "SCSI.Inquiry",
            "SCSI.ReadCapacity16",
            "SCSI.Unmap",
        ]),
        ..BASE
    },
    Profile {
        name: "thick",
        serve: &["--size", "64M", "--no-thin"],
        suites: Suites::Only(&[
            "SCSI.Inquiry",
            "SCSI.ReadCapacity16",
            "SCSI.ReportSupportedOpcodes",
        ]),
        ..BASE
    },
    Profile {
        name: "small",
        serve: &["--size", "8M"],
        suites: Suites::Only(&["SCSI.WriteSame10", "SCSI.WriteSame16"]),
        ..BASE
    },
    Profile {
        name: "removable",
        serve: &["--size", "64M", "--removable"],
        suites: Suites::Only(&["SCSI.NoMedia", "SCSI.PreventAllow", "SCSI.StartStopUnit"]),
        ..BASE
    },
    Profile {
        name: "read-only",
        device: Device::Existing(64 << 20),
        serve: &["--read-only"],
        suites: Suites::Only(&["SCSI.ReadOnly"]),
        ..BASE
    },
    Profile {
        name: "memory",
        device: Device::Memory("mem:64M"),
        suites: Suites::Only(&["SCSI.WriteAtomic16"]),
        ..BASE
    },
    Profile {
        name: "two-paths",
        serve: &["--size", "64M"],
        portals: 2,
        suites: Suites::Only(&["SCSI.MultipathIO", "SCSI.ProutReserve"]),
        ..BASE
    },
    Profile { name: "lun-of-lunar", device: Device::LunOfLunar("1G"), ..BASE },
    Profile { name: "lun-of-tgt", device: Device::LunOfTgt(1 << 30), ..BASE },
    Profile {
        name: "switch-slow",
        device: Device::StripeOfLunar { size: "512M", path: "slow" },
        ..BASE
    },
    Profile {
        name: "switch-fast",
        device: Device::StripeOfLunar { size: "512M", path: "fast" },
        ..BASE
    },
    // Its reset test needs an operation that takes longer than a few seconds, and then sleeps for a
    // minute without answering NOP-Ins.
    Profile {
        name: "sanitize",
        config: Some([
            &["[limits]", "ping_after_seconds = 300"],
            &["size = \"64MiB\"", "maintenance_rate = \"100Mbit\""],
        ]),
        tool: &["--allow-sanitize"],
        suites: Suites::Only(&["SCSI.Sanitize"]),
        ..BASE
    },
];

impl Profile {
    /// Position of the profile when the longest start first: those that sleep, then those that run
    /// every suite through two servers, then the others that run every suite.
    fn start_position(&self) -> u8 {
        match (self.config, self.suites, self.device) {
            (Some(_), ..) => 0,
            (None, Suites::All, Device::File | Device::Existing(_) | Device::Memory(_)) => 2,
            (None, Suites::All, _) => 1,
            (None, Suites::Only(_), _) => 3,
        }
    }
}

/// Results of the tool on one profile.
#[derive(Clone, Debug)]
pub struct ProfileRun {
    /// The profile.
    pub profile: &'static Profile,
    /// Results of every test of its suites.
    pub results: Vec<TestResult>,
}

impl Profile {
    fn runs(&self, suite: &str) -> bool {
        match self.suites {
            Suites::All => true,
            Suites::Only(names) => names.contains(&suite),
        }
    }

    /// Returns the command line of `lunar`, without the path of the disk.
    pub fn command_line(&self) -> String {
        if let Some(lines) = self.config {
            return format!("target --config: {}", lines.concat().join(", "));
        }
        let device = match self.device {
            Device::File | Device::Existing(_) => "FILE",
            Device::Memory(url) => url,
            Device::LunOfLunar(_) => "iscsi://LUNAR/TARGET/0",
            Device::LunOfTgt(_) => "iscsi://TGT/TARGET/1",
            Device::StripeOfLunar { size, path } => {
                let option = if path == "fast" { " --path fast" } else { "" };
                return format!(
                    "switch{option} --config: a stripe over LUNs of two servers, each {size}"
                );
            }
        };
        let listen = ["--listen 127.0.0.1:0"].repeat(self.portals);
        [&["serve", device], self.serve, &listen[..]].concat().join(" ")
    }

    /// Runs its suites; after a suite with a failure the next gets a fresh disk and server.
    ///
    /// # Errors
    /// The server does not start, or the output of the tool cannot be parsed.
    pub fn run(&'static self, all: &[Suite]) -> Result<ProfileRun> {
        let mut subject = Subject::start(self)?;
        let mut results = Vec::new();
        for suite in all.iter().filter(|suite| self.runs(&suite.name)) {
            let mut of_suite = run_suite(suite, &subject.urls, self.tool)?;
            // A reservation left behind by a failed suite would make the later ones fail.
            if of_suite.iter().any(|result| result.outcome >= TestOutcome::Soft) {
                subject.reset()?;
            }
            results.append(&mut of_suite);
        }
        ensure!(subject.lunar.server().is_running()?, "{}: the server has ended", self.name);
        if matches!(self.device, Device::StripeOfLunar { path: "fast", .. }) {
            let relayed = subject.lunar.relayed_commands()?;
            ensure!(relayed > 0, "{}: no command was relayed", self.name);
        }
        Ok(ProfileRun { profile: self, results })
    }
}

/// A server with its disk.
struct Subject {
    profile: &'static Profile,
    scratch: Scratch,
    disks: u32,
    lunar: Lunar,
    /// The target whose LUN the server serves. It ends after the server.
    _storage: Option<Storage>,
    urls: Vec<String>,
}

/// The target behind a served LUN.
enum Storage {
    Lunar { _lunar: Box<Lunar> },
    Lunars { _pair: [Lunar; 2] },
    Tgt { _tgt: Tgt },
}

impl Subject {
    fn start(profile: &'static Profile) -> Result<Self> {
        let scratch = Scratch::new(&format!("suite-{}", profile.name))?;
        let (lunar, _storage, urls) = serve(profile, &scratch, 0)?;
        Ok(Self { profile, scratch, disks: 1, lunar, _storage, urls })
    }

    /// Resets disk and server: no reservation, session or data remains.
    fn reset(&mut self) -> Result<()> {
        (self.lunar, self._storage, self.urls) = serve(self.profile, &self.scratch, self.disks)?;
        self.disks += 1;
        Ok(())
    }
}

type Served = (Lunar, Option<Storage>, Vec<String>);

fn serve(profile: &Profile, scratch: &Scratch, number: u32) -> Result<Served> {
    if let Device::StripeOfLunar { size, path } = profile.device {
        return serve_stripe(size, path, scratch, number);
    }
    let file = scratch.path(&format!("disk-{number}.img"));
    let sparse = |bytes| File::create(&file).and_then(|made| made.set_len(bytes));
    let (device, storage) = match profile.device {
        Device::File => (file.clone(), None),
        Device::Existing(bytes) => {
            sparse(bytes).context("a sparse file")?;
            (file.clone(), None)
        }
        Device::Memory(url) => (url.to_owned(), None),
        Device::LunOfLunar(size) => {
            let lunar = Box::new(Lunar::serve(&[&file, "--name", STORAGE, "--size", size])?);
            (lunar.url(STORAGE, 0), Some(Storage::Lunar { _lunar: lunar }))
        }
        Device::LunOfTgt(bytes) => {
            sparse(bytes).context("a sparse file")?;
            let tgt = Tgt::start(&file)?;
            tgt.make_thin()?;
            (tgt.url(), Some(Storage::Tgt { _tgt: tgt }))
        }
        Device::StripeOfLunar { .. } => unreachable!("it has a configuration of its own"),
    };
    let device = device.as_str();
    let listen = ["--listen", "127.0.0.1:0"].repeat(profile.portals);
    let configuration = scratch.path("lunar.toml");
    let arguments = match profile.config {
        Some(lines) => {
            let text = configured(lines, device);
            std::fs::write(&configuration, text).context("a configuration")?;
            vec!["target", "--config", &configuration]
        }
        None => [&["serve", device, "--name", TARGET], profile.serve, &listen[..]].concat(),
    };
    let lunar = Lunar::start(&arguments)?;
    let addresses = lunar.addresses(profile.portals)?;
    let urls = addresses.iter().map(|address| format!("iscsi://{address}/{TARGET}/0")).collect();
    Ok((lunar, storage, urls))
}

/// Starts two servers and a switch with a stripe over their LUNs.
fn serve_stripe(size: &str, path: &str, scratch: &Scratch, number: u32) -> Result<Served> {
    let name = |storage: &str| format!("{STORAGE}-{storage}");
    let storage = |storage: &str| {
        let file = scratch.path(&format!("disk-{number}-{storage}.img"));
        Lunar::serve(&[&file, "--name", &name(storage), "--size", size])
    };
    let pair = [storage("a")?, storage("b")?];
    let (a, b) = (pair[0].url(&name("a"), 0), pair[1].url(&name("b"), 0));
    let text = format!(
        "[listen]\nportals = [\"127.0.0.1:0\"]\n[metrics]\nlisten = \"127.0.0.1:0\"\n\
         [[storage]]\nname = \"a\"\nurl = \"{a}\"\n\
         [[storage]]\nname = \"b\"\nurl = \"{b}\"\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nid = 0\n[target.lun.stripe]\nunit = \"64KiB\"\n\
         over = [{{ storage = \"a\", start = 0, length = \"{size}iB\" }}, \
         {{ storage = \"b\", start = 0, length = \"{size}iB\" }}]\n"
    );
    let configuration = scratch.path("lunar.toml");
    std::fs::write(&configuration, text).context("a configuration")?;
    let lunar = Lunar::start(&["switch", "--config", &configuration, "--path", path])?;
    let urls = vec![lunar.url(TARGET, 0)];
    Ok((lunar, Some(Storage::Lunars { _pair: pair }), urls))
}

/// Returns a configuration of one target with one LUN.
fn configured([before, of_lun]: [&[&str]; 2], device: &str) -> String {
    format!(
        "{}\n[listen]\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nid = 0\ndevice = \"{device}\"\n{}\n",
        before.join("\n"),
        of_lun.join("\n")
    )
}

/// Runs every profile, several at a time.
///
/// # Errors
/// See [`Profile::run`].
pub fn run_all() -> Result<Vec<ProfileRun>> {
    let suites = suites()?;
    for name in PROFILES.iter().flat_map(|profile| match profile.suites {
        Suites::All => &[],
        Suites::Only(names) => names,
    }) {
        ensure!(suites.iter().any(|suite| suite.name == *name), "the tool has no suite {name}");
    }
    let mut order: Vec<_> = PROFILES.iter().collect();
    order.sort_by_key(|profile| profile.start_position());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some(profile) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            done.push(profile.run(&suites));
        }
        done
    };
    let done: Vec<Result<ProfileRun>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        let ended = workers.into_iter().map(|worker| worker.join());
        ended.flatten().flatten().collect()
    });
    let mut runs = done.into_iter().collect::<Result<Vec<_>>>()?;
    ensure!(runs.len() == PROFILES.len(), "{} of {} profiles ran", runs.len(), PROFILES.len());
    runs.sort_by_key(|run| PROFILES.iter().position(|profile| profile.name == run.profile.name));
    Ok(runs)
}
