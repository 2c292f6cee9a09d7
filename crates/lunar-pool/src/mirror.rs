//! Mirrors: pools whose members all have the same blocks.
//!
//! Locks, in this order: the exchange of members (`reshaping`); the rewriting of regions; the turn
//! of a change in the queue of overlapping changes; the membership (`Roster`), which a change holds
//! shared from the choice of the members to their last answer, and which a change of the members'
//! states holds alone, also while labels are written. A change that a member missed is therefore
//! acknowledged only after the labels of the others record this, durably.

mod background_rate;
mod bounded;
mod change;
mod change_queue;
mod change_source;
mod clears;
mod close;
mod count;
mod flush;
mod intent_log;
mod lateness;
mod member;
mod membership;
mod open;
mod options;
mod read;
mod rejoin;
mod replace;
mod resize;
mod resync;
mod rewrites;
mod scrub;
mod slots;
mod spares;
mod sparse;
mod window;

pub use bounded::RunToEnd;
pub use change_queue::{ChangeQueue, ChangeTurn, TransferTurn};
pub use lateness::{LATE_MAX, LATENESS_WINDOW, Lateness};
pub use options::MirrorOptions;
pub use scrub::{ScrubOptions, ScrubProgress, ScrubReport, ScrubbedMember};

use crate::PoolError;
use crate::format::{Label, PoolKind};
use crate::losses::LossLatch;
use crate::ownership::PoolOwnership;
use crate::status::{MemberState, PoolHealth, PoolMember, PoolStatus};
use bytes::Bytes;
use change::Change;
use clears::ClearLengths;
use flush::SharedFlushes;
use intent_log::IntentLog;
use lunar_block::{
    BlockDevice, BlockRange, BoxFuture, Buffer, BufferPool, DeviceLink, Error, Geometry, Sparse,
    SyncCounts,
};
use membership::Roster;
use rewrites::Rewrites;
use slots::{FormerMembers, MemberSlot, MemberSlots};
use spares::Spares;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, PoisonError};
use tokio::sync::{RwLock, Semaphore, watch};

/// An open mirror.
#[derive(Debug)]
pub(crate) struct Mirror {
    name: Arc<str>,
    /// The geometry at opening.
    first_geometry: Geometry,
    block_count: AtomicU64,
    slots: MemberSlots,
    options: MirrorOptions,
    ownership: Arc<PoolOwnership>,
    /// True if a member was read-only at opening: nothing is written to any member.
    is_read_only: bool,
    roster: RwLock<Roster>,
    /// Held while members are exchanged.
    reshaping: tokio::sync::Mutex<FormerMembers>,
    /// The same as in the roster, without the lock.
    is_unrecorded: AtomicBool,
    /// Generation of the label in the roster, without the lock.
    generation: AtomicU64,
    /// The label of the roster as the members have it durably.
    durable_label: watch::Sender<Label>,
    closing: AtomicBool,
    /// True when the mirror is closed: ends the tasks.
    closed: watch::Sender<bool>,
    queue: Arc<ChangeQueue>,
    /// The last exchange of the source of the queue.
    source_exchanged: std::sync::Mutex<Option<tokio::time::Instant>>,
    intents: IntentLog,
    clears: ClearLengths,
    flushes: SharedFlushes,
    spares: Spares,
    /// The last scrub.
    scrub: std::sync::Mutex<Option<ScrubProgress>>,
    rewrites: Rewrites,
    /// Number of failures whose members were not left out yet: marks of the missed changes stay.
    failures_pending: AtomicUsize,
    /// Number of times that no member had all acknowledged writes.
    losses: AtomicU64,
    latch: LossLatch,
    /// Number of operations of users.
    foreground: AtomicU64,
    repairs: AtomicU64,
    repair_permits: Semaphore,
    copied_blocks: AtomicU64,
    buffers: std::sync::RwLock<BufferPool>,
    /// Runs recoveries and copies.
    runtime: tokio::runtime::Handle,
}

