//! The copy of an extent, and the switch to its destination.

use super::{
    Change, Migration, MigrationEnd, MigrationPhase, MigrationRecord, MigrationState, RecordOutcome,
};
use crate::routing::RoutingReleased;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lunar_block::{BlockRange, BufferPool, Error, IoContext};
use lunar_pool::{ChangeQueue, ChangeTurn, DeviceExtent, JoinedDevice};
use std::num::NonZeroU64;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Maximum number of regions that are copied at once while no rate limits the copy.
const REGIONS_MAX: usize = 8;

/// Multiple of the wait for a change that a region may take.
const REGION_WAITS: u32 = 2;

/// Time for which changes of hosts to a region wait for its copy. It doubles after a copy that has
/// to be repeated because a change did not wait longer.
const REGION_HOLD: Duration = Duration::from_millis(300);

/// Time for a flush while no change waits for it.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(60);

/// Maximum factor of the pause after failures in a row.
const RETRY_FACTOR_MAX: u32 = 32;

/// Time for which a disk counts as used after a transfer of a host was seen. Hosts make fewer
/// transfers than a fast storage copies regions.
const BUSY_TIME: Duration = Duration::from_millis(100);

/// Maximum factor of the pause after the destination was late too often.
const LATE_FACTOR_MAX: u32 = 16;

/// Time for which new changes wait at the end of a migration until all changes in progress have
/// ended.
const END_TIME: Duration = Duration::from_millis(300);

/// Time after which [`END_TIME`] doubles, up to the wait for the destination, if changes always
/// take longer.
const END_TIME_GROWS_AFTER: Duration = Duration::from_secs(30);

/// Pause after an attempt to end a migration, as a multiple of the time that changes waited; it
/// doubles with each further attempt.
const END_PAUSE_FACTOR: u32 = 10;

/// Shortest such pause.
const END_PAUSE_MIN: Duration = Duration::from_millis(100);

/// Longest such pause, unless the multiple is longer.
const END_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Counts of losses of the source and the destination, as of when the copy began.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct LossCounts {
    from: u64,
    to: u64,
}

/// The task that copies.
struct ExtentCopy<'a> {
    migration: &'a Migration,
    losses: LossCounts,
    /// Number of transfers of hosts at the last region.
    foreground: u64,
    /// Time until which the disk counts as used.
    busy_until: Instant,
    failures: u32,
    /// Number of pauses because the destination was late.
    late_pauses: u32,
    /// Time for which changes wait for the copy of a region.
    region_hold: Duration,
    end_pause: Duration,
    /// Time of the next attempt to end the migration.
    next_end: Instant,
}

impl Migration {
    /// Moves the extent; runs until this has succeeded, or was cancelled. Failures of the storages
    /// are waited for. If the future is dropped before the end, the extent stays where it is, and
    /// the destination may still be written to.
    ///
    /// # Errors
    /// `Open` if another extent of the disk is being moved, or the disk has changed since the
    /// migration was prepared.
    pub async fn run(&self, record: &dyn MigrationRecord) -> Result<MigrationEnd, Error> {
        let _ = self.state.runtime.set(Handle::current());
        let started = self.core.begin_migration(&self.state)?;
        let unfinished = UnfinishedRun(self);
        let work = IoContext::server_scope(async {
            started.wait_for_changes().await;
            ExtentCopy::new(self).run(record).await
        });
        let moved = tokio::select! {
            biased;
            () = self.state.cancel_requested() => None,
            moved = work => Some(moved),
        };
        std::mem::forget(unfinished);
        Ok(match moved {
            Some(released) => {
                released.wait().await;
                MigrationEnd::Moved
            }
            None => {
                self.release_destination().await;
                MigrationEnd::Cancelled
            }
        })
    }

    /// Ends the use of the destination.
    async fn release_destination(&self) {
        self.detach().wait_for_last().await;
        self.state.wait_for(|shared| shared.outstanding == 0).await;
    }

    fn detach(&self) -> RoutingReleased {
        let mut shared = self.state.shared();
        shared.is_usable = false;
        shared.phase = MigrationPhase::Cancelled;
        drop(shared);
        self.core.end_migration()
    }
}

/// Ends the migration if its task is dropped.
struct UnfinishedRun<'a>(&'a Migration);

impl Drop for UnfinishedRun<'_> {
    fn drop(&mut self) {
        if self.0.state.shared().phase != MigrationPhase::Moved {
            drop(self.0.detach());
        }
    }
}

