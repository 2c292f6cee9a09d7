//! The ownership of the members of a pool: one host at a time has a pool open.

use crate::assembly::Assembly;
use crate::create::new_mark;
use crate::format::{MemberSet, PoolKind};
use crate::{OpenOptions, PoolError};
use lunar_block::{
    BlockDevice, BufferPool, Error, ErrorKind, OwnershipClaim, OwnershipFence, OwnershipGrant,
};
use std::num::NonZeroU64;
use std::sync::Arc;
use tokio::sync::Mutex;

/// The ownership of the members of an open pool. Members that other hosts cannot reach, or that
/// cannot exclude them, have none.
#[derive(Debug)]
pub(crate) struct PoolOwnership {
    claim: OwnershipClaim,
    /// True for a pool that acquires nothing.
    is_unowned: bool,
    acquired: Mutex<Vec<Arc<dyn BlockDevice>>>,
}

impl PoolOwnership {
    /// Creates the ownership of a pool by the key of `options`, or by a random one. Nothing is
    /// acquired yet.
    pub(crate) fn new(pool: &str, options: &OpenOptions) -> Result<Self, PoolError> {
        let random = || {
            let random = new_mark().map_err(|error| {
                let what = "there are no random numbers";
                Error::new(ErrorKind::Open, pool, what).because(error)
            });
            random.map(|key| NonZeroU64::new(key).unwrap_or(NonZeroU64::MIN))
        };
        let key = options.owner_key.map_or_else(random, Ok)?;
        let OpenOptions { take_over, is_unowned, .. } = *options;
        let claim = OwnershipClaim { key, take_over, fence: Arc::default() };
        Ok(Self { claim, is_unowned, acquired: Mutex::default() })
    }

    pub(crate) fn fence(&self) -> &Arc<OwnershipFence> {
        &self.claim.fence
    }

    /// Acquires a device, if it offers this. Returns true if it was not owned by the pool before.
    ///
    /// # Errors
    /// `OwnedElsewhere` · `Device`.
    pub(crate) async fn acquire(&self, device: &Arc<dyn BlockDevice>) -> Result<bool, PoolError> {
        let ownership = device.ownership().filter(|_| !self.is_unowned);
        let Some(ownership) = ownership else { return Ok(false) };
        let mut acquired = self.acquired.lock().await;
        if acquired.iter().any(|one| Arc::ptr_eq(one, device)) {
            return Ok(false);
        }
        match ownership.acquire(self.claim.clone()).await? {
            OwnershipGrant::Acquired => {
                acquired.push(Arc::clone(device));
                Ok(true)
            }
            OwnershipGrant::OwnedBy(owner) => {
                Err(PoolError::OwnedElsewhere { device: device.name().to_owned(), owner })
            }
            OwnershipGrant::Unsupported => Ok(false),
        }
    }

    /// Finds the members of a pool and acquires them, unless the pool is read-only. A former owner
    /// may have written labels until its members were acquired, so they are read again then.
    pub(crate) async fn find(
        &self,
        members: Vec<Arc<dyn BlockDevice>>,
        options: &OpenOptions,
    ) -> Result<Assembly, PoolError> {
        let buffers = BufferPool::default();
        loop {
            let spares = options.spares.clone();
            let mut found = Assembly::find(members.clone(), spares, &buffers).await?;
            check_complete(&found, options)?;
            let mut is_changed = false;
            let present = || found.present().map(|member| member.device.given());
            let is_read_only = present().any(|device| device.is_read_only());
            if !is_read_only {
                for device in present() {
                    is_changed |= self.acquire(device).await?;
                }
            }
            if !is_changed {
                found.fence(self.fence());
                return Ok(found);
            }
        }
    }

    /// Releases a device that does not become a member.
    pub(crate) async fn give_back(&self, device: &Arc<dyn BlockDevice>) {
        let mut acquired = self.acquired.lock().await;
        if let Some(at) = acquired.iter().position(|one| Arc::ptr_eq(one, device)) {
            let device = acquired.swap_remove(at);
            if let Some(Err(error)) = release(&*device).await {
                tracing::warn!("{} may still be owned: {error}", device.name());
            }
        }
    }

    /// Releases all members. Nothing is read from them or written to them from then on.
    ///
    /// # Errors
    /// The first failure; the other members are released all the same.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        let mut released = Ok(());
        let devices = std::mem::take(&mut *self.acquired.lock().await);
        for device in &devices {
            if let Some(Err(error)) = release(&**device).await {
                released = released.and(Err(error));
            }
        }
        if !devices.is_empty() {
            self.fence().set_lost();
        }
        released
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

async fn release(device: &dyn BlockDevice) -> Option<Result<(), Error>> {
    Some(device.ownership()?.release().await)
}