/// A handle of an open mirror. When it is dropped, copies end; the marks stay as after a crash.
#[derive(Debug)]
pub(crate) struct MirrorDevice(Arc<Mirror>);

impl Drop for MirrorDevice {
    fn drop(&mut self) {
        self.0.begin_closing();
    }
}

impl MirrorDevice {
    /// Gives the slot of a member to a new device, see [`Pool::replace`](crate::Pool::replace).
    pub(crate) async fn replace(
        &self,
        slot: u16,
        device: Arc<dyn BlockDevice>,
    ) -> Result<(), PoolError> {
        RunToEnd::new(Arc::clone(&self.0).replace(slot, device)).await
    }

    /// Gives a missing member its slot again, see [`Pool::rejoin`](crate::Pool::rejoin).
    pub(crate) async fn rejoin(&self, device: Arc<dyn BlockDevice>) -> Result<u16, PoolError> {
        RunToEnd::new(Arc::clone(&self.0).rejoin(device)).await
    }

    /// Adds a member, see [`Pool::add`](crate::Pool::add).
    pub(crate) async fn add(&self, device: Arc<dyn BlockDevice>) -> Result<u16, PoolError> {
        RunToEnd::new(Arc::clone(&self.0).add(device)).await
    }

    /// Removes a member, see [`Pool::remove`](crate::Pool::remove).
    pub(crate) async fn remove(&self, slot: u16) -> Result<(), PoolError> {
        RunToEnd::new(Arc::clone(&self.0).remove(slot)).await
    }

    /// Compares all members, see [`Pool::scrub`](crate::Pool::scrub).
    pub(crate) async fn scrub(&self, options: ScrubOptions) -> Result<ScrubReport, PoolError> {
        self.0.scrub_all(options).await
    }

    /// Closes the mirror: makes everything durable, and removes the marks.
    ///
    /// # Errors
    /// Changes that did not end, a last flush that failed, or a loss that no flush has reported.
    /// The mirror is closed in any case, and the next opening copies the marked regions.
    pub(crate) async fn close(&self) -> Result<(), Error> {
        RunToEnd::new(Arc::clone(&self.0).close()).await
    }

    pub(crate) fn status(&self) -> PoolStatus {
        let mirror = &self.0;
        let region_bytes =
            mirror.intents.region_blocks() * u64::from(mirror.geometry().block_bytes);
        let missing = |slot| PoolMember {
            slot,
            device: String::new(),
            state: MemberState::Missing,
            missing_bytes: mirror.geometry().size_bytes(),
            outstanding_reads: 0,
            latency_nanos: 0,
            last_failure: String::new(),
        };
        let member = |(slot, taken): (u16, &MemberSlot)| match taken {
            MemberSlot::Taken(member) => Some(member.status(region_bytes)),
            MemberSlot::Missing => Some(missing(slot)),
            MemberSlot::Vacant => None,
        };
        let members: Vec<PoolMember> = (0..).zip(&*mirror.slots.all()).filter_map(member).collect();
        let all = members.iter().all(|member| member.state == MemberState::Current);
        let any = mirror.present().any(|member| member.is_current());
        let health = match (all, any) {
            (true, _) => PoolHealth::Healthy,
            (_, true) => PoolHealth::Degraded,
            _ => PoolHealth::Failed,
        };
        PoolStatus {
            pool: mirror.intents.pool(),
            kind: PoolKind::MIRROR,
            generation: mirror.generation.load(SeqCst),
            health,
            losses: mirror.loss_count(),
            repairs: mirror.repairs.load(SeqCst),
            copied_bytes: mirror.copied_blocks.load(SeqCst)
                * u64::from(mirror.geometry().block_bytes),
            members,
            unused: mirror.spares.status(),
            scrub: mirror.scrub_progress(),
        }
    }

