//! Copies to a new member: their speed while nobody uses the mirror, and their cost for users.

use super::Device;
use super::cells::{MIRROR, Requests, measure};
use super::storages::{Distance, Storages, filled, pool};
use crate::bench::goal::{Bound, GoalVerdict};
use anyhow::{Result, ensure};
use lunar_load::{AccessPattern, Spread};
use lunar_pool::{Pool, PoolHealth};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of these cells.
pub const TITLE: &str = "resync";

/// The slot that gets new devices.
const SLOT: u16 = 1;

/// Interval of looks at the status of the mirror.
const POLL: Duration = Duration::from_millis(2);

const COPY_MAX: Duration = Duration::from_secs(120);

/// Loads of users during a copy.
const USERS: [(&str, AccessPattern); 2] =
    [("4 KiB reads", AccessPattern::RandomRead), ("4 KiB writes", AccessPattern::RandomWrite)];

/// A mirror whose second member is replaced again and again.
pub struct ResyncCells {
    mirror: Arc<Pool>,
    /// The same as a device.
    device: Device,
    /// A LUN of each storage, outside of the mirror.
    alone: [Device; 2],
    /// The device in the slot, and the one that replaces it next.
    used: Device,
    unused: Device,
    rounds: Vec<ResyncRound>,
}

/// Figures of one round.
#[derive(Clone, Copy, Debug)]
struct ResyncRound {
    /// Bytes a second of a member alone: of reads of one, or of writes of the other.
    members: f64,
    /// Bytes a second of a copy.
    copy: f64,
    /// Share of the requests a second that remains during a copy, for each of `USERS`.
    remains: [f64; 2],
    /// Bytes a second of the copies during requests of users.
    copy_under_load: [f64; 2],
}

impl ResyncCells {
    /// Opens the LUNs and the mirror.
    ///
    /// # Errors
    /// A server or a disk fails.
    pub async fn open(storages: &mut Storages) -> Result<Self> {
        let alone = storages.pair(Distance::Near).await?;
        let [source, target] = [filled(alone[0].clone()).await?, filled(alone[1].clone()).await?];
        let members = storages.pair(Distance::Near).await?;
        let used = members[1].clone();
        let unused = storages.lun(1, Distance::Near).await?;
        let mirror = pool(MIRROR, members).await?;
        let device = filled(mirror.clone()).await?;
        let alone = [source, target];
        Ok(Self { mirror, device, alone, used, unused, rounds: Vec::new() })
    }

    /// Measures the members, an idle copy, and users without and with a copy.
    ///
    /// # Errors
    /// A disk fails, or a copy ends before the users alongside it.
    pub async fn round(&mut self, round: u32, time: Duration) -> Result<()> {
        let seed = u64::from(round);
        let large = |pattern| Requests::Futures { pattern, io_bytes: 1 << 20, depth: 8 };
        let [source, target] = &self.alone;
        let read = measure(source, large(AccessPattern::Read), time, seed).await?;
        let written = measure(target, large(AccessPattern::Write), time, seed).await?;
        let members = read.per_second.min(written.per_second) * f64::from(1 << 20);
        self.replace().await?;
        let begin = Instant::now();
        self.until_healthy().await?;
        let copy = self.device.geometry().size_bytes() as f64 / begin.elapsed().as_secs_f64();
        let mut figures =
            ResyncRound { members, copy, remains: [0.0; 2], copy_under_load: [0.0; 2] };
        for (at, (name, pattern)) in USERS.into_iter().enumerate() {
            let small = Requests::Futures { pattern, io_bytes: 4096, depth: 8 };
            let without = measure(&self.device, small, time, seed).await?;
            self.replace().await?;
            let copied = self.mirror.status().copied_bytes;
            let with = measure(&self.device, small, time, seed).await?;
            let status = self.mirror.status();
            ensure!(status.health != PoolHealth::Healthy, "the copy ended before the {name}");
            figures.remains[at] = with.per_second / without.per_second;
            figures.copy_under_load[at] =
                (status.copied_bytes - copied) as f64 / time.as_secs_f64();
            self.until_healthy().await?;
        }
        self.rounds.push(figures);
        Ok(())
    }

    async fn replace(&mut self) -> Result<()> {
        self.mirror.replace(SLOT, self.unused.clone()).await?;
        std::mem::swap(&mut self.used, &mut self.unused);
        Ok(Pool::clear_label(self.unused.clone()).await?)
    }

    async fn until_healthy(&self) -> Result<()> {
        let begin = Instant::now();
        while self.mirror.status().health != PoolHealth::Healthy {
            ensure!(
                begin.elapsed() < COPY_MAX,
                "the copy does not end: {:?}",
                self.mirror.status()
            );
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// Describes the last round.
    pub fn last_line(&self) -> String {
        self.rounds.last().map_or_else(String::new, |round| format!("{TITLE}: {round:.2?}"))
    }

    /// Compares the medians of the rounds with the goals.
    pub fn verdicts(&self) -> Vec<GoalVerdict> {
        let spread =
            |figure: &dyn Fn(&ResyncRound) -> f64| Spread::of(self.rounds.iter().map(figure));
        let mib = |figure: &dyn Fn(&ResyncRound) -> f64| spread(figure).median / f64::from(1 << 20);
        let (members, copy) = (mib(&|round| round.members), mib(&|round| round.copy));
        let from = format!("members {members:.0} MiB/s at depth 8, copy {copy:.0} MiB/s");
        let got = spread(&|round| round.copy / round.members);
        let what = "speed of an idle copy, of the members'";
        let mut all = vec![GoalVerdict::of_median(TITLE, what, from, got, "", Bound::AtLeast(0.9))];
        for (at, (name, _)) in USERS.into_iter().enumerate() {
            let copied = mib(&|round| round.copy_under_load[at]);
            let from = format!("depth 8, during a copy of {copied:.0} MiB/s");
            let what = format!("{name} a second during a copy, of those without");
            let got = spread(&|round| round.remains[at]);
            all.push(GoalVerdict::of_median(TITLE, what, from, got, "", Bound::AtLeast(0.9)));
        }
        all
    }
}
