//! The ownership of the members of a pool: one host at a time has a pool open.

use crate::assembly::{Assembly, FoundMember};
use crate::create::random_id;
use crate::fenced_device::PoolFence;
use crate::format::{Label, MemberSet, PoolKind};
use crate::lease::{self, FreeLease, LeaseOwner, LeaseSighting, MemberLease};
use crate::{OpenOptions, PoolError};
use futures_util::future::try_join_all;
use lunar_block::{BlockDevice, BufferPool, Error, ErrorKind, OwnershipClaim, OwnershipGrant};
use std::num::NonZeroU64;
use std::sync::Arc;
use tokio::sync::Mutex;

/// The ownership of the members of an open pool. Members that other hosts cannot reach, or that
/// cannot exclude them, have none.
#[derive(Debug)]
pub(crate) struct PoolOwnership {
    key: NonZeroU64,
    take_over: bool,
    lease_owner: LeaseOwner,
    fence: PoolFence,
    /// True for a pool that acquires nothing.
    is_unowned: bool,
    acquired: Mutex<Vec<AcquiredDevice>>,
    /// Leases of other owners.
    seen: std::sync::Mutex<Vec<LeaseSighting>>,
}

/// A device that other hosts can reach.
#[derive(Debug)]
struct AcquiredDevice {
    device: Arc<dyn BlockDevice>,
    /// The lease of a device without reservations.
    lease: Option<Arc<MemberLease>>,
}

impl PoolOwnership {
    /// Creates the ownership of a pool by the key of `options`, or by a random one. Nothing is
    /// acquired yet.
    pub(crate) fn new(pool: &str, options: &OpenOptions) -> Result<Self, PoolError> {
        let random = || {
            let random = random_id().map_err(|error| {
                let what = "there are no random numbers";
                Error::new(ErrorKind::Open, pool, what).because(error)
            });
            random.map(|key| NonZeroU64::new(key).unwrap_or(NonZeroU64::MIN))
        };
        let key = options.owner_key.map_or_else(random, Ok)?;
        let OpenOptions { take_over, is_unowned, lease_time, .. } = *options;
        let lease_owner = LeaseOwner::new(key, random()?.get(), &options.owner_name, lease_time);
        let fence = PoolFence::default();
        let (acquired, seen) = (Mutex::default(), std::sync::Mutex::default());
        Ok(Self { key, take_over, lease_owner, fence, is_unowned, acquired, seen })
    }

    pub(crate) fn fence(&self) -> &PoolFence {
        &self.fence
    }

    /// Acquires a device, if it offers this. Returns true if it was not owned by the pool before.
    ///
    /// # Errors
    /// `OwnedElsewhere` · `Device`.
    pub(crate) async fn acquire(&self, device: &Arc<dyn BlockDevice>) -> Result<bool, PoolError> {
        self.acquire_all(std::slice::from_ref(device)).await
    }

    async fn acquire_all(&self, devices: &[Arc<dyn BlockDevice>]) -> Result<bool, PoolError> {
        let mut acquired = self.acquired.lock().await;
        let before = acquired.len();
        let mut without_reservations = Vec::new();
        for device in devices {
            if acquired.iter().any(|one| Arc::ptr_eq(&one.device, device)) {
                continue;
            }
            let Some(ownership) = device.ownership().filter(|_| !self.is_unowned) else { continue };
            let fence = Arc::clone(&self.fence.limits_of(device).fence);
            let claim = OwnershipClaim { key: self.key, take_over: self.take_over, fence };
            match ownership.acquire(claim).await? {
                OwnershipGrant::Acquired => {
                    acquired.push(AcquiredDevice { device: Arc::clone(device), lease: None });
                }
                OwnershipGrant::OwnedBy(owner) => {
                    let device = device.name().to_owned();
                    return Err(PoolError::OwnedElsewhere { device, owner });
                }
                OwnershipGrant::Unsupported => without_reservations.push(device),
            }
        }
        self.lease_all(&mut acquired, without_reservations).await?;
        let has_lease = |one: &&AcquiredDevice| devices.iter().any(|d| Arc::ptr_eq(d, &one.device));
        let leases = acquired.iter().filter(has_lease).filter_map(|one| one.lease.as_ref());
        // Also those of an earlier call that was dropped while it waited.
        try_join_all(leases.map(|lease| lease.begin_use())).await?;
        Ok(acquired.len() > before)
    }

