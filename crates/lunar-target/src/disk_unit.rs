//! A disk as a logical unit: combines a block device with its SCSI state.

mod as_unit;
mod cost;
mod fit;
mod relayed;

use crate::Error;
use crate::backing::{BackingFault, BackingHealth};
use crate::cache_losses::CacheLosses;
use crate::clear_limit::ClearLimit;
use crate::detached_writes::DetachedWrites;
use crate::log_budget::ErrorLines;
use crate::long_operation::LongOperations;
use crate::poison::Poison;
use crate::quota::{InitiatorLimit, Limit, UnitQuota};
use crate::ranges::{Fence, RangeLocks};
use crate::registration_room::CountedRegistrations;
use crate::save_queue::SaveQueue;
use crate::state_file::StateFile;
use crate::thin_space::{self, HeldWrites, OutOfSpace, SpaceLack};
use crate::unit::{Unit, UnitCommon};
use lunar_block::{BlockDevice, BufferPool};
use lunar_scsi::attention::Attention;
use lunar_scsi::reported_identity::ReportedIdentity;
use lunar_scsi::unit::{AtomicBlocks, BlockUnit, UnitOptions};
use lunar_scsi::vpd::COMPARE_AND_WRITE_BLOCKS_MAX;
use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

pub(crate) use cost::prefetch_bytes_max;
pub(crate) use relayed::RelayedPlan;

/// Default limit of one transfer.
pub(crate) const TRANSFER_BYTES_MAX: u32 = 8 << 20;

/// PRODUCT IDENTIFICATION of every block unit.
const PRODUCT: &str = "VIRTUAL-DISK";

/// Treatment of acknowledged writes by a unit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum CacheMode {
    /// GOOD means on stable storage.
    #[default]
    WriteThrough,
    /// GOOD means accepted; SYNCHRONIZE CACHE and FUA make it durable.
    WriteBack,
}

/// Parts and options of a unit.
#[derive(Debug)]
pub struct DiskUnitOptions {
    /// Identity, from which NAA, serial number and UUID designator are derived.
    pub uuid: uuid::Uuid,
    /// The identity of another unit that hosts see in place of the own one.
    pub reported_identity: Option<Arc<ReportedIdentity>>,
    /// The disk.
    pub device: Arc<dyn BlockDevice>,
    /// Cache mode, as advertised.
    pub cache: CacheMode,
    /// True when thin provisioning is advertised if the device is sparse.
    pub thin: bool,
    /// Percentage of used room, 1 to 99, at which initiators get a warning; a sparse file's room is
    /// that of its file system.
    pub thin_threshold_percent: Option<u8>,
    /// Handling of a write that finds no room.
    pub out_of_space: OutOfSpace,
    /// Rate limit of SANITIZE and FORMAT UNIT; `None`: as fast as possible.
    pub maintenance_bytes_per_second: Option<u64>,
    /// True when the unit is write protected.
    pub read_only: bool,
    /// True when the medium is removable.
    pub removable: bool,
    /// The longest transfer in bytes.
    pub transfer_bytes: u32,
    /// A directory of its own for reservations; `None`: they are lost with the process, and APTPL
    /// is refused.
    pub state: Option<PathBuf>,
    /// Source of the one buffer of its long operations.
    pub buffers: BufferPool,
}

impl DiskUnitOptions {
    /// Options of a fixed disk that writes through, thin if the device is sparse, whose
    /// reservations are lost with the process.
    pub fn new(uuid: uuid::Uuid, device: Arc<dyn BlockDevice>) -> Self {
        Self {
            uuid,
            reported_identity: None,
            device,
            cache: CacheMode::WriteThrough,
            thin: true,
            thin_threshold_percent: None,
            out_of_space: OutOfSpace::Fail,
            maintenance_bytes_per_second: None,
            read_only: false,
            removable: false,
            transfer_bytes: TRANSFER_BYTES_MAX,
            state: None,
            buffers: BufferPool::default(),
        }
    }
}

