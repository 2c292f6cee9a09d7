//! Exclusive ownership of a disk by a persistent reservation: Write Exclusive – Registrants Only.
//!
//! All paths of the owner are registered with one key, and no other initiator is. The upper half of
//! the key names the owner, the lower half is new for each acquisition: a former run of the owner
//! that still exists finds that the disk is not its own any more. A path is registered when its
//! unit is verified: before its first command, in each new session, and after each unit attention.
//! Registrations belong to initiator ports, so they outlive a session. After a restart of a target
//! that has forgotten them, the disk is reserved again only if no other initiator was registered
//! since.

use super::RemoteDisk;
use crate::commands::{Unit, is_illegal};
use crate::paths::DiskPath;
use crate::persistent_reservations::{OWNER_TYPE, Registrations, is_conflict};
use crate::recovery::RetryDeadline;
use crate::session::Session;
use crate::target_connector::no_random;
use crate::{Error, ErrorKind, Reservation};
use arc_swap::ArcSwapOption;
use futures_util::FutureExt;
use lunar_block::{
    BoxFuture, ExclusiveOwnership, OwnershipClaim, OwnershipFence, OwnershipGrant, WriteLease,
};
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Maximum number of attempts to acquire a disk while others change its registrations.
const ATTEMPTS_MAX: u32 = 8;

/// The ownership of a disk.
#[derive(Debug, Default)]
pub(super) struct DiskOwnership {
    held: ArcSwapOption<HeldOwnership>,
    /// The lease of a disk whose target has no reservations.
    lease: ArcSwapOption<WriteLease>,
    /// Held while registrations are changed.
    exchange: tokio::sync::Mutex<()>,
}

/// An ownership that was acquired.
#[derive(Debug)]
pub(super) struct HeldOwnership {
    key: u64,
    fence: Arc<OwnershipFence>,
    /// True if the registrations survive a restart of the target.
    persists: bool,
    /// PRGENERATION after the last registration of a path.
    generation: AtomicU32,
}

/// Bits of a key that name the owner.
const OWNER_BITS: u64 = 0xffff_ffff_0000_0000;

/// Result of one attempt to acquire a disk.
enum AcquireAttempt {
    Ended(OwnershipGrant),
    /// Another initiator changed the registrations meanwhile.
    Disturbed,
}

impl DiskOwnership {
    pub(super) fn held(&self) -> Option<Arc<HeldOwnership>> {
        self.held.load_full()
    }

    /// True if the disk has an owner, by registrations or by a lease.
    pub(super) fn has_owner(&self) -> bool {
        self.held.load().is_some() || self.lease.load().is_some()
    }

    /// True if nothing was acquired or released since `held` was returned.
    pub(super) fn is_still(&self, held: &Option<Arc<HeldOwnership>>) -> bool {
        let now = self.held.load();
        now.as_ref().map(Arc::as_ptr) == held.as_ref().map(Arc::as_ptr)
    }
}

impl HeldOwnership {
    fn is_own(&self, reservation: Option<Reservation>) -> bool {
        is_of(self.key, reservation)
    }

    /// True if a unit without a reservation has forgotten this one in a restart, and no other
    /// initiator has registered since: the unit has had no registrations since its start, or only
    /// own ones. A unit that keeps reservations forgets none: another initiator has ended this one.
    fn is_forgotten(&self, now: &Registrations) -> bool {
        match now.keys.is_empty() {
            _ if self.persists => false,
            true => now.generation == 0,
            false => {
                now.keys.iter().all(|key| *key == self.key)
                    && now.generation == self.generation.load(Ordering::Relaxed)
            }
        }
    }
}

/// Returns the key of one acquisition by an owner.
fn new_key(owner: NonZeroU64) -> Result<u64, Error> {
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(no_random)?;
    Ok((owner.get() & OWNER_BITS | u64::from(u32::from_be_bytes(random))).max(1))
}

fn is_same_owner(one: u64, other: u64) -> bool {
    one & OWNER_BITS == other & OWNER_BITS
}

fn is_of(key: u64, reservation: Option<Reservation>) -> bool {
    reservation == Some(Reservation { key, kind: OWNER_TYPE.0 })
}

impl RemoteDisk {
    /// Fails if the ownership was lost.
    pub(super) fn refuse_fenced(&self) -> Result<(), Error> {
        match &*self.ownership.held.load() {
            Some(held) if held.fence.is_lost() => Err(self.fenced()),
            _ => Ok(()),
        }
    }

    /// Fails if the disk has a lease and it is over: another owner may write by now.
    pub(super) fn refuse_without_lease(&self) -> Result<(), Error> {
        match &*self.ownership.lease.load() {
            Some(lease) if lease.is_over() => {
                let what = format!("{}: its lease is over; nothing is written", self.name);
                Err(Error::new(ErrorKind::NotSent, what))
            }
            _ => Ok(()),
        }
    }

