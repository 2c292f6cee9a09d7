//! Rate limiters, at which commands of several sessions on several cores wait.

use super::fair_queue::{OwnerNumber, QueuePosition};
use super::fair_scheduler::{FairScheduler, SchedulerAnswer};
use super::limit::{Cost, InitiatorLimit, Limit, limit_for};
use crate::lock::lock;
use crate::memory::OwnerKey;
use lunar_net::Clock;
use lunar_scsi::share::Origin;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use tokio::time::Sleep;

/// Clock of all limiters: a unit may outlive its server.
static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::start);

/// Number of entries below which limiters that are gone are not searched for.
const KNOWN_LIMITERS_MIN: usize = 64;

/// A limit, and its waiters.
#[derive(Debug, Default)]
pub(super) struct RateLimiter {
    /// True when there is a limit: read without the lock.
    limited: AtomicBool,
    limit: Mutex<Limit>,
    turns: Mutex<FairScheduler>,
}

impl RateLimiter {
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Acquire)
    }

    pub(super) fn limit(&self) -> Limit {
        *lock(&self.limit)
    }

    /// Changes the limit from now on; waiters check again.
    pub(super) fn set(&self, limit: Limit) {
        let mut current = lock(&self.limit);
        if *current == limit {
            return;
        }
        *current = limit;
        self.limited.store(!limit.is_none(), Ordering::Release);
        let waiting = self.turns().set(limit, CLOCK.now());
        waiting.into_iter().for_each(std::task::Waker::wake);
    }

    fn turns(&self) -> MutexGuard<'_, FairScheduler> {
        lock(&self.turns)
    }
}

/// One session's entry at a limiter.
#[derive(Debug)]
pub(super) struct SessionLimiter {
    limiter: Arc<RateLimiter>,
    owner: OwnerNumber,
    /// Amount of the limit's time that the session has had, among the sessions of its owner.
    mark: AtomicU64,
}

impl SessionLimiter {
    /// Adds a session of this owner to a limiter.
    pub(super) fn new(limiter: Arc<RateLimiter>, owner: &OwnerKey) -> Self {
        let owner = limiter.turns().add_session(owner);
        Self { limiter, owner, mark: AtomicU64::new(0) }
    }

    /// Charges `cost` if no waiting is needed.
    pub(super) fn try_pass(&self, cost: Cost) -> bool {
        if !self.limiter.is_limited() {
            return true;
        }
        let mark = self.mark.load(Ordering::Relaxed);
        let admitted = self.limiter.turns().try_admit(self.owner, mark, cost, CLOCK.now());
        if let Some(mark) = admitted {
            self.mark.store(mark, Ordering::Relaxed);
        }
        admitted.is_some()
    }

    /// Waits for the session's turn, and charges `cost`. Nothing is charged if the future is
    /// dropped before.
    pub(super) async fn pass(&self, cost: Cost) {
        if self.try_pass(cost) {
            return;
        }
        let mark = self.mark.load(Ordering::Relaxed);
        let position = self.limiter.turns().enter(self.owner, mark);
        let waiting = WaitingPosition { limiter: &self.limiter, position };
        // This waiter may be ahead of the one that has set its timer.
        waiting.wake_next();
        let mut timer = None;
        let mark = poll_fn(|context| waiting.poll(cost, &mut timer, context)).await;
        self.mark.store(mark, Ordering::Relaxed);
    }
}

impl Drop for SessionLimiter {
    fn drop(&mut self) {
        self.limiter.turns().remove_session(self.owner);
    }
}

/// A position at a limiter, released on drop.
struct WaitingPosition<'a> {
    limiter: &'a RateLimiter,
    position: QueuePosition,
}

impl WaitingPosition<'_> {
    fn poll(
        &self,
        cost: Cost,
        timer: &mut Option<Pin<Box<Sleep>>>,
        context: &mut Context<'_>,
    ) -> Poll<u64> {
        loop {
            let turn = self.limiter.turns().request_turn(
                self.position,
                cost,
                CLOCK.now(),
                context.waker(),
            );
            let time = match turn {
                SchedulerAnswer::Go(mark) => return Poll::Ready(mark),
                SchedulerAnswer::Behind => return Poll::Pending,
                SchedulerAnswer::At(time) => time,
            };
            let Some(instant) = CLOCK.instant(time) else { return Poll::Pending };
            let sleep =
                timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(instant.into())));
            if sleep.deadline() != instant.into() {
                sleep.as_mut().reset(instant.into());
            }
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn wake_next(&self) {
        let next = self.limiter.turns().next();
        next.into_iter().for_each(std::task::Waker::wake);
    }
}