/// A disk that LUNs of one or more targets show.
#[derive(Debug)]
pub struct DiskUnit {
    options: DiskUnitOptions,
    /// Block length of the device's geometry, which never changes.
    block_bytes: u32,
    scsi: Mutex<BlockUnit>,
    /// Revision of the SCSI state, readable without the lock.
    revision: AtomicU64,
    /// Range locks of commands.
    pub(crate) ranges: Arc<RangeLocks>,
    /// Limit of one command at a time that deallocates or zeroes.
    pub(crate) clear_limit: ClearLimit,
    /// Fence around pieces of third-party copies that are being written here.
    pub(crate) copies: Fence,
    /// Aborted writes that are still pending in the system.
    pub(crate) detached_writes: DetachedWrites,
    held: Mutex<HeldWrites>,
    /// Number of held writes, readable without the lock.
    pub(crate) held_count: AtomicUsize,
    /// Notified when a write is no longer held.
    pub(crate) held_ended: Notify,
    /// Whether writes fail for lack of space.
    pub(crate) space_lack: Mutex<SpaceLack>,
    state: Option<Arc<tokio::sync::Mutex<StateFile>>>,
    save_queue: Mutex<SaveQueue>,
    later: Mutex<FlushLater>,
    /// Losses of acknowledged writes in the cache of the device.
    pub(crate) cache_losses: CacheLosses,
    pub(crate) long_operations: LongOperations,
    common: UnitCommon,
    /// Log lines about state that could not be saved.
    pub(crate) save_errors: ErrorLines,
    /// Log lines about operations and syncs that failed after their commands had ended.
    pub(crate) late_errors: ErrorLines,
    /// Count of its persistent registrations.
    pub(crate) registrations: Mutex<CountedRegistrations>,
    /// Held by the one caller that changes the size.
    pub(crate) resizing: tokio::sync::Mutex<()>,
    /// Number of recoveries after a failed sync; changes under the lock of the SCSI state.
    pub(crate) recoveries: AtomicU64,
    backing: Arc<BackingHealth>,
    /// Number of locks of its SCSI state.
    #[cfg(test)]
    times_locked: AtomicU64,
}

/// State of the background sync, which no command waits for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum FlushLater {
    #[default]
    Idle,
    Running,
    /// A sync runs, and another one is required: it may not cover writes made meanwhile.
    Again,
}

/// The locked SCSI state of a unit. A change is published when this is dropped, before the lock is
/// released.
#[derive(Debug)]
pub(crate) struct ScsiGuard<'a> {
    unit: MutexGuard<'a, BlockUnit>,
    published: &'a AtomicU64,
}

impl Deref for ScsiGuard<'_> {
    type Target = BlockUnit;

    fn deref(&self) -> &BlockUnit {
        &self.unit
    }
}

impl DerefMut for ScsiGuard<'_> {
    fn deref_mut(&mut self) -> &mut BlockUnit {
        &mut self.unit
    }
}

impl Drop for ScsiGuard<'_> {
    fn drop(&mut self) {
        let revision = self.unit.revision();
        // Changed only under the lock; mostly there is nothing to publish.
        if self.published.load(Ordering::Relaxed) != revision {
            self.published.store(revision, Ordering::SeqCst);
        }
    }
}

