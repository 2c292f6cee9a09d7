//! Exclusive ownership of a disk that several machines can write to.

use crate::{BoxFuture, Error};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::time::Instant;

/// A mark that an owner has lost the ownership of one of its devices. All devices of an owner
/// share one fence: the loss of one device ends the use of all.
#[derive(Debug, Default)]
pub struct OwnershipFence(AtomicBool);

impl OwnershipFence {
    /// Records the loss. Called before the first command fails because of it.
    pub fn set_lost(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns true when the ownership of a device was lost.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.0.load(Ordering::SeqCst)
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
    /// The fence of the owner, in which a loss is recorded.
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
