//! Cells: two subjects that take turns, and the goal of their comparison.

use super::Device;
use super::plain_mirror::PlainMirror;
use super::storages::{Distance, MEMORY_BYTES, Storages, filled, memory, pool};
use crate::bench::goal::{Bound, GoalVerdict};
use anyhow::{Result, anyhow};
use lunar_block::{BlockRange, BufferPool};
use lunar_load::{AccessPattern, Pace, Spread, Workload, processor_time};
use lunar_pool::{PoolSpec, STRIPE_UNIT_BYTES};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STRIPE: PoolSpec = PoolSpec::Stripe { unit_bytes: STRIPE_UNIT_BYTES };
pub const MIRROR: PoolSpec = PoolSpec::Mirror { erase: true };

/// Requests between two looks at the clock, in loops without futures.
const BATCH: u64 = 256;

/// Requests of a subject.
#[derive(Clone, Copy, Debug)]
pub enum Requests {
    /// Futures that a runtime polls.
    Futures { pattern: AccessPattern, io_bytes: u32, depth: usize },
    /// Random reads of 4 KiB that do not wait, as a target does them first.
    ReadsNow,
}

/// Goal of a cell.
#[derive(Clone, Copy, Debug)]
enum CellGoal {
    /// Requests a second of the second subject, by those of the first.
    Rate(f64),
    /// Time of a request of the second subject, by that of the first.
    Time(f64),
    /// Processor time of a request of the second subject in us, above that of as many requests of
    /// the first.
    Cpu { of_first: f64, most: f64 },
}

/// Figures of one subject in one round.
#[derive(Clone, Copy, Debug)]
pub struct RoundFigures {
    pub per_second: f64,
    pub cpu_micros: f64,
}