impl DiskUnit {
    /// Creates the unit, with the state that an earlier run left.
    ///
    /// # Errors
    /// That state cannot be read or understood, or there is a threshold of room but the room is not
    /// known.
    pub fn open(options: DiskUnitOptions) -> Result<Arc<Self>, Error> {
        let threshold = thin_space::threshold(&options)?;
        let mut scsi = BlockUnit::new(UnitOptions { threshold, ..unit_options(&options) });
        let state = options.state.clone().map(StateFile::new);
        if let Some(file) = &state {
            scsi.keep_state();
            if let Some(bytes) = file.load()? {
                scsi.restore(&bytes).map_err(|error| Error::State {
                    path: file.describe(),
                    what: format!("{error}; to discard its reservations, move the file away"),
                })?;
            }
        }
        options.device.set_buffers(&options.buffers);
        let unit = Arc::new(Self {
            block_bytes: options.device.geometry().block_bytes,
            backing: BackingHealth::of(options.device.as_ref()),
            options,
            revision: AtomicU64::new(scsi.revision()),
            scsi: Mutex::new(scsi),
            ranges: Arc::new(RangeLocks::of_unit()),
            clear_limit: ClearLimit::default(),
            copies: Fence::default(),
            detached_writes: DetachedWrites::default(),
            held: Mutex::default(),
            held_count: AtomicUsize::new(0),
            held_ended: Notify::new(),
            space_lack: Mutex::default(),
            state: state.map(|file| Arc::new(tokio::sync::Mutex::new(file))),
            save_queue: Mutex::default(),
            later: Mutex::default(),
            cache_losses: CacheLosses::default(),
            long_operations: LongOperations::default(),
            common: UnitCommon::default(),
            save_errors: ErrorLines::default(),
            late_errors: ErrorLines::default(),
            registrations: Mutex::default(),
            resizing: tokio::sync::Mutex::default(),
            recoveries: AtomicU64::new(0),
            #[cfg(test)]
            times_locked: AtomicU64::new(0),
        });
        Poison::watch(&unit, unit.options.state.as_deref())?;
        Ok(unit)
    }

    /// The disk that `unit` is, if it is one.
    pub fn of(unit: &Arc<dyn Unit>) -> Option<Arc<Self>> {
        let unit: Arc<dyn Any + Send + Sync> = Arc::<dyn Unit>::clone(unit);
        unit.downcast().ok()
    }

    /// Borrows the disk that `unit` is, if it is one.
    pub fn borrow(unit: &dyn Unit) -> Option<&Self> {
        let unit: &dyn Any = unit;
        unit.downcast_ref()
    }

    /// The options of the unit.
    pub fn options(&self) -> &DiskUnitOptions {
        &self.options
    }

    /// True when a sync of its disk has failed, so that it takes no writes.
    pub fn is_poisoned(&self) -> bool {
        self.device().sync_counts().is_some_and(|counts| counts.poisoned)
    }

    /// Poisons the disk, as if it had been poisoned in an earlier run: it takes no writes until it
    /// is recovered. This is also stored in the state directory, if there is one. Blocks.
    pub fn poison(&self) {
        self.device().poison();
    }

    /// Accepts writes again after a failed sync. Called by an operator, who accepts that writes
    /// since the last good sync may be lost. A truncated backing file gets its size back, filled
    /// with zeroes. Initiators get the unit attention that the medium may have changed (NOT READY
    /// TO READY CHANGE), so that they discard their caches; a flush requested before fails. On a
    /// unit that accepts writes this is a flush.
    ///
    /// # Errors
    /// The disk still cannot be synced, or its poison mark cannot be removed from the state
    /// directory: it stays poisoned.
    pub async fn recover(&self) -> Result<(), lunar_block::Error> {
        let device = self.device().name();
        let was_poisoned = self.is_poisoned();
        self.device().recover().await.inspect_err(|error| {
            tracing::error!(device, %error, "recovery failed: the disk still refuses writes");
        })?;
        if was_poisoned {
            tracing::warn!(
                device,
                "recovered by an operator: data that was not synced may be lost"
            );
        }
        if self.backing.was_truncated() {
            self.restore_size().await?;
        }
        Ok(())
    }

