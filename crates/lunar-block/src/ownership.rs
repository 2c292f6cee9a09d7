//! Exclusive ownership of a disk that several machines can write to.

use crate::{BoxFuture, Error};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// The disk has no means to exclude others; nothing was changed.
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

    /// Releases the ownership, so that another owner can acquire the disk. A disk that was fenced
    /// stays fenced. Does nothing if another owner has the disk by now.
    ///
    /// # Errors
    /// `Disconnected`, `Medium`: the disk may still be owned.
    fn release(&self) -> BoxFuture<'_, Result<(), Error>>;
}
