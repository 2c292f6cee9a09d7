//! Our initiator against libiscsi: both send requests to the same target, in turns.

mod report;

use self::report::Row;
use super::goal::GoalVerdict;
use super::{INITIATOR, parse_seconds};
use crate::peers::load_programs::{LoadPrograms, LoadRequest, Sample};
use crate::peers::lunar::{Lunar, release_binary};
use crate::peers::tgt::Tgt;
use crate::system::cores::{CLIENT_CORE, TARGET_CORE};
use crate::system::files::{self, ScratchFile};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange};
use lunar_control::units::parse_size;
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use std::path::{Path, PathBuf};

const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:libiscsi";
/// Size of the disk, all of which is used.
const DISK_BYTES: u64 = 256 << 20;

/// Random reads and writes by two clients of the same LUN: `lunar bench`, and a generator of load
/// on libiscsi (lab/libiscsi), which cc builds. They take turns, and each round gives a ratio.
/// CPU is that of the client's whole process for each request, as each client measures itself.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    cargo run --release -p lunar-lab -- libiscsi --case 4K@32 --pin\n\n\
    Requires cc and Debian's libiscsi-dev; --target tgt requires Debian's tgt and root.")]
pub struct Libiscsi {
    /// Server of the disk: `lunar` (release build) or `tgt`, Debian's
    #[arg(long, default_value = "lunar", value_parser = ["lunar", "tgt"])]
    target: String,
    /// Store of the disk: `mem` (for tgt a file in /dev/shm) or `file` (buffered, write-back)
    #[arg(long, value_delimiter = ',', default_value = "mem", value_parser = ["mem", "file"])]
    disk: Vec<String>,
    /// Directory of the file
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    directory: PathBuf,
    /// Size of a request, and number of outstanding requests
    #[arg(long = "case", value_name = "SIZE@DEPTH", value_delimiter = ',')]
    #[arg(value_parser = parse_case, default_value = "4K@1,4K@8,4K@32,64K@8,256K@8")]
    cases: Vec<(u64, u16)>,
    /// Access patterns
    #[arg(long, value_delimiter = ',', default_value = "rand-read,rand-write")]
    #[arg(value_parser = ["rand-read", "rand-write", "read", "write"])]
    pattern: Vec<String>,
    /// Number of rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Time that each client measures in a round
    #[arg(long, default_value_t = 2.0, value_parser = parse_seconds)]
    seconds: f64,
    /// Warm-up of each client before that
    #[arg(long, default_value_t = 0.5, value_parser = parse_seconds)]
    warm_up: f64,
    /// Threads of our initiator; libiscsi has one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Pin the target to core 0 and the clients to core 1
    #[arg(long)]
    pin: bool,
    /// Print one JSON document instead of the table
    #[arg(long)]
    json: bool,
    /// Fail when a goal is missed: 1.5 times the IOPS, 0.7 of the CPU, at 4 KiB and depth 32
    #[arg(long)]
    strict: bool,
}

/// Server of the disk; its file is removed with it.
enum DiskServer {
    Lunar { _server: Lunar, url: String, _file: Option<ScratchFile> },
    Tgt { tgt: Tgt, _file: ScratchFile },
}

impl DiskServer {
    fn url(&self) -> String {
        match self {
            Self::Lunar { url, .. } => url.clone(),
            Self::Tgt { tgt, .. } => tgt.url(),
        }
    }
}

impl Libiscsi {
    /// Runs the comparison.
    ///
    /// # Errors
    /// Something cannot be built or started, a client fails, or `--strict` and a goal is missed.
    pub fn run(&self) -> Result<()> {
        let client_core = self.pin.then_some(CLIENT_CORE);
        let clients = LoadPrograms::new(client_core, self.threads)?;
        if !self.json {
            println!("{}", self.environment()?);
        }
        let mut rows = Vec::new();
        for disk in &self.disk {
            let serving = self.serve(disk)?;
            fill(&serving.url())?;
            for pattern in &self.pattern {
                for &(io_bytes, depth) in &self.cases {
                    let samples = self.measure(&clients, &serving, pattern, io_bytes, depth)?;
                    let row = Row::new(disk, pattern, io_bytes, depth, &samples);
                    if !self.json {
                        println!("{}", row.line());
                    }
                    rows.push(row);
                }
            }
        }
        let goals: Vec<_> = rows.iter().flat_map(Row::goals).collect();
        match self.json {
            true => println!("{:#}", report::document(self, &self.environment()?, &rows, &goals)),
            false => {
                print!("\n{}", report::table(&rows).text());
                goals.iter().for_each(|goal| println!("{}", goal.line()));
            }
        }
        let is_missed = self.strict && !goals.iter().all(GoalVerdict::is_met);
        ensure!(!is_missed, "at least one goal was missed");
        Ok(())
    }