    /// Acquires the leases of devices without reservations. Those of other owners are waited for at
    /// the same time.
    async fn lease_all(
        &self,
        acquired: &mut Vec<AcquiredDevice>,
        devices: Vec<&Arc<dyn BlockDevice>>,
    ) -> Result<(), PoolError> {
        let find =
            |device| async move { Ok::<_, PoolError>((device, self.find_free(device).await?)) };
        for (device, mut free) in try_join_all(devices.into_iter().map(find)).await? {
            let mut attempts = 0;
            let lease = loop {
                let Some(found) = free else {
                    tracing::warn!(
                        "{}: its target has neither persistent reservations nor COMPARE AND WRITE: \
                         nothing prevents other hosts from writing to it",
                        device.name()
                    );
                    break None;
                };
                let limits = self.fence.limits_of(device);
                if let Some(lease) = found.acquire(&self.lease_owner, limits).await? {
                    break Some(lease);
                }
                attempts += 1;
                if attempts == lease::ATTEMPTS_MAX {
                    let what = "other hosts change its lease endlessly; try again later";
                    return Err(Error::new(ErrorKind::Medium, device.name(), what).into());
                }
                free = self.find_free(device).await?;
            };
            acquired.push(AcquiredDevice { device: Arc::clone(device), lease });
        }
        Ok(())
    }

    async fn find_free(
        &self,
        device: &Arc<dyn BlockDevice>,
    ) -> Result<Option<FreeLease>, PoolError> {
        lease::find_free(device, &self.lease_owner, self.take_over, &self.seen).await
    }

    /// Finds the members of a pool and acquires them, unless the pool is read-only. A former owner
    /// may have written labels until its members were acquired, so they are read again then.
    ///
    /// A member that the pool can do without and that cannot be acquired is left out.
    pub(crate) async fn find(
        &self,
        mut members: Vec<Arc<dyn BlockDevice>>,
        options: &OpenOptions,
    ) -> Result<Assembly, PoolError> {
        let (buffers, mut spares) = (BufferPool::default(), options.spares.clone());
        let mut left_out = Vec::<LeftOutMember>::new();
        loop {
            let (members_now, spares_now) = (members.clone(), spares.clone());
            let (recorded, wait) = (options.recorded.as_ref(), options.mirror.member_wait);
            let found = Assembly::find(members_now, spares_now, recorded, (wait, &buffers));
            let mut found = found.await?;
            if let Some(at) = left_out.iter().position(|one| one.is_needed_by(&found.newest)) {
                return Err(left_out.swap_remove(at).error);
            }
            check_complete(&found, options)?;
            let (needed, others) = self.by_need(&found);
            let mut is_changed = false;
            if !found.present().any(|member| member.device.given().is_read_only()) {
                is_changed = self.acquire_needed(needed, options, &mut left_out).await?;
                is_changed |= self.acquire_others(others, options, &mut left_out).await;
            }
            if !is_changed {
                found.fence(self.fence());
                found.left_out.append(&mut left_out);
                return Ok(found);
            }
            let is_left_out = |device: &Arc<dyn BlockDevice>| {
                left_out.iter().any(|one| Arc::ptr_eq(&one.device, device))
            };
            members.retain(|device| !is_left_out(device));
            spares.retain(|device| !is_left_out(device));
        }
    }

    /// Returns the members that have all data, by the newest label, and the others: a pool opens
    /// without those, and their loss does not fence it.
    fn by_need(&self, found: &Assembly) -> (Vec<PresentMember>, Vec<PresentMember>) {
        let present = found.present().map(|member| PresentMember {
            device: Arc::clone(member.device.given()),
            slot: member.label.slot,
        });
        let (needed, others): (Vec<_>, Vec<_>) = present.partition(|member| {
            found.newest.kind != PoolKind::MIRROR || found.newest.current.contains(member.slot)
        });
        for member in &others {
            self.fence.limits_of(&member.device).fence.set_needed(false);
        }
        (needed, others)
    }

    /// Acquires the members with all data. A degraded mirror opens without one that fails, if
    /// another one was acquired; not without one that another host owns. Returns true if labels
    /// may have changed.
    async fn acquire_needed(
        &self,
        members: Vec<PresentMember>,
        options: &OpenOptions,
        left_out: &mut Vec<LeftOutMember>,
    ) -> Result<bool, PoolError> {
        match self.acquire_all(&devices_of(&members)).await {
            Err(PoolError::Device(_)) if options.is_degraded && members.len() > 1 => {}
            acquired => return acquired,
        }
        let count = members.len();
        let mut failed = Vec::new();
        for member in members {
            match self.acquire(&member.device).await {
                Err(error @ PoolError::Device(_)) => failed.push(LeftOutMember::new(member, error)),
                acquired => drop(acquired?),
            }
        }
        if failed.len() == count {
            return Err(failed.swap_remove(0).error);
        }
        left_out.append(&mut failed);
        Ok(true)
    }