    fn fenced(&self) -> Error {
        let what = format!("{}: another owner has taken over the disk", self.name);
        Error::new(ErrorKind::Fenced, what).hint("nothing is read or written any more")
    }

    /// Returns the ownership that a reservation conflict makes doubtful.
    pub(super) fn doubted_by(&self, error: &Error) -> Option<Arc<HeldOwnership>> {
        self.ownership.held().filter(|_| is_conflict(error))
    }

    /// Verifies an ownership after a reservation conflict on this path: the answer alone proves
    /// nothing, the reservation and the keys do.
    ///
    /// # Errors
    /// `Fenced` if it is lost · no time is left.
    pub(super) async fn resolve_doubt(
        &self,
        held: &Arc<HeldOwnership>,
        (path, session): (&DiskPath, &Session),
        deadline: &mut RetryDeadline,
    ) -> Result<(), Error> {
        match self.confirm_ownership(&path.unit.in_session(session), held).await {
            Err(error) if error.is_lost() => {
                path.forget_verification();
                deadline.lost(error).map(drop)
            }
            confirmed => confirmed,
        }
    }

    fn lose(&self, held: &HeldOwnership) -> Error {
        if !held.fence.is_lost() {
            tracing::error!(disk = &*self.name, "the disk was taken over by another owner");
        }
        held.fence.set_lost();
        self.fenced()
    }