    fn serve(&self, disk: &str) -> Result<DiskServer> {
        let core = self.pin.then_some(TARGET_CORE);
        let directory = match disk == "mem" {
            true => Path::new("/dev/shm"),
            false => &self.directory,
        };
        let scratch = || ScratchFile::new(directory, "libiscsi", DISK_BYTES);
        if self.target == "tgt" {
            let file = scratch()?;
            let path = file.path().to_str().context("a path in UTF-8")?;
            let tgt = Tgt::start_on(core, path, &[])?;
            return Ok(DiskServer::Tgt { tgt, _file: file });
        }
        let file = if disk == "mem" { None } else { Some(scratch()?) };
        let device = file.as_ref().map(|file| file.path().display().to_string());
        let cache = if file.is_some() { "write-back" } else { "write-through" };
        let device = device.unwrap_or_else(|| format!("mem:{DISK_BYTES}"));
        let server = Lunar::serve_measured(
            core,
            &release_binary()?,
            &[&device, "--name", TARGET, "--cache", cache],
        )?;
        let url = format!("iscsi://{}/{TARGET}/0", server.address());
        Ok(DiskServer::Lunar { _server: server, url, _file: file })
    }

    /// Returns one sample of our client and one of libiscsi for each round; the order changes with
    /// each.
    fn measure(
        &self,
        clients: &LoadPrograms,
        serving: &DiskServer,
        pattern: &str,
        io_bytes: u64,
        depth: u16,
    ) -> Result<Vec<(Sample, Sample)>> {
        let (url, range_bytes) = (serving.url(), DISK_BYTES);
        let (seconds, warm_up) = (self.seconds, self.warm_up);
        let mut samples = Vec::new();
        for seed in 1..=self.rounds {
            let request = LoadRequest {
                url: &url,
                pattern,
                io_bytes,
                depth,
                range_bytes,
                seconds,
                warm_up,
                seed,
            };
            let (lunar, libiscsi);
            if seed % 2 == 1 {
                lunar = clients.lunar(&request)?;
                libiscsi = clients.libiscsi(&request)?;
            } else {
                libiscsi = clients.libiscsi(&request)?;
                lunar = clients.lunar(&request)?;
            }
            samples.push((lunar, libiscsi));
        }
        Ok(samples)
    }

    /// Describes the machine and the programs.
    fn environment(&self) -> Result<String> {
        let disks: Result<Vec<_>> = self.disk.iter().map(|disk| self.disk_text(disk)).collect();
        let cores = std::thread::available_parallelism()?;
        let pinned = match self.pin {
            true => format!("target on core {TARGET_CORE}, clients on core {CLIENT_CORE}"),
            false => "not pinned".to_owned(),
        };
        Ok(format!(
            "target: {}, {}; {cores} cores, {pinned}; threads of our client: {}; {} rounds of {} s",
            self.target,
            disks?.join(" and "),
            self.threads,
            self.rounds,
            self.seconds
        ))
    }

    fn disk_text(&self, disk: &str) -> Result<String> {
        Ok(match (disk, self.target.as_str()) {
            ("mem", "lunar") => "memory".to_owned(),
            ("mem", _) => "a file in /dev/shm".to_owned(),
            _ => {
                format!("a file on {}, buffered, write-back", files::file_system(&self.directory)?)
            }
        })
    }
}

/// Writes all of the disk, so that reads find data everywhere.
fn fill(url: &str) -> Result<()> {
    const PIECE_BYTES: u64 = 1 << 20;
    let url: Url = url.parse()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let options = SessionOptions::new(INITIATOR);
        let disk = RemoteDisk::connect(&url, &options).await?;
        let piece = Bytes::from(vec![0x5a; PIECE_BYTES as usize]);
        let blocks = PIECE_BYTES / u64::from(disk.geometry().block_bytes);
        for at in 0..DISK_BYTES / PIECE_BYTES {
            let range = BlockRange::new(at * blocks, blocks);
            disk.write(range, piece.clone(), false).await?;
        }
        disk.unit().initiator().log_out().await?;
        Ok(())
    })
}

fn parse_case(text: &str) -> Result<(u64, u16)> {
    let (size, depth) = text.split_once('@').context("write SIZE@DEPTH, such as 4K@32")?;
    let size = parse_size(size).map_err(anyhow::Error::msg)?;
    ensure!((1..=16 << 20).contains(&size), "the request size must be 1 byte to 16 MiB");
    let depth = depth.parse()?;
    ensure!((1..=1024).contains(&depth), "the depth must be 1 to 1024");
    Ok((size, depth))
}
