//! Poison: a sync has failed, and nothing is written until an operator says so.

use std::fmt::Debug;
use std::io;

/// Who is told that a disk is poisoned, and that it is not any more.
pub trait PoisonWatcher: Debug + Send + Sync {
    /// The disk is poisoned. Those who wait for its sync are told when this has returned; it may
    /// block.
    fn poisoned(&self);

    /// The disk can be synced again, and takes writes when this has returned; it may block.
    ///
    /// # Errors
    /// It stays poisoned.
    fn recovering(&self) -> io::Result<()>;
}
