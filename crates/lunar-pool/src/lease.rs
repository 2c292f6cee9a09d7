//! The lease of a device whose target has no persistent reservations (decision 111): a block that
//! its owner replaces by COMPARE AND WRITE.

use crate::PoolError;
use crate::fenced_device::DeviceLimits;
use crate::format::{
    FoundLease, LEASE_BYTES, LEASE_TIME_MAX, LeaseBlock, LeasePhase, MemberLayout,
};
use bytes::Bytes;
use lunar_block::{
    BlockDevice, BlockRange, BufferPool, Error, ErrorKind, OwnershipFence, WriteLease,
};
use std::num::NonZeroU64;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// Length of a lease, if none is given.
pub(crate) const LEASE_TIME: Duration = Duration::from_secs(60);
/// Number of renewals in the time of a lease.
const RENEWALS: u32 = 3;
/// Number of looks at the lease of another owner between two of its renewals, and of attempts of a
/// renewal that fails.
const LOOKS: u32 = 4;
/// Maximum number of attempts to change a block that changes meanwhile.
pub(crate) const ATTEMPTS_MAX: u32 = 8;
/// Bits of a key that name the owner.
const OWNER_BITS: u64 = 0xffff_ffff_0000_0000;

/// The owner of leases.
#[derive(Clone, Debug)]
pub(crate) struct LeaseOwner {
    /// Key of this acquisition.
    pub(crate) key: NonZeroU64,
    pub(crate) name: String,
    pub(crate) time: Duration,
}

impl LeaseOwner {
    /// Creates an owner from its key, of which the upper half names it, and a random number for
    /// this acquisition.
    pub(crate) fn new(key: NonZeroU64, random: u64, name: &str, time: Option<Duration>) -> Self {
        let key = key.get() & OWNER_BITS | random & !OWNER_BITS;
        let key = NonZeroU64::new(key).unwrap_or(NonZeroU64::MIN);
        let time = time.unwrap_or(LEASE_TIME).clamp(Duration::from_millis(1), LEASE_TIME_MAX);
        Self { key, name: name.to_owned(), time }
    }

    fn is_same(&self, lease: &LeaseBlock) -> bool {
        self.key.get() & OWNER_BITS == lease.key.get() & OWNER_BITS
    }
}

/// A device, and the block with its lease.
#[derive(Clone, Debug)]
struct LeasedDevice {
    device: Arc<dyn BlockDevice>,
    range: BlockRange,
}

/// The content of a lease block, and its meaning.
#[derive(Clone, Debug)]
struct LeaseContent {
    bytes: Bytes,
    found: FoundLease,
}

/// A lease block of another owner, when it was first seen.
#[derive(Debug)]
pub(crate) struct LeaseSighting {
    device: Weak<dyn BlockDevice>,
    bytes: Bytes,
    since: Instant,
}

/// A lease block that may be replaced.
#[derive(Debug)]
pub(crate) struct FreeLease {
    on: LeasedDevice,
    content: LeaseContent,
    /// Time for which its owner may still write; `None` if nobody may.
    wait: Option<Duration>,
}

/// A lease that was acquired, and is renewed until it is released or lost.
#[derive(Debug)]
pub(crate) struct MemberLease {
    on: LeasedDevice,
    owner: LeaseOwner,
    content: tokio::sync::Mutex<LeaseContent>,
    valid: Arc<WriteLease>,
    fence: Arc<OwnershipFence>,
    /// The end of the time for which the former owner may write.
    usable_from: Instant,
    renewal: std::sync::Mutex<Option<JoinHandle<()>>>,
}

impl LeasedDevice {
    /// Returns `None` for a device without COMPARE AND WRITE, or without room for a lease.
    fn new(device: &Arc<dyn BlockDevice>) -> Option<Self> {
        let geometry = device.geometry();
        let (block_bytes, block_count) = (geometry.block_bytes, geometry.block_count);
        let layout = MemberLayout { block_bytes, block_count };
        let is_possible = layout.data_blocks_max() > 0 && device.compare_and_write().is_some();
        let range = BlockRange::new(layout.lease(), 1);
        is_possible.then(|| Self { device: Arc::clone(device), range })
    }

    fn block_bytes(&self) -> usize {
        self.device.geometry().block_bytes as usize
    }

    async fn read(&self) -> Result<LeaseContent, Error> {
        let buffer = BufferPool::default().take(self.block_bytes());
        let buffer = self.device.read(self.range, buffer).await?;
        Ok(LeaseContent::of(Bytes::copy_from_slice(&buffer)))
    }

