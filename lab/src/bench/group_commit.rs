//! Ratio of durable writes through iSCSI to those of a local loop that syncs in groups.

use super::INITIATOR;
use crate::peers::lunar::{Lunar, release_binary};
use crate::random::Random;
use crate::system::files::{self, ScratchFile};
use anyhow::{Result, ensure};
use lunar_block::BlockDevice;
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use lunar_load::report::{Column, Table, TableCell};
use lunar_load::{AccessPattern, Pace, Spread, Workload};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:group-commit";
/// Size of each of the two files.
const FILE_BYTES: u64 = 256 << 20;
/// Size of one write.
const WRITE_BYTES: u64 = 4096;

/// Durable writes of 4 KiB at random offsets of a file that is allocated already: over iSCSI to
/// `lunar serve --cache write-through`, and by a local loop of as many `pwrite` calls and one
/// `fdatasync` for all of them. Rounds of both alternate.
#[derive(Debug, clap::Args)]
pub struct GroupCommitBench {
    /// Writes in flight, and writes of the local loop between two syncs
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=256))]
    depth: u64,
    /// Number of rounds of each
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// Duration of a round
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Directory of the files; its file system is measured
    #[arg(long, value_name = "DIRECTORY", default_value = ".")]
    directory: PathBuf,
    /// `buffered` or `direct`, as for `lunar serve`; the local loop is always buffered
    #[arg(long, default_value = "buffered", value_parser = ["buffered", "direct"])]
    io: String,
    /// Fail when the ratio is less than this
    #[arg(long, value_name = "RATIO")]
    at_least: Option<f64>,
}

/// Returns the next random offset of a write.
fn offset(random: &mut Random) -> u64 {
    random.below(FILE_BYTES / WRITE_BYTES) * WRITE_BYTES
}

impl GroupCommitBench {
    /// Runs the comparison.
    ///
    /// # Errors
    /// Something cannot be started, a write fails, or the ratio is below `at_least`.
    pub fn run(&self) -> Result<()> {
        let local = ScratchFile::new(&self.directory, "local", FILE_BYTES)?;
        let served = ScratchFile::new(&self.directory, "served", FILE_BYTES)?;
        let path = served.path().display().to_string();
        let cache = ["--name", TARGET, "--cache", "write-through", "--io", &self.io];
        let server = Lunar::serve_measured(
            None,
            &release_binary()?,
            &[&[path.as_str()], &cache[..]].concat(),
        )?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let disk = runtime.block_on(connect(&server))?;
        let (mut by_loop, mut by_iscsi) = (Vec::new(), Vec::new());
        let mut table = Table::new([
            Column::text("round", "round"),
            Column::number("by_loop", "local loop, writes a second"),
            Column::number("by_iscsi", "iSCSI, writes a second"),
        ]);
        for round in 0..self.rounds {
            let one = self.by_loop(local.path(), round)?;
            let other = runtime.block_on(self.by_iscsi(&disk, round))?;
            by_loop.push(one);
            by_iscsi.push(other);
            let [one, other] = [one, other].map(|rate| TableCell::number(rate, 0));
            table.row([TableCell::text(round.to_string()), one, other]);
        }
        let [by_loop, by_iscsi] = [by_loop, by_iscsi].map(Spread::of);
        let [one, other] = [by_loop, by_iscsi].map(|spread| TableCell::spread(spread, 1.0, 0));
        table.row([TableCell::text("median"), one, other]);
        print!("depth {}\n{}", self.depth, table.text());
        let ratio = by_iscsi.median / by_loop.median;
        println!("ratio of the medians: {ratio:.2} ({})", self.environment()?);
        if let Some(least) = self.at_least {
            ensure!(ratio >= least, "the ratio is {ratio:.2}, below the required {least}");
        }
        Ok(())
    }

    fn by_loop(&self, path: &Path, seed: u64) -> Result<f64> {
        let file = File::options().write(true).open(path)?;
        let piece = vec![seed as u8; WRITE_BYTES as usize];
        let mut random = Random::new(seed);
        let (begin, mut writes) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_secs(self.seconds) {
            for _ in 0..self.depth {
                file.write_all_at(&piece, offset(&mut random))?;
            }
            file.sync_data()?;
            writes += self.depth;
        }
        Ok(writes as f64 / begin.elapsed().as_secs_f64())
    }

    async fn by_iscsi(&self, disk: &Arc<dyn BlockDevice>, seed: u64) -> Result<f64> {
        let work = Workload {
            pattern: AccessPattern::RandomWrite,
            io_bytes: WRITE_BYTES as u32,
            range_bytes: Some(FILE_BYTES),
            depth: self.depth as usize,
            pace: Pace::Closed,
            warm_up: Duration::ZERO,
            time: Duration::from_secs(self.seconds),
            seed,
            durable: false,
        };
        Ok(lunar_load::run(disk, work).await?.requests_per_second())
    }

    /// Describes the machine and the file system.
    fn environment(&self) -> Result<String> {
        let cores = std::thread::available_parallelism()?;
        let file_system = files::file_system(&self.directory)?;
        Ok(format!("{file_system}, {} writes in the server, {cores} cores", self.io))
    }
}

async fn connect(server: &Lunar) -> Result<Arc<dyn BlockDevice>> {
    let url: Url = format!("iscsi://{}/{TARGET}/0", server.address()).parse()?;
    let options = SessionOptions::new(INITIATOR);
    let disk = RemoteDisk::connect(&url, &options).await?;
    ensure!(
        !disk.has_write_cache(),
        "the target reports a write cache although write-through was requested"
    );
    Ok(Arc::new(disk))
}