    /// Restores the size of a truncated backing file.
    async fn restore_size(&self) -> Result<(), lunar_block::Error> {
        let _alone = self.resizing.lock().await;
        let device = self.device();
        if let Some(resize) = device.resize().filter(|_| !self.is_read_only()) {
            resize.resize(device.geometry().size_bytes()).await?;
        }
        self.backing.recovered();
        self.scsi().raise(Attention::MEDIUM_MAY_HAVE_CHANGED.0, None);
        tracing::warn!(
            device = device.name(),
            "recovered by an operator: data beyond the end of the truncated file is lost"
        );
        Ok(())
    }

    /// Faults of the backing file, the worst first; checked every few seconds while a server serves
    /// the unit.
    pub fn backing_faults(&self) -> Vec<BackingFault> {
        self.backing.faults()
    }

    pub(crate) fn backing(&self) -> &Arc<BackingHealth> {
        &self.backing
    }

    /// Number of aborted writes that are still pending in the system: if there are any, the disk
    /// hangs.
    pub fn detached_write_count(&self) -> usize {
        self.detached_writes.count()
    }

    /// Number of writes that wait for room on the disk.
    pub fn held_writes(&self) -> usize {
        self.held().count()
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, HeldWrites> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Limit of all initiators together.
    pub fn limit(&self) -> Limit {
        self.common.limit()
    }

    /// Sets the limit of all initiators together, from now on; waiting commands are checked again.
    pub fn set_limit(&self, limit: Limit) {
        self.common.set_limit(limit);
    }

    /// Limits of each initiator at this unit.
    pub fn initiator_limits(&self) -> Vec<InitiatorLimit> {
        self.common.initiator_limits()
    }

    /// Sets the limits of each initiator at this unit, from now on.
    pub fn set_initiator_limits(&self, limits: Vec<InitiatorLimit>) {
        self.common.set_initiator_limits(limits);
    }

    pub(crate) fn quota(&self) -> &Arc<UnitQuota> {
        self.common.quota()
    }

    /// The disk.
    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.options.device
    }

    /// The length of a logical block.
    pub(crate) fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// True when nothing is ever written to the unit.
    pub fn is_read_only(&self) -> bool {
        self.options.read_only || self.options.device.is_read_only()
    }

    /// The SCSI state. Held for the time of one check, never across I/O.
    pub(crate) fn scsi(&self) -> ScsiGuard<'_> {
        #[cfg(test)]
        self.times_locked.fetch_add(1, Ordering::Relaxed);
        let unit = self.scsi.lock().unwrap_or_else(PoisonError::into_inner);
        ScsiGuard { unit, published: &self.revision }
    }

    #[cfg(test)]
    pub(crate) fn times_locked(&self) -> u64 {
        self.times_locked.load(Ordering::Relaxed)
    }

    /// The revision of the SCSI state: while it is the same, a command that was accepted may still
    /// run. See [`BlockUnit::revision`].
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::SeqCst)
    }

    /// Makes all earlier writes durable at some later time. Any number of requests runs only one
    /// sync at a time.
    pub(crate) fn flush_later(self: &Arc<Self>) {
        {
            let mut later = self.later();
            if *later != FlushLater::Idle {
                *later = FlushLater::Again;
                return;
            }
            *later = FlushLater::Running;
        }
        let unit = Arc::clone(self);
        lunar_net::spawn_local(async move {
            loop {
                if let Err(error) = unit.device().flush().await {
                    unit.late_errors.write(|suppressed| {
                        tracing::error!(
                            %error, suppressed, "a sync failed after its command had been \
                                             acknowledged (IMMED)"
                        );
                    });
                }
                let mut later = unit.later();
                if *later == FlushLater::Running {
                    *later = FlushLater::Idle;
                    return;
                }
                *later = FlushLater::Running;
            }
        });
    }

    fn later(&self) -> MutexGuard<'_, FlushLater> {
        self.later.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The commands that wait for a save.
    pub(crate) fn save_queue(&self) -> MutexGuard<'_, SaveQueue> {
        self.save_queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when a save runs now, even if no command waits for it any more.
    pub(crate) fn saves(&self) -> bool {
        self.save_queue().saves()
            || self.state.as_ref().is_some_and(|file| file.try_lock().is_err())
    }

    /// Saves the state durably. One save runs at a time, so that saves do not overtake each other
    /// and hanging ones take one thread. The SCSI state is not locked meanwhile: only the commands
    /// that request a save wait for it. A save that has begun continues if the future is dropped.
    pub(crate) async fn save_state(self: &Arc<Self>) -> Result<(), Error> {
        let Some(file) = &self.state else { return Ok(()) };
        let file = Arc::clone(file).lock_owned().await;
        let unit = Arc::clone(self);
        let saved = tokio::task::spawn_blocking(move || {
            let state = unit.scsi().persistent_state();
            file.save(&state)
        });
        saved.await.unwrap_or_else(|lost| Err(Error::Thread(std::io::Error::other(lost))))
    }
}

