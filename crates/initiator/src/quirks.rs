//! Deviations of a target from RFC 7143 that its sessions met, kept for the sessions that follow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Sessions that the target ends by closing one of several connections that are at work. After so
/// many it is taken for one that wants commands in the order of their CmdSN (SPDK does), though
/// RFC 7143 §4.2.2.1 has targets put them in order, and commands use one connection from then on.
pub(crate) const ORDER_LOSSES_MAX: usize = 3;
/// Losses count together that lie no farther apart than so long.
const ORDER_LOSSES_TIME: Duration = Duration::from_secs(600);

/// Deviations of one target from RFC 7143, as far as they were met.
#[derive(Debug, Default)]
pub(crate) struct Quirks {
    lacks_newer_keys: AtomicBool,
    wants_order: AtomicBool,
    /// When sessions were lost of which the target closed some connections and not all.
    losses: Mutex<VecDeque<Instant>>,
    told_of_fewer: AtomicBool,
}

impl Quirks {
    /// The target closed two connections in a row over TaskReporting and iSCSIProtocolLevel, and
    /// let us in without them.
    pub(crate) fn note_unknown_newer_keys(&self) {
        self.lacks_newer_keys.store(true, Ordering::Relaxed);
    }

    /// A login has failed: the keys are offered to the next one anew.
    pub(crate) fn forget_unknown_newer_keys(&self) {
        self.lacks_newer_keys.store(false, Ordering::Relaxed);
    }

    /// Whether TaskReporting and iSCSIProtocolLevel are left out.
    pub(crate) fn lacks_newer_keys(&self) -> bool {
        self.lacks_newer_keys.load(Ordering::Relaxed)
    }

    /// The target ended a session by closing some of its connections and not all; `true`: once too
    /// often.
    pub(crate) fn note_loss(&self, now: Instant) -> bool {
        let mut losses = self.losses();
        while losses.pop_front_if(|then| *then + ORDER_LOSSES_TIME < now).is_some() {}
        losses.push_back(now);
        losses.len() >= ORDER_LOSSES_MAX && !self.wants_order.swap(true, Ordering::Relaxed)
    }

    /// The target was away. What was lost before says nothing about the order of commands.
    pub(crate) fn forget_losses(&self) {
        self.losses().clear();
    }

    /// All commands of a session use one connection, so that none overtakes another.
    pub(crate) fn wants_order(&self) -> bool {
        self.wants_order.load(Ordering::Relaxed)
    }

    /// Several connections are asked for anew, and are tried anew.
    pub(crate) fn forget_order(&self) {
        self.forget_losses();
        self.wants_order.store(false, Ordering::Relaxed);
        self.told_of_fewer.store(false, Ordering::Relaxed);
    }

    /// `true` for the first time that a session has fewer connections than it should.
    pub(crate) fn tells_of_fewer(&self) -> bool {
        !self.told_of_fewer.swap(true, Ordering::Relaxed)
    }

    fn losses(&self) -> MutexGuard<'_, VecDeque<Instant>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a target wants order after that many losses in that time, which is told once; losses
    /// long ago, or of a target that was away, do not count.
    #[test]
    fn losses_in_a_row_tell_of_order() {
        let begin = Instant::now();
        let (quirks, second) = (Quirks::default(), Duration::from_secs(1));
        for at in 0..10 {
            assert!(!quirks.note_loss(begin + at * (ORDER_LOSSES_TIME / 2 + second)));
        }
        quirks.forget_losses();
        let begin = begin + 100 * ORDER_LOSSES_TIME;
        for at in 1..ORDER_LOSSES_MAX as u32 {
            assert!(!quirks.note_loss(begin + at * second));
        }
        assert!(!quirks.wants_order());
        assert!(quirks.note_loss(begin + 11 * second));
        assert!(quirks.wants_order());
        assert!(!quirks.note_loss(begin + 12 * second), "told once");
        quirks.forget_order();
        assert!(!quirks.wants_order() && !quirks.note_loss(begin + 13 * second));
    }
}