    /// Replaces the block, durably: a restart of the target must not bring an older lease back.
    /// Returns the new content; `None` if the block had another content than `old`.
    async fn replace(
        &self,
        old: &LeaseContent,
        new: Option<&LeaseBlock>,
    ) -> Result<Option<LeaseContent>, Error> {
        let mut bytes = vec![0; self.block_bytes()];
        if let Some(new) = new {
            bytes[..LEASE_BYTES].copy_from_slice(&new.encode());
        }
        let Some(compares) = self.device.compare_and_write() else {
            let what = "its target does not support COMPARE AND WRITE any more";
            return Err(Error::new(ErrorKind::Medium, self.device.name(), what));
        };
        let both = Bytes::from([&old.bytes[..], &bytes].concat());
        let difference = compares.compare_and_write(self.range, both, true).await?;
        Ok(difference.is_none().then(|| LeaseContent::of(bytes.into())))
    }
}

impl LeaseContent {
    fn of(bytes: Bytes) -> Self {
        let found = bytes.first_chunk().map_or(FoundLease::None, LeaseBlock::decode);
        Self { bytes, found }
    }

    fn is_of(&self, owner: &LeaseOwner) -> bool {
        matches!(&self.found, FoundLease::Valid(lease) if lease.key == owner.key)
    }

    fn next_sequence(&self) -> u64 {
        match &self.found {
            FoundLease::Valid(lease) => lease.sequence.wrapping_add(1),
            _ => 1,
        }
    }

    /// Returns the name of the owner and the length of the lease; a lease that cannot be read may
    /// have any length.
    fn owner(&self) -> (String, Duration) {
        match &self.found {
            FoundLease::Valid(lease) if lease.owner.is_empty() => {
                (format!("the holder of lease key {:#x}", lease.key), lease.time)
            }
            FoundLease::Valid(lease) => (lease.owner.clone(), lease.time),
            _ => ("an owner whose lease cannot be read".to_owned(), LEASE_TIME_MAX),
        }
    }
}

/// Returns the lease of a device when nobody renews it; `None` for a device without COMPARE AND
/// WRITE. Waits until another owner renews its lease, or has not done so for the length of the
/// lease; not for a lease of the same owner, and not with `take_over`. `seen` is the lease as an
/// earlier call has seen it.
///
/// # Errors
/// `OwnedElsewhere` · `Device`.
pub(crate) async fn find_free(
    device: &Arc<dyn BlockDevice>,
    owner: &LeaseOwner,
    take_over: bool,
    seen: &std::sync::Mutex<Vec<LeaseSighting>>,
) -> Result<Option<FreeLease>, PoolError> {
    let Some(on) = LeasedDevice::new(device) else { return Ok(None) };
    loop {
        let asked = Instant::now();
        let content = on.read().await?;
        let wait = match &content.found {
            FoundLease::None => None,
            FoundLease::Valid(lease) if owner.is_same(lease) => {
                (lease.phase == LeasePhase::Waiting).then_some(lease.time)
            }
            _ if take_over => Some(content.owner().1),
            _ => {
                let (owner, time) = content.owner();
                let Some(since) = record_sighting(seen, device, &content.bytes) else {
                    return Err(PoolError::OwnedElsewhere {
                        device: device.name().to_owned(),
                        owner,
                    });
                };
                let unchanged = asked.saturating_duration_since(since);
                if unchanged < time {
                    sleep((time - unchanged).min(time / RENEWALS / LOOKS)).await;
                    continue;
                }
                tracing::warn!("{}: {owner} has not renewed its lease, which ends", device.name());
                None
            }
        };
        return Ok(Some(FreeLease { on, content, wait }));
    }
}

/// Records a lease of another owner. Returns the time since when it is unchanged; `None` if its
/// owner has renewed it.
fn record_sighting(
    seen: &std::sync::Mutex<Vec<LeaseSighting>>,
    device: &Arc<dyn BlockDevice>,
    bytes: &Bytes,
) -> Option<Instant> {
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let (bytes, since) = (bytes.clone(), Instant::now());
    seen.retain(|one| one.device.strong_count() > 0);
    let is_of = |one: &&mut LeaseSighting| is_same_device(&one.device, device);
    let Some(former) = seen.iter_mut().find(is_of) else {
        seen.push(LeaseSighting { device: Arc::downgrade(device), bytes, since });
        return Some(since);
    };
    if former.bytes == bytes {
        return Some(former.since);
    }
    (former.bytes, former.since) = (bytes, since);
    None
}

pub(crate) fn is_same_device(one: &Weak<dyn BlockDevice>, other: &Arc<dyn BlockDevice>) -> bool {
    std::ptr::addr_eq(one.as_ptr(), Arc::as_ptr(other))
}

