//! Ratio of durable writes through iSCSI to those of a local loop that syncs in groups.

use crate::bench::files::{self, ScratchFile};
use crate::lunar::{Lunar, release_binary};
use anyhow::{Result, ensure};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange};
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use lunar_load::Spread;
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
const BLOCK_BYTES: u64 = 512;

/// Durable writes of 4 KiB at random places of a file that is allocated already: over iSCSI to
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

/// Random offsets of writes (splitmix64).
struct Places(u64);

impl Places {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % (FILE_BYTES / WRITE_BYTES)) * WRITE_BYTES
    }
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
        println!("round   local loop      iSCSI   writes per second, depth {}", self.depth);
        for round in 0..self.rounds {
            by_loop.push(self.by_loop(local.path(), round)?);
            by_iscsi.push(runtime.block_on(self.by_iscsi(&disk, round))?);
            let at = round as usize;
            println!("{round:>5} {:>12.0} {:>10.0}", by_loop[at], by_iscsi[at]);
        }
        let [by_loop, by_iscsi] = [by_loop, by_iscsi].map(Spread::of);
        let ratio = by_iscsi.median / by_loop.median;
        for (name, of) in [("local loop", by_loop), ("iSCSI", by_iscsi)] {
            let Spread { median, least, most } = of;
            println!("{name}: median {median:.0} ({least:.0} to {most:.0})");
        }
        println!("ratio of the medians: {ratio:.2} ({})", self.surroundings()?);
        if let Some(least) = self.at_least {
            ensure!(ratio >= least, "the ratio is {ratio:.2}, below the required {least}");
        }
        Ok(())
    }

    fn by_loop(&self, path: &Path, seed: u64) -> Result<f64> {
        let file = File::options().write(true).open(path)?;
        let piece = vec![seed as u8; WRITE_BYTES as usize];
        let mut places = Places(seed);
        let (begin, mut writes) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_secs(self.seconds) {
            for _ in 0..self.depth {
                file.write_all_at(&piece, places.next())?;
            }
            file.sync_data()?;
            writes += self.depth;
        }
        Ok(writes as f64 / begin.elapsed().as_secs_f64())
    }

    async fn by_iscsi(&self, disk: &Arc<RemoteDisk>, seed: u64) -> Result<f64> {
        let data = Bytes::from(vec![seed as u8; WRITE_BYTES as usize]);
        let begin = Instant::now();
        let end = begin + Duration::from_secs(self.seconds);
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..self.depth {
            let (disk, data) = (Arc::clone(disk), data.clone());
            let mut places = Places((seed << 32) | writer);
            writers.spawn(async move {
                let mut writes = 0_u64;
                while Instant::now() < end {
                    let lba = places.next() / BLOCK_BYTES;
                    let range = BlockRange::new(lba, WRITE_BYTES / BLOCK_BYTES);
                    disk.write(range, data.clone(), false).await?;
                    writes += 1;
                }
                Ok::<u64, lunar_block::Error>(writes)
            });
        }
        let mut writes = 0;
        while let Some(done) = writers.join_next().await {
            writes += done??;
        }
        Ok(writes as f64 / begin.elapsed().as_secs_f64())
    }

    /// Describes the machine and the file system.
    fn surroundings(&self) -> Result<String> {
        let cores = std::thread::available_parallelism()?;
        let place = files::file_system(&self.directory)?;
        Ok(format!("{place}, {} writes in the server, {cores} cores", self.io))
    }
}

async fn connect(server: &Lunar) -> Result<Arc<RemoteDisk>> {
    let url: Url = format!("iscsi://{}/{TARGET}/0", server.address()).parse()?;
    let options = SessionOptions::new("iqn.2026-11.org.lunarsan:bench");
    let disk = RemoteDisk::connect(&url, &options).await?;
    ensure!(
        !disk.has_write_cache(),
        "the target reports a write cache although write-through was requested"
    );
    Ok(Arc::new(disk))
}