    /// Acquires members that the pool can do without. Returns true if labels may have changed.
    async fn acquire_others(
        &self,
        members: Vec<PresentMember>,
        options: &OpenOptions,
        left_out: &mut Vec<LeftOutMember>,
    ) -> bool {
        let wait = options.mirror.member_wait;
        // Leases that end are waited for together.
        let devices = devices_of(&members);
        let together = self.acquire_all(&devices);
        let together = tokio::time::timeout(self.lease_owner.time + wait, together).await;
        if let Ok(Ok(is_changed)) = together {
            return is_changed;
        }
        for member in members {
            let acquired = tokio::time::timeout(wait, self.acquire(&member.device)).await;
            let late = |_| {
                let what = "it was not acquired in time";
                Err(Error::new(ErrorKind::Medium, member.device.name(), what).into())
            };
            if let Err(error) = acquired.unwrap_or_else(late) {
                self.give_back(&member.device).await;
                left_out.push(LeftOutMember::new(member, error));
            }
        }
        true
    }

    /// Releases a device that does not become a member. A write to it may be in flight.
    pub(crate) async fn give_back(&self, device: &Arc<dyn BlockDevice>) {
        let mut acquired = self.acquired.lock().await;
        if let Some(at) = acquired.iter().position(|one| Arc::ptr_eq(&one.device, device)) {
            let given_back = acquired.swap_remove(at);
            if let Err(error) = given_back.release(false).await {
                tracing::warn!("{} may still be owned: {error}", device.name());
            }
            self.fence.forget(device);
        }
    }

    /// Releases all members. Nothing is read from them or written to them from then on. If
    /// `is_quiet`, no command that writes is in flight.
    ///
    /// # Errors
    /// The first failure; the other members are released all the same.
    pub(crate) async fn release(&self, is_quiet: bool) -> Result<(), Error> {
        let mut released = Ok(());
        let devices = std::mem::take(&mut *self.acquired.lock().await);
        for device in &devices {
            released = released.and(device.release(is_quiet).await);
        }
        if !devices.is_empty() {
            self.fence.lost().set_lost();
        }
        released
    }
}

/// A member whose device is present.
struct PresentMember {
    device: Arc<dyn BlockDevice>,
    slot: u16,
}

fn devices_of(members: &[PresentMember]) -> Vec<Arc<dyn BlockDevice>> {
    members.iter().map(|member| Arc::clone(&member.device)).collect()
}

/// A member without which a pool was opened: it could not be acquired, or its label contradicts the
/// recorded one.
#[derive(Debug)]
pub struct LeftOutMember {
    /// Its device, which the pool does not use.
    pub device: Arc<dyn BlockDevice>,
    /// The reason.
    pub error: PoolError,
    slot: u16,
}

impl LeftOutMember {
    fn new(member: PresentMember, error: PoolError) -> Self {
        let PresentMember { device, slot } = member;
        Self { device, error, slot }
    }

    /// A member whose label does not belong to the pool.
    pub(crate) fn by_label(member: &FoundMember, error: PoolError) -> Self {
        let device = Arc::clone(member.device.given());
        Self { device, error, slot: member.label.slot }
    }

    /// True if the member has all data by now, by a label that another owner has written since.
    fn is_needed_by(&self, newest: &Label) -> bool {
        matches!(self.error, PoolError::OwnedElsewhere { .. }) && newest.current.contains(self.slot)
    }
}

impl AcquiredDevice {
    async fn release(&self, is_quiet: bool) -> Result<(), Error> {
        let ended = match &self.lease {
            Some(lease) => lease.release(is_quiet).await,
            None => Ok(()),
        };
        match self.device.ownership() {
            Some(ownership) if self.lease.is_none() => ownership.release().await,
            _ => ended,
        }
    }
}

/// Refuses a pool that cannot be opened, before another host is fenced for it.
fn check_complete(found: &Assembly, options: &OpenOptions) -> Result<(), PoolError> {
    let kind = found.newest.kind;
    if kind != PoolKind::MIRROR {
        if !options.spares.is_empty() {
            return Err(PoolError::NotAMirror { kind, operation: "use spare devices" });
        }
        return found.require(MemberSet::first(found.newest.member_count));
    }
    if options.is_degraded {
        return Ok(());
    }
    found.require(found.newest.current)
}