/// Two subjects under the same load.
pub struct Cell {
    part: &'static str,
    title: String,
    first: (&'static str, Device),
    second: (&'static str, Device),
    requests: Requests,
    goal: CellGoal,
    rounds: Vec<[RoundFigures; 2]>,
}

impl Cell {
    /// Returns its name.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// Measures both subjects; the order changes with each round.
    ///
    /// # Errors
    /// A request fails.
    pub async fn round(&mut self, round: u32, time: Duration) -> Result<()> {
        let mut devices = [&self.first.1, &self.second.1];
        let is_reversed = !round.is_multiple_of(2);
        if is_reversed {
            devices.reverse();
        }
        let mut figures = Vec::new();
        for device in devices {
            figures.push(measure(device, self.requests, time, u64::from(round)).await?);
        }
        if is_reversed {
            figures.reverse();
        }
        self.rounds.push([figures[0], figures[1]]);
        Ok(())
    }

    /// Describes the last round.
    pub fn last_line(&self) -> String {
        let [first, second] = match self.rounds.last() {
            Some(figures) => figures,
            None => return self.title.clone(),
        };
        let text = |name: &str, figures: &RoundFigures| {
            format!("{name} {:.0}/s {:.2} us", figures.per_second, figures.cpu_micros)
        };
        let (one, other) = (text(self.first.0, first), text(self.second.0, second));
        format!("{}: {one}, {other}: {:.2}", self.title, self.figure(&[*first, *second]))
    }

    fn figure(&self, [first, second]: &[RoundFigures; 2]) -> f64 {
        match self.goal {
            CellGoal::Rate(_) => second.per_second / first.per_second,
            CellGoal::Time(_) => first.per_second / second.per_second,
            CellGoal::Cpu { of_first, .. } => second.cpu_micros - of_first * first.cpu_micros,
        }
    }

    /// Compares the medians of the rounds with the goals.
    pub fn verdict(&self) -> GoalVerdict {
        let got = Spread::of(self.rounds.iter().map(|figures| self.figure(figures)));
        let (unit, bound) = match self.goal {
            CellGoal::Rate(least) => ("", Bound::AtLeast(least)),
            CellGoal::Time(most) => ("", Bound::AtMost(most)),
            CellGoal::Cpu { most, .. } => ("us", Bound::AtMost(most)),
        };
        GoalVerdict::of_median(self.part, self.title.clone(), self.subjects(), got, unit, bound)
    }

    /// Describes both subjects by the medians of the figures that the goal compares.
    fn subjects(&self) -> String {
        let is_cpu = matches!(self.goal, CellGoal::Cpu { .. });
        let text = |name: &str, at: usize| {
            let figure = |figures: &[RoundFigures; 2]| match is_cpu {
                true => figures[at].cpu_micros,
                false => figures[at].per_second,
            };
            let median = Spread::of(self.rounds.iter().map(figure)).median;
            if is_cpu { format!("{name} {median:.2} us") } else { format!("{name} {median:.0}/s") }
        };
        format!("{}, {}", text(self.first.0, 0), text(self.second.0, 1))
    }
}

/// Runs one load.
///
/// # Errors
/// A request fails.
pub async fn measure(
    device: &Device,
    requests: Requests,
    time: Duration,
    seed: u64,
) -> Result<RoundFigures> {
    let Requests::Futures { pattern, io_bytes, depth } = requests else {
        return Ok(reads_now(device, time, seed));
    };
    let work = Workload {
        pattern,
        io_bytes,
        range_bytes: None,
        depth,
        pace: Pace::Closed,
        warm_up: Duration::ZERO,
        time,
        seed,
        durable: false,
    };
    let before = processor_time();
    let result = lunar_load::run(device, work).await?;
    let spent = processor_time().saturating_sub(before);
    Ok(RoundFigures {
        per_second: result.requests_per_second(),
        cpu_micros: spent.as_secs_f64() * 1e6 / result.requests.max(1) as f64,
    })
}

fn reads_now(device: &Device, time: Duration, seed: u64) -> RoundFigures {
    const BYTES: usize = 4096;
    let blocks = BYTES as u64 / u64::from(device.geometry().block_bytes);
    let offsets = device.geometry().block_count / blocks;
    let mut buffer = BufferPool::default().take(BYTES);
    let (begin, before, mut requests) = (Instant::now(), processor_time(), 0_u64);
    while begin.elapsed() < time {
        for _ in 0..BATCH {
            let offset = lunar_load::split_mix_64(seed, requests) % offsets;
            let range = BlockRange::new(offset * blocks, blocks);
            if device.try_read_now(range, &mut buffer) {
                requests += 1;
            }
        }
    }
    let spent = processor_time().saturating_sub(before);
    RoundFigures {
        per_second: requests as f64 / begin.elapsed().as_secs_f64(),
        cpu_micros: spent.as_secs_f64() * 1e6 / requests.max(1) as f64,
    }
}

/// Collects cells.
#[derive(Default)]
struct CellList(Vec<Cell>);

impl CellList {
    fn add(
        &mut self,
        (part, title): (&'static str, &str),
        subjects: [(&'static str, &Device); 2],
        requests: Requests,
        goal: CellGoal,
    ) {
        let [(first, one), (second, other)] = subjects;
        self.0.push(Cell {
            part,
            title: title.to_owned(),
            first: (first, one.clone()),
            second: (second, other.clone()),
            requests,
            goal,
            rounds: Vec::new(),
        });
    }
}

fn futures(pattern: AccessPattern, io_bytes: u32, depth: usize) -> Requests {
    Requests::Futures { pattern, io_bytes, depth }
}

/// Opens all disks and pools, and returns the cells over them.
///
/// # Errors
/// A server or a disk fails.
pub async fn open(storages: &mut Storages) -> Result<Vec<Cell>> {
    let mut list = CellList::default();
    remote_cells(&mut list, storages).await?;
    unequal_cells(&mut list, storages).await?;
    cpu_cells(&mut list).await?;
    Ok(list.0)
}

async fn remote_cells(list: &mut CellList, storages: &mut Storages) -> Result<()> {
    use AccessPattern::{RandomRead, RandomWrite, Read, Write};
    let one = filled(storages.lun(0, Distance::Near).await?).await?;
    let stripe = filled(pool(STRIPE, storages.pair(Distance::Near).await?).await?).await?;
    let mirror = filled(pool(MIRROR, storages.pair(Distance::Near).await?).await?).await?;
    let (striped, mirrored) =
        ([("one", &one), ("stripe", &stripe)], [("one", &one), ("mirror", &mirror)]);
    let rate = CellGoal::Rate;
    let large = 1 << 20;
    list.add(("stripe", "1 MiB reads, depth 8"), striped, futures(Read, large, 8), rate(1.9));
    list.add(("stripe", "1 MiB writes, depth 8"), striped, futures(Write, large, 8), rate(1.9));
    let reads = futures(RandomRead, 256 << 10, 8);
    list.add(("mirror", "256 KiB random reads, depth 8"), mirrored, reads, rate(1.8));
    let writes = futures(RandomWrite, 4096, 8);
    list.add(("mirror", "4 KiB writes, depth 8"), mirrored, writes, rate(0.9));
    let plain: Device = Arc::new(PlainMirror::new(
        storages.pair(Distance::Near).await?.try_into().map_err(|_| anyhow!("two LUNs"))?,
    ));
    let to_plain = [("two LUNs without a record", &plain), ("mirror", &mirror)];
    list.add(("mirror", "4 KiB writes, depth 8, of two plain LUNs"), to_plain, writes, rate(0.9));
    // Eight of them are only two windows, so they do not keep two LUNs busy all the time.
    let reads = futures(RandomRead, 64 << 10, 8);
    let title = "64 KiB random reads, depth 8, of two plain LUNs";
    list.add(("mirror", title), to_plain, reads, rate(0.95));
    let writes = futures(RandomWrite, 64 << 10, 8);
    list.add(("mirror", "64 KiB writes, depth 8"), mirrored, writes, rate(0.9));
    Ok(())
}

async fn unequal_cells(list: &mut CellList, storages: &mut Storages) -> Result<()> {
    use AccessPattern::{RandomRead, RandomWrite};
    let fast = filled(storages.lun(0, Distance::Near).await?).await?;
    let slow = filled(storages.lun(1, Distance::Slow).await?).await?;
    let mirror = filled(pool(MIRROR, storages.pair(Distance::Slow).await?).await?).await?;
    let to_fast = [("faster", &fast), ("mirror", &mirror)];
    let to_slow = [("slower", &slow), ("mirror", &mirror)];
    let time = CellGoal::Time(1.2);
    for (title, requests) in [
        ("4 KiB random reads, depth 1: time", futures(RandomRead, 4096, 1)),
        ("4 KiB random reads, depth 8: time", futures(RandomRead, 4096, 8)),
        ("64 KiB random reads, depth 8: time", futures(RandomRead, 64 << 10, 8)),
    ] {
        list.add(("unequal", title), to_fast, requests, time);
    }
    let writes = futures(RandomWrite, 4096, 8);
    list.add(("unequal", "4 KiB writes, depth 8"), to_slow, writes, CellGoal::Rate(0.9));
    Ok(())
}

async fn cpu_cells(list: &mut CellList) -> Result<()> {
    use AccessPattern::{RandomRead, RandomWrite};
    // A single disk as large as both members together: processor caches hold the same part of it.
    let one = filled(memory(2 * MEMORY_BYTES)?).await?;
    let members = || anyhow::Ok(vec![memory(MEMORY_BYTES)?, memory(MEMORY_BYTES)?]);
    let stripe = filled(pool(STRIPE, members()?).await?).await?;
    let mirror = filled(pool(MIRROR, members()?).await?).await?;
    let (striped, mirrored) =
        ([("one", &one), ("stripe", &stripe)], [("one", &one), ("mirror", &mirror)]);
    let added = |most| CellGoal::Cpu { of_first: 1.0, most };
    let reads = futures(RandomRead, 4096, 8);
    let writes = futures(RandomWrite, 4096, 8);
    list.add(("CPU", "stripe, 4 KiB read"), striped, reads, added(1.0));
    list.add(
        ("CPU", "stripe, 4 KiB read that does not wait"),
        striped,
        Requests::ReadsNow,
        added(1.0),
    );
    list.add(("CPU", "stripe, 4 KiB write"), striped, writes, added(1.0));
    list.add(("CPU", "mirror, 4 KiB read"), mirrored, reads, added(1.0));
    list.add(
        ("CPU", "mirror, 4 KiB read that does not wait"),
        mirrored,
        Requests::ReadsNow,
        added(1.0),
    );
    let twice = CellGoal::Cpu { of_first: 2.0, most: 2.0 };
    let title = "mirror, 4 KiB write to a marked region, above two writes";
    list.add(("CPU", title), mirrored, writes, twice);
    Ok(())
}