impl MigrationState {
    /// Waits until the state fulfils a condition.
    async fn wait_for(&self, condition: impl Fn(&super::SharedProgress) -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if condition(&self.shared()) {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the migration is to be cancelled and can be: the outcome of the record is
    /// certain.
    async fn cancel_requested(&self) {
        self.wait_for(|shared| {
            shared.is_cancelled && !shared.is_uncertain && shared.phase != MigrationPhase::Moved
        })
        .await;
    }

    fn resume(&self) {
        let mut shared = self.shared();
        shared.is_usable = true;
        shared.phase = MigrationPhase::Copying;
    }

    /// Begins the commit, after which the migration cannot be cancelled. Returns false if it is to
    /// be.
    fn begin_commit(&self) -> bool {
        let mut shared = self.shared();
        shared.is_committing = !shared.is_cancelled || shared.is_uncertain;
        shared.is_committing
    }

    /// Returns the next region from `region` on that is to be copied.
    fn next_uncopied(&self, region: u64) -> Option<(u64, BlockRange)> {
        self.shared().uncopied.next(region)
    }

    /// Fails if the destination is not used at present.
    fn require_usable(&self) -> Result<(), String> {
        let shared = self.shared();
        if shared.is_usable { Ok(()) } else { Err(shared.last_failure.clone()) }
    }

    /// Waits for an event. Fails when the destination is not used any more.
    async fn while_usable<T>(&self, event: impl Future<Output = T>) -> Result<T, String> {
        tokio::select! {
            biased;
            () = self.wait_for(|shared| !shared.is_usable) => {
                Err(self.shared().last_failure.clone())
            }
            event = event => Ok(event),
        }
    }

    /// Returns all blocks of the extent.
    fn all(&self) -> BlockRange {
        BlockRange::new(0, self.from.blocks.count)
    }

    fn losses(&self) -> LossCounts {
        let of = |extent: &DeviceExtent| extent.device.cache_losses().unwrap_or(0);
        LossCounts { from: of(&self.from), to: of(&self.to) }
    }

    /// Copies a region, in its turn among the changes, which wait for at most `hold`. Returns false
    /// if one of them has changed the region since: the copy was in vain.
    async fn copy_region(
        self: &Arc<Self>,
        pool: &BufferPool,
        (region, range): (u64, BlockRange),
        hold: Duration,
    ) -> Result<bool, String> {
        let turn = ChangeQueue::enter(&self.queue, range).await;
        self.require_usable()?;
        let bytes = range.count as usize * self.from.device.geometry().block_bytes as usize;
        let buffer = pool.take_when_free(bytes).await;
        let source = BlockRange::new(self.from.blocks.lba + range.lba, range.count);
        let read = self.from.device.read(source, buffer).await;
        let data = read.map_err(|error| error.to_string())?.freeze();
        let data = data.slice(..bytes);
        let is_zero = data.iter().all(|byte| *byte == 0);
        let change = match self.to.device.sparse() {
            Some(_) if is_zero => Change::Zero { may_unmap: true, durable: false },
            _ => Change::Write { from: data, durable: false },
        };
        let to = BlockRange::new(self.to.blocks.lba + range.lba, range.count);
        self.shared().uncopied.begin_copy(region);
        let write = self.start_on_target(|device| async move { change.apply(&*device, to).await });
        let written = self.region_written(write, turn, hold).await;
        let mut shared = self.shared();
        let is_copied = shared.uncopied.end_copy(region, written.is_ok());
        if is_copied {
            shared.copied_bytes += bytes as u64;
        }
        drop(shared);
        written.map(|_turn| is_copied)
    }

    /// Waits for the write of a region, for `hold` in its turn among the changes. Returns the turn
    /// if that was enough.
    async fn region_written(
        &self,
        write: Option<JoinHandle<Result<(), Error>>>,
        turn: ChangeTurn,
        hold: Duration,
    ) -> Result<Option<ChangeTurn>, String> {
        let wait = self.options.target_wait * REGION_WAITS;
        // The write must not land after a change that source and destination must have.
        let hold = if self.shared().is_uncertain { wait } else { hold };
        let mut written = pin!(self.target_done(write, wait));
        match tokio::time::timeout(hold, &mut written).await {
            Ok(written) => written.map(|()| Some(turn)),
            Err(_) => {
                drop(turn);
                written.await.map(|()| None)
            }
        }
    }

    async fn flush_target(self: &Arc<Self>, time_max: Duration) -> Result<(), String> {
        let flush = self.start_on_target(|device| async move { device.flush().await });
        self.target_done(flush, time_max).await
    }
}

impl<'a> ExtentCopy<'a> {
    fn new(migration: &'a Migration) -> Self {
        // Whether hosts use the disk is known later.
        let (losses, busy_until) = (migration.state.losses(), Instant::now() + BUSY_TIME);
        let (end_pause, next_end) = (Duration::ZERO, Instant::now());
        Self {
            migration,
            losses,
            foreground: 0,
            busy_until,
            failures: 0,
            late_pauses: 0,
            region_hold: REGION_HOLD,
            end_pause,
            next_end,
        }
    }

    fn state(&self) -> &'a Arc<MigrationState> {
        &self.migration.state
    }

    /// Copies until the extent is at the destination. Returns the end of the transfers to the
    /// source.
    async fn run(&mut self, record: &dyn MigrationRecord) -> RoutingReleased {
        loop {
            // An operation of unknown outcome must not change newer data.
            self.state().wait_for(|shared| shared.outstanding == 0).await;
            self.state().resume();
            match self.copy_and_switch(record).await {
                Ok(moved) => return moved,
                Err(failure) => self.state().suspend(failure),
            }
            tokio::time::sleep(self.retry_pause()).await;
        }
    }

    /// Returns the pause after a failure.
    fn retry_pause(&mut self) -> Duration {
        let state = self.state();
        let is_too_late = std::mem::take(&mut state.shared().is_too_late);
        let (count, pause, factor_max) = match is_too_late {
            // Copies of regions say nothing about the time that changes take.
            true => (&mut self.late_pauses, state.options.late_pause, LATE_FACTOR_MAX),
            false => (&mut self.failures, state.options.retry_pause, RETRY_FACTOR_MAX),
        };
        let factor = 1u32.checked_shl(*count).unwrap_or(u32::MAX);
        *count = count.saturating_add(1);
        pause * factor.min(factor_max)
    }

    async fn copy_and_switch(
        &mut self,
        record: &dyn MigrationRecord,
    ) -> Result<RoutingReleased, String> {
        loop {
            self.begin_again_after_loss();
            while self.state().next_uncopied(0).is_some() {
                self.copy_uncopied().await?;
            }
            self.state().while_usable(tokio::time::sleep_until(self.next_end)).await?;
            self.state().flush_target(FLUSH_TIME_MAX).await?;
            let time = self.state().while_usable(self.short_changes()).await?;
            let since = Instant::now();
            let switched = self.try_switch(record, time).await;
            if let Ok(Some(moved)) = switched {
                return Ok(moved);
            }
            self.postpone_end(since.elapsed());
            switched?;
        }
    }

    /// After a loss of either storage, all is copied again: the loss is unknown, and source and
    /// destination must not differ.
    fn begin_again_after_loss(&mut self) {
        let losses = self.state().losses();
        if losses != self.losses {
            self.losses = losses;
            let state = self.state();
            let mut shared = state.shared();
            shared.uncopied.insert(state.all());
            shared.restarts += 1;
        }
    }

    /// Copies the missing regions once; others may be added meanwhile. While a rate limits the
    /// copy, one region is copied at a time; otherwise the number grows with each region.
    async fn copy_uncopied(&mut self) -> Result<(), String> {
        let state = self.state();
        let pool = self.migration.core.buffers().clone();
        let mut copies = FuturesUnordered::new();
        let (mut next, mut window, mut failed) = (0, 1, None);
        loop {
            while failed.is_none() && copies.len() < window {
                let rate = self.rate();
                if rate.is_some() && !copies.is_empty() {
                    window = 1;
                    break;
                }
                let Some((region, range)) = state.next_uncopied(next) else { break };
                next = region + 1;
                // Nothing is locked during a pause.
                self.pause(range, rate).await;
                copies.push(state.copy_region(&pool, (region, range), self.region_hold));
            }
            // After a failure the others end first: each has its turn in the queue.
            match copies.next().await {
                None => return failed.map_or(Ok(()), Err),
                Some(Ok(is_copied)) => {
                    self.failures = 0;
                    window = REGIONS_MAX.min(window + 1);
                    self.note_copy(is_copied);
                }
                Some(Err(failure)) => failed = failed.or(Some(failure)),
            }
        }
    }

    /// Sets the time for which changes wait for the next regions.
    fn note_copy(&mut self, is_copied: bool) {
        self.region_hold = match is_copied {
            true => REGION_HOLD,
            false => (2 * self.region_hold).min(self.state().options.target_wait * REGION_WAITS),
        };
    }

    /// Returns the rate that limits the next region.
    fn rate(&mut self) -> Option<NonZeroU64> {
        let (state, options) = (self.state(), &self.state().options);
        let foreground = state.foreground.load(SeqCst);
        let now = Instant::now();
        if std::mem::replace(&mut self.foreground, foreground) != foreground {
            self.busy_until = now + BUSY_TIME;
        }
        if now < self.busy_until {
            options.busy_bytes_per_second_max
        } else {
            options.bytes_per_second_max
        }
    }

    /// Waits for the time that a region takes at this rate.
    async fn pause(&self, range: BlockRange, rate: Option<NonZeroU64>) {
        let Some(rate) = rate else { return };
        let block_bytes = u64::from(self.state().from.device.geometry().block_bytes);
        let bytes = range.count * block_bytes;
        tokio::time::sleep(Duration::from_secs_f64(bytes as f64 / rate.get() as f64)).await;
    }

    /// Waits until all changes that are on their way at a moment end soon after it, so that others
    /// need not wait long for the end of the migration. Returns the time that they may take.
    async fn short_changes(&self) -> Duration {
        let (state, began) = (self.state(), Instant::now());
        loop {
            let since = Instant::now();
            let doubled = (since - began).as_secs() / END_TIME_GROWS_AFTER.as_secs();
            let factor = u32::try_from(doubled).ok().and_then(|by| 1u32.checked_shl(by));
            let time = END_TIME * factor.unwrap_or(u32::MAX);
            let time = time.min(state.options.target_wait);
            // Nothing waits for this in the queue.
            let mut ended = pin!(state.queue.wait_for_overlapping(state.all()));
            if tokio::time::timeout(time, &mut ended).await.is_ok() {
                return time;
            }
            state.shared().last_failure = format!(
                "the end waits: changes of hosts take longer than {} s",
                time.as_secs_f64()
            );
            ended.await;
        }
    }

    /// Sets the time of the next attempt to end the migration, after one for which changes waited.
    fn postpone_end(&mut self, held: Duration) {
        let doubled = (2 * self.end_pause).clamp(END_PAUSE_MIN, END_PAUSE_MAX);
        self.end_pause = doubled.max(held * END_PAUSE_FACTOR);
        self.next_end = Instant::now() + self.end_pause;
    }

    /// Switches to the destination, if it has all data while no change is in progress. Returns
    /// `None` if data is missing, changes do not end within `time`, or others use the record.
    async fn try_switch(
        &mut self,
        record: &dyn MigrationRecord,
        time: Duration,
    ) -> Result<Option<RoutingReleased>, String> {
        let state = self.state();
        let entering = ChangeQueue::enter(&state.queue, state.all());
        let Ok(turn) = tokio::time::timeout(time, entering).await else { return Ok(None) };
        state.require_usable()?;
        if state.next_uncopied(0).is_some() {
            return Ok(None);
        }
        state.flush_target(state.options.target_wait).await?;
        if state.losses() != self.losses {
            return Ok(None);
        }
        let joined = self.migration.core.moved(state.extent_index, &state.to, self.losses.to);
        let joined = joined.map_err(|error| error.to_string())?;
        if !state.begin_commit() {
            // The migration is being cancelled.
            return std::future::pending().await;
        }
        let committed = self.commit(record, joined);
        drop(turn);
        committed
    }

    /// Records the destination and switches to it, without a pause between the two. Returns `None`
    /// if others use the record.
    fn commit(
        &self,
        record: &dyn MigrationRecord,
        joined: JoinedDevice,
    ) -> Result<Option<RoutingReleased>, String> {
        let recorded = record.commit();
        let mut shared = self.state().shared();
        // A cancellation waits until the record is certain.
        self.state().changed.notify_waiters();
        shared.is_committing = false;
        match recorded {
            RecordOutcome::Committed => {}
            RecordOutcome::Busy => return Ok(None),
            RecordOutcome::Failed(error) => {
                shared.is_uncertain = record.revert().is_err();
                return Err(format!("the destination cannot be recorded: {error}"));
            }
        }
        shared.is_uncertain = false;
        shared.phase = MigrationPhase::Moved;
        shared.last_failure = String::new();
        Ok(Some(self.migration.core.exchange_moved(joined)))
    }
}