impl Drop for WaitingPosition<'_> {
    fn drop(&mut self) {
        self.limiter.turns().leave(self.position);
        self.wake_next();
    }
}

/// An initiator that a limit applies to.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(crate) struct InitiatorKey {
    /// Initiator name, in lower case.
    pub(crate) name: String,
    /// Origin of an unproven name; `None` if the name is proven. An unproven name counts as another
    /// initiator at each origin: no peer uses up the limit of an initiator by claiming its name
    /// (decision 092).
    pub(crate) origin: Option<Origin>,
}

/// Limiters of the initiators at a target or at a unit, one for all sessions of an initiator.
#[derive(Debug, Default)]
pub(crate) struct InitiatorLimiters {
    state: Mutex<State>,
    limited: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    limits: Vec<InitiatorLimit>,
    limiters: HashMap<InitiatorKey, Weak<RateLimiter>>,
    /// Number of live limiters at the last removal of entries.
    live_at_removal: usize,
}

impl State {
    /// Removes limiters that are gone, once the entries have doubled since the last removal: a
    /// constant cost for each new limiter.
    fn remove_gone(&mut self) {
        if self.limiters.len() < KNOWN_LIMITERS_MIN.max(2 * self.live_at_removal) {
            return;
        }
        self.limiters.retain(|_, limiter| limiter.strong_count() > 0);
        self.live_at_removal = self.limiters.len();
    }
}

impl InitiatorLimiters {
    /// True when some initiator may be limited.
    pub(super) fn is_limited(&self) -> bool {
        self.limited.load(Ordering::Acquire)
    }

    /// The limiter of an initiator.
    pub(super) fn of(&self, initiator: &InitiatorKey) -> Arc<RateLimiter> {
        let mut state = lock(&self.state);
        if let Some(limiter) = state.limiters.get(initiator).and_then(Weak::upgrade) {
            return limiter;
        }
        state.remove_gone();
        let limiter = Arc::new(RateLimiter::default());
        limiter.set(limit_for(&state.limits, &initiator.name));
        state.limiters.insert(initiator.clone(), Arc::downgrade(&limiter));
        limiter
    }

    pub(crate) fn limits(&self) -> Vec<InitiatorLimit> {
        lock(&self.state).limits.clone()
    }