impl FreeLease {
    /// Acquires the lease and renews it from then on. Returns `None` if another host has changed
    /// the block meanwhile.
    ///
    /// # Errors
    /// The device failed: it is not known whether the lease was acquired.
    pub(crate) async fn acquire(
        self,
        owner: &LeaseOwner,
        DeviceLimits { fence, lease: valid }: DeviceLimits,
    ) -> Result<Option<Arc<MemberLease>>, Error> {
        let Self { on, content, wait } = self;
        let (sequence, phase) = match wait {
            None => (content.next_sequence(), LeasePhase::InUse),
            Some(_) => (content.next_sequence(), LeasePhase::Waiting),
        };
        let first = LeaseBlock {
            key: owner.key,
            sequence,
            time: wait.map_or(owner.time, |wait| wait.max(owner.time)),
            phase,
            owner: owner.name.clone(),
        };
        let sent = Instant::now();
        let replaced = on.replace(&content, Some(&first)).await?;
        let Some(content) = replaced else { return Ok(None) };
        let usable_from = Instant::now() + wait.unwrap_or_default();
        valid.set_until(write_end(sent, owner.time));
        if let Some(ownership) = on.device.ownership() {
            ownership.set_lease(Some(Arc::clone(&valid)));
        }
        let lease = Arc::new(MemberLease {
            on,
            owner: owner.clone(),
            content: tokio::sync::Mutex::new(content),
            valid,
            fence,
            usable_from,
            renewal: std::sync::Mutex::default(),
        });
        let renewal = tokio::spawn(keep(Arc::downgrade(&lease), sent, owner.time / RENEWALS));
        *lease.renewal.lock().unwrap_or_else(PoisonError::into_inner) = Some(renewal);
        Ok(Some(lease))
    }
}

/// Returns the time until which an owner writes that has sent a renewal at `sent`.
fn write_end(sent: Instant, time: Duration) -> Instant {
    sent + time * (RENEWALS - 1) / RENEWALS
}

/// Renews a lease until it is lost, or its pool is dropped.
async fn keep(lease: Weak<MemberLease>, acquired: Instant, interval: Duration) {
    let mut due = acquired + interval;
    let mut is_failing = false;
    loop {
        sleep_until(due).await;
        let Some(lease) = lease.upgrade() else { return };
        let sent = Instant::now();
        match lease.renew(None).await {
            Ok(true) => (due, is_failing) = (sent + interval, false),
            Ok(false) => return,
            Err(error) => {
                if !is_failing {
                    tracing::warn!("{}: its lease is not renewed: {error}", lease.name());
                }
                is_failing = true;
                due = Instant::now() + interval / LOOKS;
            }
        }
    }
}

impl MemberLease {
    fn name(&self) -> &str {
        self.on.device.name()
    }

    /// Waits until the former owner cannot write any more.
    ///
    /// # Errors
    /// The device failed, or another owner has taken it over meanwhile.
    pub(crate) async fn begin_use(&self) -> Result<(), Error> {
        sleep_until(self.usable_from).await;
        if self.is_waiting().await && !self.renew(Some(LeasePhase::InUse)).await? {
            return Err(crate::fenced_device::fenced(self.name()));
        }
        Ok(())
    }

    async fn is_waiting(&self) -> bool {
        let content = self.content.lock().await;
        matches!(&content.found, FoundLease::Valid(lease) if lease.phase == LeasePhase::Waiting)
    }

    /// Renews the lease, in another phase if one is given. Returns false if another owner has it.
    async fn renew(&self, phase: Option<LeasePhase>) -> Result<bool, Error> {
        let mut content = self.content.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            let FoundLease::Valid(lease) = &content.found else { break };
            let mut next = LeaseBlock { sequence: content.next_sequence(), ..lease.clone() };
            if let Some(phase) = phase {
                (next.phase, next.time) = (phase, self.owner.time);
            }
            let sent = Instant::now();
            if let Some(renewed) = self.on.replace(&content, Some(&next)).await? {
                *content = renewed;
                self.valid.set_until(write_end(sent, self.owner.time));
                return Ok(true);
            }
            // An earlier renewal of unknown outcome may have taken effect.
            let now = self.on.read().await?;
            if !now.is_of(&self.owner) {
                break;
            }
            *content = now;
        }
        self.valid.end();
        self.fence.set_lost();
        tracing::error!("{}: another owner has taken its lease over", self.name());
        Ok(false)
    }

    /// Ends the renewal. If `is_quiet`, no command that writes is in flight, and the block is
    /// cleared: another owner need not wait. Otherwise, and while the former owner may write, the
    /// lease ends by itself.
    ///
    /// # Errors
    /// The device failed; the lease ends by itself then.
    pub(crate) async fn release(&self, is_quiet: bool) -> Result<(), Error> {
        let renewal = self.renewal.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(renewal) = renewal {
            renewal.abort();
            let _ = renewal.await;
        }
        let cleared = match is_quiet && !self.fence.is_lost() && !self.is_waiting().await {
            true => self.clear().await,
            false => Ok(()),
        };
        self.valid.end();
        // A write that was not sent yet must not be sent later.
        if let Some(ownership) = self.on.device.ownership().filter(|_| is_quiet) {
            ownership.set_lease(None);
        }
        cleared
    }

    async fn clear(&self) -> Result<(), Error> {
        self.valid.end();
        let mut content = self.content.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            if self.on.replace(&content, None).await?.is_some() {
                break;
            }
            let now = self.on.read().await?;
            if !now.is_of(&self.owner) {
                break;
            }
            *content = now;
        }
        Ok(())
    }
}

impl Drop for MemberLease {
    fn drop(&mut self) {
        self.valid.end();
    }
}