    /// Returns the label of the last generation that is durable.
    pub(crate) fn label(&self) -> watch::Receiver<Label> {
        self.0.durable_label.subscribe()
    }

    fn check_writable(&self, range: BlockRange) -> Result<(), Error> {
        self.0.check_writable().map_err(|error| error.at(range))
    }

    /// Changes blocks. The change runs to its end, also if its future is dropped after it has
    /// begun.
    fn change(&self, range: BlockRange, change: Change) -> BoxFuture<'_, Result<(), Error>> {
        if range.count == 0 {
            return Box::pin(std::future::ready(Ok(())));
        }
        Box::pin(RunToEnd::new(Arc::clone(&self.0).change(range, change)))
    }
}

impl BlockDevice for MirrorDevice {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, range: BlockRange, into: Buffer) -> BoxFuture<'_, Result<Buffer, Error>> {
        match self.0.geometry().checked(self.name(), range, into.len(), false) {
            Err(error) => Box::pin(std::future::ready(Err(error))),
            Ok(_) if range.count == 0 => Box::pin(std::future::ready(Ok(into))),
            Ok(_) => self.0.read_blocks(range, into),
        }
    }

    fn try_read_now(&self, range: BlockRange, into: &mut [u8]) -> bool {
        self.0.geometry().checked(self.name(), range, into.len(), false).is_ok()
            && range.count > 0
            && self.0.read_now(range, into)
    }

    fn write(
        &self,
        range: BlockRange,
        from: Bytes,
        durable: bool,
    ) -> BoxFuture<'_, Result<(), Error>> {
        let checked = self.0.geometry().checked(self.name(), range, from.len(), true);
        if let Err(error) = checked.and_then(|_| self.check_writable(range)) {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.change(range, Change::Write { from, durable })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(RunToEnd::new(Arc::clone(&self.0).flush_for_user()))
    }

    /// Counts the losses of the pool. A loss of one member is none, if another one has all data.
    fn cache_losses(&self) -> Option<u64> {
        Some(self.0.loss_count())
    }

    fn set_buffers(&self, buffers: &BufferPool) {
        let mut own = self.0.buffers.write().unwrap_or_else(PoisonError::into_inner);
        *own = buffers.clone();
        drop(own);
        self.0.present().for_each(|member| member.device.device().set_buffers(buffers));
    }

    fn prefetch(&self, range: BlockRange) {
        if self.0.geometry().byte_range(range).is_some() && range.count > 0 {
            self.0.prefetch(range);
        }
    }

    fn sparse(&self) -> Option<&dyn Sparse> {
        let all = self.0.present().all(|member| member.device.device().sparse().is_some());
        all.then_some(self)
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only
    }

    fn io_tier(&self) -> String {
        let tier = self.0.present().next().map(|member| member.device.device().io_tier());
        format!("mirror of {}, {}", self.0.slots.members(), tier.unwrap_or_default())
    }

    /// Recovers the current members.
    fn recover(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            for member in self.0.current() {
                member.device.device().recover().await?;
            }
            Ok(())
        })
    }

    /// Returns the best state of the current members: one of them serves the pool.
    fn link(&self) -> Option<DeviceLink> {
        let links = self.0.present().filter(|member| member.is_current());
        let links = links.filter_map(|member| member.device.device().link());
        links.min_by_key(|link| DeviceLink::ALL.iter().position(|other| other == link))
    }

    fn sync_counts(&self) -> Option<SyncCounts> {
        let mut all = self.0.present().filter_map(|member| member.device.device().sync_counts());
        let mut sum = all.next()?;
        for more in all {
            sum.durations.add(&more.durations);
            sum.requests += more.requests;
            sum.failures += more.failures;
        }
        let mut current = self.0.present().filter(|member| member.is_current());
        sum.poisoned = current.all(|member| {
            member.device.device().sync_counts().is_some_and(|counts| counts.poisoned)
        });
        Some(sum)
    }
}
