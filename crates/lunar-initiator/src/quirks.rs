//! Deviations of a target from RFC 7143 that its sessions met, kept for the sessions that follow.

use crate::numbering::JoinedEnd;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Sessions that the target ends by closing one of several connections that are at work. After so
/// many it is taken for one that wants commands in the order of their CmdSN (SPDK does), though
/// RFC 7143 §4.2.2.1 has targets put them in order, and commands use one connection from then on.
const ORDER_LOSSES_MAX: usize = 3;
/// Sessions in a row that the target ends with all connections, soon after a further one began to
/// log in. After so many, sessions have one connection.
const JOIN_LOSSES_MAX: usize = 3;
/// A session that ends so soon after a further connection began to log in may end because of it: a
/// target that does not bear one shows it at its login or at its first commands.
const JOIN_LOSS_TIME: Duration = Duration::from_secs(5);
/// Losses count together that lie no farther apart than so long.
const LOSSES_TIME: Duration = Duration::from_secs(600);

/// Deviations of one target from RFC 7143, as far as they were met.
#[derive(Debug, Default)]
pub(crate) struct Quirks {
    lacks_newer_keys: AtomicBool,
    wants_order: AtomicBool,
    /// Of sessions of which the target closed some connections and not all.
    order_losses: Losses,
    bears_one: AtomicBool,
    /// Of sessions that ended soon after a further connection began to log in.
    join_losses: Losses,
    told_of_fewer: AtomicBool,
}

/// When sessions were lost.
#[derive(Debug, Default)]
struct Losses(Mutex<VecDeque<Instant>>);

impl Losses {
    /// Adds a loss; how many lie close together now.
    fn add(&self, now: Instant) -> usize {
        let mut times = self.times();
        while times.pop_front_if(|then| *then + LOSSES_TIME < now).is_some() {}
        times.push_back(now);
        times.len()
    }

    fn clear(&self) {
        self.times().clear();
    }

    fn times(&self) -> MutexGuard<'_, VecDeque<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
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

    /// The target ended a session by closing some of its connections and not all, so it was not
    /// away: it may want commands in order. Logged when it happened once too often.
    pub(crate) fn note_order_loss(&self, portal: &str, now: Instant) {
        if self.order_losses.add(now) < ORDER_LOSSES_MAX
            || self.wants_order.swap(true, Ordering::Relaxed)
        {
            return;
        }
        tracing::warn!(
            portal,
            "the target closed one of several busy connections in {ORDER_LOSSES_MAX} sessions, as \
             targets do that want commands in the order of their CmdSN; commands use one \
             connection of the session from now on"
        );
    }

    /// A session of several connections has ended. A target that ends session after session soon
    /// after a further connection joins does not bear one. Logged when it happened once too often.
    pub(crate) fn note_joined_end(&self, end: JoinedEnd, portal: &str, now: Instant) {
        if end.after >= JOIN_LOSS_TIME {
            return self.join_losses.clear();
        }
        // Counted as a loss of the order, unless commands were in order.
        let counts_as_order = end.spared && !self.wants_order();
        if counts_as_order
            || self.join_losses.add(now) < JOIN_LOSSES_MAX
            || self.bears_one.swap(true, Ordering::Relaxed)
        {
            return;
        }
        tracing::warn!(
            portal,
            "the target ended {JOIN_LOSSES_MAX} sessions in a row soon after a further connection \
             began to log in; sessions have one connection from now on"
        );
    }

    /// The target was away. What was lost before says nothing about several connections.
    pub(crate) fn forget_losses(&self) {
        self.order_losses.clear();
        self.join_losses.clear();
    }

    /// All commands of a session use one connection, so that none overtakes another.
    pub(crate) fn wants_order(&self) -> bool {
        self.wants_order.load(Ordering::Relaxed)
    }

    /// Sessions have one connection, for the target ends those that have more.
    pub(crate) fn bears_one(&self) -> bool {
        self.bears_one.load(Ordering::Relaxed)
    }

    /// Several connections are asked for anew, and are tried anew.
    pub(crate) fn forget_order(&self) {
        self.forget_losses();
        self.bears_one.store(false, Ordering::Relaxed);
        self.wants_order.store(false, Ordering::Relaxed);
        self.told_of_fewer.store(false, Ordering::Relaxed);
    }

    /// `true` for the first time that a session has fewer connections than it should.
    pub(crate) fn tells_of_fewer(&self) -> bool {
        !self.told_of_fewer.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes a session that one closed connection ended; whether the target wants order now.
    fn after_order_loss(quirks: &Quirks, now: Instant) -> bool {
        quirks.note_order_loss("host", now);
        quirks.wants_order()
    }

    /// Goal: a target wants order after that many losses in that time; losses long ago, or of a
    /// target that was away, do not count.
    #[test]
    fn losses_in_a_row_tell_of_order() {
        let begin = Instant::now();
        let (quirks, second) = (Quirks::default(), Duration::from_secs(1));
        for at in 0..10 {
            assert!(!after_order_loss(&quirks, begin + at * (LOSSES_TIME / 2 + second)));
        }
        quirks.forget_losses();
        let begin = begin + 100 * LOSSES_TIME;
        for at in 1..ORDER_LOSSES_MAX as u32 {
            assert!(!after_order_loss(&quirks, begin + at * second));
        }
        assert!(after_order_loss(&quirks, begin + 11 * second));
        quirks.forget_order();
        assert!(!quirks.wants_order() && !after_order_loss(&quirks, begin + 13 * second));
    }

    /// Goal: sessions have one connection after that many ends in a row soon after a further one
    /// joined. A session that lasted, or a target that was away, begins the row anew. An end that
    /// is counted for the order of commands is not counted twice.
    #[test]
    fn ends_after_joins_tell_of_one_connection() {
        let (quirks, now) = (Quirks::default(), Instant::now());
        let soon = JoinedEnd { after: JOIN_LOSS_TIME / 2, spared: false };
        let late = JoinedEnd { after: JOIN_LOSS_TIME, spared: false };
        let after = |end: JoinedEnd| {
            quirks.note_joined_end(end, "host", now);
            quirks.bears_one()
        };
        let in_a_row = |end: JoinedEnd| (0..JOIN_LOSSES_MAX).any(|_| after(end));
        assert!(!in_a_row(late) && !in_a_row(JoinedEnd { spared: true, ..soon }));
        for _ in 0..2 * JOIN_LOSSES_MAX {
            assert!(!after(soon) && !after(late));
            assert!(!after(soon));
            quirks.forget_losses();
        }
        assert!(in_a_row(soon));
        quirks.forget_order();
        assert!(!quirks.bears_one());
        (0..ORDER_LOSSES_MAX).for_each(|_| quirks.note_order_loss("host", now));
        assert!(in_a_row(JoinedEnd { spared: true, ..soon }), "commands were in order");
    }
}
