//! Values that are replaced while they are in use.

use std::sync::{Arc, PoisonError, RwLock};

/// A shared value that can be replaced while it is in use.
#[derive(Debug)]
pub(crate) struct Slot<T>(RwLock<Option<Arc<T>>>);

impl<T> Slot<T> {
    pub(crate) fn new(value: Option<T>) -> Arc<Self> {
        Arc::new(Self(RwLock::new(value.map(Arc::new))))
    }

    /// The current value.
    pub(crate) fn get(&self) -> Option<Arc<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the value for later users.
    pub(crate) fn put(&self, value: T) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(value));
    }
}
