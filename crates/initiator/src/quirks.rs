//! What the sessions of an initiator have found out about their target, kept for those that follow.

use std::sync::atomic::{AtomicBool, Ordering};

/// What a target does not do as RFC 7143 has it, as far as that was met.
#[derive(Debug, Default)]
pub(crate) struct Quirks {
    lacks_newer_keys: AtomicBool,
}

impl Quirks {
    /// The target closes the connection over TaskReporting and iSCSIProtocolLevel, and lets us in
    /// without them.
    pub(crate) fn note_unknown_newer_keys(&self) {
        self.lacks_newer_keys.store(true, Ordering::Relaxed);
    }

    /// Those keys are not to be named.
    pub(crate) fn lacks_newer_keys(&self) -> bool {
        self.lacks_newer_keys.load(Ordering::Relaxed)
    }
}
