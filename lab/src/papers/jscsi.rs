//! Kramis and others, "jSCSI – A Java iSCSI Initiator" (2007): the writes of its Table 1, by the
//! pools of Rust. `make bench-java` measures the whole table with the Java initiator.

use super::{PaperArgs, PaperRun, parse_seconds};
use crate::bench::INITIATOR;
use crate::peers::lunar::{Lunar, release_binary};
use crate::system::cores::{self, CLIENT_CORE, TARGET_CORE};
use crate::system::files::ScratchFile;
use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use lunar_block::{BlockDevice, BlockRange, BufferPool};
use lunar_initiator::{RemoteDisk, SessionOptions, Url};
use lunar_load::report::{Column, Report, Section, Table, TableCell};
use lunar_load::{Latency, split_mix_64};
use lunar_pool::{OpenOptions, Pool, PoolSpec};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TARGET: &str = "iqn.2026-11.org.lunarsan.bench:jscsi";
/// Length of one write: 8 MB.
const WRITE_BYTES: u64 = 8 << 20;
const STRIPE_UNIT_BYTES: u32 = 64 << 10;
/// Size of each file.
const FILE_BYTES: u64 = 256 << 20;
/// Folder of the files, as for the Java initiator.
const FOLDER: &str = "/dev/shm";
/// A first write of each turn is not measured, because the connection is new.
const FIRST_WRITES: u32 = 1;

/// Rows of the paper: title; minimum, maximum, average and standard deviation in milliseconds.
const SHAPES: [(Shape, &str, [f64; 4]); 3] = [
    (Shape::Single, "no RAID, 1 target", [3889.0, 6987.0, 4347.55, 398.42]),
    (Shape::Raid0, "RAID 0, 2 targets", [2346.0, 4947.0, 2803.46, 330.12]),
    (Shape::Raid1, "RAID 1, 2 targets", [4663.0, 9447.0, 5313.72, 487.65]),
];

/// Number of writes of the paper.
const PAPER_RUNS: u64 = 1000;

/// jSCSI: repeats the writes of Table 1 with one target, RAID 0 and RAID 1
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    cargo run --release -p lunar-lab -- papers jscsi --rounds 5\n\n\
    --size is the size of each of the six files in /dev/shm (256M).")]
pub struct Jscsi {
    /// Number of writes of each kind, over all rounds
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
    /// Time for which each kind is written before the first round
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    warm_up: Duration,
    #[command(flatten)]
    pub(super) common: PaperArgs,
}

/// Shape of the disk that is written to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Shape {
    Single,
    Raid0,
    Raid1,
}

/// A target of its own with three files.
struct Storage {
    server: Lunar,
    _files: Vec<ScratchFile>,
}

impl Storage {
    fn start(program: &Path, name: &str, bytes: u64, core: Option<u16>) -> Result<Self> {
        let file = |at| ScratchFile::new(Path::new(FOLDER), &format!("{name}-{at}"), bytes);
        let files = (0..SHAPES.len()).map(file).collect::<Result<Vec<_>>>()?;
        let paths = files.iter().map(|file| file.path().display().to_string());
        let paths: Vec<String> = paths.collect();
        let mut arguments: Vec<&str> = paths.iter().map(String::as_str).collect();
        arguments.extend(["--name", TARGET, "--cache", "write-back"]);
        let server = Lunar::serve_measured(core, program, &arguments)?;
        Ok(Self { server, _files: files })
    }
}

/// Times of the writes of one shape.
#[derive(Clone, Debug, Default)]
struct Times(Vec<f64>);

/// Statistics as in the paper, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Statistics {
    least: f64,
    most: f64,
    mean: f64,
    deviation: f64,
    p99: Option<f64>,
    runs: u64,
}