    /// Verifies that the disk is still owned, and that the path of `unit` is registered, before the
    /// path is used.
    pub(super) async fn confirm_ownership(
        &self,
        unit: &Unit,
        held: &Arc<HeldOwnership>,
    ) -> Result<(), Error> {
        let _exchange = self.ownership.exchange.lock().await;
        self.refuse_fenced()?;
        if !self.ownership.is_still(&Some(Arc::clone(held))) {
            return Ok(()); // released meanwhile
        }
        match self.renew(unit, held).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.lose(held)),
            Err(error) if is_conflict(&error) => {
                match held.is_own(unit.held_reservation().await?) {
                    true => Err(error),
                    false => Err(self.lose(held)),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Registers a path of the owner. Returns `false` if another initiator owns the disk or may
    /// have owned it meanwhile.
    async fn renew(&self, unit: &Unit, held: &HeldOwnership) -> Result<bool, Error> {
        let before = unit.registrations().await?;
        let reservation = unit.held_reservation().await?;
        let is_forgotten = reservation.is_none() && held.is_forgotten(&before);
        if !held.is_own(reservation) && !is_forgotten {
            return Ok(false);
        }
        unit.register_key(held.key, held.persists).await?;
        let registered = unit.registrations().await?;
        held.generation.store(registered.generation, Ordering::Relaxed);
        if is_forgotten {
            tracing::warn!(disk = &*self.name, "the target has lost the reservation; renewed");
            match unit.reserve(held.key).await {
                Err(error) if is_conflict(&error) => {}
                reserved => reserved?,
            }
        }
        // Another initiator may have taken the disk over before this path was registered: then it
        // does not know of the registration.
        let is_own = held.is_own(unit.held_reservation().await?);
        if !is_own {
            unit.unregister().await?;
        }
        Ok(is_own)
    }

    fn unit_in(&self, session: &Session) -> Unit {
        self.unit.in_session(session)
    }

    async fn acquire_ownership(&self, claim: OwnershipClaim) -> Result<OwnershipGrant, Error> {
        if self.ownership.held().is_some() {
            self.refuse_fenced()?;
            return Ok(OwnershipGrant::OwnedBy("another user in this process".to_owned()));
        }
        let key = new_key(claim.key)?;
        let mut deadline = self.unit.initiator().retry_deadline();
        for _ in 0..ATTEMPTS_MAX {
            let session = Box::pin(self.verified_session(&mut deadline)).await?;
            let unit = self.unit_in(&session);
            let exchange = self.ownership.exchange.lock().await;
            let attempt = self.try_acquire(&unit, &claim, key).await;
            drop(exchange);
            match attempt {
                Ok(AcquireAttempt::Ended(OwnershipGrant::Unsupported)) => {
                    self.offer_compare_and_write().await;
                    return Ok(OwnershipGrant::Unsupported);
                }
                Ok(AcquireAttempt::Ended(grant)) => return Ok(grant),
                Ok(AcquireAttempt::Disturbed) => {}
                // An outcome that is unknown is seen by the next attempt.
                Err(error) if error.is_lost() => drop(deadline.lost(error)?),
                Err(error) => {
                    let _ = unit.unregister().await;
                    return Err(error);
                }
            }
        }
        let what = format!("{}: other initiators change its reservations endlessly", self.name);
        Err(Error::new(ErrorKind::Refused, what).hint("try again later"))
    }

    async fn try_acquire(
        &self,
        unit: &Unit,
        claim: &OwnershipClaim,
        key: u64,
    ) -> Result<AcquireAttempt, Error> {
        let held = match unit.held_reservation().await {
            Err(error) if is_illegal(&error) => {
                return Ok(AcquireAttempt::Ended(OwnershipGrant::Unsupported));
            }
            held => held?,
        };
        if let Some(other) = held.filter(|other| !is_same_owner(other.key, key) && !claim.take_over)
        {
            let owner = unit.holder_name(other).await;
            return Ok(AcquireAttempt::Ended(OwnershipGrant::OwnedBy(owner)));
        }
        let persists = unit.keeps_reservations().await?;
        let persists = unit.register_key(key, persists).await?;
        let taken = match held {
            Some(other) => unit.preempt(key, other.key).await,
            None => unit.reserve(key).await,
        };
        match taken {
            Err(error) if is_conflict(&error) => {
                unit.unregister().await?;
                return Ok(AcquireAttempt::Disturbed);
            }
            taken => taken?,
        }
        let generation = self.evict_others(unit, key).await?.into();
        if !is_of(key, unit.held_reservation().await?) {
            unit.unregister().await?;
            return Ok(AcquireAttempt::Disturbed);
        }
        let fence = Arc::clone(&claim.fence);
        let held = HeldOwnership { key, fence, persists, generation };
        self.ownership.held.store(Some(Arc::new(held)));
        // The other paths are registered when they are verified.
        self.paths.forget_verifications();
        Ok(AcquireAttempt::Ended(OwnershipGrant::Acquired))
    }

    /// Removes the registrations of all others: with this type of reservation each registrant may
    /// write, also one that has reserved nothing. Returns PRGENERATION.
    async fn evict_others(&self, unit: &Unit, key: u64) -> Result<u32, Error> {
        let keys: BTreeSet<u64> = unit.registrations().await?.keys.into_iter().collect();
        for other in keys.into_iter().filter(|other| *other != key) {
            if !is_same_owner(other, key) {
                let name = unit.registrant_name(other).await;
                tracing::warn!(
                    disk = &*self.name,
                    "{name} was registered, which would let it write; its registration is removed"
                );
            }
            match unit.preempt(key, other).await {
                // The other one has left.
                Err(error) if is_conflict(&error) => {}
                evicted => evicted?,
            }
        }
        Ok(unit.registrations().await?.generation)
    }

    async fn check_ownership(&self) -> Result<(), Error> {
        let Some(held) = self.ownership.held() else { return Ok(()) };
        let mut deadline = self.unit.initiator().retry_deadline();
        loop {
            let session = Box::pin(self.verified_session(&mut deadline)).await?;
            match self.confirm_ownership(&self.unit_in(&session), &held).await {
                Err(error) if error.is_lost() => drop(deadline.lost(error)?),
                confirmed => return confirmed,
            }
        }
    }

    async fn release_ownership(&self) -> Result<(), Error> {
        let Some(held) = self.ownership.held() else { return Ok(()) };
        if held.fence.is_lost() {
            // Another device of the owner may be the lost one.
            let up = |path: &Arc<DiskPath>| path.unit.initiator().session_now();
            if let Some(session) = self.paths.all().iter().find_map(up) {
                let _ = self.unit_in(&session).clear_registrations(held.key).await;
            }
            return Ok(());
        }
        let mut deadline = self.unit.initiator().retry_deadline();
        loop {
            let session = match Box::pin(self.verified_session(&mut deadline)).await {
                Err(error) if error.kind == ErrorKind::Fenced => return Ok(()),
                session => session?,
            };
            let _exchange = self.ownership.exchange.lock().await;
            match self.unit_in(&session).clear_registrations(held.key).await {
                Err(error) if error.is_lost() => {
                    deadline.lost(error)?;
                    continue;
                }
                // Another owner has the disk by now.
                Err(error) if is_conflict(&error) => {}
                cleared => cleared?,
            }
            self.ownership.held.store(None);
            self.paths.forget_verifications();
            return Ok(());
        }
    }
}

impl ExclusiveOwnership for RemoteDisk {
    fn acquire(
        &self,
        claim: OwnershipClaim,
    ) -> BoxFuture<'_, Result<OwnershipGrant, lunar_block::Error>> {
        async move { self.acquire_ownership(claim).await.map_err(|e| self.failed(None, e)) }.boxed()
    }

    fn check(&self) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        async move { self.check_ownership().await.map_err(|error| self.failed(None, error)) }
            .boxed()
    }

    fn set_lease(&self, lease: Option<Arc<WriteLease>>) {
        self.ownership.lease.store(lease);
    }

    fn release(&self) -> BoxFuture<'_, Result<(), lunar_block::Error>> {
        async move { self.release_ownership().await.map_err(|error| self.failed(None, error)) }
            .boxed()
    }
}