    pub(crate) fn set(&self, limits: Vec<InitiatorLimit>) {
        let mut state = lock(&self.state);
        for (initiator, limiter) in &state.limiters {
            if let Some(limiter) = limiter.upgrade() {
                limiter.set(limit_for(&limits, &initiator.name));
            }
        }
        self.limited.store(!limits.is_empty(), Ordering::Release);
        state.limits = limits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const ONE: Cost = Cost { commands: 1, bytes: 0 };

    fn owner(number: u32) -> OwnerKey {
        OwnerKey::of_address(std::net::Ipv4Addr::from(number).into())
    }

    fn initiator(name: &str, origin: Option<u128>) -> InitiatorKey {
        InitiatorKey { name: name.to_owned(), origin: origin.map(Origin) }
    }

    fn limiter(iops: u64) -> Arc<RateLimiter> {
        let limiter = Arc::new(RateLimiter::default());
        limiter.set(Limit::new(Some(iops), None).unwrap());
        limiter
    }

    /// Goal: waiters are woken by timer, one after the other; no caller has to poll them.
    #[test]
    fn waiters_are_woken() {
        let limiter = limiter(100);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let sessions: Vec<_> = (0..4)
            .map(|number| SessionLimiter::new(Arc::clone(&limiter), &owner(number / 2)))
            .collect();
        runtime.block_on(async {
            let all = sessions.iter().map(|session| async {
                for _ in 0..5 {
                    session.pass(ONE).await;
                }
            });
            futures_util::future::join_all(all).await;
        });
        assert!(limiter.turns().next().is_empty());
    }

    /// Goal: a waiter that is cancelled while its turn is next does not delay the others, and a
    /// waiter goes at once when the limit is lifted.
    #[test]
    fn cancelled_waiters_and_lifted_limits() {
        let limiter = limiter(10);
        let sessions: Vec<_> = (0..3)
            .map(|number| SessionLimiter::new(Arc::clone(&limiter), &owner(number)))
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            assert!(sessions[0].try_pass(Cost { commands: 1000, bytes: 0 }), "then in debt");
            let mut first = Box::pin(sessions[0].pass(ONE));
            assert!((&mut first).now_or_never().is_none());
            let rest = async {
                let other = async {
                    tokio::task::yield_now().await;
                    drop(first);
                    limiter.set(Limit::NONE);
                };
                futures_util::future::join3(sessions[1].pass(ONE), sessions[2].pass(ONE), other)
                    .await
            };
            let patience = std::time::Duration::from_secs(8);
            tokio::time::timeout(patience, rest).await.expect("100 seconds of debt are lifted");
        });
        assert!(sessions[0].try_pass(ONE) && limiter.limit().is_none());
    }

    /// Goal: a limit is fully used and not exceeded, and waiters share it evenly. Method: 20
    /// seconds of a clock that stands still while any task has work to do.
    #[test]
    fn the_rate_is_kept_to_the_command() {
        const SECONDS: u64 = 20;
        let bytes = Limit::new(None, Some(100 << 14)).unwrap();
        for (limit, cost) in [
            (Limit::new(Some(100), None).unwrap(), ONE),
            (bytes, Cost { commands: 1, bytes: 1 << 14 }),
        ] {
            let limiter = Arc::new(RateLimiter::default());
            limiter.set(limit);
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_time().start_paused(true).build().unwrap();
            let admitted: Vec<u64> = runtime.block_on(async {
                let until = tokio::time::Instant::now() + std::time::Duration::from_secs(SECONDS);
                let each = (0..4).map(|number| {
                    pass_until(
                        SessionLimiter::new(Arc::clone(&limiter), &owner(number)),
                        cost,
                        until,
                    )
                });
                futures_util::future::join_all(each).await
            });
            // The burst comes on top, and one command that overdraws the rate.
            let bounds = 100 * SECONDS..=100 * SECONDS + 6;
            assert!(bounds.contains(&admitted.iter().sum()), "{admitted:?} of {limit:?}");
            let (most, least) = (admitted.iter().max().unwrap(), admitted.iter().min().unwrap());
            assert!(most - least <= 6, "{admitted:?} of {limit:?}");
        }
    }

    /// Number of commands of a session that have passed until `until`.
    async fn pass_until(session: SessionLimiter, cost: Cost, until: tokio::time::Instant) -> u64 {
        let mut admitted = 0;
        while tokio::time::timeout_at(until, session.pass(cost)).await.is_ok() {
            admitted += 1;
        }
        admitted
    }

    #[test]
    fn sessions_of_an_initiator_share_a_rate_limiter() {
        let limiters = InitiatorLimiters::default();
        let limit = Limit::new(Some(10), None).unwrap();
        let first = limiters.of(&initiator("iqn.a", None));
        assert!(!first.is_limited() && !limiters.is_limited());
        limiters.set(vec![InitiatorLimit { initiator: Some("iqn.A".into()), limit }]);
        assert!(first.is_limited() && limiters.is_limited());
        assert!(Arc::ptr_eq(&first, &limiters.of(&initiator("iqn.a", None))));
        assert!(!limiters.of(&initiator("iqn.b", None)).is_limited());
        drop(first);
        for number in 0..10_000 {
            limiters.of(&initiator("iqn.c", Some(number)));
        }
        let known = lock(&limiters.state).limiters.len();
        assert!(known <= KNOWN_LIMITERS_MIN, "those without sessions are forgotten: {known}");
        limiters.set(Vec::new());
        assert!(!limiters.is_limited());
    }

    /// Fault: 200 sessions without CHAP that claimed the name of an initiator from another address
    /// left it 25 of the 5,000 commands a second that it may do.
    #[test]
    fn a_claimed_name_does_not_use_the_limit_of_the_initiator() {
        let limiters = InitiatorLimiters::default();
        let limit = Limit::new(Some(10), None).unwrap();
        limiters.set(vec![InitiatorLimit { initiator: None, limit }]);
        let claimed = limiters.of(&initiator("iqn.a", Some(1)));
        let flood = SessionLimiter::new(Arc::clone(&claimed), &owner(1));
        assert!(flood.try_pass(Cost { commands: 1000, bytes: 0 }) && !flood.try_pass(ONE));
        for origin in [Some(2), None] {
            let limiter = limiters.of(&initiator("iqn.a", origin));
            assert!(limiter.is_limited(), "{origin:?} is held to the limit as well");
            assert!(
                SessionLimiter::new(limiter, &owner(2)).try_pass(ONE),
                "{origin:?} is kept waiting"
            );
        }
        let further = SessionLimiter::new(limiters.of(&initiator("iqn.a", Some(1))), &owner(1));
        assert!(!further.try_pass(ONE), "sessions from one address have one limit together");
    }
}
