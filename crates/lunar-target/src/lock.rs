//! Locks whose values stay whole when a thread panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, also after a panic of a thread that held it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
