//! Poison: after a failed sync, writes are refused until an operator recovers the disk.

use std::fmt::Debug;
use std::io;

/// A watcher that is notified when a disk becomes poisoned and when it recovers.
pub trait PoisonWatcher: Debug + Send + Sync {
    /// Called when the disk is poisoned. Requests that wait for its sync fail after this call has
    /// returned; the call may block.
    fn poisoned(&self);

    /// Called when the disk can be synced again; it takes writes after this call has returned. The
    /// call may block.
    ///
    /// # Errors
    /// The disk stays poisoned.
    fn recovering(&self) -> io::Result<()>;
}