fn unit_options(options: &DiskUnitOptions) -> UnitOptions {
    let geometry = options.device.geometry();
    let block_bytes = geometry.block_bytes;
    let granularity = options.device.sparse().map(|sparse| sparse.granularity_bytes());
    UnitOptions {
        uuid: *options.uuid.as_bytes(),
        reported_identity: options.reported_identity.clone(),
        product: PRODUCT.to_owned(),
        block_bytes,
        block_count: geometry.block_count,
        physical_block_bytes: geometry.physical_block_bytes,
        transfer_blocks_max: options.transfer_bytes / block_bytes,
        compare_and_write_blocks_max: options
            .device
            .compare_and_write()
            .map_or(COMPARE_AND_WRITE_BLOCKS_MAX, |device| device.blocks_max()),
        optimal_transfer_blocks: geometry.optimal_transfer_bytes.min(options.transfer_bytes)
            / block_bytes,
        unmap_granularity_blocks: granularity
            .filter(|_| options.thin)
            .map(|bytes| (bytes / block_bytes).max(1)),
        threshold: None,
        atomic: atomic_blocks(options),
        read_only: options.read_only || options.device.is_read_only(),
        removable: options.removable,
        write_back: options.cache == CacheMode::WriteBack,
    }
}

/// Limits of atomic writes of the device, as far as transfers may be that long.
fn atomic_blocks(options: &DiskUnitOptions) -> Option<AtomicBlocks> {
    let limits = options.device.atomic()?.limits();
    let block_bytes = options.device.geometry().block_bytes;
    let longest = limits.bytes_max.min(options.transfer_bytes);
    let units = longest.checked_div(limits.unit_bytes).filter(|units| *units > 0)?;
    let unit_blocks = (limits.unit_bytes / block_bytes).max(1);
    Some(AtomicBlocks { unit_blocks, blocks_max: units * unit_blocks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abort::AbortSignal;
    use crate::plan_result::PlanResult;
    use crate::registration_room::RegistrationRoom;
    use crate::save_queue::UnsavedChange;
    use lunar_block::MemoryDevice;
    use lunar_scsi::plan::{NexusId, Plan, Refusal};
    use lunar_scsi::unit::{Context, InitiatorPort, TargetPort};
    use std::time::Duration;

    /// Longer than any wait here should take, even on a busy machine.
    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    fn open(state: Option<PathBuf>) -> Arc<DiskUnit> {
        DiskUnit::open(DiskUnitOptions { state, ..seven() }).unwrap()
    }

    fn seven() -> DiskUnitOptions {
        let device = Arc::new(MemoryDevice::new(1 << 20, 512, 4096).unwrap());
        DiskUnitOptions::new(uuid::Uuid::from_u128(7), device)
    }

    /// Checks PERSISTENT RESERVE OUT REGISTER of initiator `number`, which may be attached already;
    /// its future is not polled.
    fn register_as(
        unit: &Arc<DiskUnit>,
        number: u8,
        key: u8,
        new_key: u8,
    ) -> (Result<Plan, Refusal>, Option<UnsavedChange>) {
        reserve_out(unit, &RegistrationRoom::unlimited(), number, REGISTER, [key, new_key])
    }

    const REGISTER: u8 = 0;
    const REGISTER_IGNORING: u8 = 6;

    fn memory_for_registrations() -> RegistrationRoom {
        RegistrationRoom::new(&BufferPool::with_budget(&lunar_block::MemoryBudget::new(1 << 20)))
    }

    /// Checks any service action that takes two keys.
    fn reserve_out(
        unit: &Arc<DiskUnit>,
        room: &RegistrationRoom,
        number: u8,
        action: u8,
        [key, new_key]: [u8; 2],
    ) -> (Result<Plan, Refusal>, Option<UnsavedChange>) {
        let port = TargetPort { name: "iqn.t".into(), portal_group_tag: 1, relative_id: 1 };
        let context = Context::new(&[], &port);
        let initiator = InitiatorPort { name: format!("iqn.i{number:03}"), isid: [0; 6] };
        let nexus = NexusId(number.into());
        unit.scsi().attach(nexus, initiator, port.clone());
        let kind = u8::from(matches!(action, 1 | 2)); // WRITE EXCLUSIVE
        let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
        let awaiting = loop {
            // The first answer is the unit attention of a new nexus.
            match unit.scsi().plan(nexus, &context, &cdb) {
                Ok(Plan::Parameters { awaiting, .. }) => break awaiting,
                Ok(other) => panic!("{other:?}"),
                Err(_) => {}
            }
        };
        let mut list = [0; 24];
        (list[7], list[15], list[20]) = (key, new_key, u8::from(action == REGISTER));
        unit.change_reservations(room, None, |scsi| scsi.resume(nexus, &context, awaiting, &list))
    }

    /// Registers a nexus that is not registered, which has to be saved.
    fn register(unit: &Arc<DiskUnit>, number: u8) -> UnsavedChange {
        let (plan, change) = register_as(unit, number, 0, number);
        assert_eq!(plan, Ok(Plan::SaveState));
        change.unwrap()
    }

    /// Waits for the end of the commands; returns true if all were GOOD.
    async fn are_good(changes: impl IntoIterator<Item = UnsavedChange>) -> bool {
        let mut all = true;
        for change in changes {
            let abort = AbortSignal::default();
            let saved = change.saved(&abort);
            let ending = tokio::time::timeout(TEST_TIMEOUT, saved).await.expect("it is not saved");
            all &= matches!(ending, PlanResult::Good(_));
        }
        all
    }

    /// Waits until the saving task has taken all changes.
    async fn are_taken_up(unit: &DiskUnit) {
        let taken_up = async {
            while unit.save_queue().waiting() > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, taken_up).await.expect("a save leaves changes behind");
    }

    /// Blocks saves while the returned guard lives.
    async fn hold_saves(unit: &DiskUnit) -> tokio::sync::OwnedMutexGuard<StateFile> {
        Arc::clone(unit.state.as_ref().unwrap()).lock_owned().await
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    fn directory(test: &str) -> PathBuf {
        std::env::temp_dir().join(format!("lunar-{test}-{}", std::process::id()))
    }

    /// The last byte of each registered key.
    fn keys(unit: &Arc<DiskUnit>) -> Vec<u8> {
        let port = TargetPort { name: "iqn.t".into(), portal_group_tag: 1, relative_id: 1 };
        let context = Context::new(&[], &port);
        let initiator = InitiatorPort { name: "iqn.other".into(), isid: [1; 6] };
        let mut scsi = unit.scsi();
        scsi.attach(NexusId(9), initiator, port.clone());
        loop {
            let cdb = [0x5e, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0];
            if let Ok(Plan::Reply(reply)) = scsi.plan(NexusId(9), &context, &cdb) {
                return reply[8..].chunks(8).map(|key| key[7]).collect();
            }
        }
    }

    /// Goal: a registration with APTPL exists again when the unit is opened anew; without a state
    /// directory, APTPL is refused.
    #[test]
    fn registrations_with_aptpl_survive() {
        let directory = directory("state");
        let unit = open(Some(directory.clone()));
        runtime().block_on(async { assert!(are_good([register(&unit, 0xab)]).await) });
        drop(unit);
        assert_eq!(keys(&open(Some(directory.clone()))), [0xab]);
        std::fs::write(directory.join("scsi-state"), b"not ours").unwrap();
        let failed = DiskUnit::open(DiskUnitOptions { state: Some(directory.clone()), ..seven() });
        assert!(failed.unwrap_err().to_string().contains("move the file away"));
        std::fs::remove_dir_all(&directory).unwrap();
        assert!(matches!(register_as(&open(None), 1, 0, 1), (Err(Refusal::Check(_)), None)));
    }

    /// Fault: each change of the reservations was a save of its own, and owners took turns: while
    /// 64 addresses kept REGISTERs in progress, that of another host waited for 64 saves, 8.5 s.
    #[test]
    fn changes_during_a_save_share_the_next_one() {
        let directory = directory("group");
        let unit = open(Some(directory.clone()));
        runtime().block_on(async {
            let held = hold_saves(&unit).await;
            let first = register(&unit, 200);
            are_taken_up(&unit).await;
            let others: Vec<_> = (1..=64).map(|owner| register(&unit, owner)).collect();
            drop(held);
            let after_one = hold_saves(&unit).await;
            are_taken_up(&unit).await;
            drop(after_one);
            let _after_two = hold_saves(&unit).await;
            assert!(are_good([first]).await && are_good(others).await);
        });
        let saved = open(Some(directory.clone()));
        assert_eq!(keys(&saved), (1..=64).chain([200]).collect::<Vec<_>>());
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// Fault: a change was made and saved in the turn of its command, which continues only as far
    /// as its owner has time on its core: with 3,000 sessions of one address that was seldom, and
    /// other hosts had 2 changes a second.
    #[test]
    fn a_change_waits_for_no_command_that_is_not_polled() {
        let directory = directory("unpolled");
        let unit = open(Some(directory.clone()));
        runtime().block_on(async {
            let unpolled = register(&unit, 1);
            assert!(are_good([register(&unit, 2)]).await);
            assert_eq!(keys(&open(Some(directory.clone()))), [1, 2]);
            assert!(are_good([unpolled]).await);
        });
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// Goal: when a save fails, the changes that it carried are rolled back, and those that came
    /// meanwhile; none of them was answered with GOOD, and the state saved before stays.
    #[test]
    fn changes_of_a_failed_save_are_reverted_together() {
        let (directory, aside) = (directory("undo"), directory("undo-aside"));
        let unit = open(Some(directory.clone()));
        runtime().block_on(async {
            assert!(are_good([register(&unit, 1)]).await);
            std::fs::rename(&directory, &aside).unwrap();
            std::fs::write(&directory, b"no directory").unwrap();
            let held = hold_saves(&unit).await;
            let mut changes = vec![register(&unit, 2), register(&unit, 3)];
            are_taken_up(&unit).await;
            // A command that changes nothing also depends on unsaved changes.
            let (_, again) = register_as(&unit, 2, 2, 2);
            changes.extend([register(&unit, 4), again.unwrap()]);
            assert_eq!(keys(&unit), [1, 2, 3, 4]);
            let port = TargetPort { name: "iqn.t".into(), portal_group_tag: 1, relative_id: 1 };
            let context = Context::new(&[], &port);
            let reserve_6 = || unit.scsi().plan(NexusId(1), &context, &[0x16, 0, 0, 0, 0, 0]);
            assert_eq!(reserve_6(), Err(Refusal::Busy));
            drop(held);
            for change in changes {
                assert!(!are_good([change]).await);
            }
            assert_eq!(keys(&unit), [1]);
            assert_eq!(reserve_6(), Err(Refusal::ReservationConflict));
            std::fs::remove_file(&directory).unwrap();
            std::fs::rename(&aside, &directory).unwrap();
            assert!(are_good([register(&unit, 5)]).await);
            let (plan, change) = register_as(&unit, 5, 5, 5);
            assert!(plan == Ok(Plan::Reply(Vec::new())) && change.is_none(), "all is saved");
        });
        assert_eq!(keys(&open(Some(directory.clone()))), [1, 5]);
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// Fault: RESERVE and RELEASE counted all registrations of the unit anew, 30 us of hashing
    /// under its lock with 1,024 registrations.
    #[test]
    fn reserve_and_release_count_no_registrations() {
        const RESERVE: u8 = 1;
        const RELEASE: u8 = 2;
        let (unit, room) = (open(None), memory_for_registrations());
        let walks = || unit.counted_registrations().walks();
        let out = |action, keys| {
            let (plan, _) = reserve_out(&unit, &room, 1, action, keys);
            assert_eq!(plan, Ok(Plan::Reply(Vec::new())), "{action}");
        };
        let before = room.registrations_left_for(None);
        out(REGISTER_IGNORING, [0, 1]);
        assert_eq!((walks(), room.registrations_left_for(None)), (1, before - 1));
        for _ in 0..10 {
            out(RESERVE, [1, 0]);
            out(RELEASE, [1, 0]);
        }
        assert_eq!(walks(), 1);
        out(REGISTER_IGNORING, [0, 0]);
        assert_eq!((walks(), room.registrations_left_for(None)), (2, before));
        // Another server serves the unit.
        let other = memory_for_registrations();
        out(REGISTER_IGNORING, [0, 1]);
        unit.count_registrations(&unit.scsi(), &other);
        assert_eq!(
            (room.registrations_left_for(None), other.registrations_left_for(None)),
            (before, before - 1)
        );
    }

    /// Fault: registrations whose save failed were rolled back, but still counted until the next
    /// change, for which there might be no room.
    #[test]
    fn reverted_registrations_are_not_counted() {
        let (directory, room) = (directory("uncounted"), memory_for_registrations());
        let unit = open(Some(directory.clone()));
        let register = |number| {
            let (plan, change) = reserve_out(&unit, &room, number, REGISTER, [0, number]);
            assert_eq!(plan, Ok(Plan::SaveState));
            change.unwrap()
        };
        runtime().block_on(async {
            assert!(are_good([register(1)]).await);
            let before = room.registrations_left_for(None);
            std::fs::remove_dir_all(&directory).unwrap();
            std::fs::write(&directory, b"no directory").unwrap();
            assert!(!are_good([register(2)]).await);
            assert_eq!(room.registrations_left_for(None), before);
            // PRGENERATION has the same value now as with the registration that was rolled back.
            std::fs::remove_file(&directory).unwrap();
            assert!(are_good([register(3)]).await);
            assert_eq!(room.registrations_left_for(None), before - 1);
        });
        std::fs::remove_dir_all(directory).unwrap();
    }

    /// Goal: commands that are aborted while a save hangs do not accumulate.
    #[test]
    fn aborted_changes_leave_nothing_in_the_queue() {
        let directory = directory("aborted");
        let unit = open(Some(directory.clone()));
        runtime().block_on(async {
            let held = hold_saves(&unit).await;
            let first = register(&unit, 1);
            for _ in 0..1000 {
                let (_, aborted) = register_as(&unit, 1, 1, 1);
                drop(aborted.unwrap());
            }
            assert!(unit.save_queue().waiting() < 10);
            drop(held);
            assert!(are_good([first]).await);
        });
        std::fs::remove_dir_all(directory).unwrap();
    }
}
