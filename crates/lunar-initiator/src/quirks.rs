//! Deviations of a target from RFC 7143 found in its sessions, kept for later sessions.

use crate::shared_session_state::MultiConnectionEnd;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Number of sessions that the target ended by closing one of several busy connections, after which
/// it is assumed to require commands in the order of their CmdSN (SPDK does), although RFC 7143
/// §4.2.2.1 requires targets to order them. Commands then use one connection.
const ORDER_LOSSES_MAX: usize = 3;
/// Number of sessions in a row that the target ended with all connections soon after a further one
/// began to log in, after which sessions have one connection.
const JOIN_LOSSES_MAX: usize = 3;
/// Time within which the end of a session is attributed to a further connection: a target that does
/// not support one fails at its login or at its first commands.
const JOIN_LOSS_TIME: Duration = Duration::from_secs(5);
/// Time within which losses count together.
const LOSSES_TIME: Duration = Duration::from_secs(600);

/// Deviations of one target from RFC 7143.
#[derive(Debug, Default)]
pub(crate) struct Quirks {
    lacks_newer_keys: AtomicBool,
    needs_single_connection: AtomicBool,
    /// Lost sessions in which the target closed some but not all connections.
    sessions_lost_by_order: Losses,
    one_connection_only: AtomicBool,
    /// Sessions that were lost soon after a further connection began to log in.
    sessions_lost_by_join: Losses,
    has_reported_fewer_connections: AtomicBool,
}

/// Times at which sessions were lost.
#[derive(Debug, Default)]
struct Losses(Mutex<VecDeque<Instant>>);

impl Losses {
    /// Adds a loss; returns the number of recent losses.
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
    /// Records that the target closed two connections in a row over TaskReporting and
    /// iSCSIProtocolLevel, and accepted a login without them.
    pub(crate) fn note_unknown_newer_keys(&self) {
        self.lacks_newer_keys.store(true, Ordering::Relaxed);
    }

    /// Offers the keys again in the next login, after a login has failed.
    pub(crate) fn forget_unknown_newer_keys(&self) {
        self.lacks_newer_keys.store(false, Ordering::Relaxed);
    }

    /// True when TaskReporting and iSCSIProtocolLevel are left out.
    pub(crate) fn lacks_newer_keys(&self) -> bool {
        self.lacks_newer_keys.load(Ordering::Relaxed)
    }

    /// Records that the target ended a session by closing some of its connections and not all, so
    /// it was not down: it may require commands in order. Logs a warning when the limit is reached.
    pub(crate) fn note_order_loss(&self, portal: &str, now: Instant) {
        if self.sessions_lost_by_order.add(now) < ORDER_LOSSES_MAX
            || self.needs_single_connection.swap(true, Ordering::Relaxed)
        {
            return;
        }
        tracing::warn!(
            portal,
            "the target closed one of several busy connections in {ORDER_LOSSES_MAX} sessions, \
             like targets that require commands in CmdSN order; from now on commands use one \
             connection of the session"
        );
    }

    /// Records the end of a session of several connections. A target that repeatedly ends sessions
    /// soon after a further connection joins does not support several connections. Logs a warning
    /// when the limit is reached.
    pub(crate) fn note_multi_connection_end(
        &self,
        end: MultiConnectionEnd,
        portal: &str,
        now: Instant,
    ) {
        if end.after >= JOIN_LOSS_TIME {
            return self.sessions_lost_by_join.clear();
        }
        // Counted as an order loss, unless commands were in order.
        let counts_as_order = end.others_open && !self.needs_single_connection();
        if counts_as_order
            || self.sessions_lost_by_join.add(now) < JOIN_LOSSES_MAX
            || self.one_connection_only.swap(true, Ordering::Relaxed)
        {
            return;
        }
        tracing::warn!(
            portal,
            "the target ended {JOIN_LOSSES_MAX} sessions in a row soon after the login of a \
             further connection began; from now on sessions have one connection"
        );
    }

    /// Clears the losses: the target was down, so they say nothing about several connections.
    pub(crate) fn forget_losses(&self) {
        self.sessions_lost_by_order.clear();
        self.sessions_lost_by_join.clear();
    }

    /// True when all commands of a session use one connection, so that none overtakes another.
    pub(crate) fn needs_single_connection(&self) -> bool {
        self.needs_single_connection.load(Ordering::Relaxed)
    }

    /// True when sessions have one connection, because the target ends sessions with more.
    pub(crate) fn one_connection_only(&self) -> bool {
        self.one_connection_only.load(Ordering::Relaxed)
    }

    /// Forgets the limits on connections, when the caller sets their number again.
    pub(crate) fn reset_connection_limits(&self) {
        self.forget_losses();
        self.one_connection_only.store(false, Ordering::Relaxed);
        self.needs_single_connection.store(false, Ordering::Relaxed);
        self.has_reported_fewer_connections.store(false, Ordering::Relaxed);
    }

    /// True the first time that a session has fewer connections than it should.
    pub(crate) fn should_report_fewer_connections(&self) -> bool {
        !self.has_reported_fewer_connections.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records a session that ended because the target closed one of its connections. Returns true
    /// if order is required now.
    fn after_order_loss(quirks: &Quirks, now: Instant) -> bool {
        quirks.note_order_loss("host", now);
        quirks.needs_single_connection()
    }

    /// Goal: order is required after `ORDER_LOSSES_MAX` losses within `LOSSES_TIME`; older losses,
    /// and losses of a target that was down, do not count.
    #[test]
    fn repeated_losses_restrict_commands_to_one_connection() {
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
        quirks.reset_connection_limits();
        assert!(
            !quirks.needs_single_connection() && !after_order_loss(&quirks, begin + 13 * second)
        );
    }

    /// Goal: sessions have one connection after `JOIN_LOSSES_MAX` consecutive sessions ended soon
    /// after a further connection joined. A longer session, or a target that was down, restarts the
    /// count. An end that is counted for the order of commands is not counted twice.
    #[test]
    fn repeated_ends_after_joins_restrict_sessions_to_one_connection() {
        let (quirks, now) = (Quirks::default(), Instant::now());
        let soon = MultiConnectionEnd { after: JOIN_LOSS_TIME / 2, others_open: false };
        let late = MultiConnectionEnd { after: JOIN_LOSS_TIME, others_open: false };
        let after = |end: MultiConnectionEnd| {
            quirks.note_multi_connection_end(end, "host", now);
            quirks.one_connection_only()
        };
        let in_a_row = |end: MultiConnectionEnd| (0..JOIN_LOSSES_MAX).any(|_| after(end));
        assert!(!in_a_row(late) && !in_a_row(MultiConnectionEnd { others_open: true, ..soon }));
        for _ in 0..2 * JOIN_LOSSES_MAX {
            assert!(!after(soon) && !after(late));
            assert!(!after(soon));
            quirks.forget_losses();
        }
        assert!(in_a_row(soon));
        quirks.reset_connection_limits();
        assert!(!quirks.one_connection_only());
        (0..ORDER_LOSSES_MAX).for_each(|_| quirks.note_order_loss("host", now));
        assert!(
            in_a_row(MultiConnectionEnd { others_open: true, ..soon }),
            "commands were in order"
        );
    }
}
