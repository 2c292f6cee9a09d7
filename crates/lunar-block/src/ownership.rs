//! Exclusive ownership of a disk that several machines can write to.

use crate::{BoxFuture, Error};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::time::Instant;

/// A mark that an owner has lost the ownership of a device. The devices of an owner have fences of
/// their own which are parts of one: the loss of a device that the owner needs ends the use of all.
#[derive(Debug)]
pub struct OwnershipFence {
    is_lost: AtomicBool,
    /// True if a loss ends the use of the whole.
    is_needed: AtomicBool,
    whole: Option<Arc<OwnershipFence>>,
}

impl Default for OwnershipFence {
    fn default() -> Self {
        Self { is_lost: AtomicBool::new(false), is_needed: AtomicBool::new(true), whole: None }
    }
}

impl OwnershipFence {
    /// Creates the fence of one device of an owner, which needs the device at first.
    pub fn part_of(whole: &Arc<Self>) -> Self {
        Self { whole: Some(Arc::clone(whole)), ..Self::default() }
    }

    /// Records the loss. Called before the first command fails because of it.
    pub fn set_lost(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
        self.pass_on();
    }

    /// Records whether the owner needs the device: one that it can do without ends only its own use
    /// when it is lost. A loss before counts from now on.
    pub fn set_needed(&self, is_needed: bool) {
        self.is_needed.store(is_needed, Ordering::SeqCst);
        self.pass_on();
    }

    fn pass_on(&self) {
        let counts = self.is_needed.load(Ordering::SeqCst) && self.is_lost.load(Ordering::SeqCst);
        if let Some(whole) = self.whole.as_ref().filter(|_| counts) {
            whole.set_lost();
        }
    }

    /// Returns true when the device may not be used any more: it was lost, or another one without
    /// which the owner cannot continue.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::SeqCst)
            || self.whole.as_ref().is_some_and(|whole| whole.is_lost())
    }
}

/// The time until which an owner may write to a disk that does not exclude others by itself, by the
/// monotonic clock of this machine. A new one has no limit.
#[derive(Debug)]
pub struct WriteLease {
    start: Instant,
    /// Nanoseconds from `start`.
    until_nanos: AtomicU64,
}

/// No limit.
const UNLIMITED: u64 = u64::MAX;

impl Default for WriteLease {
    fn default() -> Self {
        Self { start: Instant::now(), until_nanos: AtomicU64::new(UNLIMITED) }
    }
}

impl WriteLease {
    /// Returns true when nothing may be written for now.
    #[inline]
    pub fn is_over(&self) -> bool {
        match self.until_nanos.load(Ordering::SeqCst) {
            UNLIMITED => false,
            until => self.nanos(Instant::now()) >= until,
        }
    }

    /// Permits writes until then.
    pub fn set_until(&self, until: Instant) {
        self.until_nanos.store(self.nanos(until).min(UNLIMITED - 1), Ordering::SeqCst);
    }

    /// Permits no writes until the next call of [`set_until`](Self::set_until).
    pub fn end(&self) {
        self.until_nanos.store(0, Ordering::SeqCst);
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos()).unwrap_or(UNLIMITED)
    }
}

/// A request for the ownership of a disk.
#[derive(Clone, Debug)]
pub struct OwnershipClaim {
    /// The key of the owner, which its upper 32 bits name. A disk that is owned by this key
    /// already, from a former run of the owner, is taken over without a question.
    pub key: NonZeroU64,
    /// True to take the disk over from another owner, which cannot write from then on.
    pub take_over: bool,
    /// The fence of the device, in which a loss is recorded.
    pub fence: Arc<OwnershipFence>,
}

/// The result of a request for ownership.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OwnershipGrant {
    /// The disk is owned. Only its owner can write.
    Acquired,
    /// Another owner, of this name, has the disk; nothing was changed.
    OwnedBy(String),
    /// The disk has no means to exclude others; nothing was changed. If its target knows COMPARE
    /// AND WRITE, the disk offers [`compare_and_write`](crate::BlockDevice::compare_and_write) now.
    Unsupported,
}

/// Operations of a disk that excludes the writes of all other machines for its owner.
///
/// The disk itself enforces the ownership: the former owner of a disk that was taken over cannot
/// write, even if it does not know of the loss. From the discovery of a loss on, all commands fail
/// with [`ErrorKind::Fenced`](crate::ErrorKind::Fenced), and the fence of the claim is set.
pub trait ExclusiveOwnership: Send + Sync {
    /// Acquires the ownership. No command that writes may be in flight.
    ///
    /// # Errors
    /// `Fenced` if the ownership was lost before: the disk must be opened again · `Disconnected` ·
    /// `Medium` for an answer that cannot be understood. The disk may be owned by the key after an
    /// error; another call with the same key succeeds then.
    fn acquire(&self, claim: OwnershipClaim) -> BoxFuture<'_, Result<OwnershipGrant, Error>>;

    /// Asks the disk whether it is still owned. Does nothing for a disk that was not acquired.
    ///
    /// # Errors
    /// `Fenced` if the ownership is lost · `Disconnected` · `Medium`.
    fn check(&self) -> BoxFuture<'_, Result<(), Error>>;

    /// Sets or removes the lease of a disk that does not support ownership: a write is not sent,
    /// and not sent again in another session, while its lease is over. COMPARE AND WRITE is sent,
    /// because it renews the lease.
    fn set_lease(&self, _lease: Option<Arc<WriteLease>>) {}

    /// Releases the ownership, so that another owner can acquire the disk. A disk that was fenced
    /// stays fenced. Does nothing if another owner has the disk by now.
    ///
    /// # Errors
    /// `Disconnected`, `Medium`: the disk may still be owned.
    fn release(&self) -> BoxFuture<'_, Result<(), Error>>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Goal: the loss of a device ends the use of the others if the owner needs it, also when it is
    /// needed only later; otherwise only its own.
    #[test]
    fn a_loss_counts_where_the_device_is_needed() {
        let whole = Arc::<OwnershipFence>::default();
        let [stale, current, other] = [0; 3].map(|_| OwnershipFence::part_of(&whole));
        stale.set_needed(false);
        stale.set_lost();
        assert!(stale.is_lost() && !current.is_lost() && !whole.is_lost());
        current.set_lost();
        assert!(whole.is_lost() && other.is_lost());
        let whole = Arc::<OwnershipFence>::default();
        let copied = OwnershipFence::part_of(&whole);
        copied.set_needed(false);
        copied.set_lost();
        copied.set_needed(true);
        assert!(whole.is_lost());
    }

    /// Goal: a lease has no limit at first; it is over at its end, and not before; an end in the
    /// past, and a distant one, are no surprise.
    #[tokio::test(start_paused = true)]
    async fn a_lease_ends() {
        let lease = WriteLease::default();
        assert!(!lease.is_over());
        lease.set_until(Instant::now() + Duration::from_secs(2));
        tokio::time::advance(Duration::from_millis(1999)).await;
        assert!(!lease.is_over());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(lease.is_over());
        lease.set_until(Instant::now() + Duration::from_secs(1 << 32));
        assert!(!lease.is_over());
        lease.set_until(Instant::now() - Duration::from_secs(1));
        assert!(lease.is_over());
        lease.set_until(Instant::now() + Duration::from_secs(1));
        lease.end();
        assert!(lease.is_over());
    }
}