impl Times {
    fn statistics(&self) -> Statistics {
        let Self(times) = self;
        let runs = times.len().max(1) as f64;
        let mean = times.iter().sum::<f64>() / runs;
        let squares: f64 = times.iter().map(|time| (time - mean).powi(2)).sum();
        let mut latency = Latency::default();
        times.iter().for_each(|time| latency.record(Duration::from_secs_f64(time / 1e3)));
        Statistics {
            least: times.iter().copied().fold(f64::INFINITY, f64::min),
            most: times.iter().copied().fold(0.0, f64::max),
            mean,
            deviation: (squares / (runs - 1.0).max(1.0)).sqrt(),
            p99: Some(latency.percentile(99.0).as_secs_f64() * 1e3),
            runs: times.len() as u64,
        }
    }
}

impl Jscsi {
    /// Measures all shapes.
    pub(super) async fn measure(&self) -> Result<Report> {
        let bytes = self.common.size.unwrap_or(FILE_BYTES);
        ensure!(bytes >= 2 * WRITE_BYTES, "--size must be at least 16M");
        let pinned = std::thread::available_parallelism()?.get() > 1;
        let rounds = format!("{} writes of each kind in {} turns", self.runs, self.common.rounds);
        let mut run = PaperRun::new(&self.common, "jSCSI: writes of 8 MB", rounds);
        let cores = match pinned {
            true => "targets on core 0, client on core 1",
            false => "not pinned",
        };
        let location = format!("{cores}, loopback; files in {FOLDER}, write-back");
        run.report.facts.push(("where".to_owned(), location));
        let program = release_binary()?;
        let core = pinned.then_some(TARGET_CORE);
        let storage = |name| Storage::start(&program, name, bytes, core);
        let storages = [storage("first")?, storage("second")?];
        let urls = storages.each_ref().map(|storage| {
            (0..SHAPES.len() as u32).map(|lun| storage.server.url(TARGET, lun)).collect()
        });
        let writer = Writer {
            urls,
            rounds: self.common.rounds.into(),
            runs: self.runs,
            warm_up: self.warm_up,
            seed: self.common.seed,
        };
        // Its connections stay on one core, as those of the Java initiator.
        let thread = std::thread::spawn(move || {
            if pinned {
                cores::pin(CLIENT_CORE)?;
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(writer.run())
        });
        let joined = tokio::task::spawn_blocking(move || thread.join()).await?;
        let times = joined.map_err(|_| anyhow!("the writer panicked"))??;
        run.add(section(&times));
        Ok(run.report)
    }
}

/// The client: writes to all shapes in turns.
struct Writer {
    /// URLs of the LUNs of both targets, one for each shape.
    urls: [Vec<String>; 2],
    rounds: u32,
    runs: u32,
    warm_up: Duration,
    seed: u64,
}

impl Writer {
    async fn run(self) -> Result<Vec<Times>> {
        let mut disks = Vec::new();
        for (at, (shape, ..)) in SHAPES.into_iter().enumerate() {
            disks.push(self.open(shape, at).await?);
        }
        let data = Bytes::from(crate::random::pattern(self.seed, WRITE_BYTES as usize));
        for disk in &disks {
            let begin = Instant::now();
            while begin.elapsed() < self.warm_up {
                write(disk, &data, 0).await?;
            }
        }
        let mut all = vec![Times::default(); SHAPES.len()];
        for round in 0..self.rounds {
            let mut order: Vec<usize> = (0..SHAPES.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            let runs = self.runs / self.rounds + u32::from(round < self.runs % self.rounds);
            for at in order {
                let disk = &disks[at];
                for number in 0..runs + FIRST_WRITES {
                    let number_of_all = u64::from(round) << 32 | u64::from(number);
                    let offset = split_mix_64(self.seed, number_of_all);
                    let time = write(disk, &data, offset).await?;
                    if number >= FIRST_WRITES {
                        all[at].0.push(time.as_secs_f64() * 1e3);
                    }
                }
                check(disk, &data, split_mix_64(self.seed, u64::from(round) << 32)).await?;
            }
        }
        Ok(all)
    }

    async fn open(&self, shape: Shape, lun: usize) -> Result<Arc<dyn BlockDevice>> {
        let mut disks: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for urls in &self.urls[..if shape == Shape::Single { 1 } else { 2 }] {
            let url: Url = urls.get(lun).context("a LUN of each shape")?.parse()?;
            let options = SessionOptions::new(INITIATOR);
            disks.push(Arc::new(RemoteDisk::connect(&url, &options).await?));
        }
        let spec = match shape {
            Shape::Single => return disks.pop().context("a disk"),
            Shape::Raid0 => PoolSpec::Stripe { unit_bytes: STRIPE_UNIT_BYTES },
            Shape::Raid1 => PoolSpec::Mirror { erase: true },
        };
        Pool::create(spec, disks.clone()).await?;
        let options = OpenOptions { is_unowned: true, ..OpenOptions::default() };
        Ok(Pool::open("pool", disks, options).await?)
    }
}

fn range(disk: &Arc<dyn BlockDevice>, offset: u64) -> BlockRange {
    let geometry = disk.geometry();
    let blocks = WRITE_BYTES / u64::from(geometry.block_bytes);
    BlockRange::new(offset % (geometry.block_count / blocks) * blocks, blocks)
}

/// Writes at a random offset, aligned to the length; returns the time.
async fn write(disk: &Arc<dyn BlockDevice>, data: &Bytes, offset: u64) -> Result<Duration> {
    let begin = Instant::now();
    disk.write(range(disk, offset), data.clone(), false).await?;
    Ok(begin.elapsed())
}

/// Reads a write back, outside of the measurement.
async fn check(disk: &Arc<dyn BlockDevice>, data: &Bytes, offset: u64) -> Result<()> {
    let buffer = BufferPool::default().take(WRITE_BYTES as usize);
    let read = disk.read(range(disk, offset), buffer).await?;
    ensure!(read[..WRITE_BYTES as usize] == data[..], "{}: other data was read", disk.name());
    Ok(())
}

fn section(times: &[Times]) -> Section {
    let mut section = Section::new("writes", "Writes of 8 MB, one at a time");
    section.prose.push(
        "Table 1 of the paper, beside the pools of Rust over Lunar's targets: stripes of 64 KiB, \
         and mirrors with their record of pending writes. 1 kB is 1,024 bytes; offsets are \
         random, aligned to the write. Times in milliseconds."
            .to_owned(),
    );
    let mut table = Table::new([
        Column::text("operation", "operation"),
        Column::text("who", "who"),
        Column::number("min_ms", "min"),
        Column::number("max_ms", "max"),
        Column::number("avg_ms", "avg"),
        Column::number("stddev_ms", "stddev"),
        Column::number("conf95_ms", "conf95 ±"),
        Column::number("p99_ms", "p99"),
        Column::number("runs", "runs"),
        Column::number("of_one", "of one target"),
    ]);
    let paper = SHAPES.map(|(_, _, [least, most, mean, deviation])| Statistics {
        least,
        most,
        mean,
        deviation,
        p99: None,
        runs: PAPER_RUNS,
    });
    let ours: Vec<_> = times.iter().map(Times::statistics).collect();
    for (at, (_, title, _)) in SHAPES.into_iter().enumerate() {
        for (who, all) in [("the paper: jSCSI", &paper[..]), ("lunar, Rust", &ours)] {
            let Some((one, row)) = all.first().zip(all.get(at)) else { continue };
            let half = 1.96 * row.deviation / (row.runs.max(1) as f64).sqrt();
            table.row([
                TableCell::text(format!("Write 8 MB, {title}")),
                TableCell::text(who),
                TableCell::number(row.least, 3),
                TableCell::number(row.most, 3),
                TableCell::number(row.mean, 3),
                TableCell::number(row.deviation, 3),
                TableCell::number(half, 3),
                row.p99.map_or_else(TableCell::none, |p99| TableCell::number(p99, 3)),
                TableCell::count(row.runs),
                TableCell::number(row.mean / one.mean, 2),
            ]);
        }
    }
    section.tables.push(table);
    section
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the statistics are those of the paper: the deviation is that of a sample.
    #[test]
    fn statistics_of_some_times() {
        let all = Times(vec![2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).statistics();
        assert_eq!((all.least, all.most, all.mean, all.runs), (2.0, 9.0, 5.0, 8));
        assert!((all.deviation - 2.138).abs() < 0.001, "{}", all.deviation);
    }
}
